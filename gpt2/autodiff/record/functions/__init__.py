"""Handlers for NumPy's functions (dispatch.py), one family a file: they enter the table on import."""

from . import (  # noqa: F401
    as_written,
    create,
    inplace,
    linalg,
    piecewise,
    products,
    reduce,
    select,
    shape,
)
