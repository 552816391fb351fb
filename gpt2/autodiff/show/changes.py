"""What each stage of the compiler changed: a line-by-line diff of its graph with the stage before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph import Graph, Node, attr_text, is_scalar_const
from ..ops.interpret import evaluate_graph

Lines = frozenset[int]  # line numbers in a function's file
Pair = tuple[np.ndarray, np.ndarray]  # a value at two cotangents
NONE: Lines = frozenset()
NEW, GONE, KEPT = "+", "-", " "
HALVES = "forward", "backward"  # a line missing in one is in the other, so not gone
BEFORE = {  # stage -> the one that it is compared with
    "recorded": None,
    "simplified": "recorded",
    "differentiated": "simplified",
    "simplified again": "differentiated",
    "forward": "simplified again",
    "backward": "simplified again",
}


@dataclass(frozen=True)
class Line:
    """A line of a graph as text, NEW, GONE or KEPT since the stage before, and the source lines of it."""

    mark: str
    text: str
    origins: Lines = NONE


@dataclass(frozen=True)
class Stage:
    title: str
    lines: list[Line]


@dataclass(frozen=True)
class _Step:
    """A line of a graph, and what it computes: equal for lines that apply the same op to the same numbers."""

    line: Line
    computes: tuple


class _ValueNumbers:
    """Numbers arrays so that those with the same entries have the same number."""

    def __init__(self):
        self.known: dict[tuple, list[tuple[int, np.ndarray]]] = {}
        self.count = 0

    def of(self, x: np.ndarray) -> int:
        alike = self.known.setdefault((x.shape, x.dtype), [])
        for number, other in alike:
            if np.allclose(x, other, rtol=1e-9, atol=1e-12):
                return number
        self.count += 1
        alike.append((self.count, x))
        return self.count


def changes(
    stages: Mapping[str, Graph], origin: Callable, arrays: Sequence[np.ndarray], cotangent: np.ndarray
) -> list[Stage]:
    """The stages from the recording to the two halves, each with its new and its gone lines.

    Lines are compared by what they compute on an example, as each stage renumbers its values.

    stages             title -> the graph after the stage, for the titles in BEFORE
    origin             the source lines of a value
    arrays, cotangent  the example
    """
    inputs = dict.fromkeys(BEFORE, arrays)
    inputs["differentiated"] = inputs["simplified again"] = [*arrays, cotangent]
    inputs["backward"] = [*evaluate_graph(stages["forward"], arrays)[1:], cotangent]
    numbers = _ValueNumbers()
    known = [title for title in BEFORE if title in stages]
    steps = {title: _steps(origin, stages[title], inputs[title], numbers) for title in known}
    changed = []
    for title, of in steps.items():
        before = steps.get(BEFORE[title])
        lines = [s.line for s in of] if before is None else _compared(before, of)
        if title in HALVES:
            lines = [line for line in lines if line.mark != GONE]
        head, *rest = str(stages[title]).split("\n")
        ends = [Line(KEPT, text) for text in rest[len(of) :]]
        changed.append(Stage(title, [Line(KEPT, head), *lines, *ends]))
    return changed


def values(graph: Graph, inputs: Sequence[Sequence]) -> dict[Node, Pair]:
    """The value of each node at two rows of inputs."""
    nodes = [n for n in graph.nodes if not isinstance(n.dtype, tuple)]
    first, second = (evaluate_graph(Graph(graph.inputs, nodes), arrays) for arrays in inputs)
    return dict(zip(nodes, zip(first, second)))


def _steps(origin: Callable, graph: Graph, inputs: Sequence, numbers: _ValueNumbers) -> list[_Step]:
    known = {n: numbers.of(value) for n, (value, _) in values(graph, [inputs, inputs]).items()}
    shown = [n for n in graph.nodes if n.op != "input" and not is_scalar_const(n)]
    texts = str(graph).split("\n")[1:]

    def computes(n: Node) -> tuple:
        attrs = tuple(f"{k}={attr_text(v)}" for k, v in n.attrs.items() if k != "value")
        return n.op, attrs, known.get(n), *(known.get(a) for a in n.args)

    return [_Step(Line(KEPT, text, origin(n)), computes(n)) for n, text in zip(shown, texts)]


def _compared(before: Sequence[_Step], after: Sequence[_Step]) -> list[Line]:
    """The lines of `after`, marked NEW or KEPT, with the GONE ones between them."""
    left = Counter(s.computes for s in after)
    gone_after: dict[tuple | None, list[Line]] = {}  # a kept line -> the gone lines behind it
    last = None
    for s in before:
        if left[s.computes]:
            left[s.computes] -= 1
            last = s.computes
        else:
            gone_after.setdefault(last, []).append(Line(GONE, s.line.text, s.line.origins))
    old = Counter(s.computes for s in before)
    known = {s.computes: s.line.origins for s in before}
    lines = gone_after.pop(None, [])
    for s in after:
        mark = KEPT if old[s.computes] else NEW
        old[s.computes] -= mark == KEPT
        lines.append(Line(mark, s.line.text, s.line.origins or known.get(s.computes, NONE)))
        lines += gone_after.pop(s.computes, [])
    return lines
