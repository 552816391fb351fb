"""Functions that write to one of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...errors import written_to_plain
from .. import source_lines
from ..dispatch import Given, full_name, raw
from ..value import Recorded


def target(x: Given, function: Callable) -> Recorded:
    """The argument that is written to; it has to be a recorded one."""
    if type(x) is not Recorded:
        raise written_to_plain(source_lines.here(), full_name(function))
    return x


@raw(np.copyto)
def copyto(dst: Given, src: Given, casting: str = "same_kind", where: Given = True) -> None:
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
def put(a: Given, ind: Given, v: Given, mode: str = "raise") -> None:
    a = target(a, np.put)
    ind = np.ravel(np.asarray(ind))
    if mode == "wrap":
        ind = ind % a.size
    elif mode == "clip":
        ind = np.clip(ind, 0, a.size - 1)
    flat = a.reshape(-1).copy()
    flat[ind] = np.resize(v, ind.shape)
    a[...] = flat.reshape(a.shape)


@raw(np.place)
def place(arr: Given, mask: Given, vals: Given) -> None:
    arr = target(arr, np.place)
    positions = np.flatnonzero(mask)
    put(arr, positions, np.resize(vals, positions.shape))


@raw(np.putmask)
def putmask(a: Given, mask: Given, values: Given) -> None:
    a = target(a, np.putmask)
    a[...] = np.where(mask, np.resize(values, a.shape) if np.shape(values) != a.shape else values, a).astype(
        a.dtype
    )


@raw(np.fill_diagonal)
def fill_diagonal(a: Given, val: Given, wrap: bool = False) -> None:
    a = target(a, np.fill_diagonal)
    end = None if wrap or a.ndim != 2 else a.shape[1] * a.shape[1]
    step = a.shape[1] + 1 if a.ndim == 2 else 1 + int(np.cumprod(a.shape[:-1]).sum())
    flat = a.reshape(-1).copy()
    length = len(range(*slice(None, end, step).indices(a.size)))
    flat[:end:step] = np.resize(val, (length,)) if np.ndim(val) else val
    a[...] = flat.reshape(a.shape)


@raw(np.put_along_axis)
def put_along_axis(arr: Given, indices: Given, values: Given, axis: int | Sequence[int] | None) -> None:
    arr = target(arr, np.put_along_axis)
    if axis is None:
        flat = arr.reshape(-1).copy()
        flat[indices] = values
        arr[...] = flat.reshape(arr.shape)
        return
    axis = np.lib.array_utils.normalize_axis_index(axis, arr.ndim)
    grid = np.ogrid[tuple(slice(n) for n in np.shape(indices))] if arr.ndim > 1 else [None]
    index = tuple(indices if i == axis else np.asarray(g) for i, g in enumerate(grid))
    arr[index] = values
