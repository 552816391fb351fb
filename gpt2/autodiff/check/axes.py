"""Explains a factor as a product of axis lengths or its root, with the user's names of the axes.

about_factor(1 / 10, graph)     "1/10", "a mean over B and T (axes 0 and 1 of inp, 2 x 5) where ..."
"""

from __future__ import annotations

import ast
import linecache
import math
import re
from collections.abc import Iterator
from itertools import combinations

from ..graph import Graph, Node


def about_factor(factor: float, graph: Graph) -> tuple[str, str] | None:
    """The factor as text, and its likely cause; None where no axis explains it."""
    names = axis_names(graph)
    seen: set[int] = set()
    for array, axes in _choices(graph):
        n = math.prod(array.shape[k] for k in axes)
        if n < 2 or n in seen:
            continue
        seen.add(n)
        where = _called(array, axes, names)
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


def _called(array: Node, axes: tuple[int, ...], names: dict[str, list]) -> str:
    """Axes of an array in words: "B and T (axes 0 and 1 of inp, 2 x 5)"."""
    lengths = " x ".join(str(array.shape[k]) for k in axes)
    plain = f"{'axis' if len(axes) == 1 else 'axes'} {_listed(axes)} of {array.name or 'a ' + array.op}"
    axis_list = names.get(array.name or "", [])
    known = [axis_list[k] for k in axes if axis_list[k]] if len(axis_list) == array.ndim else []
    if len(known) == len(axes):
        return f"{_listed(known)} ({plain}, {lengths})"
    return f"{plain} ({lengths})"


def _listed(parts) -> str:
    *most, last = map(str, parts)
    return f"{', '.join(most)} and {last}" if most else last


def axis_names(graph: Graph) -> dict[str, list]:
    """Array -> the names of its axes, from the source of the recorded functions: `B, T, C = inp.shape`, or in
    a docstring `inp (B, T, C)`. None for an axis without a name."""
    names_of: dict[str, list] = {}
    ranks = {x.name: x.ndim for x in graph.nodes if x.name}
    for file, function in {(n.loc[0], n.loc[2]) for n in graph.nodes if n.loc is not None}:
        try:
            tree = ast.parse("".join(linecache.getlines(file)))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == function:
                _from_docstring(ast.get_docstring(node) or "", ranks, names_of)
                _from_unpacking(node, names_of)
    return names_of


def _from_docstring(text: str, ranks: dict, names_of: dict[str, list]) -> None:
    for name, shape in re.findall(r"(\w+),?(?: +\w+,?)? +\(([\w., *]+)\)", text):
        parts = [part.strip() for part in shape.split(",") if part.strip()]
        rank = ranks.get(name, len(parts))
        if parts and parts[0] == "...":
            parts = [None] * (rank - len(parts) + 1) + parts[1:]
        if len(parts) == rank:
            names_of.setdefault(name, parts)


def _from_unpacking(function: ast.FunctionDef, names_of: dict[str, list]) -> None:
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Attribute):
            continue
        array, target = node.value.value, node.targets[0]
        if node.value.attr == "shape" and isinstance(array, ast.Name) and isinstance(target, ast.Tuple):
            names = [part.id if isinstance(part, ast.Name) else None for part in target.elts]
            names_of[array.id] = [name if name != "_" else None for name in names]
