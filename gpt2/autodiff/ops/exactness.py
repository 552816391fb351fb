"""Tells which values have to keep every bit, which only their digits, and which no rounding reaches.

In strict mode (Options.math) a program gives what NumPy gives. A rewrite that rounds otherwise is allowed
only in what differentiation made, where NumPy has no say, and there only where it cannot reach a decision.
All other values are `exact`: those of the user's own program, and all that is compared, floored, cast to
integers, sorted or used as an index, with what it is computed from.

The ops that do not decide, because they take a small relative change to a small one, are listed here, and so
are those that do not round. An op that is in no list is taken for one that decides, and rounds.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..graph import Graph, Node

# A small relative change of an argument makes a small change of the result. Not among them: remainder and
# floor_divide jump, arctan2 and angle have a cut, sign and copysign depend on a sign, eigenvectors and
# singular vectors on a choice.
CONTINUOUS = frozenset(
    "add subtract multiply divide negative positive square reciprocal power sqrt cbrt "
    "exp exp2 expm1 log log2 log10 log1p logaddexp logaddexp2 sinc hypot "
    "sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh "
    "deg2rad rad2deg degrees radians absolute fabs conjugate real imag "
    "maximum minimum fmax fmin where cast copy fused stop_gradient item "
    "sum prod max min cumsum cumprod matmul einsum "
    "reshape transpose slice broadcast assemble update "
    "gather take_along scatter scatter_add scatter_along_add".split()
)

# Ops whose results are copies of their arguments' elements, or decided by comparing them.
EXACT = frozenset(
    "reshape transpose broadcast slice copy gather take_along update assemble where max min maximum minimum "
    "fmax fmin argmax argmin argsort searchsorted any all equal not_equal less less_equal greater "
    "greater_equal logical_and logical_or logical_xor logical_not isnan isinf isfinite signbit absolute fabs "
    "negative positive sign floor ceil trunc rint real imag stop_gradient".split()
)
# Exact on integers besides
EXACT_INTEGERS = frozenset(
    "add subtract multiply floor_divide remainder square sum cumsum prod bitwise_and bitwise_or bitwise_xor "
    "left_shift right_shift invert gcd lcm cast".split()
)


def exact(graph: Graph) -> set[int]:
    """The ids of the values that keep every bit."""
    return decided(graph) | {n.id for n in graph.nodes if not n.derived}


def decided(graph: Graph) -> set[int]:
    """The ids of the values that a result or a decision shows: without those that only a derivative reads."""
    returned = {o.id for o in graph.outputs if not o.derived}
    decisive: set[int] = set()
    for n in reversed(graph.nodes):
        if n.id in decisive or not _is_continuous(n):
            decisive.update([a.id for a in n.args])
            continue
        if n.op == "where":
            decisive.add(n.args[0].id)
        if n.id in returned:
            returned.update([a.id for a in n.args if not a.derived])
    return decisive | returned


def _is_continuous(n: Node) -> bool:
    return n.op in CONTINUOUS and not isinstance(n.dtype, tuple) and n.dtype.kind in "fc"


def without_rounding(nodes: Iterable[Node]) -> bool:
    """Whether these values are the same to the last bit in whatever way a program computes them."""
    known: set[Node] = set()
    todo = list(nodes)
    while todo:
        n = todo.pop()
        if n in known:
            continue
        known.add(n)
        whole = n.op in EXACT_INTEGERS and all(x.dtype.kind in "biu" for x in (n, *n.args))
        if n.op not in ("input", "const") and n.op not in EXACT and not whole:
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
