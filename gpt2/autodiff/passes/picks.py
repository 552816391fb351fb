"""Picks elements before computing with them: f(x)[index] -> f(x[index]) where the index takes half or less.

    (a + b)[:, places]  -> a[:, places] + b[:, places]
    (a @ b)[places]     -> a[places] @ b

An index that is out of range is so before as after: the axis that it picks from keeps its length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph import Node
from ..ops import apply, build
from ..ops.table import is_elementwise
from .engine import BITS, DIGITS
from .match import CHOICES, groups
from .views import views

if TYPE_CHECKING:
    from .engine import Sweep


@views.rule("gather", keeps=BITS)
def pick_then_compute(n: Node, sweep: Sweep) -> Node | None:
    """Of elementwise ops, views, and the largest or smallest of each row by itself."""
    x, axis = n.args[0], _axis(n, sweep)
    if axis is None:
        return None
    if is_elementwise(x.op) and x.op != "fused":
        args = [_picked_operand(a, x, axis, n) for a in x.args]
        return apply(x.op, *args, **x.attrs)
    if x.op == "reshape":
        old = _axis_before(x, axis)
        return None if old is None else build.reshape(_picked(x.args[0], old, n), n.shape)
    if x.op == "transpose":
        return build.transpose(_picked(x.args[0], x.attrs["perm"][axis], n), x.attrs["perm"])
    if x.op == "broadcast":
        y = _picked_operand(x.args[0], x, axis, n)
        if y is x.args[0] and n.args[1].op != "const":  # nothing would look whether the index is in range
            return None
        return build.broadcast(y, n.shape)
    return _picked_reduction(x, axis, n) if x.op in CHOICES else None


@views.rule("gather", keeps=DIGITS)
def pick_then_add_up(n: Node, sweep: Sweep) -> Node | None:
    """Of sums over the last axes: NumPy adds along memory, and what is picked lies otherwise in it. Of
    products of matrices, rows of the left one or a part of the batch; also where rows were joined.
    """
    x, axis = n.args[0], _axis(n, sweep)
    if axis is None:
        return None
    if x.op == "sum":
        at_the_end = x.attrs["axes"] == tuple(range(x.args[0].ndim))[-len(x.attrs["axes"]) :]
        return _picked_reduction(x, axis, n) if at_the_end else None
    if x.op == "matmul" and axis < x.ndim - 1:
        a, b = x.args
        a = _picked_operand(a, x, axis, n)
        return apply("matmul", a, _picked_operand(b, x, axis, n) if axis < x.ndim - 2 else b)
    if x.op != "reshape" or axis == x.ndim - 1 or x.shape[-1] != x.args[0].shape[-1]:
        return None
    product = x.args[0]
    if product.op != "matmul" or product.ndim != 2 or not sweep.single(product):
        return None
    a, b = product.args
    rows = _picked(build.reshape(a, (*x.shape[:-1], a.shape[-1])), axis, n)
    flat = build.reshape(rows, (n.size // n.shape[-1], a.shape[-1]))
    return build.reshape(apply("matmul", flat, b), n.shape)


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
    return apply("gather", x, n.args[1], spec=spec)


def _picked_operand(a: Node, x: Node, axis: int, n: Node) -> Node:
    """The same of an operand that was broadcast to x: where it has only one element, that stays."""
    own = axis - (x.ndim - a.ndim)
    return a if own < 0 or a.shape[own] == 1 else _picked(a, own, n)


def _axis_before(x: Node, axis: int) -> int | None:
    """The axis of a reshape's argument that is this one of its result, by itself."""
    for old, new in groups(x.args[0].shape, x.shape) or ():
        if axis in new:
            long_old = [i for i in old if x.args[0].shape[i] != 1]
            long_new = [j for j in new if x.shape[j] != 1]
            return long_old[0] if len(long_old) == 1 and long_new == [axis] else None
    return None


def _picked_reduction(x: Node, axis: int, n: Node) -> Node:
    y, axes = x.args[0], x.attrs["axes"]
    own = axis if x.attrs["keepdims"] else [i for i in range(y.ndim) if i not in axes][axis]
    return apply(x.op, _picked(y, own, n), **x.attrs)
