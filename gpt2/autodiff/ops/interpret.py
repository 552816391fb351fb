"""Computes a graph: every node is evaluated by its row of the table, one after another. That is slow, and the
reference that passes, derivatives and emitted programs are tested against. `check` holds a graph to its
types.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph import Graph, GraphError, Node, freeze, type_text
from .table import OPS, evaluate, infer


def evaluate_graph(graph: Graph, arrays: Sequence) -> list:
    """The outputs of the graph at these inputs. A value is let go after its last use."""
    if len(arrays) != len(graph.inputs):
        raise ValueError(
            f"evaluate_graph: {graph.name} has {len(graph.inputs)} inputs, {len(arrays)} were given"
        )
    values = {n: np.asarray(x, n.dtype) for n, x in zip(graph.inputs, arrays)}
    drop = last_uses(graph)
    for n in graph.nodes:
        if n.op == "const":
            values[n] = np.asarray(n.value, n.dtype)
        elif n.op != "input":
            values[n] = evaluate(n.op, [values[a] for a in n.args], n.attrs)
            for a in drop.get(n, ()):
                del values[a]
    return [values[o] for o in graph.outputs]


def apart(results: Sequence, arrays: Sequence[np.ndarray]) -> tuple:
    """The results, copied where they may share memory with an array: programs write over what they gave."""
    return tuple([np.array(r) if any(np.may_share_memory(r, a) for a in arrays) else r for r in results])


def last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """For each node, the values whose last use it is."""
    last: dict[Node, Node] = {}
    for n in graph.nodes:
        for a in n.args:
            last[a] = n
    kept = {*graph.outputs, *graph.inputs}
    drop: dict[Node, list[Node]] = {}
    for a, n in last.items():
        if a not in kept:
            drop.setdefault(n, []).append(a)
    return drop


def check(graph: Graph) -> Graph:
    """Raise GraphError unless the graph is well formed: order, types as inferred, inputs declared."""
    inputs = set(graph.inputs)
    for n in graph.nodes:
        if n.op == "input":
            if n not in inputs:
                raise GraphError(f"{n!r} is an input that the graph does not list")
            continue
        if n.op == "const":
            v = np.asarray(n.value)
            if v.shape != n.shape:
                raise GraphError(f"{n!r} holds a constant of shape {v.shape}")
            continue
        if n.op not in OPS:
            raise GraphError(f"{n!r} has the unknown op {n.op!r}")
        for a in n.args:
            if a.id >= n.id:
                raise GraphError(f"{n!r} = {n.op} reads {a!r}, which is younger")
        freeze(n.attrs)
        shape, dtype = infer(n.op, n.args, n.attrs)
        if shape != n.shape or dtype != n.dtype:
            raise GraphError(f"{n!r} = {n.op}{[type_text(a) for a in n.args]} should be {shape} {dtype}")
    return graph
