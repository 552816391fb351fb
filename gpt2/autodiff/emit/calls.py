"""Functions within a program: what an `outlined` node calls is written and compiled once for all its calls.

Such a function is emitted like a program, and the program around it gives it all of its memory: its
arguments, its results, and a part of the arena for intermediate values.

    block(x, ln1w, ln1b, result_2, result_3, work)

Views of the program's own arguments and results are made at its start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Graph, Node, is_scalar_const
from ..ops.subgraph import cut_index, cut_of
from ..ops.table import root
from ..run.memory import Needs
from .buffers import UNOWNED

if TYPE_CHECKING:
    from .source import Emitter


@dataclass(eq=False)
class Routine:
    """A function that was emitted: function(*arguments, *results, memory)."""

    name: str
    function: Callable
    needs: Needs
    source: str


Routines = Callable[[Graph], Routine]  # the routine of a body


def no_routines(body: Graph) -> Routine:
    """The Routines of a program without outlined calls."""
    raise AssertionError(f"{body.name}: an outlined call where none is expected")


def results_of(graph: Graph) -> dict[Node, dict[int, list[Node]]]:
    """For each outlined call the nodes that are its results, by their number: none where nothing reads
    it, and several where equal values were not merged.
    """
    results: dict[Node, dict[int, list[Node]]] = {n: {} for n in graph.nodes if n.op == "outlined"}
    for n in graph.nodes:
        if n.op == "item" and n.args[0] in results:
            results[n.args[0]].setdefault(n.attrs["i"], []).append(n)
    return results


class CallLines:
    """The lines of the calls of a program."""

    def __init__(self, emitter: Emitter):
        self.emitter = emitter
        self.functions: dict = {}  # routine -> its name

    def lines(self, n: Node) -> list[str]:
        """The line that makes an outlined call, with memory for its results."""
        e = self.emitter
        routine, results, body = e.plan.called[n], e.results[n], n.attrs["body"]
        name = self.functions.get(routine)
        if name is None:
            name = self.functions[routine] = e.unique(routine.name)
            e.owned_names[name], e.env[name] = name, routine.function
        args = [self.argument(n, k, a) for k, a in enumerate(n.args)]
        outs = [
            e.whole(results[k][0]) if k in results else self.unread(n, k, o)
            for k, o in enumerate(body.outputs)
        ]
        key = routine, e.plan.work[n].offset
        if key not in e.works:
            e.works[key] = e.unique("work")
        again = [(o, nodes[0]) for nodes in results.values() for o in nodes[1:]]
        copies = [f"np.copyto({e.whole(o)}, {e.whole(first)})" for o, first in again]
        return [f"{name}({', '.join([*args, *outs, e.works[key]])})", *copies]

    def argument(self, n: Node, k: int, a: Node) -> str:
        """Argument k of a call: an array or a view of one. A number is passed as a 0-d array."""
        e, cut = self.emitter, cut_of(n, k)
        if cut is not None:
            return e.part(a, cut_index(a, cut), n.attrs["body"].inputs[k])
        if not a.shape and e.plan.kind.get(root(a)) in UNOWNED:
            return f"np.asarray({e.whole(a)})"
        if not is_scalar_const(a):
            return e.whole(a)
        name = e.unique("number")
        e.env[name] = np.asarray(a.value, a.dtype)
        return name

    def unread(self, n: Node, k: int, like: Node) -> str:
        """Memory for a result that nothing reads."""
        e = self.emitter
        return e.define_in_arena(e.unique("unread"), e.plan.unread[n, k].offset, like.dtype, like.shape)
