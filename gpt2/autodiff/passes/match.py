"""Questions that rules ask about nodes, and shapes under reshaping and broadcasting."""

from __future__ import annotations

from typing import Any

from ..graph import Graph, Node, const_value
from ..hidden import known
from ..ops import OPS, build

NUMBERS = (bool, int, float, complex)
REDUCTIONS = tuple(name for name, op in OPS.items() if op.reducer is not None)
ONE_NUMBER = ("const", "broadcast")  # what `number` finds one in
ZEROS = (*ONE_NUMBER, "assemble")  # what `is_zeros` may be true of
CHOICES = ("max", "min", "any", "all")  # reductions to which an element counts as much as its copies


def number(n: Node) -> Any:
    """The Python number that every element of `n` equals, if it is a constant or one that was broadcast."""
    while n.op == "broadcast":
        n = n.args[0]
    if n.op != "const" or n.shape:
        return None
    return const_value(n)


def is_zeros(n: Node) -> bool:
    """Whether every element of `n` is zero, and known to be. -0.0 is another number."""
    value = number(n)
    if value is None:
        return n.op == "assemble" and not n.args
    return value == 0 and "-" not in repr(known(value))


def calls_back(n: Node) -> bool:
    """Whether `n`, or a graph that it carries, runs the user's code, which may not do the same twice."""
    if n.op == "host":
        return True
    return any([_any_calls_back(v) for v in n.attrs.values() if isinstance(v, Graph)])


def _any_calls_back(graph: Graph) -> bool:
    """Whether a node of the graph does; found once for each, as many nodes may carry the same."""
    if "calls back" not in graph.kept:
        graph.kept["calls back"] = any(map(calls_back, graph.nodes))
    return graph.kept["calls back"]


def is_inexact(n: Node) -> bool:
    return not isinstance(n.dtype, tuple) and n.dtype.kind in "fc"


def as_type_of(n: Node, x: Node) -> Node:
    """`x` in the shape and dtype of `n`, as `n` would have made it by broadcasting and promotion."""
    return build.broadcast(build.cast(x, n.dtype), n.shape)


def padded(shape: tuple, ndim: int) -> tuple:
    """The shape with leading 1s, as broadcasting sees it."""
    return (1,) * (ndim - len(shape)) + shape


def groups(a: tuple, b: tuple) -> list[tuple[range, range]] | None:
    """How a reshape from shape `a` to `b` takes axes apart and together: pairs of axes of `a` and of `b`.

    The pairs are as small as possible: (6, 5) -> (2, 3, 5) is [0 | 0 1], [1 | 2]. None if a length is 0.
    """
    if 0 in a:
        return None
    i = j = 0
    pairs = []
    while i < len(a) or j < len(b):
        i0, j0, p, q = i, j, 1, 1
        if i < len(a):
            p, i = a[i], i + 1
        if j < len(b):
            q, j = b[j], j + 1
        while p != q:
            if p < q:
                p, i = p * a[i], i + 1
            else:
                q, j = q * b[j], j + 1
        pairs.append((range(i0, i), range(j0, j)))
    return pairs


def same_axes(a: tuple, b: tuple) -> dict[int, int]:
    """The axes of `b`, longer than 1, that a reshape from `a` leaves alone -> which of `a` they are."""
    same = {}
    for old, new in groups(a, b) or ():
        old_long, new_long = [i for i in old if a[i] != 1], [j for j in new if b[j] != 1]
        if len(old_long) == len(new_long) == 1:
            same[new_long[0]] = old_long[0]
    return same


def reshaped_operand(shape: tuple, a: tuple, b: tuple) -> tuple | None:
    """The shape with the same elements that broadcasts to `b` as the operand does to `a`. None where a
    reshape cannot give it: (T, C) beside (B, T, C) that becomes (B*T, C).
    """
    pairs = groups(a, b)
    if pairs is None:
        return None
    shape = padded(shape, len(a))
    out: list[int] = []
    for old, new in pairs:
        mine = tuple(shape[i] for i in old)
        if mine == tuple(a[i] for i in old):
            out.extend(b[j] for j in new)
        elif all(s == 1 for s in mine):
            out.extend(1 for _ in new)
        else:
            return None
    return tuple(out)


def strip_ones(shape: tuple) -> tuple:
    """The shape without leading 1s."""
    i = 0
    while i < len(shape) and shape[i] == 1:
        i += 1
    return shape[i:]
