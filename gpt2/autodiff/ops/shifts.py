"""How ops pass on a shift: the rules of the column `shift`.

A number d, one for each row, is added to a value. What is computed from it then changes by an effect: it
grows by a multiple of d, or is multiplied by a power of e**d (derive/shifts.py says what that is good for).

A rule is called as rule(n, *effects) with the effect on each argument, None where that stays as it is, and
gives the effect on n. It raises NotUnderstood where n changes in another way. An op without a rule counts as
not understood.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..graph import Node, const_value, is_scalar_const

ADD, MULTIPLY = "add", "multiply"


@dataclass(frozen=True)
class Effect:
    """What d does to a value: adds power * d, or multiplies by e**(power * d)."""

    kind: str
    power: float
    axes: tuple[int | None, ...]  # for each axis of the value, the axis of d along it; None: constant


class NotUnderstood(Exception):
    """Raised by a rule for a value that changes in a way that no Effect describes."""


def aligned(e: Effect, ndim: int) -> Effect:
    """The effect on a value broadcast to `ndim` axes."""
    return replace(e, axes=(None,) * (ndim - len(e.axes)) + e.axes)


def along_same_axes(n: Node, a: Effect, b: Effect, kind: str) -> tuple[Effect, Effect]:
    """Both effects as on n, of the kind asked for and along the same axes."""
    a, b = aligned(a, n.ndim), aligned(b, n.ndim)
    if (a.kind, b.kind, a.axes) != (kind, kind, b.axes):
        raise NotUnderstood
    return a, b


def of_kind(e: Effect, kind: str, scale: float = 1.0, result: str | None = None) -> Effect:
    """The effect, scaled and perhaps turned into the other kind; it has to be of the kind asked for."""
    if e.kind != kind:
        raise NotUnderstood
    return Effect(result or kind, e.power * scale, e.axes)


def terms(sign: int) -> Callable:
    """The rule of a sum (1) or a difference (-1)."""

    def rule(n, a, b):
        if a is None:
            return aligned(of_kind(b, ADD, sign), n.ndim)
        if b is None:
            return aligned(of_kind(a, ADD), n.ndim)
        kind = a.kind
        a, b = along_same_axes(n, a, b, kind)
        if kind == ADD:
            return replace(a, power=a.power + sign * b.power)
        if a.power != b.power:
            raise NotUnderstood
        return a

    return rule


def factors(sign: int) -> Callable:
    """The rule of a product (1) or a quotient (-1)."""

    def rule(n, a, b):
        if a is None:
            return _scaled(n, b, n.args[0], sign)
        if b is None:
            return _scaled(n, a, n.args[1], 1, inverse=sign < 0)
        a, b = along_same_axes(n, a, b, MULTIPLY)
        return replace(a, power=a.power + sign * b.power)

    return rule


def _scaled(n, e, factor, sign, inverse=False):
    """A value times (or divided by, or dividing) one that does not change."""
    e = aligned(e, n.ndim)
    if e.kind == MULTIPLY:
        return replace(e, power=sign * e.power)
    if sign < 0 or not is_scalar_const(factor):
        raise NotUnderstood
    scale = const_value(factor)
    if scale == 0:
        raise NotUnderstood
    return replace(e, power=e.power / scale if inverse else e.power * scale)


def where(n: Node, condition: object, a: Effect | None, b: Effect | None) -> Effect:
    """The rule of `where`: both branches change alike, or one does, beside a constant that stays the same."""
    if a is not None and b is not None:
        a, b = along_same_axes(n, a, b, a.kind)
        if a.power != b.power:
            raise NotUnderstood
        return a
    e, other = (a, n.args[2]) if b is None else (b, n.args[1])
    fixed = (0.0,) if e.kind == MULTIPLY else (float("inf"), float("-inf"))
    if not (is_scalar_const(other) and const_value(other) in fixed):
        raise NotUnderstood
    return aligned(e, n.ndim)


def reduction(n: Node, e: Effect) -> Effect:
    """The rule of sums and extrema over axes along which nothing moves."""
    axes, keepdims = n.attrs["axes"], n.attrs["keepdims"]
    if any(e.axes[i] is not None for i in axes):
        raise NotUnderstood
    if n.op == "sum" and e.kind == ADD:
        count = n.args[0].size // max(n.size, 1)
        e = replace(e, power=e.power * count)
    return e if keepdims else replace(e, axes=tuple(x for i, x in enumerate(e.axes) if i not in axes))


def reshape(n: Node, e: Effect) -> Effect:
    """The rule of reshapes that keep the order of all axes longer than 1."""
    x = n.args[0]
    long = [i for i, length in enumerate(x.shape) if length > 1]
    if [x.shape[i] for i in long] != [length for length in n.shape if length > 1]:
        raise NotUnderstood
    axes = iter([e.axes[i] for i in long])
    return replace(e, axes=tuple(next(axes) if length > 1 else None for length in n.shape))


def slice_(n: Node, e: Effect) -> Effect:
    """The rule of slices: along an axis with an effect they take everything."""
    whole = (index == (0, length, 1) for index, length in zip(n.attrs["index"], n.args[0].shape))
    if any(along is not None and not all_of_it for along, all_of_it in zip(e.axes, whole)):
        raise NotUnderstood
    return e


def along_axis(n: Node, e: Effect | None, *index: Effect | None) -> Effect:
    """The rule of ops along an axis along which nothing moves."""
    if e is None or e.axes[n.attrs["axis"]] is not None or any(index):
        raise NotUnderstood
    return e


def matmul(n: Node, a: Effect | None, b: Effect | None) -> Effect:
    """The rule of matmul: rows of the first and columns of the second stay apart; the rest is summed."""
    if a is not None and b is not None:
        raise NotUnderstood
    e = of_kind(a or b, MULTIPLY)
    inner, kept = (-1, -2) if b is None else (-2, -1)
    if e.axes[inner] is not None:
        raise NotUnderstood
    last = (e.axes[kept], None) if b is None else (None, e.axes[kept])
    return aligned(replace(e, axes=(*e.axes[:-2], *last)), n.ndim)


def unchanged(n: Node, e: Effect) -> Effect:
    """The rule of casts and copies: the effect on the argument, unless only its real part is left."""
    if n.args[0].dtype.kind == "c" != n.dtype.kind:
        raise NotUnderstood
    return e


def transpose(n: Node, e: Effect) -> Effect:
    """The rule of transposes: the axes of the effect change positions too."""
    return replace(e, axes=tuple(e.axes[p] for p in n.attrs["perm"]))


def broadcast(n: Node, e: Effect) -> Effect:
    """The rule of broadcasts: nothing moves along new axes."""
    return aligned(e, n.ndim)


def negative(n: Node, e: Effect) -> Effect:
    """The rule of a change of sign: a sum falls where it rose; a product keeps its power."""
    return replace(e, power=-e.power) if e.kind == ADD else e


def power(exponent: float) -> Callable:
    """The rule of an op that takes each element to this power."""
    return lambda n, e: of_kind(e, MULTIPLY, exponent)


def exp(n: Node, e: Effect) -> Effect:
    """The rule of exp: what was added to its argument, its result is multiplied by."""
    return of_kind(e, ADD, result=MULTIPLY)


def log(n: Node, e: Effect) -> Effect:
    """The rule of log: what its argument was multiplied by is added to its result."""
    return of_kind(e, MULTIPLY, result=ADD)
