"""Functions that write to one of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dispatch import RecordedLike, full_name, raw
from ..memory import writes
from ..recorder import lost_write
from ..value import Recorded, as_node, check_apart, check_level, in_array, note_conversion, plain_key


def tried(a: RecordedLike, function: Callable, *args: Any) -> Callable[[Any], None]:
    """function(array, *args) on a copy, for NumPy's errors, and write(new), which sets a's content."""
    if type(a) is not Recorded:
        raise lost_write(a, full_name(function))
    if function is not np.copyto:
        note_conversion(a.dtype, args[1], scalars=False)
    plain = [plain_key(x) for x in args]
    function(np.array(a.value) if a.is_array else a.value, *plain)

    def write(new: Any) -> None:
        if type(new) is Recorded:
            check_level(a, new)
        node = writes.assigned(as_node(a._rec, new.astype(a.dtype)), a.shape, a.dtype)
        writes.write(a, node, lambda array: function(array, *plain))

    return write


@raw(np.copyto)
def copyto(dst, src, casting="same_kind", where=True) -> None:
    write = tried(dst, np.copyto, src, casting, where)
    source: Any = in_array(src)
    source = source if hasattr(source, "dtype") else np.asarray(source)
    if source.ndim > dst.ndim:  # of length 1
        source = source.reshape(source.shape[source.ndim - dst.ndim :])
    if where is not True:
        write(np.where(where, source.astype(dst.dtype), dst))
    else:
        write(np.broadcast_to(source, dst.shape))


@raw(np.put)
def put(a: Recorded, ind: RecordedLike, v: RecordedLike, mode: str = "raise") -> None:
    write = tried(a, np.put, ind, v, mode)
    v = in_array(v)
    if a.size and not np.size(v):  # as in NumPy, nothing is written
        return
    write(_put(a, ind, v, mode))


def _put(a: Recorded, ind: RecordedLike, v: RecordedLike, mode: str = "raise") -> Recorded:
    ind = np.ravel(np.asarray(ind))
    if mode == "wrap":
        ind = ind % a.size
    elif mode == "clip":
        ind = np.clip(ind, 0, a.size - 1)
    flat = a.reshape(-1).copy()
    flat[ind] = np.resize(v, ind.shape)
    return flat.reshape(a.shape)


@raw(np.place)
def place(arr: Recorded, mask: RecordedLike, vals: RecordedLike) -> None:
    write = tried(arr, np.place, mask, vals)
    vals = in_array(vals)
    if type(vals) is Recorded and vals.is_array and vals.value.flags.c_contiguous:  # NumPy copies others
        check_apart(arr, vals, unless_same=False)
    positions = np.flatnonzero(mask)
    if len(positions):
        write(_put(arr, positions, vals))


@raw(np.putmask)
def putmask(a: Recorded, mask: RecordedLike, values: RecordedLike) -> None:
    write = tried(a, np.putmask, mask, values)
    if np.size(values):
        values = np.resize(values, a.shape) if np.shape(values) != a.shape else values
        write(np.where(np.reshape(mask, a.shape), values, a))
