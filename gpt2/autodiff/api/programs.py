"""Programs that are shared: equal graphs are compiled once, wherever they come from."""

from __future__ import annotations

import threading
from collections import OrderedDict

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


class _Programs:
    """Compiled graphs by structure, and structures seen once. Both are bounded, the oldest goes first."""

    SIZE, NOTES = 256, 4096

    def __init__(self):
        self._lock = threading.Lock()
        self._programs: OrderedDict = OrderedDict()
        self._notes: OrderedDict = OrderedDict()

    def find(self, key):
        with self._lock:
            found = self._programs.get(key)
            if found is not None:
                self._programs.move_to_end(key)
            return found

    def add(self, key, value) -> None:
        with self._lock:
            self._programs[key] = value
            if len(self._programs) > self.SIZE:
                self._programs.popitem(last=False)

    def seen(self, key) -> bool:
        """Whether this structure was met before. From now on it was."""
        mark = hash(key)
        with self._lock:
            known = mark in self._notes
            self._notes[mark] = None
            if len(self._notes) > self.NOTES:
                self._notes.popitem(last=False)
            return known


_programs = _Programs()
