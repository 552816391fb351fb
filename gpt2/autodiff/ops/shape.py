"""Ops that move values without computing: views, placing parts, casts between layouts. All linear."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from . import leads, shifts
from .build import assemble, reshape, slice_, transpose, update
from .table import EVERYWHERE, Op, row

# An index is a tuple of (start, stop, step), one per axis, normalised: 0 <= start, extent known, step may be
# negative (then stop may be None for "to the beginning"). Integers and new axes in the user's index become
# reshapes.


def index_slices(index: Sequence[tuple]) -> tuple[slice, ...]:
    return tuple([slice(*s) for s in index])


def index_shape(index: Sequence[tuple], shape: Sequence[int]) -> tuple[int, ...]:
    lengths = []
    for (start, stop, step), n in zip(index, shape):
        if step == 1 and stop is not None and 0 <= start <= stop <= n:  # nearly all
            lengths.append(stop - start)
        else:
            lengths.append(len(range(n)[start:stop:step]))
    return tuple(lengths)


def index_text(index: Sequence, shape: Sequence[int] | None = None, arrays: Sequence[str] = ()) -> str:
    """The text of an index, without full slices at its end.

    index   as above; or a spec (index.py), in which arrays and new axes may stand as well
    shape   of what is indexed, if it is known: then full slices are recognised
    arrays  the texts of a spec's index arrays
    """
    lengths = itertools.repeat(None) if shape is None else iter(shape)
    parts = []
    for s in index:
        if s == "new":
            parts.append("None")
        else:
            length = next(lengths)
            parts.append(arrays[s[1]] if s[0] == "array" else _slice_text(s, length))
    while len(parts) > 1 and parts[-1] == ":":
        parts.pop()
    return ", ".join(parts) or "..."


def _slice_text(s: tuple, length: int | None) -> str:
    start, stop, step = s
    forward = step is None or step > 0
    if length is not None and forward and range(length)[start:stop:step] == range(length):
        return ":"
    to_the_end = stop is None or forward and stop == length
    text = f"{start or '' if forward else start}:{'' if to_the_end else stop}"
    return text if step in (1, None) else f"{text}:{step}"


def view_row(name: str, **columns: Any) -> Op:
    """A row for an op that computes nothing: NumPy hands out its argument's memory, seen in another way."""
    free = dict(work="free", view=True, exact_on=EVERYWHERE)
    return row(name, "linear", **free, **columns)


view_row(
    "reshape",
    infer=lambda x, shape: (shape, x.dtype),
    evaluate=lambda x, shape: np.reshape(x, shape),
    code=lambda x, shape: f"{x}.reshape({shape})",
    transpose=lambda g, out, x, shape: (reshape(g, x.shape),),
    leads=leads.RESHAPE,
    shift=shifts.reshape,
)

view_row(
    "transpose",
    infer=lambda x, perm: (tuple(x.shape[p] for p in perm), x.dtype),
    evaluate=lambda x, perm: np.transpose(x, perm),
    code=lambda x, perm: f"{x}.transpose({perm})",
    transpose=lambda g, out, x, perm: (transpose(g, np.argsort(perm).tolist()),),
    leads=leads.TRANSPOSE,
    shift=shifts.transpose,
)

view_row(
    "broadcast",  # numpy.broadcast_to
    infer=lambda x, shape: (shape, x.dtype),
    evaluate=lambda x, shape: np.broadcast_to(x, shape),
    code=lambda x, shape: f"np.broadcast_to({x}, {shape})",
    transpose=lambda g, out, x, shape: (g,),  # summed to the shape of x outside
    leads=leads.BROADCAST,
    shift=shifts.broadcast,
)

view_row(
    "slice",
    infer=lambda x, index: (index_shape(index, x.shape), x.dtype),
    evaluate=lambda x, index: np.asarray(x)[index_slices(index)],
    code=lambda x, index: f"{x}[{index_text(index)}]",
    transpose=lambda g, out, x, index: (assemble([g], x.shape, [index], x.dtype),),
    leads=leads.SLICE,
    shift=shifts.slice_,
)


def _assemble(*parts, shape, indices, dtype):
    out = np.zeros(shape, dtype)
    slices = [index_slices(i) for i in indices]
    for part, index in zip(parts, slices):
        out[index] += part
    if out.dtype.kind == "f" and any(np.any(np.signbit(p) & (p == 0)) for p in parts):
        # Put back each -0.0 that one part alone says: 0.0 + -0.0 is 0.0
        times = np.zeros(out.shape, np.intp)
        for index in slices:
            times[index] += 1
        for part, index in zip(parts, slices):
            np.copyto(out[index], part, where=times[index] == 1)
    return out


def _assemble_jvp(tangents, out, *parts, shape, indices, dtype):
    moved = [i for i, t in enumerate(tangents) if t is not None]
    return assemble([tangents[i] for i in moved], shape, [indices[i] for i in moved], dtype)


# Zeros of `shape` with each part added at its index: the transpose of slice, and (with parts that do not
# overlap) concatenate, stack, pad and roll. The sum of two assembles is one assemble with the parts of both.
row(
    "assemble",
    "linear",
    infer=lambda *parts, shape, indices, dtype: (shape, np.dtype(dtype)),
    evaluate=_assemble,
    transpose=lambda g, out, *parts, shape, indices, dtype: tuple(partial(slice_, g, i) for i in indices),
    jvp=_assemble_jvp,
    work="moves",
    has_out=True,
    leads=leads.ASSEMBLE,
    exact_on=EVERYWHERE,
)


def _update(x, v, index):
    out = np.array(x)
    out[index_slices(index)] = v
    return out


# x with the part at `index` replaced by v: what `x[index] = v` makes
row(
    "update",
    "linear",
    linear_in=(0, 1),
    infer=lambda x, v, index: (x.shape, x.dtype),
    evaluate=_update,
    transpose=lambda g, out, x, v, index: (lambda: update(g, 0.0, index), lambda: slice_(g, index)),
    work="moves",
    changes_first=True,
    leads=leads.UPDATE,
    exact_on=EVERYWHERE,
)

# item i of a tuple node: what apart takes the results of eigh, svd, scan, ...
row(
    "item",
    "structural",
    infer=lambda x, i: (x.shape[i], x.dtype[i]),
    evaluate=lambda x, i: x[i],
    code=lambda x, i: f"{x}[{i}]",
    work="free",
    discontinuous=False,
)  # tested with the ops that make tuples

row(
    "copy",
    "linear",
    infer=lambda x: (x.shape, x.dtype),
    evaluate=np.array,
    code=lambda x: f"np.array({x})",
    transpose=lambda g, out, x: (g,),
    work="moves",
    streams=True,
    leads=leads.ELEMENTWISE,
    shift=shifts.unchanged,
    exact_on=EVERYWHERE,
)
