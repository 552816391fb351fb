"""Random graphs with exchanged constants, compared with the programs that compiling the others gives.

counts = Counter()
check(seed, counts)        raises Difference; counts["same"] programs were compared, for counts["another"]
                           there is another program, and counts["refused"] graphs need their constants
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from gpt2.autodiff.derive.differentiate import vjp_graph
from gpt2.autodiff.emit.program import Program
from gpt2.autodiff.graph import Graph, is_scalar_const, with_values
from gpt2.autodiff.hidden import compiling
from gpt2.autodiff.pipeline import Pipeline
from gpt2.autodiff.programs.families import Exchangeable
from gpt2.autodiff.switches import Options
from tests.support.random.graphs import random_arrays, random_graph

SPECIAL = [float(x) for x in "0 -0 0.1 0.25 0.5 -0.5 1 -1 1.5 2 -2 3 4 1e308 1e-320 inf nan".split()]


class Difference(AssertionError):
    """A program with exchanged numbers is not the one that compiling them gives."""


def check(seed: int, counts: Counter) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(8, 30)), ("float64", "float32")[seed % 2])
    nodes = [n for n in graph.nodes if is_scalar_const(n) and type(n.value) is float and n.dtype.kind == "f"]
    options = Options(math="fast") if seed % 7 == 0 else Options()
    places: list[int | None] = [int(rng.integers(3)) if rng.random() < 0.8 else None for _ in nodes]
    used = sorted({p for p in places if p is not None})
    places = [None if p is None else used.index(p) for p in places]
    if not used:
        return

    def drawn(special: float) -> list[float]:
        found = [
            float(rng.choice(SPECIAL)) if rng.random() < special else round(rng.uniform(-3, 3), 2)
            for _ in used
        ]
        return [n.value if p is None else found[p] for p, n in zip(places, nodes)]

    first = drawn(0.05)
    made = Exchangeable(places, first)
    try:
        with compiling(made.tape):
            made.program = compiled(made.graph(graph, nodes), options, seed)
    except TypeError:
        counts["refused"] += 1
        return
    for values in (first, drawn(0.0), drawn(0.0), drawn(0.4), drawn(0.4)):
        program = made.program_for(values)
        if program is None:
            counts["another"] += 1
            continue
        counts["same"] += 1
        plain = compiled(with_values(graph, dict(zip(nodes, values))), options, seed)
        compare(program, plain, rng, f"{seed} {values}")


def compiled(graph: Graph, options: Options, seed: int) -> Program:
    """The program of a graph, or of four in five that of its gradients."""
    pipeline = Pipeline("f", options)
    graph = pipeline.simplified(graph, alike=True)
    if seed % 5:
        wrt, outs = [
            [i for i, n in enumerate(ns) if n.dtype.kind == "f"] for ns in (graph.inputs, graph.outputs)
        ]
        graph = vjp_graph(graph, wrt, outs)
    with np.errstate(all="ignore"):
        return pipeline.program(graph)


def compare(program: Program, plain: Program, rng: np.random.Generator, what: str) -> None:
    if str(program.graph) != str(plain.graph):
        raise Difference(f"{what}\n{plain.graph}\n{program.graph}")
    arrays = random_arrays(rng, plain.graph)
    with np.errstate(all="ignore"):
        found, expected = program(*arrays), plain(*arrays)
    if any(np.asarray(a).tobytes() != np.asarray(b).tobytes() for a, b in zip(found, expected)):
        raise Difference(f"{what}: results differ\n{plain.graph}")
