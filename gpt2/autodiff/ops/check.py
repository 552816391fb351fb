"""The checker of graphs, which runs after every pass in the tests."""

from __future__ import annotations

import numpy as np

from ..graph import Graph, GraphError, freeze, type_text
from .table import OPS, infer


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
