"""Finds the step of a long program at which a hand-written backward goes wrong.

Gradients are computed from the result backwards, step by step. So of all arguments with wrong gradients the
one that is used last says most: later steps are right as far as later arguments show, and the mistake lies
between, or in the step that uses it. An argument that is sliced block by block is examined in parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph import Graph, Node, dependent
from ..ops.table import VIEWS
from .diagnose import OF_A_STEP, Problem, as_a_whole, file_name, largest, likely_cause


@dataclass(frozen=True)
class Piece:
    """A part of an input that is used on its own: params_fcw[1].

    start     the value in the graph that is this part
    at        where it lies in the input
    readers   the ops that read it
    """

    label: str
    index: int
    start: Node
    at: slice
    readers: tuple[Node, ...]


def pieces(graph: Graph, indices: Iterable[int]) -> list[Piece]:
    """The parts of some inputs, in the order of their last use."""
    users, order = graph.users(), {n: k for k, n in enumerate(graph.nodes)}

    def readers(start: Node) -> tuple[Node, ...]:
        uses = users.get(start, [])
        return tuple(r for n in uses for r in (readers(n) if n.op in VIEWS else (n,)))

    parts = []
    for i in indices:
        x = graph.inputs[i]
        label, uses = x.name or f"argument {i}", users.get(x, [])
        if not uses or not all(_is_block(n, x) for n in uses):
            parts.append(Piece(label, i, x, slice(None), readers(x)))
            continue
        for n in uses:
            first, last, _ = n.attrs["index"][0]
            part = first if last == first + 1 else f"{first}:{last}"
            parts.append(Piece(f"{label}[{part}]", i, n, slice(first, last), readers(n)))
    return sorted((p for p in parts if p.readers), key=lambda p: max(order[n] for n in p.readers))


def _is_block(n: Node, x: Node) -> bool:
    """Whether a value is x[a:b] along the first axis, in full along the others."""
    if n.op != "slice":
        return False
    (first, last, step), *rest = n.attrs["index"]
    whole = all(part == (0, size, 1) for part, size in zip(rest, x.shape[1:]))
    return step == 1 and whole and last - first < x.shape[0]


def where_it_begins(
    graph: Graph,
    values: Sequence[np.ndarray],
    cotangent: np.ndarray,
    got: Sequence[np.ndarray | None],
    want: Sequence[np.ndarray | None],
    tolerance: float,
) -> list[str]:
    """Lines that say in which step a backward goes wrong; none if that is not known.

    got, want   a gradient for each of the first inputs; None where there is none, or one of another shape
    """
    compared = [i for i, (g, w) in enumerate(zip(got, want)) if g is not None and w is not None]
    parts = pieces(graph, compared)
    least = 1e-6 * max((largest(want[i]) for i in compared), default=0.0)
    right, wrong = [], []
    for p in parts:
        g, w = got[p.index][p.at], want[p.index][p.at]
        (right if largest(g - w) <= tolerance * max(largest(w), least) else wrong).append(p)
    if not wrong or len(parts) < 3:
        return []
    last = ([p for p in wrong if len(p.readers) == 1] or wrong)[-1]
    head, steps = _suspects(graph, last, [p for p in right if len(p.readers) == 1], want)
    named = functions(graph, steps)
    if not named:
        return []
    gradients = [want[i][last.at] if i == last.index else None for i in range(len(graph.inputs))]
    problem = graph, values, last.index, cotangent, gradients, last.start
    suspected = [(name, Problem(*problem, near=file)) for name, file in named]
    name, cause = _cause(suspected, got[last.index][last.at], max(tolerance, 1e-9))
    place = name or " or ".join(name for name, _ in named)
    return [head + place, *([f"    likely cause: {cause}"] if cause else [])]


def _cause(suspected: list[tuple[str, Problem]], g: np.ndarray, tolerance: float) -> tuple[str, str | None]:
    """(the function with the mistake, its likely cause); "" and None if they are not known."""
    if cause := likely_cause(suspected[0][1], g, tolerance, [as_a_whole]):
        return "", cause
    for kind in OF_A_STEP:
        for name, problem in suspected:
            if cause := likely_cause(problem, g, tolerance, [kind]):
                return name, cause
    return "", None


def _suspects(graph: Graph, last: Piece, good: list[Piece], want) -> tuple[str, set[Node]]:
    """The sentence on the last wrong gradient, and the values whose backward may be wrong.

    good    the pieces with one reader whose gradients are right
    """
    at_last = last.readers[0]
    before = [p for p in good if p.readers[0] is not at_last and at_last in dependent(graph.nodes, p.readers)]
    if any(want[p.index][p.at].any() for p in before):
        # what is used earlier gets a right gradient through the same step
        return f"the gradient of {last.label} alone is wrong, in the backward of ", set(last.readers)
    reached = dependent(graph.nodes, last.readers)
    beyond = {n for n in reached if any(a in reached for a in n.args)}
    later = [p for p in good if p.readers[0] in beyond]
    labels = ", ".join(p.label for p in later[:3]) + (f" and {len(later) - 3} more" if len(later) > 3 else "")
    reason = f"what is used after it is right ({labels})" if later else "it is used last"
    head = f"{last.label} is the wrong gradient nearest the result, and {reason}: "
    known = dependent(graph.nodes, {p.readers[0] for p in later})
    return head + "the mistake is in the backward of ", beyond - known


def functions(graph: Graph, steps: set[Node]) -> list[tuple[str, str]]:
    """(function with its lines, file) of the code that computes some values, a file each, in order."""
    lines: dict[str, list] = {}
    for n in graph.nodes:
        if n in steps and n.loc is not None and n.op not in VIEWS:
            lines.setdefault(n.loc[0], []).append((n.loc[2], n.loc[1]))
    named = []
    for file, seen in lines.items():
        function = Counter(name for name, _ in seen).most_common(1)[0][0]
        at = sorted(line for name, line in seen if name == function)
        at_lines = f"{at[0]}-{at[-1]}" if at[0] != at[-1] else str(at[0])
        named.append((f"{function} ({file_name(file)}:{at_lines})", file))
    return named
