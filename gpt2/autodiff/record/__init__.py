"""From NumPy to a graph: the function runs once on values that note what is done with them."""

from . import functions, ufuncs  # noqa: F401  they enter what answers NumPy's protocols
