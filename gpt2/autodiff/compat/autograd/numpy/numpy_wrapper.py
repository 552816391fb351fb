"""autograd.numpy.numpy_wrapper: the functions that autograd's NumPy has besides NumPy's own."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..tracer import getval


def concatenate_args(axis: int, *args: Any) -> Any:
    return np.concatenate(args, axis)


def make_diagonal(D: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The matrices with these diagonals, along the last two axes."""
    if (offset, axis1, axis2) != (0, -1, -2):
        raise NotImplementedError("make_diagonal: with offset=0, axis1=-1, axis2=-2 alone")
    return np.reshape(D, (*np.shape(D), 1)) * np.eye(np.shape(D)[-1])


def metadata(A: Any) -> tuple:
    """(shape, ndim, dtype, whether it is complex)"""
    dtype = A.dtype if hasattr(A, "dtype") else np.result_type(getval(A))
    return np.shape(A), np.ndim(A), dtype, dtype.kind == "c"
