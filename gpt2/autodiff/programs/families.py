"""Programs shared by all derived functions: equal graphs are compiled once, and so are graphs that differ
only in floats and small arrays, such as lam in `grad(lambda w: loss(w, lam))`.

Such recordings are a family. The first is compiled with its constants, so that what never changes costs
nothing. The second is compiled with the values that differ as hidden inputs (hidden.py). Later ones use its
program with other values, if compiling them would give that program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..graph import Graph, Node, with_values
from ..hidden import LARGEST, Tape, compiling, named_in, text_of
from ..reuse.cache import Store

LONGEST = 5000  # nodes: looking up a longer program takes too long itself
# Approximate bytes of memory for each op of a program: source, code object, part of the key, nodes
BYTES_PER_OP = 5000
MOST = 4  # programs of one family, and attempts to make one
SPECIAL = frozenset("0.0 0.5 1.0 2.0 inf nan".split())  # factors that programs are specialised for


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


class SharedProgram(NamedTuple):
    """A compiled program, with its wiring if that is the same for all recordings of the graph."""

    wiring: Any
    program: Any
    nbytes: int
    exchanged: bool = False  # compiled for another recording, with constants exchanged


class SharedPrograms:
    """Compiled programs by recorded graph."""

    def __init__(self) -> None:
        self._by_graph = Store(256, 1 << 30)
        self._families = Store(256, 1 << 29)
        self._seen = Store(4096, 1 << 20)

    def find(self, graph: Graph, key: Key, make: Callable[[Graph], SharedProgram]) -> SharedProgram | None:
        """The program of an equal graph, or that of the graph's family, which `make` may compile now."""
        shared = self._by_graph.find(key)
        if shared is not None or len(graph.nodes) > LONGEST:
            return shared
        nodes = [n for n in graph.nodes if n.op == "const" and _may_differ(n.value, n.dtype)]
        if not nodes:
            return None
        (rows, *rest), *others = key.parts
        constants = set(nodes)
        rows = tuple([row[:2] if n in constants else row for n, row in zip(graph.nodes, rows)])
        key = Key((rows, *rest), *others)
        values = [n.value for n in nodes]
        family = self._families.find(key)
        if family is None:
            self._families.add(key, ProgramFamily(values), BYTES_PER_OP)
            return None
        shared = family.find(values)
        if shared is None:
            shared = family.make(graph, nodes, make)
            if shared is not None:
                self._families.add(key, family, BYTES_PER_OP + sum(p.nbytes for p in family.programs))
        return shared

    def add(self, key: Key, shared: SharedProgram) -> None:
        self._by_graph.add(key, shared, shared.nbytes)

    def seen(self, key: Key) -> bool:
        known = self._seen.find(key.hash, False)
        self._seen.add(key.hash, True)
        return known


class ProgramFamily:
    """The programs of recordings that differ only in these constants; `first`: texts of the first."""

    def __init__(self, values: Sequence):
        self.first = list(map(text_of, values))
        self.programs: tuple[Exchangeable, ...] = ()
        self.attempts = 0

    def find(self, values: Sequence) -> SharedProgram | None:
        for p in self.programs:
            program = p.program_for(values)
            if program is not None:
                return SharedProgram(p.wiring, program, p.nbytes, True)
        return None

    def make(
        self, graph: Graph, nodes: Sequence[Node], make: Callable[[Graph], SharedProgram]
    ) -> SharedProgram | None:
        """The program compiled with hidden inputs; None if that fails, or is not worth while."""
        values = [n.value for n in nodes]
        texts = list(map(text_of, values))
        known = {i for p in self.programs for i, of in enumerate(p.places) if of is not None}
        differ = [i for i, (a, b) in enumerate(zip(self.first, texts)) if a != b or i in known]
        if self.attempts == MOST or not differ or any(texts[i].lstrip("-") in SPECIAL for i in differ):
            return None
        self.attempts += 1
        groups = list(dict.fromkeys((self.first[i], texts[i]) for i in differ))  # equal ones are one value
        places = {i: groups.index((self.first[i], texts[i])) for i in differ}
        hiding = Exchangeable([places.get(i) for i in range(len(values))], values)
        try:
            with compiling(hiding.tape):
                hiding.wiring, hiding.program, hiding.nbytes, _ = make(hiding.graph(graph, nodes))
            program = hiding.program_for(values)
        except Exception:  # it needs the numbers, or fails with constants as well
            return None
        if program is None:  # one of them is equal to a constant
            return None
        self.attempts = 0
        self.programs = (hiding, *self.programs)[:MOST]
        return SharedProgram(hiding.wiring, program, hiding.nbytes, True)


class Exchangeable:
    """A program with hidden inputs; `places`: which of them each value is, or None: a constant."""

    wiring: Any
    program: Any
    nbytes: int

    def __init__(self, places: Sequence[int | None], values: Sequence):
        self.places = places
        self.constants = [text_of(v) if of is None else None for of, v in zip(places, values)]
        first = {of: v for of, v in reversed(list(zip(places, values))) if of is not None}
        self.tape = Tape([first[k] for k in range(len(first))])

    def graph(self, graph: Graph, nodes: Sequence[Node]) -> Graph:
        """The recorded graph with hidden inputs in place of these constants."""
        if named_in(" ".join([graph.name, *(n.name for n in graph.nodes if n.name)])):
            raise TypeError("a variable is called like a hidden number")
        hidden_inputs = {n: self.tape.inputs[of] for n, of in zip(nodes, self.places) if of is not None}
        return with_values(graph, hidden_inputs)

    def program_for(self, values: Sequence) -> Any:
        """The program for a recording with these values; None if another program is needed."""
        inputs: dict[int, Any] = {}
        for of, text, v in zip(self.places, self.constants, values):
            if of is not None and of not in inputs:
                inputs[of] = v
            elif text_of(v) != (text if of is None else text_of(inputs[of])):
                return None
        hidden_values = self.tape.values([inputs[k] for k in range(len(inputs))])
        return None if hidden_values is None else self.program.exchanged(hidden_values)


def _may_differ(value: Any, dtype: np.dtype) -> bool:
    if type(value) is np.ndarray:
        return dtype.kind in "fc" and value.nbytes <= LARGEST
    return type(value) is float and dtype.kind == "f"


def memory_of(program: Any) -> int:
    """The approximate bytes of a compiled program, with its arena, and the scratch of each thread."""
    parts = (program.forward, program.backward) if hasattr(program, "forward") else (program,)
    return sum(_memory_of(part.graph) + getattr(part, "working_bytes", 0) for part in parts)


def _memory_of(graph: Graph) -> int:
    inner = {id(v): v for n in graph.nodes for v in n.attrs.values() if isinstance(v, Graph)}
    own = sum(BYTES_PER_OP + (n.nbytes if n.op == "const" else 0) for n in graph.nodes)
    own += sum(o.nbytes for o in graph.outputs)  # results are recycled
    return own + sum(map(_memory_of, inner.values()))


shared_programs = SharedPrograms()
