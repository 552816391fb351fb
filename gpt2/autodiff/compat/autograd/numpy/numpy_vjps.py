"""autograd.numpy.numpy_vjps: what rules of primitives are written with. Those of NumPy's functions are the
compiler's (docs/ops.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .numpy_wrapper import metadata


def unbroadcast(x: Any, target_meta: tuple, broadcast_idx: int = 0) -> Any:
    """A gradient summed over the axes along which its argument was repeated, as metadata(argument) says."""
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
    """(g repeated along the axes that a reduction of an array of this shape took away, how often)."""
    if shape == ():
        return g, 1
    axes = range(len(shape)) if axis is None else (axis,) if np.ndim(axis) == 0 else axis
    axes = [a % len(shape) for a in axes]
    kept = [1 if i in axes else n for i, n in enumerate(shape)]
    times = int(np.prod([shape[a] for a in axes]))
    return np.broadcast_to(np.reshape(g, kept), shape).astype(dtype), times


def match_complex(target: Any, x: Any) -> Any:
    """x as a real or complex array, as the target is."""
    if np.iscomplexobj(x) and not np.iscomplexobj(target):
        return np.real(x)
    return x + 0j if np.iscomplexobj(target) and not np.iscomplexobj(x) else x


def balanced_eq(x: Any, z: Any, y: Any) -> Any:
    """1 where x is z, half where y is too."""
    return (x == z) / (1.0 + (x == y))


def replace_zero(x: Any, val: Any) -> Any:
    return np.where(x != 0, x, val)
