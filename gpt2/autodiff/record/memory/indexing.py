"""Translates NumPy's indexing into ops.

x[basic]      slice, then a reshape that drops integer axes and adds new ones
x[advanced]   gather, with an index array for every array, list and integer of the index
"""

from __future__ import annotations

import operator
from builtins import getattr, hasattr  # noqa: A004  Python's own, also while the names are replaced
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ...ops.boxes import triple
from ..source_lines import here

INTEGER = (int, np.integer)


def expand(key: Any, ndim: int) -> list:
    """The index with an entry per axis, new axes besides: full slices for Ellipsis and what is left out."""
    items = [_number(k) for k in (key if type(key) is tuple else [key])]
    n_axes = sum(_axes(k) for k in items)
    full = [slice(None)] * (ndim - n_axes)
    for i, k in enumerate(items):
        if k is Ellipsis:
            return items[:i] + full + items[i + 1 :]
    return items + full


def _number(k):
    """operator.index of an object of the user's that has __index__, as in NumPy; anything else as it is."""
    converts = hasattr(type(k), "__index__") and not hasattr(k, "dtype") and not isinstance(k, int)
    return operator.index(k) if converts else k


def _axes(k) -> int:
    """How many axes of the array an entry uses up."""
    if k is None or k is Ellipsis:
        return 0
    dtype = getattr(k, "dtype", None)
    return k.ndim if dtype is not None and dtype.kind == "b" else 1


def is_basic(items: Sequence) -> bool:
    return all(
        k is None or type(k) is slice or (isinstance(k, INTEGER) and not isinstance(k, bool)) for k in items
    )


def basic(items: Sequence, shape: Sequence[int]) -> tuple[tuple, tuple]:
    """A basic index as (slices, final shape)."""
    slices, final = [], []
    axis = 0
    for k in items:
        if k is None:
            final.append(1)
            continue
        n = shape[axis]
        if type(k) is slice:
            taken = range(n)[k]
            s = triple(taken)
            final.append(len(taken))
        else:
            i = operator.index(k)
            i += n if i < 0 else 0
            s = (i, i + 1, 1)
        slices.append(s)
        axis += 1
    return tuple(slices), tuple(final)


def row_of(i: int, shape: Sequence[int]) -> tuple[tuple, tuple]:
    """(slices, final shape) for an int, which NumPy has accepted as an index."""
    i += shape[0] if i < 0 else 0
    rest = tuple(shape[1:])
    return ((i, i + 1, 1), *[(0, n, 1) for n in rest]), rest


def advanced(items: Sequence, shape: Sequence[int], as_index: Callable) -> tuple[tuple, list]:
    """An advanced index as (spec, index arrays); as_index gives an entry's arrays: of a mask one per axis."""
    spec: list = []
    arrays: list = []
    axis = 0
    for k in items:
        if k is None:
            spec.append("new")
        elif type(k) is slice:
            spec.append(triple(range(shape[axis])[k]))
            axis += 1
        else:
            if isinstance(k, (bool, np.bool_)) or (getattr(k, "ndim", 1) == 0 and k.dtype.kind == "b"):
                raise UnsupportedError("an index that is a single bool is not recorded; use np.where", here())
            for array in as_index(k):
                spec.append(("array", len(arrays)))
                arrays.append(array)
                axis += 1
    return tuple(spec), arrays
