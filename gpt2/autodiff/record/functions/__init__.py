"""Handlers for NumPy's functions (dispatch.py), one family a file: they enter the table on import."""

from . import as_written, create, inplace, linalg, piecewise, products, reduce, select, shape  # noqa: F401
