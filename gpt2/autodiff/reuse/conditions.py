"""The path that a function took: after `if x > 0`, `range(n)`, `x[mask]` a recording holds for one path.

A recording is reused for arguments at which the function would take the same path: at which all values that
it read are the same. Before the program runs, a small program computes these values, and they are compared.

That has to be exact. An optimised program may round sums and products of floats differently, and a comparison
of such a number could go the other way than in the function itself. So only values without rounding count:
comparisons of arguments, extrema, indices, integers. The sign of a number, the range of an index and a mask
are of this kind; an error that has become small enough is not, and a function that reads one is recorded at
each call.
"""

from __future__ import annotations

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
from ..same import same, same_array

# Recordings for one combination of types: a function that takes another path each time gains nothing
MOST = 12


@dataclass
class Path:
    """One path through a function: the values that it read, computed by `program`, are `expected`."""

    make: Callable[[], Callable]
    expected: list
    n_arguments: int

    @cached_property
    def program(self) -> Callable:
        """Made on first use: many functions are called once."""
        return self.make()

    def taken(self, leaves: Sequence, outside: Sequence) -> bool:
        """Whether the function would take this path."""
        if not self.expected:
            return True
        program = self.program
        try:
            values = program(*leaves[: self.n_arguments], *outside)
        except Exception:  # a value may not exist on another path: an index out of range
            return False
        return all(map(agree, values, self.expected))


def repeats_array(leaves: Sequence, arrays_read: frozenset[int]) -> bool:
    """Whether two of the arguments are one array, or one is also read from outside."""
    ids = [id(x) for x in leaves if isinstance(x, np.ndarray)]
    return len(set(ids)) < len(ids) or not arrays_read.isdisjoint(ids)


ALWAYS = Path(lambda: evaluate_graph, [], 0)  # of a function that reads no value


def path_of(rec: Recording, scalar: bool) -> Path | None:
    """The path of a recording, or None if it cannot be checked exactly."""
    if any(r.kind == "text" for r in rec.reads) or not without_rounding([r.node for r in rec.reads]):
        return None
    graph, expected = _graph_of_reads(rec)

    def make() -> Callable:
        program = Pipeline(graph.name).program(graph, scalar=scalar, title="simplified")
        return program.__call__ if type(program) is ScalarProgram else program

    return Path(make, expected, rec.in_tree.size)


def path_of_pure(rec: Recording) -> Path:
    """The path of a recording of a function that depends on its arguments only.

    Inexact values are computed op by op, as while recording: slowly, and the same to the last bit.
    """
    path = path_of(rec, False) if rec.reads else ALWAYS
    if path is not None:
        return path
    graph, expected = _graph_of_reads(rec)
    return Path(lambda: lambda *operands: evaluate_graph(graph, operands), expected, rec.in_tree.size)


def _graph_of_reads(rec: Recording) -> tuple[Graph, list]:
    """(the graph of the values that were read, the values)."""
    # Each once as a number of each type: `if n` says less about n than `range(n)`
    seen = {(r.node, type(r.value)): r.value for r in rec.reads}
    return Graph(rec.graph.inputs, [node for node, _ in seen], rec.graph.name + "_path"), list(seen.values())


def agree(value: Any, expected: Any) -> bool:
    """Whether a value is the expected one to the last bit; a number may be an array of one element."""
    if isinstance(expected, np.ndarray):
        return same_array(np.asarray(value, expected.dtype), expected)
    return same(type(expected)(value if isinstance(value, (bool, float)) else value.item()), expected)
