"""Functions that write to one of their arguments."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import written_to_plain
from .. import source_lines
from ..dispatch import RecordedLike, full_name, raw
from ..recorder import variable_name
from ..value import Recorded


def target(x: RecordedLike, function: Callable) -> Recorded:
    """The argument that is written to; it has to be a recorded one."""
    if type(x) is not Recorded:
        raise written_to_plain(source_lines.here(), full_name(function), variable_name(x))
    return x


@raw(np.copyto)
def copyto(
    dst: RecordedLike, src: RecordedLike, casting: str = "same_kind", where: RecordedLike = True
) -> None:
    dst = target(dst, np.copyto)
    dtype = getattr(src, "dtype", None)
    if dtype is not None and not np.can_cast(dtype, dst.dtype, casting):
        raise TypeError(
            f"Cannot cast array data from {dtype!r} to {dst.dtype!r} according to the rule '{casting}'"
        )
    if where is True:
        dst[...] = src
    else:
        dst[...] = np.where(where, src, dst).astype(dst.dtype)


@raw(np.put)
def put(a: RecordedLike, ind: RecordedLike, v: RecordedLike, mode: str = "raise") -> None:
    a = target(a, np.put)
    ind = np.ravel(np.asarray(ind))
    if a.size and not np.size(v):  # as in NumPy, nothing is written
        return
    if mode == "wrap":
        ind = ind % a.size
    elif mode == "clip":
        ind = np.clip(ind, 0, a.size - 1)
    flat = a.reshape(-1).copy()
    flat[ind] = np.resize(v, ind.shape)
    a[...] = flat.reshape(a.shape)


@raw(np.place)
def place(arr: RecordedLike, mask: RecordedLike, vals: RecordedLike) -> None:
    arr = target(arr, np.place)
    positions = np.flatnonzero(mask)
    put(arr, positions, np.resize(vals, positions.shape))


@raw(np.putmask)
def putmask(a: RecordedLike, mask: RecordedLike, values: RecordedLike) -> None:
    a = target(a, np.putmask)
    if np.size(mask) == a.size and not np.size(values):
        return
    a[...] = np.where(mask, np.resize(values, a.shape) if np.shape(values) != a.shape else values, a).astype(
        a.dtype
    )
