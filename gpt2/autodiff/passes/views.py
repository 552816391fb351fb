"""Joins views of views: reshapes, transposes, broadcasts and slices in a row become one, or none. They move
numbers and compute nothing, so every bit is kept.

And picks elements before computing with them: f(x)[index] -> f(x[index]) where the index takes half or less.

    (a + b)[:, places]   -> a[:, places] + b[:, places]
    np.max(a, 1)[places] -> np.max(a[places], 1)

An index that is out of range is so before as after: the axis that it picks from keeps its length.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ..graph import Node
from ..ops import build, table
from ..ops.boxes import as_index, disjoint, inside, is_full, ranges
from .engine import BITS, Family
from .match import CHOICES, ONE_NUMBER, REDUCTIONS, number, reshaped_operand, same_axes, strip_ones
from .patterns import ALL, R, enter

if TYPE_CHECKING:
    from .engine import Sweep

views = Family("views")


@views.rule("reshape", "transpose", "slice", keeps=BITS, reads=ONE_NUMBER)
def of_one_number(n: Node, sweep: Sweep) -> Node | None:
    """A view of an array that is one number all over."""
    value = number(n.args[0])
    return None if value is None else build.full(n.shape, value, n.dtype)


@views.rule("reshape", "broadcast", keeps=BITS)
def to_the_same_shape(n: Node, sweep: Sweep) -> Node | None:
    (x,) = n.args
    return x if x.shape == n.shape else None


enter(views, R("reshape(reshape(x))", "reshape(x)", bits=ALL))
enter(views, R("broadcast(broadcast(x))", "broadcast(x)", bits=ALL))


# reshape
@views.rule("reshape", keeps=BITS, reads=("broadcast",))
def reshape_broadcast(n: Node, sweep: Sweep) -> Node | None:
    """reshape(broadcast(x)) -> broadcast(reshape(x)), where axes stay apart."""
    (x,) = n.args
    if x.op != "broadcast":
        return None
    shape = reshaped_operand(x.args[0].shape, x.shape, n.shape)
    return None if shape is None else build.broadcast(build.reshape(x.args[0], strip_ones(shape)), n.shape)


@views.rule("reshape", keeps=BITS, reads=REDUCTIONS)
def reshape_reduction(n: Node, sweep: Sweep) -> Node | None:
    """A reduction whose axes are put back, or taken away, by a reshape does so itself."""
    (x,) = n.args
    if x.op not in REDUCTIONS or not sweep.single(x):
        return None
    axes, keepdims = x.attrs["axes"], x.attrs["keepdims"]
    other = tuple(
        1 if i in axes else s for i, s in enumerate(x.args[0].shape) if not (keepdims and i in axes)
    )
    if n.shape != other:
        return None
    return table.apply(x.op, x.args[0], axes=axes, keepdims=not keepdims)


# transpose
@views.rule("transpose", keeps=BITS)
def transpose_transpose(n: Node, sweep: Sweep) -> Node | None:
    (x,) = n.args
    perm = n.attrs["perm"]
    if perm == tuple(range(n.ndim)):
        return x
    if x.op == "transpose":
        inner = x.attrs["perm"]
        return build.transpose(x.args[0], tuple(inner[p] for p in perm))
    moved = [p for p in perm if x.shape[p] != 1]
    if moved == sorted(moved):  # only axes of length 1 change their position
        return build.reshape(x, n.shape)
    return None


# broadcast
@views.rule("broadcast", keeps=BITS, reads=("reshape",))
def broadcast_reshape(n: Node, sweep: Sweep) -> Node | None:
    """Broadcasting adds leading axes itself."""
    (x,) = n.args
    if x.op != "reshape":
        return None
    y = x.args[0]
    leading = y.ndim <= n.ndim and strip_ones(x.shape) == strip_ones(y.shape)
    return build.broadcast(y, n.shape) if leading else None


# slice
@views.rule("slice", keeps=BITS)
def slice_slice(n: Node, sweep: Sweep) -> Node | None:
    (x,) = n.args
    index, full = _normal(n.attrs["index"], x.shape)
    if full:
        return x
    if x.op == "slice":
        inner = ranges(x.attrs["index"], x.args[0].shape)
        return build.slice_(x.args[0], as_index(r[slice(*s)] for r, s in zip(inner, n.attrs["index"])))
    return build.slice_(x, index) if index != n.attrs["index"] else None


@lru_cache(maxsize=1 << 14)  # a deep model's blocks each take their parts of the same tensors, in every sweep
def _normal(index: tuple, shape: tuple[int, ...]) -> tuple[tuple, bool]:
    """An index in its normal form, and whether it takes everything."""
    rs = ranges(index, shape)
    return as_index(rs), is_full(rs, shape)


@views.rule("slice", keeps=BITS, reads=("broadcast", "transpose", "reshape"))
def slice_view(n: Node, sweep: Sweep) -> Node | None:
    """Slice first, broadcast or transpose later; slice before a reshape that leaves the sliced axes alone."""
    (x,) = n.args
    index = n.attrs["index"]
    if x.op == "broadcast":
        y = x.args[0]
        cut = index[x.ndim - y.ndim :]
        cut = [s if m != 1 else (0, 1, 1) for s, m in zip(cut, y.shape)]
        return build.broadcast(build.slice_(y, cut), n.shape) if 0 not in n.shape else None
    if x.op == "transpose":
        perm = x.attrs["perm"]
        cut = tuple(index[perm.index(i)] for i in range(x.ndim))
        return build.transpose(build.slice_(x.args[0], cut), perm)
    if x.op != "reshape" or 0 in n.shape:
        return None
    (y,) = x.args
    same, cut = same_axes(y.shape, x.shape), [range(m) for m in y.shape]
    for j, r in enumerate(ranges(index, x.shape)):
        if r != range(x.shape[j]):
            if j not in same:
                return None
            cut[same[j]] = r
    return build.reshape(build.slice_(y, as_index(cut)), n.shape)


@views.rule("slice", keeps=BITS, reads=("update",))
def slice_update(n: Node, sweep: Sweep) -> Node | None:
    """Reads what was written there, or what stood there before."""
    (x,) = n.args
    if x.op != "update":
        return None
    want, box = ranges(n.attrs["index"], x.shape), ranges(x.attrs["index"], x.shape)
    if disjoint(want, box):
        root = x.args[0]  # a loop makes thousands of writes, so all that miss the slice are passed at once
        while root.op == "update" and disjoint(want, ranges(root.attrs["index"], x.shape)):
            root = root.args[0]
        return build.slice_(root, n.attrs["index"])
    v = x.args[1]
    within = inside(want, box)
    if within is None:
        return None
    written = build.broadcast(build.cast(v, x.dtype), tuple(map(len, box)))
    return build.slice_(written, as_index(within))


# gather
@views.rule("gather", keeps=BITS)
def pick_then_compute(n: Node, sweep: Sweep) -> Node | None:
    """Of elementwise ops, views, and the largest or smallest of each row by itself: sums and products lose
    digits, as NumPy and BLAS add in another order where what is picked lies otherwise in memory.
    """
    x, axis = n.args[0], _axis(n, sweep)
    if axis is None:
        return None
    if table.is_elementwise(x.op) and x.op != "fused":
        args = [_picked_operand(a, x, axis, n) for a in x.args]
        return table.apply(x.op, *args, **x.attrs)
    if x.op == "reshape":
        old = same_axes(x.args[0].shape, x.shape).get(axis)
        return None if old is None else build.reshape(_picked(x.args[0], old, n), n.shape)
    if x.op == "transpose":
        return build.transpose(_picked(x.args[0], x.attrs["perm"][axis], n), x.attrs["perm"])
    if x.op == "broadcast":
        y = _picked_operand(x.args[0], x, axis, n)
        if y is x.args[0] and n.args[1].op != "const":  # nothing would look whether the index is in range
            return None
        return build.broadcast(y, n.shape)
    if x.op not in CHOICES:
        return None
    y, axes = x.args[0], x.attrs["axes"]
    own = axis if x.attrs["keepdims"] else [i for i in range(y.ndim) if i not in axes][axis]
    return table.apply(x.op, _picked(y, own, n), **x.attrs)


def _axis(n: Node, sweep: Sweep) -> int | None:
    """The axis along which a vector of indices picks half of the elements or less, from what no other node
    reads."""
    x, *arrays = n.args
    spec = n.attrs["spec"]
    if len(arrays) != 1 or arrays[0].ndim != 1 or "new" in spec or not sweep.single(x) or 0 in n.shape:
        return None
    axis = spec.index(("array", 0))
    cuts = [(s, m) for s, m in zip(spec, x.shape) if s != ("array", 0)]
    full = all(len(range(*slice(*s).indices(m))) == m and (s[2] or 1) == 1 for s, m in cuts)
    return axis if full and 2 * arrays[0].size <= x.shape[axis] else None


def _picked(x: Node, axis: int, n: Node) -> Node:
    """x at the index of the gather n, along another axis."""
    spec = (*((0, m, 1) for m in x.shape[:axis]), ("array", 0))
    return table.apply("gather", x, n.args[1], spec=spec)


def _picked_operand(a: Node, x: Node, axis: int, n: Node) -> Node:
    """The same of an operand that was broadcast to x: where it has only one element, that stays."""
    own = axis - (x.ndim - a.ndim)
    return a if own < 0 or a.shape[own] == 1 else _picked(a, own, n)
