"""Indexing by arrays, and its transposes.

A `spec` says what stands in each position of the index: ("array", k) for the k-th index array, (start, stop,
step) for a slice, "new" for a new axis. Axes that the spec does not reach are taken whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import AutodiffError
from . import leads, shifts
from .build import equal, sum_, where, zeros
from .shape import index_text
from .table import EVERYWHERE, apply, const, row


def numpy_index(spec: Sequence, arrays: Sequence) -> tuple:
    return tuple(None if s == "new" else arrays[s[1]] if s[0] == "array" else slice(*s) for s in spec)


def gather_shape(shape: Sequence[int], spec: Sequence, index_shapes: Sequence[tuple]) -> tuple[int, ...]:
    """The shape of x[index]: the axes of the index arrays, broadcast together, stand where the arrays stood,
    or first if a slice or a new axis stood between two of them (NumPy's manual, "Combining advanced and basic
    indexing").
    """
    lengths = iter(shape)
    others: list[int] = []  # of slices and new axes
    for s in spec:
        if s == "new":
            others.append(1)
        elif s[0] != "array":
            others.append(len(range(next(lengths))[slice(*s)]))
        elif next(lengths, None) is None:
            raise IndexError(f"too many indices for an array of {len(shape)} axes")
    others.extend(lengths)
    first = leads.first_of_adjacent(spec) or 0
    return (*others[:first], *np.broadcast_shapes(*index_shapes), *others[first:])


def _written(write):
    def evaluate(x, v, *arrays, spec):
        out = np.array(x)
        write(out, numpy_index(spec, arrays), v)
        return out

    return evaluate


def _set(out, index, v):
    out[index] = v


def no_gradient(arrays: Sequence) -> tuple[None, ...]:
    return (None,) * len(arrays)


def _scatter_transpose(g, out, x, v, *arrays, spec):
    """The gradients of a scatter, where the last of several writes counts: found by numbering v."""

    def dv():
        taken = apply("gather", g, *arrays, spec=spec)
        if not taken.size:
            return taken
        number = const(np.arange(taken.size).reshape(taken.shape))
        numbers = apply("scatter", zeros(x.shape, np.int64), number, *arrays, spec=spec)
        return where(equal(apply("gather", numbers, *arrays, spec=spec), number), taken, 0.0)

    return lambda: apply("scatter", g, 0.0, *arrays, spec=spec), dv, *no_gradient(arrays)


row(
    "gather",
    "linear",
    linear_in=(0,),  # x[index]
    infer=lambda x, *arrays, spec: (gather_shape(x.shape, spec, [a.shape for a in arrays]), x.dtype),
    evaluate=lambda x, *arrays, spec: np.asarray(x)[numpy_index(spec, arrays)],
    code=lambda x, *arrays, spec: f"{x}[{index_text(spec, arrays=arrays)}]",
    transpose=lambda g, out, x, *arrays, spec: (
        apply("scatter_add", zeros(x.shape, x.dtype), g, *arrays, spec=spec),
        *no_gradient(arrays),
    ),
    work="moves",
    gathers=True,
    has_out=True,
    leads=leads.GATHER,
    exact_on=EVERYWHERE,
)

row(
    "scatter",
    "linear",
    linear_in=(0, 1),  # x with x[index] = v; where indices repeat, the last write stands
    infer=lambda x, v, *arrays, spec: (x.shape, x.dtype),
    evaluate=_written(_set),
    transpose=_scatter_transpose,
    work="scatters",
    changes_first=True,
    leads=leads.SCATTER,
)

row(
    "scatter_add",
    "linear",
    linear_in=(0, 1),  # x with numpy.add.at(x, index, v)
    infer=lambda x, v, *arrays, spec: (x.shape, x.dtype),
    evaluate=_written(np.add.at),
    transpose=lambda g, out, x, v, *arrays, spec: (
        g,
        lambda: apply("gather", g, *arrays, spec=spec),
        *no_gradient(arrays),
    ),
    work="scatters",
    changes_first=True,
    leads=leads.SCATTER,
)


def _take_along_shape(x, idx, axis):
    others = (tuple(1 if i == axis else n for i, n in enumerate(a.shape)) for a in (x, idx))
    lead = np.broadcast_shapes(*others)
    return tuple(idx.shape[axis] if i == axis else n for i, n in enumerate(lead))


def _taken_back(g, x, idx, axis):
    """Each element of g added where it was taken from; along axes that x was broadcast over, all of them."""
    wide = tuple(n if i == axis else m for i, (n, m) in enumerate(zip(x.shape, g.shape)))
    back = apply("scatter_along_add", zeros(wide, x.dtype), idx, g, axis=axis)
    return sum_(back, [i for i in range(x.ndim) if wide[i] != x.shape[i]], keepdims=True)


def _in_order(x):
    x = np.array(x)
    if not np.all(x[1:] >= x[:-1]):
        raise AutodiffError(
            "np.interp: the points are not in order; sort them first, with what belongs to them"
        )
    return x


def _scatter_along_add(x, idx, v, axis):
    out = np.array(x)
    idx = np.asarray(idx)
    shape = tuple(n if i == axis else max(n, m) for i, (n, m) in enumerate(zip(idx.shape, x.shape)))
    grid = np.ogrid[tuple(slice(n) for n in shape)] if shape else ()
    np.add.at(out, tuple(idx if i == axis else g for i, g in enumerate(grid)), v)
    return out


row(
    "take_along",
    "linear",
    linear_in=(0,),  # numpy.take_along_axis
    infer=lambda x, idx, axis: (_take_along_shape(x, idx, axis), x.dtype),
    evaluate=lambda x, idx, axis: np.take_along_axis(np.asarray(x), np.asarray(idx), axis),
    code=lambda x, idx, axis: f"np.take_along_axis({x}, {idx}, axis={axis})",
    transpose=lambda g, out, x, idx, axis: (_taken_back(g, x, idx, axis), None),
    work="moves",
    gathers=True,
    has_out=True,
    leads=leads.TAKE_ALONG,
    shift=shifts.along_axis,
    exact_on=EVERYWHERE,
)

row(
    "in_order",  # a copy of a vector, where it is sorted
    "linear",
    infer=lambda x: (x.shape, x.dtype),
    evaluate=_in_order,
    transpose=lambda g, out, x: (g,),
    jvp=lambda t, out, x: t[0],
    discontinuous=True,
)

row(
    "scatter_along_add",
    "linear",
    linear_in=(0, 2),  # its transpose: v added onto x at idx along the axis
    infer=lambda x, idx, v, axis: (x.shape, x.dtype),
    evaluate=_scatter_along_add,
    transpose=lambda g, out, x, idx, v, axis: (g, None, lambda: apply("take_along", g, idx, axis=axis)),
    work="scatters",
    changes_first=True,
    leads=leads.TAKE_ALONG,
)

row(
    "argsort",
    "nondiff",  # kind None, "stable", ...
    infer=lambda x, axis, kind: (x.shape, np.dtype(np.intp)),
    evaluate=lambda x, axis, kind: np.argsort(x, axis=axis, kind=kind),
    code=lambda x, axis, kind: f"np.argsort({x}, axis={axis}{f', kind={kind!r}' if kind else ''})",
    leads=leads.AXIS,
    exact_on=EVERYWHERE,
)

row(
    "argpartition",
    "nondiff",  # kth an int or a tuple of ints
    infer=lambda x, kth, axis: (x.shape, np.dtype(np.intp)),
    evaluate=lambda x, kth, axis: np.argpartition(x, kth, axis=axis),
    code=lambda x, kth, axis: f"np.argpartition({x}, {kth}, axis={axis})",
    leads=leads.AXIS,
)

row(
    "searchsorted",
    "nondiff",  # where in the sorted vector a each element of v belongs
    infer=lambda a, v, side: (v.shape, np.dtype(np.intp)),
    evaluate=lambda a, v, side: np.searchsorted(a, v, side),
    code=lambda a, v, side: f"np.searchsorted({a}, {v}, {side!r})",
    leads=leads.SEARCH,
    exact_on=EVERYWHERE,
)
