"""Tells which way a function went: after `if x > 0`, `range(n)`, `x[mask]` a recording holds for one path.

A recording is used again for arguments at which the function would take the same path: at which all that it
looked at is the same. Before the program runs, a small program computes what was looked at, and the answers
are compared.

That has to be exact. Sums and products of floats come out differently to the last bit in a program that was
optimised, and a comparison of such a number could go the other way than it does in the function itself. So
only what involves no rounding counts: comparisons of arguments, extrema, indices, integers. The sign of a
number, the range of an index and a mask are of this kind; an error that has become small enough is not, and a
function that looks at one is recorded at each call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..emit.scalar import ScalarProgram
from ..graph import Graph
from ..ops.exactness import without_rounding
from ..ops.interpret import evaluate_graph
from ..pipeline import Pipeline
from ..record.record import Recording
from ..record.recording import layout_of
from ..same import same, same_array

MOST = 12  # recordings of one combination of types; a function that goes another way each time gains nothing


@dataclass
class Path:
    """One way through a function. `program`, which make() gives, computes from the arguments and what is
    outside the values that were looked at: they have to be `expected`.
    """

    make: Callable[[], Callable]
    expected: list
    n_arguments: int

    @cached_property
    def program(self) -> Callable:
        """Made when it is first asked for: many functions are called once."""
        return self.make()

    def taken(self, leaves: Sequence, outside: Sequence) -> bool:
        """Whether the function would take this path."""
        if not self.expected:
            return True
        program = self.program
        try:
            found = program(*leaves[: self.n_arguments], *outside)
        except Exception:  # what is looked at here may not exist on another path: an index out of range
            return False
        return all(map(agree, found, self.expected))


@dataclass
class Questions:
    """What a function asked of its arguments besides their types and values, and what the answers depend on.

    layout     how each of them lies in memory, if it asked for strides or flags
    apart      whether it asked who shares memory: no argument shares any, with another or with `outside`
    by_is      whether it asks by `is` for what may be an argument: no two are one array, nor is one of `met`
    """

    layout: list | None
    apart: bool
    by_is: bool
    met: frozenset[int]  # ids of arrays that it reads from outside

    def alike(self, leaves: Sequence, outside: Sequence) -> bool:
        """Whether the answers are the same for these arguments."""
        return (
            (self.layout is None or layout_of(leaves) == self.layout)
            and not (self.apart and share_memory(leaves, outside))
            and not (self.by_is and are_one(leaves, self.met))
        )


def share_memory(leaves: Sequence, outside: Sequence) -> bool:
    arrays = [x for x in leaves if isinstance(x, np.ndarray)]
    others = [x for x in outside if isinstance(x, np.ndarray)]
    pairs = itertools.chain(itertools.combinations(arrays, 2), itertools.product(arrays, others))
    return any(np.may_share_memory(a, b) for a, b in pairs)


def are_one(leaves: Sequence, met: frozenset[int]) -> bool:
    """Whether two of the arguments are one array, or one is among those that are met outside."""
    ids = [id(x) for x in leaves if isinstance(x, np.ndarray)]
    return len(set(ids)) < len(ids) or not met.isdisjoint(ids)


ALWAYS = Path(lambda: evaluate_graph, [], 0)  # of a function that looks at nothing


def path_of(rec: Recording, scalar: bool) -> Path | None:
    """The path of a recording, or None if it cannot be told exactly."""
    if not _is_exact(rec):
        return None
    graph, expected = _looked_at(rec)
    return Path(lambda: _program_of(graph, scalar), expected, rec.in_tree.size)


def _program_of(graph: Graph, scalar: bool) -> Callable:
    program = Pipeline(graph.name).program(graph, scalar=scalar, title="simplified")
    return program.__call__ if type(program) is ScalarProgram else program


def path_of_pure(rec: Recording) -> Path:
    """The path of a recording of a function that depends on its arguments alone.

    What is not exact is computed op by op, as it was while recording: slowly, and the same to the last bit.
    """
    path = path_of(rec, False) if rec.reads else ALWAYS
    if path is not None:
        return path
    graph, expected = _looked_at(rec)
    return Path(lambda: lambda *operands: evaluate_graph(graph, operands), expected, rec.in_tree.size)


def _is_exact(rec: Recording) -> bool:
    return not any(r.kind == "text" for r in rec.reads) and without_rounding([r.node for r in rec.reads])


def _looked_at(rec: Recording) -> tuple[Graph, list]:
    """The graph of the values that were looked at, and the values."""
    seen = {r.node: r.value for r in rec.reads}  # of what was read twice, once
    return Graph(rec.graph.inputs, seen, rec.graph.name + "_path"), list(seen.values())


def agree(found: Any, expected: Any) -> bool:
    """Whether a value is the expected one to the last bit, the sign of a zero included. What was read as a
    number or a truth value is an array of one element in the graph.
    """
    if isinstance(expected, np.ndarray):
        return same_array(np.asarray(found, expected.dtype), expected)
    return same(type(expected)(found if isinstance(found, (bool, float)) else found.item()), expected)
