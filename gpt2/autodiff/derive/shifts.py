"""Maxima that only guard against overflow: nothing depends on them, so nothing is derived through them.

A softmax subtracts the largest element of each row, and the quotient does not change when another number is
subtracted. The derivative with respect to that number is therefore zero, and finding and masking the largest
elements in the backward would be work for nothing, a quarter of a softmax's.

Suppose that a maximum m grows by d, a number for each row. Follow what each later value becomes:

    x - m            falls by d            Effect(add, -1)
    exp(x - m)       times e**-d           Effect(multiply, -1)
    its row sum      times e**-d           Effect(multiply, -1)
    the quotient     times e**0            unchanged
    log(sum) + m     -d + d                unchanged

If every value on the way to the outputs ends unchanged, m has no derivative. Anything not understood here
counts as changed, and m is differentiated as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..graph import Node, is_scalar_const
from ..ops import OPS
from ..ops.elementwise import const_value
from ..ops.matrix import split_subscripts

ADD, MULTIPLY = "add", "multiply"


@dataclass(frozen=True)
class Effect:
    """What d does to a value: adds power * d, or multiplies by e**(power * d)."""

    kind: str
    power: float
    axes: tuple[int | None, ...]  # for each axis of the value, the axis of d along it; None: constant


class NotUnderstood(Exception):
    pass


def invariant_shifts(nodes: Sequence[Node], outputs: Sequence[Node]) -> set[Node]:
    """The maxima and minima among `nodes` on which `outputs` do not depend.

    nodes   in topological order, with all that lies between those maxima and the outputs
    """
    found = [n for n in nodes if n.op in ("max", "min")]
    if not found:
        return set()
    readers: dict[Node, list[Node]] = {}
    for n in nodes:
        for a in set(n.args):
            readers.setdefault(a, []).append(n)
    return {m for m in found if not changes(m, readers, outputs)}


def changes(m: Node, readers: dict[Node, list[Node]], outputs: Sequence[Node]) -> bool:
    """Whether an output changes with m, or might."""
    try:
        effects = effects_of(m, readers)
    except NotUnderstood:
        return True
    return any(o in effects for o in outputs)


def effects_of(m: Node, readers: dict[Node, list[Node]]) -> dict[Node, Effect]:
    """The effect on each value that changes with m."""
    effects = {m: Effect(ADD, 1.0, tuple(i if n > 1 else None for i, n in enumerate(m.shape)))}
    waiting = set(readers.get(m, ()))
    while waiting:
        n = min(waiting, key=lambda n: n.id)  # its arguments' effects are known
        waiting.discard(n)
        effect = effect_on(n, [effects.get(a) for a in n.args])
        if effect is not None:
            effects[n] = effect
            waiting.update(readers.get(n, ()))
    return effects


def effect_on(n: Node, given: list[Effect | None]) -> Effect | None:
    """The effect on a node, from those on its arguments. None is unchanged."""
    if OPS[n.op].kind == "nondiff":
        return None  # piecewise constant: what it does for the value, it does not for the derivative
    rule = RULES.get(n.op)
    if rule is None:
        raise NotUnderstood
    effect = rule(n, *given)
    return None if effect is None or effect.power == 0 else effect


def aligned(e: Effect, ndim: int) -> Effect:
    """The effect on a value broadcast to `ndim` axes."""
    return replace(e, axes=(None,) * (ndim - len(e.axes)) + e.axes)


def same_place(n: Node, a: Effect, b: Effect, kind: str) -> tuple[Effect, Effect]:
    """Both effects as on n, of the kind asked for and along the same axes."""
    a, b = aligned(a, n.ndim), aligned(b, n.ndim)
    if (a.kind, b.kind, a.axes) != (kind, kind, b.axes):
        raise NotUnderstood
    return a, b


def of_kind(e: Effect, kind: str, scale: float = 1.0, result: str | None = None) -> Effect:
    if e.kind != kind:
        raise NotUnderstood
    return Effect(result or kind, e.power * scale, e.axes)


def _sum_rule(sign):
    def rule(n, a, b):
        if a is None:
            return aligned(of_kind(b, ADD, sign), n.ndim)
        if b is None:
            return aligned(of_kind(a, ADD), n.ndim)
        kind = a.kind
        a, b = same_place(n, a, b, kind)
        if kind == ADD:
            return replace(a, power=a.power + sign * b.power)
        if a.power != b.power:
            raise NotUnderstood
        return a

    return rule


def _product_rule(sign):
    def rule(n, a, b):
        if a is None:
            return _scaled(n, b, n.args[0], sign)
        if b is None:
            return _scaled(n, a, n.args[1], 1, inverse=sign < 0)
        a, b = same_place(n, a, b, MULTIPLY)
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
    return replace(e, power=e.power / scale if inverse else e.power * scale)


def _where(n, condition, a, b):
    """Both branches alike; or one, beside the constant that the effect leaves as it is."""
    if a is not None and b is not None:
        a, b = same_place(n, a, b, a.kind)
        if a.power != b.power:
            raise NotUnderstood
        return a
    e, other = (a, n.args[2]) if b is None else (b, n.args[1])
    fixed = (0.0,) if e.kind == MULTIPLY else (float("inf"), float("-inf"))
    if not (is_scalar_const(other) and const_value(other) in fixed):
        raise NotUnderstood
    return aligned(e, n.ndim)


def _reduction(n, e):
    axes, keepdims = n.attrs["axes"], n.attrs["keepdims"]
    if any(e.axes[i] is not None for i in axes):
        raise NotUnderstood
    if n.op == "sum" and e.kind == ADD:
        count = n.args[0].size // max(n.size, 1)
        e = replace(e, power=e.power * count)
    return e if keepdims else replace(e, axes=tuple(x for i, x in enumerate(e.axes) if i not in axes))


def _reshape(n, e):
    """Axes of length 1 come and go; the others keep their order."""
    x = n.args[0]
    long = [i for i, length in enumerate(x.shape) if length > 1]
    if [x.shape[i] for i in long] != [length for length in n.shape if length > 1]:
        raise NotUnderstood
    axes = iter([e.axes[i] for i in long])
    return replace(e, axes=tuple(next(axes) if length > 1 else None for length in n.shape))


def _slice(n, e):
    whole = (index == (0, length, 1) for index, length in zip(n.attrs["index"], n.args[0].shape))
    if any(along is not None and not all_of_it for along, all_of_it in zip(e.axes, whole)):
        raise NotUnderstood
    return e


def _along_axis(n, e, *index):
    if e is None or e.axes[n.attrs["axis"]] is not None or any(index):
        raise NotUnderstood
    return e


def _matmul(n, a, b):
    """Rows of the first and columns of the second stay apart; the axis between them is summed."""
    if a is not None and b is not None:
        raise NotUnderstood
    e = of_kind(a or b, MULTIPLY)
    inner, kept = (-1, -2) if b is None else (-2, -1)
    if e.axes[inner] is not None:
        raise NotUnderstood
    last = (e.axes[kept], None) if b is None else (None, e.axes[kept])
    return aligned(replace(e, axes=(*e.axes[:-2], *last)), n.ndim)


def _einsum(n, *given):
    changed = [(e, letters) for e, letters in zip(given, split_subscripts(n.attrs["subscripts"])[0]) if e]
    if len(changed) > 1:
        raise NotUnderstood
    ((e, letters),) = changed
    out = split_subscripts(n.attrs["subscripts"])[1]
    where = {letter: axis for letter, axis in zip(letters, e.axes) if axis is not None}
    if not set(where) <= set(out) or len(set(letters)) < len(letters):
        raise NotUnderstood
    return replace(of_kind(e, MULTIPLY), axes=tuple(where.get(letter) for letter in out))


RULES = {
    "add": _sum_rule(1),
    "subtract": _sum_rule(-1),
    "multiply": _product_rule(1),
    "divide": _product_rule(-1),
    "negative": lambda n, e: replace(e, power=-e.power) if e.kind == ADD else e,
    "exp": lambda n, e: of_kind(e, ADD, result=MULTIPLY),
    "log": lambda n, e: of_kind(e, MULTIPLY, result=ADD),
    "square": lambda n, e: of_kind(e, MULTIPLY, 2.0),
    "sqrt": lambda n, e: of_kind(e, MULTIPLY, 0.5),
    "reciprocal": lambda n, e: of_kind(e, MULTIPLY, -1.0),
    "where": _where,
    "cast": lambda n, e: e,
    "copy": lambda n, e: e,
    "sum": _reduction,
    "max": _reduction,
    "min": _reduction,
    "cumsum": lambda n, e: _along_axis(n, of_kind(e, MULTIPLY)),
    "reshape": _reshape,
    "transpose": lambda n, e: replace(e, axes=tuple(e.axes[p] for p in n.attrs["perm"])),
    "broadcast": lambda n, e: aligned(e, n.ndim),
    "slice": _slice,
    "take_along": _along_axis,
    "matmul": _matmul,
    "einsum": _einsum,
}
