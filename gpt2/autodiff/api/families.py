"""Programs of recordings that differ in nothing but floats, as lam in `grad(lambda w: loss(w, lam))`.

Such recordings are a family. The first is compiled with its constants, so that what never changes costs
nothing. The second is compiled with the floats in which it differs as hidden inputs (hidden.py), and those that
follow take its program with other numbers, where that is the program that compiling them would give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..graph import Graph, Node, is_scalar_const, with_values
from ..hidden import Tape, named_in
from .programs import AN_OP, Key, _programs, memory_of

LONGEST = 5000  # nodes: to look a longer program up once more would take long itself
MOST = 4  # programs of one family, and attempts to make one
SPECIAL = frozenset((0.0, 0.5, 1.0, 2.0))  # with such a factor a program is another one


class Family:
    """The programs of recordings that differ in nothing but floats."""

    def __init__(self, key: Key, values: Sequence[float]):
        self.key = key
        self.first = [repr(v) for v in values]
        self.programs: tuple[Exchangeable, ...] = ()
        self.attempts = 0
        self.refusal: str | None = None  # why the last attempt failed

    def find(self, values: Sequence[float]) -> tuple | None:
        """The wiring and the program for a recording with these floats."""
        for p in self.programs:
            program = p.program_of(values)
            if program is not None:
                return p.wiring, program
        return None

    def hiding(self, values: Sequence[float]) -> Exchangeable | None:
        """What to compile for a recording with these floats; None where that is not worth an attempt."""
        if self.attempts == MOST or any(not math.isfinite(v) for v in values):
            return None
        texts = [repr(v) for v in values]
        known = {i for p in self.programs for i, of in enumerate(p.places) if of is not None}
        varied = [i for i, (a, b) in enumerate(zip(self.first, texts)) if a != b or i in known]
        if not varied or any(abs(values[i]) in SPECIAL for i in varied):
            return None
        self.attempts += 1
        groups = list(dict.fromkeys((self.first[i], texts[i]) for i in varied))  # equal ones are one number
        places = [groups.index((a, b)) if i in varied else None for i, (a, b) in enumerate(zip(self.first, texts))]
        return Exchangeable(places, values)

    def add(self, made: Exchangeable) -> None:
        self.attempts = 0
        self.programs = (made, *self.programs)[:MOST]
        _programs.add(self.key, self, AN_OP + sum(memory_of(p.program) for p in self.programs))


class Exchangeable:
    """A program with hidden inputs. `places` has for each float of the recording which of them it is, or None
    where it is a constant.
    """

    wiring: Any
    program: Any

    def __init__(self, places: list[int | None], values: Sequence[float]):
        self.places = places
        self.constants = [repr(v) if of is None else None for of, v in zip(places, values)]
        self.tape = Tape([values[places.index(k)] for k in range(1 + max(of for of in places if of is not None))])

    def graph(self, graph: Graph, nodes: Sequence[Node]) -> Graph:
        """The recorded graph with hidden inputs. The floats are these nodes."""
        names = " ".join([graph.name, *(n.name for n in graph.nodes if n.name)])
        if named_in(names):
            raise TypeError("a variable is called like a hidden number")
        given = {n: self.tape.given[of] for n, of in zip(nodes, self.places) if of is not None}
        return with_values(graph, given)

    def numbers(self, values: Sequence[float]) -> list[float] | None:
        """All numbers of the program for a recording with these floats; None where it is not that program."""
        given: list = [None] * self.tape.n_given
        for of, text, v in zip(self.places, self.constants, values):
            if of is not None and given[of] is None:
                given[of] = v
            elif repr(v) != (text if of is None else repr(given[of])):
                return None
        return self.tape.numbers(given)

    def program_of(self, values: Sequence[float]) -> Any:
        numbers = self.numbers(values)
        return None if numbers is None else self.program.with_numbers(numbers)


def family_of(graph: Graph, key: Key) -> tuple[Family | None, list[Node]]:
    """The family of a recorded graph that is found by this key, and the constants that may differ in it."""
    nodes = [n for n in graph.nodes if is_scalar_const(n) and type(n.value) is float and n.dtype.kind == "f"]
    if not nodes or len(graph.nodes) > LONGEST:
        return None, nodes
    (rows, *rest), *others = key.parts
    floats = set(nodes)
    rows = tuple([(row[1],) if n in floats else row for n, row in zip(graph.nodes, rows)])
    key = Key((rows, *rest), *others)
    found = _programs.find(key)
    if found is None:
        found = Family(key, [n.value for n in nodes])
        _programs.add(key, found, AN_OP)
    return found, nodes
