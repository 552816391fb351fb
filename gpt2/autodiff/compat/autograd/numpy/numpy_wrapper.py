"""autograd.numpy.numpy_wrapper: functions of autograd.numpy that differ from NumPy's; and, under the names
numpy_vjps, numpy_jvps, numpy_boxes and numpy_vspaces, helpers for rules, and classes. The rules of NumPy's
functions are the compiler's (docs/ops.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....record.interception import intercepted_in
from ..core import VSpace
from ..tracer import Box, getval, isbox

ArrayVSpace = ComplexArrayVSpace = VSpace  # one class serves real and complex arrays
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
    as_array = _SEEN["array"].call_always
    first, second = (as_array(v) if isinstance(v, (list, tuple)) else v for v in (arr, values))
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


_NOT_GIVEN = object()


def where(condition: Any, x: Any = _NOT_GIVEN, y: Any = _NOT_GIVEN) -> Any:
    """np.where; for Python's numbers and lists it returns Python's."""
    if x is _NOT_GIVEN and y is _NOT_GIVEN:
        return np.where(condition)
    if x is _NOT_GIVEN or y is _NOT_GIVEN:
        raise ValueError("where: either both or neither of x and y should be given")
    out = np.where(condition, x, y)
    return out if any(map(_is_numpys, (condition, x, y))) else out.tolist()


def _is_numpys(x: Any) -> bool:
    """Whether x is or contains a NumPy or recorded value."""
    if isinstance(x, (list, tuple)):
        return any(map(_is_numpys, x))
    return isbox(x) or isinstance(x, (np.ndarray, np.generic))


# ---- Helpers for rules of primitives -----------------------------------------------------------------------


def unbroadcast(x: Any, target_meta: tuple, broadcast_idx: int = 0) -> Any:
    """A gradient summed over the axes along which its argument was broadcast."""
    shape, ndim, _, iscomplex = target_meta
    while np.ndim(x) > ndim:
        x = np.sum(x, axis=broadcast_idx)
    for axis, size in enumerate(shape):
        if size == 1:
            x = np.sum(x, axis=axis, keepdims=True)
    return np.real(x) if np.iscomplexobj(x) and not iscomplex else x


def unbroadcast_f(target: Any, f: Callable) -> Callable:
    """g -> f(g), summed to the shape of the target."""
    meta = metadata(target)
    return lambda g: unbroadcast(f(g), meta)


def repeat_to_match_shape(g: Any, shape: Any, dtype: Any, axis: Any, keepdims: bool) -> tuple[Any, Any]:
    """(g broadcast along the reduced axes of an array of this shape, the number of repetitions)."""
    if shape == ():
        return g, 1
    axes = range(len(shape)) if axis is None else (axis,) if np.ndim(axis) == 0 else axis
    axes = [a % len(shape) for a in axes]
    shape_kept = [1 if i in axes else n for i, n in enumerate(shape)]
    times = int(np.prod([shape[a] for a in axes]))
    return np.broadcast_to(np.reshape(g, shape_kept), shape).astype(dtype), times


def match_complex(target: Any, x: Any) -> Any:
    """x as a real or complex array, like the target."""
    if np.iscomplexobj(x) and not np.iscomplexobj(target):
        return np.real(x)
    return x + 0j if np.iscomplexobj(target) and not np.iscomplexobj(x) else x


def balanced_eq(x: Any, z: Any, y: Any) -> Any:
    """1 where x == z, 1/2 where y equals them too."""
    return (x == z) / (1.0 + (x == y))


def replace_zero(x: Any, val: Any) -> Any:
    return np.where(x != 0, x, val)


def broadcast(x: Any, target: Any) -> Any:
    return np.broadcast_to(x, np.shape(target))


class ArrayBox(Box):
    """The class of recorded values, for isinstance."""

    @classmethod
    def register(cls, value_type: Any) -> None:
        name = getattr(value_type, "__name__", value_type)
        raise NotImplementedError(
            f"autograd.numpy.numpy_boxes.ArrayBox.register({name}): arrays are recorded as they are, and "
            "other classes take a Box of their own, or are trees (docs/autodiff.md)"
        )
