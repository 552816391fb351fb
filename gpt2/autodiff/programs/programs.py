"""What programs are found by, and how much memory they keep."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from ..graph import Graph, Node


def structure(graph: Graph) -> tuple:
    """Equal for graphs that compute the same, whatever they are called and wherever they were written."""
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
    """What a program is found by: the parts of a tuple, whose hash is computed once. Of a long program it
    takes a tenth of a second.
    """

    __slots__ = ("parts", "hash")

    def __init__(self, *parts: Hashable):
        self.parts = parts
        self.hash = hash(parts)

    def __hash__(self):
        return self.hash

    def __eq__(self, other):
        return self.hash == other.hash and self.parts == other.parts


# About the bytes that an op of a program takes, with its line of source, its statement in Python's code, its
# part of the key and its nodes.
AN_OP = 5000


def memory_of(program: Any) -> int:
    """About how many bytes a compiled program keeps, with what it works in."""
    parts = (program.forward, program.backward) if hasattr(program, "forward") else (program,)
    return sum(_memory_of(part.graph) + getattr(part, "arena_bytes", 0) for part in parts)


def _memory_of(graph: Graph) -> int:
    """The same of a graph, with the graphs in it."""
    inner = {id(v): v for n in graph.nodes for v in n.attrs.values() if isinstance(v, Graph)}
    own = sum(AN_OP + (n.nbytes if n.op == "const" else 0) for n in graph.nodes)
    own += sum(o.nbytes for o in graph.outputs)  # results are recycled
    return own + sum(map(_memory_of, inner.values()))
