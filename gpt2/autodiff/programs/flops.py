"""ad.flops: the number of floating-point operations in a function's matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..graph import Graph
from ..ops.table import facts
from ..record.record import record_pure


def flops(f: Callable, *args: Any) -> int:
    """Operations in the matrix products of f(*args), as it is written: 2nkm for (n, k) by (k, m).

    f is recorded, not run: its time hardly depends on the size of the arrays. In a loop (ad.scan) each step
    counts.

        >>> ad.flops(lambda x, w: np.tanh(x @ w), np.ones((2, 3)), np.ones((3, 5)))
        60
    """
    return round(_of_graph(record_pure(f, args).graph))


def _of_graph(graph):
    total = 0.0
    for node in graph.nodes:
        total += facts(node).flops(node)
        for inner in node.attrs.values():
            if isinstance(inner, Graph):  # a call, or a loop of n turns
                total += node.attrs.get("n", 1) * _of_graph(inner)
    return total
