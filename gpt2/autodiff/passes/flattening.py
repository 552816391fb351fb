"""Gives what belongs together one shape: reshapes of leading axes move to the matrix products.

A matrix product likes its rows flattened, (B, T, C) -> (B*T, C); the program around it is written on (B, T,
C). If each goes its way, elementwise chains between two products alternate between the shapes, and no back
end can fuse them. The canonical form is the user's: elementwise ops and reductions work on the shape with
more axes, and the flattening stands at the product alone. Only reshapes that leave the last axis alone are
moved; those that cut channels into heads stay where they are.

    towards what makes them   reshape(f(x, y), (B, T, C))       -> f(reshape(x, (B, T, C)), reshape(y, ...))
    towards what reads them   f(reshape(x, (B*T, C)), y)        -> reshape(f(x, reshape(y, ...)), (B*T, C))
                              sum(reshape(x, (B*T, C)), axis 0) -> sum(x, axes (0, 1))

And takes work out of reductions: nothing is summed along axes of length 1, or along which it was broadcast.

    sum(broadcast(x)) -> n * sum(x), broadcast along axes that are not summed

sum(a + row) -> sum(a) + n * row is not among them: in sum(x - mean(x)) it would trade an exact small
difference for that of two large numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..graph import Node
from ..ops import apply, build, const
from ..ops.table import is_elementwise
from .collect import representable
from .engine import BITS, DIGITS, ELEMENTWISE, Family
from .match import CHOICES, groups, is_inexact, padded, reshaped_operand, strip_ones

if TYPE_CHECKING:
    from .engine import Sweep

rows = Family("rows")
reduce = Family("reduce")


def joins_rows(n: Node) -> bool:
    """Whether `n` is a reshape that joins leading axes, the last axis left alone."""
    return n.op == "reshape" and _cuts(n.shape, n.args[0].shape)


def _cuts(a: tuple, b: tuple) -> bool:
    """Whether each axis of b is a part of one axis of a. (3, 2, 4) -> (1, 1, 6, 4) also joins two."""
    if not 1 < len(a) < len(b) or a[-1] != b[-1] or 0 in a:
        return False
    if strip_ones(a) == strip_ones(b):
        return False  # more than 1s must move: (C,) -> (1, C) is what broadcasting does anyway
    return all(sum(a[i] != 1 for i in old) <= 1 for old, _ in groups(a, b))


@rows.rule("reshape", keeps=BITS)
def cut_before_elementwise(n: Node, sweep: Sweep) -> Node | None:
    (f,) = n.args
    if not (_cuts(f.shape, n.shape) and is_elementwise(f.op) and sweep.single(f)):
        return None
    return apply(f.op, *[_reshaped(a, f.shape, n.shape) for a in f.args], **f.attrs)


@rows.rule(ELEMENTWISE, keeps=BITS, reads=("reshape",))
def join_after_elementwise(n: Node, sweep: Sweep) -> Node | None:
    for a in n.args:
        if a.shape == n.shape and joins_rows(a):
            target = a.args[0].shape
            args = [_reshaped(b, n.shape, target) for b in n.args]
            return build.reshape(apply(n.op, *args, **n.attrs), n.shape)
    return None


def _reshaped(x: Node, a: tuple, b: tuple) -> Node:
    """`x`, which broadcasts to shape `a`, for where everything was reshaped to `b`, with more axes."""
    shape = reshaped_operand(x.shape, a, b)
    assert shape is not None, (x, a, b)  # cutting axes never fails
    return build.reshape(x, strip_ones(shape) if strip_ones(shape) == strip_ones(x.shape) else shape)


@rows.rule(*CHOICES, keeps=BITS)
@rows.rule("sum", "prod", keeps=DIGITS, reads=("reshape",))
def reduce_before_joining(n: Node, sweep: Sweep) -> Node | None:
    """A reduction of joined axes is one of the axes that were joined."""
    (x,) = n.args
    if not joins_rows(x):
        return None
    y, axes, keepdims = x.args[0], n.attrs["axes"], n.attrs["keepdims"]
    pairs = groups(y.shape, x.shape)
    gone: list[int] = []
    for old, new in pairs:
        taken = [j in axes for j in new]
        if any(taken) and not all(taken):
            return None
        if any(taken):
            gone.extend(old)
    return build.reshape(apply(n.op, y, axes=tuple(gone), keepdims=keepdims), n.shape)


# reductions
@reduce.rule(*CHOICES, keeps=BITS)
@reduce.rule("prod", keeps=BITS, kinds="biuf")
@reduce.rule("sum", "prod")
def over_nothing(n: Node, sweep: Sweep) -> Node | None:
    """A reduction over axes of length 1 is a reshape. But NumPy's sum of -0.0 is 0.0, and its product of
    inf * 1j has a nan: it begins with 1 + 0j.
    """
    (x,) = n.args
    axes = n.attrs["axes"]
    if n.dtype != x.dtype:
        return None
    if all(x.shape[i] == 1 for i in axes):
        return build.reshape(x, n.shape)
    long = tuple(i for i in axes if x.shape[i] != 1)
    if len(long) < len(axes) and n.attrs["keepdims"]:
        return apply(n.op, x, axes=long, keepdims=True)
    return None


@reduce.rule(*CHOICES, keeps=BITS)
@reduce.rule("sum", keeps=DIGITS, reads=("broadcast",))
def of_broadcast(n: Node, sweep: Sweep) -> Node | None:
    """A reduction of what was broadcast is one of what there was before."""
    (x,) = n.args
    if x.op != "broadcast" or n.dtype != x.dtype or 0 in x.shape:
        return None
    shape, axes = padded(x.args[0].shape, x.ndim), n.attrs["axes"]
    if shape == x.shape:
        return None
    z = apply(n.op, build.reshape(x.args[0], shape), axes=axes, keepdims=n.attrs["keepdims"])
    copies = math.prod(x.shape[i] for i in axes if shape[i] == 1)
    if n.op == "sum" and copies > 1:
        if not is_inexact(n) or not representable(float(copies), n.dtype):
            return None
        z = z * const(float(copies), n.dtype)
    return build.broadcast(z, n.shape)
