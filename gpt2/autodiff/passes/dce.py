"""Dead code: what no output needs is not in the program."""

from __future__ import annotations

from ..graph import Graph


def dce(graph: Graph) -> Graph:
    """A graph holds what its outputs need, by construction, so this has nothing to do but to say so.

    It is where activity ends, too: the differentiator makes no derivatives for inputs whose gradient nobody
    asked for, zero derivatives are None there and never become nodes, and forward values that only a dropped
    derivative read disappear here.
    """
    return Graph(graph.inputs, graph.outputs, graph.name)
