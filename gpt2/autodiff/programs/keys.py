"""Keys of shared programs, and the memory that programs take."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from ..graph import Graph, Node


def structure(graph: Graph) -> tuple:
    """A key that is equal for graphs that compute the same, whatever their names and source lines."""
    number: dict[Node, int] = {}
    rows: list = []
    for i, n in enumerate(graph.nodes):
        number[n] = i
        if n.op == "input":
            rows.append((n.shape, n.dtype))
        elif n.op == "const":
            v = n.value
            rows.append((n.shape, n.dtype, v.tobytes() if isinstance(v, np.ndarray) else repr(v)))
        else:
            attrs = tuple((k, _attr_key(v)) for k, v in n.attrs.items())
            rows.append((n.op, tuple([number[a] for a in n.args]), attrs, n.dtype))
    return tuple(rows), tuple([number[i] for i in graph.inputs]), tuple([number[o] for o in graph.outputs])


def _attr_key(v):
    if isinstance(v, Graph):
        return structure(v)
    if isinstance(v, (tuple, list)):
        return tuple(map(_attr_key, v))
    if isinstance(v, dict):
        return tuple((k, _attr_key(x)) for k, x in v.items())
    if hasattr(v, "structure"):
        return type(v), _attr_key(v.structure())
    return (type(v), v)  # 1 and True are equal


class Key:
    """A tuple whose hash is computed once: for a long program that takes a tenth of a second."""

    __slots__ = ("parts", "hash")

    def __init__(self, *parts: Hashable):
        self.parts = parts
        self.hash = hash(parts)

    def __hash__(self):
        return self.hash

    def __eq__(self, other):
        return self.hash == other.hash and self.parts == other.parts


# Approximate bytes of memory for each op of a program: source, code object, part of the key, nodes
BYTES_PER_OP = 5000


def memory_of(program: Any) -> int:
    """The approximate bytes of a compiled program, with its arena."""
    parts = (program.forward, program.backward) if hasattr(program, "forward") else (program,)
    return sum(_memory_of(part.graph) + getattr(part, "arena_bytes", 0) for part in parts)


def _memory_of(graph: Graph) -> int:
    """The same for a graph, with the graphs in it."""
    inner = {id(v): v for n in graph.nodes for v in n.attrs.values() if isinstance(v, Graph)}
    own = sum(BYTES_PER_OP + (n.nbytes if n.op == "const" else 0) for n in graph.nodes)
    own += sum(o.nbytes for o in graph.outputs)  # results are recycled
    return own + sum(map(_memory_of, inner.values()))
