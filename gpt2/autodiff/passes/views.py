"""Joins views of views: reshapes, transposes, broadcasts and slices in a row become one, or none.

They move numbers and compute nothing, so every bit is kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ..graph import Node
from ..ops import build, table
from ..ops.boxes import as_index, disjoint, inside, is_full, ranges
from .engine import BITS, Family
from .match import ONE_NUMBER, REDUCTIONS, groups, number, reshaped_operand, strip_ones
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
    if x.op == "reshape":
        return _slice_reshape(n, x)
    return None


def _slice_reshape(n: Node, x: Node) -> Node | None:
    y = x.args[0]
    pairs = groups(y.shape, x.shape)
    if pairs is None or 0 in n.shape:
        return None
    rs = ranges(n.attrs["index"], x.shape)
    cut = [range(m) for m in y.shape]
    for old, new in pairs:
        sliced = [j for j in new if rs[j] != range(x.shape[j])]
        if not sliced:
            continue
        long_old = [i for i in old if y.shape[i] != 1]
        long_new = [j for j in new if x.shape[j] != 1]
        if len(long_old) != 1 or len(long_new) != 1 or long_new != sliced:
            return None
        cut[long_old[0]] = rs[sliced[0]]
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
