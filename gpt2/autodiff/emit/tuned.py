"""Chooses the faster elementwise backend for each region, by running it on both.

A region of row blocks is timed as a whole, a fusion among plain statements by itself: as a small program, on
arrays of ones, with the threads that are set, while its own program is compiled. Choices are remembered
(run/remembered.py) under what the region computes, so the twelve layers of a model are measured once for a
machine.
"""

from __future__ import annotations

import hashlib
import timeit
from collections.abc import Callable
from functools import partial

import numpy as np

from ..graph import Graph, Node, remade
from ..ops import input_node
from ..ops.table import VIEWS
from ..run import threads
from ..run.remembered import Choices
from . import numexpr
from .regions import Region

TURNS = 5  # of which the fastest counts
MARGIN = 0.95  # numexpr has to win by this much: the same program should not change with the noise


def software() -> str:
    """The software that the times depend on besides the region; without numexpr nothing is timed."""
    try:
        module = numexpr.load()
    except ImportError:
        return ""
    return f"numexpr {module.__version__}" + " with VML" * bool(module.use_vml)


chosen = Choices("elementwise.json", ("numpy", "numexpr"), software)


def faster(region: Region, fusions: list, users: dict, compile: Callable) -> list:
    """Those of a region's fusions that numexpr should compute here.

    compile(graph, backend)   the program of a graph under "numpy" or "numexpr"
    """
    if region.N > 1:
        return fusions if wins(alone(region.members, users), compile) else []
    members = {t: [m for m in region.members if m is t.root or m in t.inner] for t in fusions}
    return [t for t in fusions if wins(alone(members[t], users), compile)]


def wins(graph: Graph, compile: Callable) -> bool:
    """Whether numexpr runs this graph faster than NumPy."""
    key = key_of(graph)
    if chosen.get(key) is None:
        numpy_time, numexpr_time = measure(graph, compile)
        chosen.put(key, "numexpr" if numexpr_time < MARGIN * numpy_time else "numpy")
    return chosen.get(key) == "numexpr"


def measure(graph: Graph, compile: Callable) -> tuple[float, float]:
    """Seconds of the graph under numpy and under numexpr: the least of a few turns."""
    arrays = [np.full(i.shape, i.dtype.kind in "fc", i.dtype) for i in graph.inputs]  # ones; indices are 0
    programs = [partial(compile(graph, backend), *arrays) for backend in ("numpy", "numexpr")]
    for program in programs:
        program()  # compiles expressions and touches new memory
    turns = [[timeit.timeit(program, number=1) for program in programs] for _ in range(TURNS)]
    numpy_times, numexpr_times = zip(*turns)
    return min(numpy_times), min(numexpr_times)


def alone(members: list[Node], users: dict) -> Graph:
    """A program of these nodes by themselves, without their names: what they read from outside are its
    inputs."""
    inside = set(members)
    inputs: dict[Node, Node] = {}
    waiting = list(members)
    while waiting:
        for a in waiting.pop().args:
            if a.op in VIEWS and a not in inside:
                waiting.append(a)
            elif a not in inside and a not in inputs and a.op != "const":
                inputs[a] = input_node(a.shape, a.dtype)

    def read_outside(n: Node) -> bool:
        return not users[n] or any(read_outside(u) if u.op in VIEWS else u not in inside for u in users[n])

    def without_name(n: Node, args: tuple) -> Node:
        return Node(n.op, args, n.attrs, n.shape, n.dtype)

    outputs = remade([m for m in members if read_outside(m)], inputs, without_name)
    return Graph(list(inputs.values()), outputs, "region")


def key_of(graph: Graph) -> tuple:
    """The key of a region in any process: readable items, then a digest of its text."""
    widest = max(graph.nodes, key=lambda n: n.size)
    ops = sum(n.op not in ("input", "const") for n in graph.nodes)
    return (
        f"{threads.get_threads()} threads,",
        f"{ops} ops on",
        "x".join(map(str, widest.shape)),
        widest.dtype.name,
        hashlib.sha256(str(graph).encode()).hexdigest()[:24],
    )
