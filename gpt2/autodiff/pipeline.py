"""The stages after recording, put in a row, and the options they take."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace

from .call import inline_calls
from .graph import Graph
from .passes import Options, simplify
from .scalar import ScalarProgram, is_scalar

DEFAULT = Options()
_local = threading.local()
# One entry for each `with options(...)` that is open in any thread. While it is empty, programs made with the
# default options may be called without a look at the thread's own.
overrides: list = []


def current_options() -> Options:
    """The options of this thread."""
    return getattr(_local, "options", DEFAULT)


@contextmanager
def options(**fields):
    """Compile with other options, in this thread: `with ad.options(off={"cse"}): ...`

    off      names of passes to leave out (passes.PASSES)
    before   False: simplify only after differentiating, not what was recorded as well

    Programs are kept apart by the options that they were made with.
    """
    before = current_options()
    _local.options = replace(before, **fields)
    overrides.append(None)
    try:
        yield _local.options
    finally:
        overrides.pop()
        _local.options = before


def prepared(graph: Graph, opts: Options | None = None) -> Graph:
    """Ready to be compiled: calls with a rule of their own are opened, then everything is simplified."""
    return simplify(inline_calls(graph), opts)


def optimised_program(
    graph: Graph, opts: Options | None = None, name: str | None = None, scalar: bool = False
):
    """The program of a graph. `scalar`: all inputs are Python floats, so that `math` code will do."""
    from .program import compile_graph

    graph = prepared(graph, opts)
    if scalar and is_scalar(graph):
        return ScalarProgram(graph, name)
    return compile_graph(graph, opts, name)
