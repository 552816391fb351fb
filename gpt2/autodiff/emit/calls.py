"""Functions within a program: what a `stretch` node calls is written and compiled once for all its calls.

Such a function is emitted like a program, and the program around it gives it all of its memory: its
arguments, its results, and a part of the arena for what it computes on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..graph import Graph, Node
from .memory import Needs


@dataclass(eq=False)
class Routine:
    """A function that was emitted: function(*arguments, *results, memory)."""

    name: str
    function: Callable
    needs: Needs
    source: str


Routines = Callable[[Graph], Routine]  # the routine of a body


def none(body: Graph) -> Routine:
    """For programs that are known to have no stretches."""
    raise AssertionError(f"{body.name}: a stretch where none is expected")


def results_of(graph: Graph) -> dict[Node, dict[int, list[Node]]]:
    """For each call of a stretch the nodes that are its results, by their number: none where nothing reads
    it, and several where equal values were not put together.
    """
    found: dict[Node, dict[int, list[Node]]] = {n: {} for n in graph.nodes if n.op == "stretch"}
    for n in graph.nodes:
        if n.op == "item" and n.args[0] in found:
            found[n.args[0]].setdefault(n.attrs["i"], []).append(n)
    return found
