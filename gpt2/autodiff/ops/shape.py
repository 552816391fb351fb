"""Ops that move values without computing: views, placing parts, casts between layouts. All linear."""

from __future__ import annotations

import numpy as np

from .table import row

# An index is a tuple of (start, stop, step), one per axis, normalised: 0 <= start, extent known, step may be
# negative (then stop may be None for "to the beginning"). Integers and new axes in the user's index become reshapes.


def index_slices(index) -> tuple[slice, ...]:
    """The index as slices that NumPy takes."""
    return tuple(slice(*s) for s in index)


def index_shape(index, shape) -> tuple[int, ...]:
    return tuple(len(range(*slice(*s).indices(n))) for s, n in zip(index, shape))


def slice_text(index) -> str:
    def one(s):
        start, stop, step = s
        text = f"{'' if start in (0, None) and (step or 1) > 0 else start}:{'' if stop is None else stop}"
        return text if step in (1, None) else f"{text}:{step}"

    return ", ".join(map(one, index))


row("reshape", "linear", linear_in=(0,),
    infer=lambda x, shape: (shape, x.dtype),
    evaluate=lambda x, shape: np.reshape(x, shape),
    code=lambda x, shape: f"{x}.reshape({shape})")

row("transpose", "linear", linear_in=(0,),
    infer=lambda x, perm: (tuple(x.shape[p] for p in perm), x.dtype),
    evaluate=lambda x, perm: np.transpose(x, perm),
    code=lambda x, perm: f"{x}.transpose({perm})")

row("broadcast", "linear", linear_in=(0,),  # numpy.broadcast_to
    infer=lambda x, shape: (shape, x.dtype),
    evaluate=lambda x, shape: np.broadcast_to(x, shape),
    code=lambda x, shape: f"np.broadcast_to({x}, {shape})")

row("slice", "linear", linear_in=(0,),
    infer=lambda x, index: (index_shape(index, x.shape), x.dtype),
    evaluate=lambda x, index: np.asarray(x)[index_slices(index)],
    code=lambda x, index: f"{x}[{slice_text(index)}]")


def _assemble(*parts, shape, indices, dtype):
    out = np.zeros(shape, dtype)
    for part, index in zip(parts, indices):
        out[index_slices(index)] += part
    return out


# Zeros of `shape` with each part added at its index: the transpose of slice, and (with parts that do not overlap)
# concatenate, stack, pad and roll. The sum of two assembles is one assemble with the parts of both.
row("assemble", "linear",
    infer=lambda *parts, shape, indices, dtype: (shape, np.dtype(dtype)),
    evaluate=_assemble)


def _update(x, v, index):
    out = np.array(x)
    out[index_slices(index)] = v
    return out


# x with the part at `index` replaced by v: what `x[index] = v` makes
row("update", "linear", linear_in=(0, 1),
    infer=lambda x, v, index: (x.shape, x.dtype),
    evaluate=_update)

# item i of a tuple node: what apart takes the results of eigh, svd, scan, ...
row("item", "structural",
    infer=lambda x, i: (x.shape[i], x.dtype[i]),
    evaluate=lambda x, i: x[i],
    code=lambda x, i: f"{x}[{i}]")

row("copy", "linear", linear_in=(0,),
    infer=lambda x: (x.shape, x.dtype),
    evaluate=np.array,
    code=lambda x: f"np.array({x})")
