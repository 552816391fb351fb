"""Handlers for NumPy's functions (numpy_functions.py), one family a file."""

from . import create, fft, inplace, linalg, products, reduce, select, shape  # noqa: F401  they enter the table
