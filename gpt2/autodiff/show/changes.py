"""What each stage of the compiler changed: a line-by-line diff of its graph with the stage before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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


# A line of a graph, and what it computes: equal for lines that apply the same op to the same numbers
Step = tuple[Line, tuple]


class _ValueNumbers(dict):
    """(shape, dtype) -> arrays, to number arrays so that those with the same entries have the same number."""

    def of(self, x: np.ndarray) -> tuple:
        alike = self.setdefault((x.shape, x.dtype), [])
        close = (k for k, other in enumerate(alike) if np.allclose(x, other, rtol=1e-9, atol=1e-12))
        number = next(close, len(alike))
        if number == len(alike):
            alike.append(x)
        return x.shape, x.dtype, number


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
        lines = [line for line, _ in of] if before is None else _compared(before, of)
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


def _steps(origin: Callable, graph: Graph, inputs: Sequence, numbers: _ValueNumbers) -> list[Step]:
    known = {n: numbers.of(value) for n, (value, _) in values(graph, [inputs, inputs]).items()}
    shown = [n for n in graph.nodes if n.op != "input" and not is_scalar_const(n)]
    texts = str(graph).split("\n")[1:]

    def computes(n: Node) -> tuple:
        attrs = tuple(f"{k}={attr_text(v)}" for k, v in n.attrs.items() if k != "value")
        return n.op, attrs, known.get(n), *(known.get(a) for a in n.args)

    return [(Line(KEPT, text, origin(n)), computes(n)) for n, text in zip(shown, texts)]


def _compared(before: Sequence[Step], after: Sequence[Step]) -> list[Line]:
    """The lines of `after`, marked NEW or KEPT, with the GONE ones between them."""
    left = Counter(computes for _, computes in after)
    gone_after: dict[tuple | None, list[Line]] = {}  # a kept line -> the gone lines behind it
    last = None
    for line, computes in before:
        if left[computes]:
            left[computes] -= 1
            last = computes
        else:
            gone_after.setdefault(last, []).append(replace(line, mark=GONE))
    old = Counter(computes for _, computes in before)
    known = {computes: line.origins for line, computes in before}
    lines = gone_after.pop(None, [])
    for line, computes in after:
        mark = KEPT if old[computes] else NEW
        old[computes] -= mark == KEPT
        lines.append(replace(line, mark=mark, origins=line.origins or known.get(computes, NONE)))
        lines += gone_after.pop(computes, [])
    return lines
