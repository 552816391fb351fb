"""Records a function as a graph: it runs once on values that note each operation on them."""

from . import functions, ufuncs  # noqa: F401  they enter what answers NumPy's protocols
from .dispatch import recorded_functions
from .interception import intercept, intercept_questions
from .local import promoted  # noqa: F401  it enters what a write does

intercept(recorded_functions())
intercept_questions()
