"""What the ops that carry a graph as an attribute (call, scan, map) have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..graph import Graph, Node, remade
from . import apply, input_node
from .build import zeros


def splice(graph: Graph, args: Sequence[Node]) -> list[Node]:
    """The graph's outputs computed from other arguments of the same types.

    Raises ValueError where a type differs.
    """
    for a, i in zip(args, graph.inputs, strict=True):
        if a.shape != i.shape or a.dtype != i.dtype:
            raise ValueError(f"{graph.name} takes {i!r}, got {a!r}")
    return remade(graph.outputs, dict(zip(graph.inputs, args)))


def result_types(graph: Graph) -> tuple[tuple, tuple]:
    """Shapes and dtypes of the outputs: the type of a tuple node."""
    return tuple(o.shape for o in graph.outputs), tuple(o.dtype for o in graph.outputs)


def inputs_like(nodes: Sequence[Node], prefix: str = "") -> list[Node]:
    """Fresh inputs of the same types."""
    return [input_node(n.shape, n.dtype, prefix + n.name if n.name else None) for n in nodes]


def beside(values: Sequence[Node], tangents: Mapping[int, Node], *cuts: int) -> list[list[Node]]:
    """The values cut at some points, and after each part the tangents of what is in it, given by position."""
    ends = [*cuts, len(values)]
    return [
        [*values[start:end], *(t for k, t in tangents.items() if start <= k < end)]
        for start, end in zip([0, *cuts], ends)
    ]


def zeros_like(node: Node) -> Node:
    return zeros(node.shape, node.dtype)


def is_float(node: Node) -> bool:
    """Whether a derivative can lead through this value."""
    return node.dtype.kind in "fc"


def items(node: Node) -> list[Node]:
    """The elements of a tuple node."""
    return [apply("item", node, i=i) for i in range(len(node.shape))]
