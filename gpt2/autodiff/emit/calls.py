"""Functions within a program: what an `outlined` node calls is written and compiled once for all its calls.

Such a function is emitted like a program, and the program around it gives it all of its memory: its
arguments, its results, and a part of the arena for intermediate values.

    block(x, ln1w, ln1b, result_2, result_3, work)          few calls: a name for each view, made at the start
    block(x, *given, *made, work)                           many: views of arguments and results by the row

A model of many blocks has hundreds of views of its stacked weights, which are read by one call alone. Rows
of them come from a table; a line for each takes Python longer to compile than all the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Graph, Node, is_scalar_const
from ..ops.subgraph import cut_index, cut_of
from ..ops.table import root
from ..run.memory import Needs, rows_of_views
from .array_names import ArenaView, method_of
from .buffers import UNOWNED
from .layout import is_result_of_call

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


MOST_SPELLED = 100  # views among the arguments of calls, beyond which they come in rows

View = tuple[str, tuple]  # an argument or result of the program, and the steps that lead to the view


class CallLines:
    """The lines of the calls of a program."""

    def __init__(self, emitter: Emitter):
        self.emitter = emitter
        plan = emitter.plan
        views = sum(len(cuts) - cuts.count(None) for cuts in (n.attrs["cuts"] for n in plan.called))
        views += sum(map(is_result_of_call, plan.live.windows)) if plan.called else 0
        self.in_rows = views > MOST_SPELLED
        self.rows: dict[str, list[View]] = {}  # name of a row -> its views
        self.known: dict[View, tuple[str, int]] = {}  # view -> its row, and its place there
        self.owners = {*map(emitter.names.get, emitter.graph.inputs), *emitter.result_names}
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
            self.result(results[k][0]) if k in results else self.unread(n, k, o)
            for k, o in enumerate(body.outputs)
        ]
        texts = [
            *self.joined(args, "given", lambda k: self.part(n, k)),
            *self.joined(outs, "made", lambda k: e.whole(results[k][0])),
        ]
        key = routine, e.plan.work[n].offset
        if key not in e.works:
            e.works[key] = e.unique("work")
        again = [(o, nodes[0]) for nodes in results.values() for o in nodes[1:]]
        copies = [f"np.copyto({e.whole(o)}, {e.whole(first)})" for o, first in again]
        return [f"{name}({', '.join([*texts, e.works[key]])})", *copies]

    def argument(self, n: Node, k: int, a: Node) -> str | View:
        """Argument k of a call: an array or a view of one. A number is passed as a 0-d array."""
        e, cut = self.emitter, cut_of(n, k)
        if cut is not None:
            owner = e.whole(a)
            if self.in_rows and owner in self.owners:
                return owner, (("cut", *cut),)
            return self.part(n, k)
        if not a.shape and e.plan.kind.get(root(a)) in UNOWNED:
            return f"np.asarray({e.whole(a)})"
        if not is_scalar_const(a):
            return e.whole(a)
        name = e.unique("number")
        e.env[name] = np.asarray(a.value, a.dtype)
        return name

    def part(self, n: Node, k: int) -> str:
        """The name of the view of argument k that a call gets."""
        cut = cut_of(n, k)
        assert cut is not None
        return self.emitter.part(n.args[k], cut_index(n.args[k], cut), n.attrs["body"].inputs[k])

    def result(self, n: Node) -> str | View:
        """Memory for a result: a view of one of the program's results, for a row, or a name."""
        e, window = self.emitter, self.emitter.windows.get(n)
        if self.in_rows and window is not None and window.steps and n not in e.full:
            if window.base in e.output_index:
                return e.result_names[e.output_index[window.base]], window.steps
        return e.whole(n)

    def unread(self, n: Node, k: int, like: Node) -> str:
        """Memory for a result that nothing reads."""
        e = self.emitter
        s, name = e.plan.unread[n, k], e.unique("unread")
        e.setup.append(ArenaView(name, s.offset, like))
        e.setup_names.append(name)
        return name

    def joined(self, texts: Sequence[str | View], hint: str, named: Callable[[int], str]) -> list[str]:
        """The texts of a call's arguments: neighbouring views become a row, a single view named(k)."""
        joined: list[str] = []
        row: list[View] = []
        for k, text in enumerate([*texts, ""]):
            if not isinstance(text, str):
                row.append(text)
                continue
            if row:
                joined += self.row(row, hint) or [named(i) for i in range(k - len(row), k)]
                row = []
            joined.append(text)
        return joined[:-1]

    def row(self, views: Sequence[View], hint: str) -> list[str]:
        """Views as a new row, or as part of the row of another call; [] if they are neither."""
        places = [self.known.get(v) for v in views]
        if len(views) > 1 and not any(places):
            name = self.emitter.unique(hint)
            self.rows[name] = list(views)
            self.known.update((v, (name, i)) for i, v in enumerate(views))
            return [f"*{name}"]
        name, start = places[0] or ("", 0)
        if places != [(name, start + i) for i in range(len(views))]:
            return []
        end = start + len(views)
        whole = len(views) == len(self.rows[name])
        return [f"*{name}" if whole else f"*{name}[{start or ''}:{end}]"]

    def prelude(self) -> list[str]:
        """The line that makes all rows, at the start of the program."""
        if not self.rows:
            return []
        e, table = self.emitter, self.emitter.own("row_steps")
        number: dict[str, int] = {}
        for views in self.rows.values():
            for owner, _ in views:
                number.setdefault(owner, len(number))
        e.env[table] = [
            [(number[owner], tuple(map(method_of, steps))) for owner, steps in views]
            for views in self.rows.values()
        ]
        owners, names = ", ".join(number), ", ".join(self.rows)
        return [f"({names},) = {e.helper(rows_of_views)}(({owners},), {table})"]
