"""Tells which values have to keep every bit, which only their digits, and which no rounding reaches.

In strict mode (Options.math) a program gives what NumPy gives. A rewrite that rounds otherwise is allowed
only in what differentiation made, where NumPy has no say, and there only where it cannot reach a decision.
All other values are `exact`: those of the user's own program, and all that is compared, floored, cast to
integers, sorted or used as an index, with what it is computed from.

The rows of the table say which ops do not decide, because they take a small relative change to a small one,
and which do not round. An op whose row says nothing is taken for one that decides unless it is linear, and
for one that rounds. Remainder and
floor_divide jump, arctan2 and angle have a cut, sign and copysign depend on a sign, eigenvectors and singular
vectors on a choice: they all decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..graph import Graph, Node
from .table import facts


def exact(graph: Graph) -> set[int]:
    """The ids of the values that keep every bit."""
    return decided(graph) | {n.id for n in graph.nodes if not n.derived}


def decided(graph: Graph, order: Sequence[Node] | None = None) -> set[int]:
    """The ids of the values that a result or a decision shows: without those that only a derivative reads.

    order   the graph's nodes, each after its arguments, where the caller has them
    """
    returned = {o.id for o in graph.outputs if not o.derived}
    decisive: set[int] = set()
    for n in reversed(graph.nodes if order is None else order):
        continuous = not facts(n).discontinuous and not isinstance(n.dtype, tuple) and n.dtype.kind in "fc"
        if n.id in decisive or not continuous:
            decisive.update([a.id for a in n.args])
            continue
        if n.op == "where":
            decisive.add(n.args[0].id)
        if n.id in returned:
            returned.update([a.id for a in n.args if not a.derived])
    return decisive | returned


def without_rounding(nodes: Iterable[Node]) -> bool:
    """Whether these values are the same to the last bit in whatever way a program computes them."""
    known: set[Node] = set()
    todo = list(nodes)
    while todo:
        n = todo.pop()
        if n in known:
            continue
        known.add(n)
        if n.op not in ("input", "const"):
            kinds = facts(n).exact_on
            dtypes = [x.dtype for x in (n, *n.args)]
            if not kinds or any(isinstance(d, tuple) or d.kind not in kinds for d in dtypes):
                return False
        todo.extend(n.args)
    return True


def mark_derived(made: Iterable[Node | None], start: int) -> None:
    """Mark as derivatives the nodes younger than `start` among these and what they are computed from."""
    stack = [n for n in made if isinstance(n, Node)]
    while stack:
        n = stack.pop()
        if n.id > start and not n.derived:
            n.derived = True
            stack.extend(n.args)
