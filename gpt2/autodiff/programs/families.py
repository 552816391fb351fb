"""Programs of recordings that differ in nothing but floats and small arrays, as lam in
`grad(lambda w: loss(w, lam))`.

Such recordings are a family. The first is compiled with its constants, so that what never changes costs
nothing. The second is compiled with the values in which it differs as hidden inputs (hidden.py). Those that
follow take its program with other values, where that is the program that compiling them would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph import Graph, Node, with_values
from ..hidden import LARGEST, Tape, named_in, text_of
from ..reuse.cache import Store
from .programs import AN_OP, Key

LONGEST = 5000  # nodes: to look a longer program up once more would take long itself
MOST = 4  # programs of one family, and attempts to make one
SPECIAL = frozenset("0.0 0.5 1.0 2.0 inf nan".split())  # a program with such a factor is another one

_families = Store(256, 1 << 29)


class ProgramFamily:
    """The programs of recordings that differ in these constants alone. `first` has those of the first one, as
    texts.
    """

    def __init__(self, key: Key, values: Sequence):
        self.key = key
        self.first = list(map(text_of, values))
        self.programs: tuple[Exchangeable, ...] = ()
        self.attempts = 0
        self.refusal: str | None = None  # why the last attempt failed

    def find(self, values: Sequence) -> tuple | None:
        """The wiring, the program and its bytes, for a recording with these values."""
        for p in self.programs:
            program = p.program_for(values)
            if program is not None:
                return p.wiring, program, p.nbytes
        return None

    def hiding(self, values: Sequence) -> Exchangeable | None:
        """What to compile for a recording with these values; None where that is not worth an attempt."""
        texts = list(map(text_of, values))
        known = {i for p in self.programs for i, of in enumerate(p.places) if of is not None}
        differ = [i for i, (a, b) in enumerate(zip(self.first, texts)) if a != b or i in known]
        if self.attempts == MOST or not differ or any(texts[i].lstrip("-") in SPECIAL for i in differ):
            return None
        self.attempts += 1
        groups = list(dict.fromkeys((self.first[i], texts[i]) for i in differ))  # equal ones are one value
        places = dict((i, groups.index((self.first[i], texts[i]))) for i in differ)
        return Exchangeable([places.get(i) for i in range(len(values))], values)

    def add(self, made: Exchangeable) -> None:
        self.attempts = 0
        self.programs = (made, *self.programs)[:MOST]
        _families.add(self.key, self, AN_OP + sum(p.nbytes for p in self.programs))


class Exchangeable:
    """A program with hidden inputs. `places` has for each value of the recording which of them it is, or None
    where it is a constant.
    """

    wiring: Any
    program: Any
    nbytes: int

    def __init__(self, places: Sequence[int | None], values: Sequence):
        self.places = places
        self.constants = [text_of(v) if of is None else None for of, v in zip(places, values)]
        first = {of: v for of, v in reversed(list(zip(places, values))) if of is not None}
        self.tape = Tape([first[k] for k in range(len(first))])

    def graph(self, graph: Graph, nodes: Sequence[Node]) -> Graph:
        """The recorded graph with hidden inputs in the place of these constants."""
        if named_in(" ".join([graph.name, *(n.name for n in graph.nodes if n.name)])):
            raise TypeError("a variable is called like a hidden number")
        given = {n: self.tape.given[of] for n, of in zip(nodes, self.places) if of is not None}
        return with_values(graph, given)

    def program_for(self, values: Sequence) -> Any:
        """The program for a recording with these values; None where that is another one."""
        given: dict[int, Any] = {}
        for of, text, v in zip(self.places, self.constants, values):
            if of is not None and of not in given:
                given[of] = v
            elif text_of(v) != (text if of is None else text_of(given[of])):
                return None
        found = self.tape.values([given[k] for k in range(len(given))])
        return None if found is None else self.program.exchanged(found)


def family_of(graph: Graph, key: Key) -> tuple[ProgramFamily | None, list[Node]]:
    """The family of a recorded graph that is found by this key, and the constants that may differ in it."""
    nodes = [n for n in graph.nodes if n.op == "const" and _may_differ(n.value, n.dtype)]
    if not nodes or len(graph.nodes) > LONGEST:
        return None, nodes
    (rows, *rest), *others = key.parts
    constants = set(nodes)
    rows = tuple([row[:2] if n in constants else row for n, row in zip(graph.nodes, rows)])
    key = Key((rows, *rest), *others)
    found = _families.find(key)
    if found is None:
        found = ProgramFamily(key, [n.value for n in nodes])
        _families.add(key, found, AN_OP)
    return found, nodes


def _may_differ(value: Any, dtype: np.dtype) -> bool:
    if type(value) is np.ndarray:
        return dtype.kind in "fc" and value.nbytes <= LARGEST
    return type(value) is float and dtype.kind == "f"
