"""Explains a factor as a product of axis lengths or its root.

about_factor(1 / 10, graph)     "1/10", "a mean over axes 0 and 1 of inp (2 x 5) where ..."
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

from ..graph import Graph, Node


def about_factor(factor: float, graph: Graph) -> tuple[str, str] | None:
    """The factor as text, and its likely cause; None where no axis explains it."""
    seen: set[int] = set()
    for array, axes in _choices(graph):
        n = math.prod(array.shape[k] for k in axes)
        if n < 2 or n in seen:
            continue
        seen.add(n)
        where = _called(array, axes)
        if _near(factor * n):
            return f"1/{n}", f"a mean over {where} where the sum is meant, or a division too many"
        if n > 2 and _near(factor / n):
            return f"{n}", f"a sum over {where} where the mean is meant, or a division left out"
        if len(axes) == 1 and n > 2 and math.isqrt(n) ** 2 != n or n > 4:
            if _near(factor * math.sqrt(n)):
                return f"1/sqrt({n})", f"{n} is the length of {where}, and it is scaled once too often"
            if _near(factor / math.sqrt(n)):
                return f"sqrt({n})", f"{n} is the length of {where}, and a scaling is left out"
    return None


def _near(x: float) -> bool:
    return abs(x - 1) < 1e-6


def _choices(graph: Graph) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """Arrays with some of their axes, the likeliest first; of intermediate values single axes."""
    ends = [*graph.inputs, *graph.outputs]
    for count in range(1, 5):
        for x in ends:
            for axes in combinations(range(x.ndim), count):
                yield x, axes
    for x in graph.nodes:
        if x.args and not isinstance(x.dtype, tuple):
            for k in range(x.ndim):
                yield x, (k,)


def _called(array: Node, axes: tuple[int, ...]) -> str:
    """Axes of an array in words: "axes 0 and 1 of inp (2 x 5)"."""
    lengths = " x ".join(str(array.shape[k]) for k in axes)
    *most, last = map(str, axes)
    listed = f"axes {', '.join(most)} and {last}" if most else f"axis {last}"
    return f"{listed} of {array.name or 'a ' + array.op} ({lengths})"
