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

If every value on the way to the outputs ends unchanged, m has no derivative. How an op passes such an effect
on is a column of its row (ops/shifts.py). Whatever is not understood counts as changed, and m is
differentiated as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ..graph import Node
from ..ops import OPS
from ..ops.shifts import ADD, Effect, NotUnderstood


def invariant_shifts(nodes: Sequence[Node], outputs: Sequence[Node]) -> set[Node]:
    """The maxima and minima among `nodes` on which `outputs` do not depend.

    nodes   in topological order, with all that lies between those maxima and the outputs
    """
    extremes = [n for n in nodes if n.op in ("max", "min")]
    if not extremes:
        return set()
    readers: dict[Node, list[Node]] = {}
    for n in nodes:
        for a in set(n.args):
            readers.setdefault(a, []).append(n)
    still = set()
    for m in extremes:
        with suppress(NotUnderstood):
            if effects_of(m, readers).keys().isdisjoint(outputs):
                still.add(m)
    return still


def effects_of(m: Node, readers: dict[Node, list[Node]]) -> dict[Node, Effect]:
    """The effect on each value that changes with m. Raises NotUnderstood if an op has no rule for it."""
    effects = {m: Effect(ADD, 1.0, tuple(i if n > 1 else None for i, n in enumerate(m.shape)))}
    waiting = set(readers.get(m, ()))
    while waiting:
        n = min(waiting, key=lambda n: n.id)  # its arguments' effects are known
        waiting.discard(n)
        op = OPS[n.op]
        if op.kind == "nondiff" or not isinstance(n.dtype, tuple) and n.dtype.kind not in "fc":
            continue  # piecewise constant: what it does for the value, it does not for the derivative
        if op.shift is None:
            raise NotUnderstood
        effect = op.shift(n, *[effects.get(a) for a in n.args])
        if effect is not None and effect.power != 0:
            effects[n] = effect
            waiting.update(readers.get(n, ()))
    return effects
