"""autograd.numpy.numpy_vjps: helpers for rules of primitives. The rules of NumPy's functions are the
compiler's (docs/ops.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .numpy_wrapper import metadata


def unbroadcast(x: Any, target_meta: tuple, broadcast_idx: int = 0) -> Any:
    """A gradient summed over the axes along which its argument was broadcast; target_meta:
    metadata(argument).
    """
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
