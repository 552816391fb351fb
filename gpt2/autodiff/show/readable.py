"""The readable source of a graph: NumPy lines, and loops over similar calls."""

from __future__ import annotations

import numpy as np

from ..graph import Graph, Node
from .lines import Writer
from .loops import LoopLines, Moving, in_order, loops_of


class ReadableWriter(Writer):
    """A Writer that writes successive calls of a function as a loop."""

    def __post_init__(self):
        super().__post_init__()
        self.order, loops = in_order(self.graph, loops_of(self.graph, self.calls))
        self.loops = {loop.calls[0]: loop for loop in loops}
        self.inside = {n for loop in loops for n in loop.inside}
        self.filled = {m.node for loop in loops for m in loop.results if isinstance(m, Moving)}

    def statement(self, n: Node) -> None:
        if n in self.loops:
            LoopLines(self, self.loops[n]).write()
        elif n not in self.inside and n not in self.filled:
            self.value(n)

    def hints_for(self, body: Graph) -> dict[int, str]:
        hints: dict[int, str] = {}
        for loop in self.loops.values():
            if loop.body is body:
                hints = {k: body.outputs[of].name for of, k in loop.carried.items() if body.outputs[of].name}
        return hints


def readable_source(graph: Graph, name: str | None = None) -> str:
    """The text of a NumPy function that computes a graph, to be read: expressions with names, no buffers.

    graph   a compiler's graph, such as those of FixedPair.graphs
    name    of the function; by default the graph's

    The text can be run. Constant arrays appear in it by names that it does not define.

        >>> pair = ad.FixedPair(lambda x: (np.tanh(x), ()))
        >>> entry, _ = pair.entry((np.ones(3),), {})
        >>> print(ad.readable_source(entry.graphs[0], "forward").rstrip())
        import numpy as np
        <BLANKLINE>
        <BLANKLINE>
        def forward(x):
            out = np.tanh(x)
            return out, out
    """
    if not isinstance(graph, Graph):
        raise TypeError(
            f"readable_source: expected a Graph, got {type(graph).__name__}; ad.source(g) is the text of a "
            "derived or compiled function"
        )
    return ReadableWriter(graph, name or graph.name).source()


def readable_lines(graph: Graph, name: str | None = None) -> list[tuple[str, list[Node]]]:
    """The lines of readable_source, each with the values that it computes."""
    writer = ReadableWriter(graph, name or graph.name)
    lines = writer.source().split("\n")

    def within(n: Node) -> list[Node]:
        return [n, *(inner for a in n.args if a in writer.texts for inner in within(a))]

    computed = [[] if n is None else within(n) for n in writer.written_for]
    computed.append([n for o in writer.graph.outputs if o in writer.texts for n in within(o)])  # returned
    first = len(lines) - 1 - len(computed)
    padded = [*[[]] * first, *computed, *[[]] * len(lines)]
    return list(zip(lines, padded))


def constants(graph: Graph) -> dict[str, np.ndarray]:
    """The constant arrays that readable_source refers to, by name."""
    writer = ReadableWriter(graph, graph.name)
    writer.source()
    return {name: np.asarray(n.value) for n, name in writer.constants.items()}
