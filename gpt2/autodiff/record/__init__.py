"""From NumPy to a graph: the function runs once on values that note what is done with them."""

from . import functions, ufuncs  # noqa: F401  they enter what answers NumPy's protocols
from .conversions import see
from .dispatch import recorded_functions
from .functions.as_written import see_polynomials

see(recorded_functions())
see_polynomials()
