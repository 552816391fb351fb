"""Which elementwise backend a region runs faster on, found by running it on both.

A region of row blocks is timed as a whole, a tree among plain statements by itself: as small programs of
their own, while the program that they belong to is compiled, with as many threads as are set, on arrays that
hold nothing in particular. What was found is kept for the process, by what the region computes, so that the
twelve layers of a model are measured once.
"""

from __future__ import annotations

import time

import numpy as np

from . import runtime
from .graph import Graph, Node, freeze, is_scalar_const, with_args
from .layout import VIEWS
from .ops import input_node

TURNS = 5  # of which the fastest counts
MARGIN = 0.95  # numexpr has to win by this much: the same program should not change with the noise

decided: dict[tuple, bool] = {}


def faster(region, trees: list, users: dict) -> list:
    """Those of a region's trees that numexpr should compute here."""
    if region.N > 1:
        return trees if wins(alone(region.members, users)) else []
    found = []
    for t in trees:
        members = [m for m in region.members if m is t.root or m in t.inner]
        if wins(alone(members, users)):
            found.append(t)
    return found


def wins(graph: Graph) -> bool:
    """Whether numexpr runs this graph faster than NumPy."""
    key = (runtime.get_threads(), structure(graph))
    if key not in decided:
        numpy_time, numexpr_time = measure(graph)
        decided[key] = numexpr_time < MARGIN * numpy_time
    return decided[key]


def measure(graph: Graph) -> tuple[float, float]:
    """Seconds of the graph under numpy and under numexpr: the least of a few turns."""
    from .passes import Options
    from .program import compile_graph

    programs = [compile_graph(graph, Options(elementwise=b)) for b in ("numpy", "numexpr")]
    arrays = [np.full(i.shape, i.dtype.kind in "fc", i.dtype) for i in graph.inputs]  # ones; indices are 0
    best = [float("inf")] * 2
    for turn in range(1 + TURNS):
        for k, program in enumerate(programs):
            start = time.perf_counter()
            program(*arrays)
            if turn:  # the first one compiles expressions and touches new memory
                best[k] = min(best[k], time.perf_counter() - start)
    return best[0], best[1]


def alone(members: list[Node], users: dict) -> Graph:
    """A program of these nodes by themselves: what they read from outside are its inputs."""
    inside = set(members)
    new: dict[Node, Node] = {}

    def of(a: Node) -> Node:
        if a not in new:
            if a in inside or a.op in VIEWS:
                new[a] = with_args(a, tuple(of(b) for b in a.args))
            else:
                new[a] = a if a.op == "const" else input_node(a.shape, a.dtype, a.name)
        return new[a]

    def read_outside(n: Node) -> bool:
        return not users[n] or any(
            read_outside(u) if u.op in VIEWS else u not in inside for u in users[n]
        )

    outputs = [of(m) for m in members if read_outside(m)]
    inputs = [n for n in new.values() if n.op == "input"]
    return Graph(inputs, outputs, "region")


def structure(graph: Graph) -> tuple:
    """What a graph computes, without names and source lines."""
    number = {n: k for k, n in enumerate(graph.nodes)}

    def attributes(n: Node):
        return str(n.shape) if n.op == "const" and not is_scalar_const(n) else freeze(n.attrs)

    return tuple(
        (n.op, tuple(number[a] for a in n.args), attributes(n), n.shape, n.dtype.name) for n in graph.nodes
    )
