"""Converts inputs and cotangents of derivatives: arrays of integers become real."""

from __future__ import annotations

from builtins import type as class_of
from typing import Any

import numpy as np

from ...record.value import Recorded
from ...tree import flatten, tree_map, unflatten
from . import objects


def floating(x: Any) -> Any:
    """x with its arrays of integers as float64; TypeError for Python's integers, as from autograd."""
    if class_of(x) is Recorded or isinstance(x, np.ndarray):
        return x.astype(np.float64) if x.dtype.kind in "biu" else x
    if isinstance(x, (bool, int, np.integer, np.bool_)):
        raise TypeError(
            f"derivatives are not taken with respect to {class_of(x).__name__} {x!r}: pass {float(x)}"
        )
    if class_of(x) in (list, tuple):
        return class_of(x)([floating(v) for v in x])
    if class_of(x) is dict:
        return {k: floating(v) for k, v in x.items()}
    if x is None or isinstance(x, str):
        raise TypeError(f"derivatives are not taken with respect to {class_of(x).__name__}: {x!r}")
    objects.refuse(x)
    return x


def has_derivative(ans: Any) -> bool:
    """Whether a result has any real or complex numbers."""
    return any(np.result_type(getattr(x, "dtype", x)).kind in "fc" for x in flatten(ans)[0])


def answer(g: Any, like: Any) -> Any:
    """g in the structure and shapes of a value, as autograd converts cotangents and tangents."""
    like_leaves, tree = flatten(like)
    leaves, other = flatten(_counted(g))
    if len(leaves) != len(like_leaves):
        raise TypeError(f"a value with {len(like_leaves)} arrays was given a derivative with {len(leaves)}")
    return unflatten(tree, [_like(v, x) for v, x in zip(leaves, like_leaves)])


def _counted(g: Any) -> Any:
    """Integers as floats, through containers."""
    if isinstance(g, (bool, int, np.integer)) and class_of(g) is not Recorded:
        return float(g)
    if class_of(g) in (list, tuple):
        return class_of(g)([_counted(v) for v in g])
    return {k: _counted(v) for k, v in g.items()} if class_of(g) is dict else g


def _like(v: Any, x: Any) -> Any:
    shape = np.shape(x)
    if np.shape(v) == shape:
        return v
    return np.reshape(v, shape) if np.size(v) == 1 and np.size(x) == 1 else np.broadcast_to(v, shape) * 1.0


def zeros_like(x: Any) -> Any:
    """Zeros in the structure of x."""
    return tree_map(lambda leaf: np.zeros(np.shape(leaf), getattr(leaf, "dtype", float)), x)
