"""Strict equality of immutable values: of type and to the last bit, so that nothing tells them apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .atoms import NUMPY_SCALARS

_PLAIN = (bool, int, str, bytes)
COMPARED = (*_PLAIN, float, complex, range)


def same(a: Any, b: Any) -> bool:
    """Whether these are one object, or equal immutable values of one type. 1 is not 1.0, nor 0.0 -0.0."""
    if a is b:
        return True
    t = type(a)
    if t is not type(b):
        return False
    if t is float:  # the sign of a zero included; or both nan
        return a == b and math.copysign(1.0, a) == math.copysign(1.0, b) or a != a and b != b
    if t is complex:
        return same(a.real, b.real) and same(a.imag, b.imag)
    if t in (range, slice):  # range(0, 5, 2) == range(0, 6, 2)
        return same_items((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if t in _PLAIN:
        return a == b
    if t is tuple:
        return same_items(a, b)
    if t is frozenset:  # in the order of iteration
        return same_items(tuple(a), tuple(b))
    if t in NUMPY_SCALARS:
        return same(a.dtype, b.dtype) and a.tobytes() == b.tobytes()
    return isinstance(a, np.dtype) and a == b and a.metadata is None and b.metadata is None


def same_items(items: Sequence, then: tuple) -> bool:
    return len(items) == len(then) and all(map(same, items, then))


def interchangeable(a: Any, b: Any) -> bool:
    """Whether one may replace the other. A nan may not: `nan in [nan]` tests identity."""
    return a is b or (same(a, b) and not _has_nan(a))


def _has_nan(a: Any) -> bool:
    if isinstance(a, (tuple, frozenset)):
        return any(map(_has_nan, a))
    if isinstance(a, slice):
        return any(map(_has_nan, (a.start, a.stop, a.step)))
    return isinstance(a, (float, complex, np.inexact)) and bool(a != a)


_BLOCK = 1 << 16  # elements compared at once: they and the result stay in cache
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def same_array(a: np.ndarray, then: np.ndarray) -> bool:
    """Whether two arrays are equal to the last bit, shape and dtype included (both can be assigned)."""
    if a.shape != then.shape or a.dtype != then.dtype:
        return False
    if a.nbytes <= 1024 or a.dtype.itemsize not in _WORDS:
        return a.tobytes() == then.tobytes()
    word = _WORDS[a.dtype.itemsize]
    a, then = a.view(word), then.view(word)
    if a.flags.forc and then.strides == a.strides:
        a, then = a.ravel("K"), then.ravel("K")
        return all(np.array_equal(a[i : i + _BLOCK], then[i : i + _BLOCK]) for i in range(0, a.size, _BLOCK))
    return np.array_equal(a, then)
