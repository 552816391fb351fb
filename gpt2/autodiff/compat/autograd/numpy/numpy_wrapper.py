"""autograd.numpy.numpy_wrapper: functions of autograd.numpy that differ from NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....record.interception import intercepted_in
from ..tracer import getval, isbox

# What autograd.numpy takes from here
NAMES = {"append", "concatenate", "concatenate_args", "stack", "vstack", "hstack", "column_stack"}
NAMES |= {"make_diagonal", "metadata", "where"}
_SEEN = intercepted_in(np)


def concatenate_args(axis: int, *args: Any) -> Any:
    return np.concatenate(args, axis)


def _of_any_iterable(function: Any) -> Any:
    """A function of a sequence of arrays that also takes a generator, as autograd's does."""
    name = function.__name__

    def call(arrays, *args, **kwargs):
        sequence = arrays if isinstance(arrays, (list, tuple, np.ndarray)) else list(arrays)
        return _SEEN[name].call_always(sequence, *args, **kwargs)

    call.__name__, call.__doc__ = name, function.__doc__
    return call


concatenate, stack, vstack, hstack, column_stack = map(
    _of_any_iterable, (np.concatenate, np.stack, np.vstack, np.hstack, np.column_stack)
)


def append(arr: Any, values: Any, axis: Any = None) -> Any:
    """np.append, also for lists of recorded values."""
    first, second = (
        _SEEN["array"].call_always(v) if isinstance(v, (list, tuple)) else v for v in (arr, values)
    )
    return np.append(first, second, axis=axis)


def make_diagonal(D: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The matrices with these diagonals, along the last two axes."""
    if (offset, axis1, axis2) != (0, -1, -2):
        raise NotImplementedError("make_diagonal: with offset=0, axis1=-1, axis2=-2 alone")
    return np.reshape(D, (*np.shape(D), 1)) * np.eye(np.shape(D)[-1])


def metadata(A: Any) -> tuple:
    """(shape, ndim, dtype, whether it is complex)"""
    dtype = A.dtype if hasattr(A, "dtype") else np.result_type(getval(A))
    return np.shape(A), np.ndim(A), dtype, dtype.kind == "c"


def where(condition: Any, *args: Any, **kwargs: Any) -> Any:
    """np.where, with x and y also by name. For Python's numbers and lists it returns Python's."""
    if not args and not kwargs:
        return np.where(condition)
    choices = dict(zip(("x", "y"), args), **kwargs)
    if set(choices) != {"x", "y"} or len(args) + len(kwargs) != 2:
        raise ValueError("where: either both or neither of x and y should be given")
    x, y = choices["x"], choices["y"]
    if any(map(_is_numpys, (condition, x, y))):
        return np.where(condition, x, y)
    return np.where(condition, x, y).tolist()


def _is_numpys(x: Any) -> bool:
    """Whether x is or contains a NumPy or recorded value."""
    if isinstance(x, (list, tuple)):
        return any(map(_is_numpys, x))
    return isbox(x) or isinstance(x, (np.ndarray, np.generic))
