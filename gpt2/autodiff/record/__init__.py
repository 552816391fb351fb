"""From NumPy to a graph: the function runs once on values that note what is done with them."""

import sys

from . import functions, ufuncs  # noqa: F401  they enter what answers NumPy's protocols
from .conversions import see, see_polynomials
from .dispatch import HANDLERS, RAW

see({*HANDLERS, *RAW})
see_polynomials(m for name, m in list(sys.modules.items()) if name.startswith("numpy.polynomial."))
