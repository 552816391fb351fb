"""Handlers for NumPy's functions (dispatch.py), one family a file: they enter the table on import."""

from . import create, emath, fft, inplace, linalg, piecewise, polynomials, products, reduce, select, shape  # noqa: F401
