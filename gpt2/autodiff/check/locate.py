"""Finds the step of a long program at which a hand-written backward goes wrong.

Gradients are computed from the result backwards, step by step. So of all arguments with wrong gradients the
one that is used last says most: later steps are right as far as later arguments show, and the mistake lies
between, or in the step that uses it. An argument that is sliced block by block is examined in parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph import Graph, Node, dependent, rewrite
from ..ops import input_node
from ..ops.table import VIEWS
from .diagnose import AS_A_WHOLE, OF_A_STEP, Problem, likely_cause
from .wording import file_name


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
    parts = []
    for i in indices:
        x = graph.inputs[i]
        uses = users.get(x, [])
        apart = uses and all(_is_block(n, x) for n in uses)
        for start in uses if apart else [x]:
            at, label = slice(None), x.name or f"argument {i}"
            if apart:
                first, last, _ = start.attrs["index"][0]
                part = first if last == first + 1 else f"{first}:{last}"
                at, label = slice(first, last), f"{label}[{part}]"
            readers = tuple(_readers(start, users))
            if readers:
                parts.append(Piece(label, i, start, at, readers))
    return sorted(parts, key=lambda p: max(order[n] for n in p.readers))


def _is_block(n: Node, x: Node) -> bool:
    """Whether a value is x[a:b] along the first axis, in full along the others."""
    if n.op != "slice":
        return False
    (first, last, step), *rest = n.attrs["index"]
    whole = all(part == (0, size, 1) for part, size in zip(rest, x.shape[1:]))
    return step == 1 and whole and last - first < x.shape[0]


def _readers(start: Node, users: dict) -> Iterable[Node]:
    todo = list(users.get(start, []))
    while todo:
        n = todo.pop()
        if n.op in VIEWS:
            todo += users.get(n, [])
        else:
            yield n


def _read_once(parts: Sequence[Piece]) -> list[Piece]:
    return [p for p in parts if len(p.readers) == 1]


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
    right = _right(parts, compared, got, want, tolerance)
    wrong = [p for p in parts if p not in right]
    if not wrong or len(parts) < 3:
        return []
    last = (_read_once(wrong) or wrong)[-1]
    head, steps = _suspects(graph, last, _read_once(right), want)
    named = functions(graph, steps)
    if not named:
        return []
    every = head + " or ".join(name for name, _ in named)
    cut, arrays, i = _apart(graph, last, values)
    g, gradients = got[last.index][last.at], [*[None] * i, want[last.index][last.at]]
    suspected = [(name, Problem(cut, arrays, i, cotangent, gradients, near=file)) for name, file in named]
    name, cause = _cause(suspected, g, max(tolerance, 1e-9))
    return [head + name if name else every, *([f"    likely cause: {cause}"] if cause else [])]


def _cause(suspected: list[tuple[str, Problem]], g: np.ndarray, tolerance: float) -> tuple[str, str | None]:
    """(the function with the mistake, its likely cause); "" and None if they are not known."""
    cause = likely_cause(suspected[0][1], g, tolerance, AS_A_WHOLE)
    if cause:
        return "", cause
    for kind in OF_A_STEP:
        for name, problem in suspected:
            cause = likely_cause(problem, g, tolerance, [kind])
            if cause:
                return name, cause
    return "", None


def _right(parts, compared, got, want, tolerance) -> list[Piece]:
    """The pieces whose gradients are right, measured by their largest entry."""

    def size(x) -> float:
        return float(np.max(np.abs(x), initial=0.0))

    least = 1e-6 * max((size(want[i]) for i in compared), default=0.0)
    pairs = [(p, got[p.index][p.at], want[p.index][p.at]) for p in parts]
    return [p for p, g, w in pairs if size(g - w) <= tolerance * max(size(w), least)]


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
    known = {p.readers[0] for p in later}
    right = f"what is used after it is right ({_few(p.label for p in later)})"
    reason = right if later else "it is used last"
    head = f"{last.label} is the wrong gradient nearest the result, and {reason}: "
    return head + "the mistake is in the backward of ", beyond - dependent(graph.nodes, known)


def _few(labels: Iterable[str]) -> str:
    every = list(labels)
    return ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")


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


def _apart(graph: Graph, piece: Piece, values: Sequence[np.ndarray]) -> tuple[Graph, list, int]:
    """The graph with a piece as an input of its own, its last one; the values; and its index."""
    fresh = input_node(piece.start.shape, piece.start.dtype, piece.label)
    cut: Callable = lambda n, args: fresh if n is piece.start else None  # noqa: E731
    rewritten = rewrite(graph, cut) if piece.start.args else None
    if rewritten is None:
        return graph, list(values), piece.index
    value = np.asarray(values[piece.index])[piece.at]
    return Graph([*graph.inputs, fresh], rewritten.outputs, graph.name), [*values, value], len(graph.inputs)
