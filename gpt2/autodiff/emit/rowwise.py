"""Says which nodes work row by row, and so may run in one region, block after block, on several cores.

What a row is, and how each op treats rows, stands in ops/rowwise.py.
"""

from __future__ import annotations

import math

from ..graph import Node
from ..ops.rowwise import row_axes
from ..ops.table import facts


def by_rows(n: Node, N: int) -> tuple[bool, ...] | None:
    """For each argument ROW or WHOLE; None where `n` does not work row by row with N rows."""
    rule = facts(n).by_rows
    if rule is None:
        return None
    p = row_axes(n.shape, N)
    return None if p is None else rule(n, N, p)


def sums_rows(n: Node) -> int:
    """N, if `n` adds up N rows of its arguments into one value (a bias' gradient, say); else 0."""
    p = facts(n).adds_axes(n)
    return math.prod(n.args[0].shape[:p]) if p else 0


def finest(n: Node) -> int:
    """The largest number of rows that `n` can be cut into, leaving the last axis whole; 1 if it cannot be."""
    if n.ndim == 0:
        return 1
    N = 1
    best = 1
    for s in n.shape[: max(1, n.ndim - 1)]:
        N *= s
        if N > 1 and by_rows(n, N) is not None:
            best = N
    return best
