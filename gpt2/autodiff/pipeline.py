"""The stages after recording, put in a row, and the options they take."""

from __future__ import annotations

from .emit.program import compile_graph
from .emit.scalar import ScalarProgram, is_scalar
from .graph import Graph
from .passes import simplify
from .passes.inline_calls import inline_calls
from .switches import Options


def prepared(graph: Graph, opts: Options | None = None) -> Graph:
    """Ready to be compiled: calls with a rule of their own are opened, then everything is simplified."""
    return simplify(inline_calls(graph), opts)


def optimised_program(
    graph: Graph, opts: Options | None = None, name: str | None = None, scalar: bool = False
):
    """The program of a graph. `scalar`: all inputs are Python floats, so that `math` code will do."""
    graph = prepared(graph, opts)
    if scalar and is_scalar(graph):
        return ScalarProgram(graph, name)
    return compile_graph(graph, opts, name)


def program_of(graph: Graph):
    """The compiled graph, made on first use and kept with the graph."""
    program = getattr(graph, "_program", None)
    if program is None:
        program = graph._program = optimised_program(graph)
    return program
