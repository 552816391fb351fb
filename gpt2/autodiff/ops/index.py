"""Indexing by arrays, and its transposes.

A `spec` says what stands in each position of the index: ("array", k) for the k-th index array, (start, stop, step)
for a slice, "new" for a new axis. Axes that the spec does not reach are taken whole.
"""

from __future__ import annotations

import numpy as np

from .table import row


def numpy_index(spec, arrays) -> tuple:
    """The index that NumPy takes."""
    return tuple(None if s == "new" else arrays[s[1]] if s[0] == "array" else slice(*s) for s in spec)


def gather_shape(shape, spec, index_shapes) -> tuple[int, ...]:
    """Shape of x[index]: the index arrays broadcast together, and their axes stand where the arrays stood, or first
    if a slice or a new axis stood between two of them. See "Combining advanced and basic indexing" in NumPy's manual.
    """
    lengths = iter(shape)
    out: list[int] = []
    places = []  # positions of the arrays in the spec
    first = 0  # where their axes go
    for position, s in enumerate(spec):
        if s == "new":
            out.append(1)
        elif s[0] == "array":
            next(lengths)
            if not places:
                first = len(out)
            places.append(position)
        else:
            out.append(len(range(*slice(*s).indices(next(lengths)))))
    out.extend(lengths)
    if places and places[-1] - places[0] + 1 != len(places):
        first = 0
    return (*out[:first], *np.broadcast_shapes(*index_shapes), *out[first:])


def _index_text(spec, arrays) -> str:
    def one(s):
        if s == "new":
            return "None"
        if s[0] == "array":
            return arrays[s[1]]
        start, stop, step = (("" if v is None else str(v)) for v in s)
        return f"{'' if start == '0' and (s[2] or 1) > 0 else start}:{stop}" + ("" if step in ("1", "") else f":{step}")

    return ", ".join(map(one, spec))


def _written(write):
    def evaluate(x, v, *arrays, spec):
        out = np.array(x)
        write(out, numpy_index(spec, arrays), v)
        return out

    return evaluate


def _set(out, index, v):
    out[index] = v


row("gather", "linear", linear_in=(0,),  # x[index]
    infer=lambda x, *arrays, spec: (gather_shape(x.shape, spec, [a.shape for a in arrays]), x.dtype),
    evaluate=lambda x, *arrays, spec: np.asarray(x)[numpy_index(spec, arrays)],
    code=lambda x, *arrays, spec: f"{x}[{_index_text(spec, arrays)}]")

row("scatter", "linear", linear_in=(0, 1),  # x with x[index] = v; where indices repeat, the last write stands
    infer=lambda x, v, *arrays, spec: (x.shape, x.dtype),
    evaluate=_written(_set))

row("scatter_add", "linear", linear_in=(0, 1),  # x with numpy.add.at(x, index, v)
    infer=lambda x, v, *arrays, spec: (x.shape, x.dtype),
    evaluate=_written(np.add.at))


def _take_along_shape(x, idx, axis):
    lead = np.broadcast_shapes(*(tuple(1 if i == axis else n for i, n in enumerate(a.shape)) for a in (x, idx)))
    return tuple(idx.shape[axis] if i == axis else n for i, n in enumerate(lead))


def along_index(shape, idx, axis) -> tuple:
    """The index that x[index] needs to read idx along one axis."""
    grid = np.ogrid[tuple(slice(n) for n in shape)] if shape else ()
    return tuple(idx if i == axis else g for i, g in enumerate(grid))


def _scatter_along_add(x, idx, v, axis):
    out = np.array(x)
    idx = np.asarray(idx)
    shape = tuple(n if i == axis else max(n, m) for i, (n, m) in enumerate(zip(idx.shape, x.shape)))
    np.add.at(out, along_index(shape, idx, axis), v)
    return out


row("take_along", "linear", linear_in=(0,),  # numpy.take_along_axis
    infer=lambda x, idx, axis: (_take_along_shape(x, idx, axis), x.dtype),
    evaluate=lambda x, idx, axis: np.take_along_axis(np.asarray(x), np.asarray(idx), axis),
    code=lambda x, idx, axis: f"np.take_along_axis({x}, {idx}, axis={axis})")

row("scatter_along_add", "linear", linear_in=(0, 2),  # its transpose: v added onto x at idx along the axis
    infer=lambda x, idx, v, axis: (x.shape, x.dtype),
    evaluate=_scatter_along_add)

row("argsort", "nondiff",  # kind None, "stable", ...
    infer=lambda x, axis, kind: (x.shape, np.dtype(np.intp)),
    evaluate=lambda x, axis, kind: np.argsort(x, axis=axis, kind=kind),
    code=lambda x, axis, kind: f"np.argsort({x}, axis={axis}{f', kind={kind!r}' if kind else ''})")

row("argpartition", "nondiff",  # kth an int or a tuple of ints
    infer=lambda x, kth, axis: (x.shape, np.dtype(np.intp)),
    evaluate=lambda x, kth, axis: np.argpartition(x, kth, axis=axis),
    code=lambda x, kth, axis: f"np.argpartition({x}, {kth}, axis={axis})")
