"""Writes NumPy source: `out=` everywhere, the user's names, and where each statement comes from.

    def f(inputs..., results..., memory):            the program
        def rows(k, i, j, ...):                      a region: block k, rows i:j, and this thread's scratch
            ...
        run_blocks(rows, blocks, scratch)

Memory is set up once for each workspace by `setup(arena)`, so a call allocates nothing but what an op without
`out=` allocates by itself.

What an `outlined` node calls is a function of its own, written and compiled once for all its calls. It is
emitted like a program, and the program around it gives it all of its memory: its arguments, its results, and
a part of the arena for intermediate values.

    block(x, ln1w, ln1b, result_2, result_3, work)
"""

from __future__ import annotations

import itertools

import numpy as np

from ..graph import Node, is_scalar_const
from ..ops.cost import nanoseconds
from ..ops.subgraph import cut_index, cut_of
from ..ops.table import root
from ..run.memory import arena_views, each_row
from .buffers import UNOWNED, Kind
from .layout import is_result_of_call
from .plan import Plan, Routine
from .regions import Region
from .row_blocks import RowBlocks
from .statements import Statement, with_source
from .texts import ArenaView, Texts

# Mean nanoseconds of a statement on one block, by ops/cost.py, from which a region is spread over threads.
# Shorter ones lose more by passing on the interpreter lock than another core gains.
SHARE_FROM = 8_000.0
# Views that have a line each. Python takes 20 us to compile such a line, more than for the statement that
# writes to the view: beyond this number those of the arena come from a table, and those that are all rows of
# an argument or a result from one call.
MOST_SPELLED = 50


class Emitter(Texts):
    """Writes the program of a plan, under a name: a statement for each op, and a function for each region."""

    def __init__(self, plan: Plan, name: str):
        super().__init__(plan, name)
        self.routines: dict[Routine, str] = {}  # the functions that it calls, and their names
        self.works: dict[tuple[Routine, int], str] = {}  # (function, where its arena lies) -> its memory
        self.body: list[str] = []
        self.block_regions: list = []  # (blocks, slot shapes) of each region of row blocks, in order

    def source(self) -> str:
        for r in self.plan.regions:
            if r.N > 1:
                self.blocks(r)
            else:
                for n in r.members:
                    self.plain(n)
        imports = "\n".join(["import numpy as np", *self.fused])
        return f"{imports}\n\n\n{self.setup_source()}{self.program_source()}"

    def setup_source(self) -> str:
        """The function that makes views of the arena, for each workspace once."""
        if not self.setup:
            return ""
        in_arena = {name: view for name, view in self.setup.items() if isinstance(view, ArenaView)}
        lines, spelled, returned = [], self.setup, [*self.setup]
        if len(in_arena) > MOST_SPELLED:
            spelled = {name: view for name, view in self.setup.items() if name not in in_arena}
            self.setup = {**in_arena, **spelled}
            table, views = self.own("layout"), self.own("views")
            self.env[table] = list(in_arena.values())
            lines.append(f"({', '.join(in_arena)},) = {views} = {self.helper(arena_views)}(arena, {table})")
            returned = [f"*{views}", *spelled]
        lines += [f"{name} = {view}" for name, view in spelled.items()]
        lines.append(f"return ({', '.join(returned)},)")
        return "def setup(arena):\n" + "".join(f"    {line}\n" for line in lines) + "\n\n"

    def program_source(self) -> str:
        """The function that a call of the program runs."""
        memory = []
        if self.block_regions:
            scratch = ", ".join(self.own(f"scratch{k + 1}") for k in range(len(self.block_regions)))
            memory.append(f"({scratch},) = memory.scratch")
        if self.works:
            memory.append(f"({', '.join(self.works.values())},) = memory.calls")
        if self.setup:
            memory.append(f"({', '.join(self.setup)},) = memory.arrays")
        result = {**self.names, **dict(zip(self.output_index, self.result_names))}
        returned = " ".join(f"{result[o]}," for o in self.graph.outputs)
        lines = [*memory, *self.prelude_lines(), *self.body, f"return ({returned})"]
        parameters = [*(self.names[i] for i in self.graph.inputs), *self.result_names, "memory"]
        head = f"def {self.function}({', '.join(parameters)}):"
        return "\n".join([head, *(f"    {line}" if line else "" for line in lines)]) + "\n"

    def prelude_lines(self) -> list[str]:
        """The lines that make views of the call's arguments and results."""
        views, lines = dict(self.prelude), []
        if len(views) > MOST_SPELLED:
            named = {view: name for name, view in views.items()}
            inputs = [(i, self.names[i]) for i in self.graph.inputs]
            arrays = [*inputs, *zip(self.output_index, self.result_names)]
            for n, text in arrays:
                last = n.shape[0] - 1 if n.shape else 0  # the views of one row each, as index_text has them
                texts = (f"{text}[{k or ''}:{k + 1 if k < last else ''}]" for k in range(last + 1))
                rows = list(itertools.takewhile(named.__contains__, texts))
                if len(rows) > 1 and len(rows) == n.shape[0]:
                    names = [named[view] for view in rows]
                    lines.append(f"({', '.join(names)},) = {self.helper(each_row)}({text})")
                    for name in names:
                        del views[name]
        return [*lines, *(f"{name} = {view}" for name, view in views.items())]

    # ---- regions ----

    def plain(self, n: Node) -> None:
        """The statement for n on whole arrays."""
        if n in self.plan.folded or is_result_of_call(n):
            return
        kind = self.plan.kind[n]
        if n.op == "outlined":
            lines = self.call(n)
        elif kind is Kind.NUMBER:
            lines = [f"{self.names[n]} = {self.number(n)}"]
        elif kind is Kind.ALLOCATED:
            args = [self.operand(n, k) for k in range(len(n.args))]
            lines = [f"{self.names[n]} = {self.expression(n, args, n.attrs)}"]
        else:
            lines = Statement(self, n).lines()
        self.body += with_source(lines, n)

    def blocks(self, r: Region) -> None:
        """The function of a region of row blocks, and the line that runs it."""
        rows = RowBlocks(self, r)
        members = [n for n in r.members if n not in self.plan.folded]
        statements = [(n, Statement(self, n, rows).lines()) for n in members]
        lines = [line for n, own in statements for line in with_source(rows.spelled(own), n)]
        if not lines:  # nothing but copies of what is in place already
            return
        number = len(self.block_regions) + 1
        function = self.unique(f"rows{number}" if number > 1 else "rows")
        constant, scratch = self.own(f"blocks{number}"), self.own(f"scratch{number}")
        self.env[constant] = rows.blocks
        nanoseconds_of_block = sum(map(nanoseconds, r.members)) / len(r.members) / len(rows.blocks)
        alone = "" if nanoseconds_of_block >= SHARE_FROM else ", alone=True"
        parameters = ", ".join(["k", *rows.outer, "i", "j", *rows.scratch.values()])
        self.body += ["", f"def {function}({parameters}):  # {rows.title}"]
        self.body += [f"    {line}" for line in lines]
        self.body += ["", f"run_blocks({function}, {constant}, {scratch}{alone})"]
        for n in r.sums:
            self.body.append(f"np.add.reduce({self.partial(n)}, axis=0, out={self.whole(n)})")
        self.block_regions.append((rows.blocks, [(*key[1:], key[0]) for key in rows.scratch]))

    # ---- calls of functions within the program ----

    def call(self, n: Node) -> list[str]:
        """The line that makes an outlined call, with memory for its results."""
        routine, results, body = self.plan.called[n], self.plan.results[n], n.attrs["body"]
        if routine not in self.routines:
            self.routines[routine] = self.unique(routine.name)
            self.env[self.routines[routine]] = routine.function
        args = [self.argument(n, k, a) for k, a in enumerate(n.args)]
        outs = []
        for k, o in enumerate(body.outputs):
            if k in results:
                outs.append(self.whole(results[k][0]))
            else:
                at = self.plan.unread[n, k].offset
                outs.append(self.define_in_arena(self.unique("unread"), at, o.dtype, o.shape))
        key = routine, self.plan.work[n].offset
        if key not in self.works:
            self.works[key] = self.unique("work")
        again = [(o, nodes[0]) for nodes in results.values() for o in nodes[1:]]
        copies = [f"np.copyto({self.whole(o)}, {self.whole(first)})" for o, first in again]
        return [f"{self.routines[routine]}({', '.join([*args, *outs, self.works[key]])})", *copies]

    def argument(self, n: Node, k: int, a: Node) -> str:
        """Argument k of a call: an array or a view of one. A number is passed as a 0-d array."""
        cut = cut_of(n, k)
        if cut is not None:
            return self.part(a, cut_index(a, cut), n.attrs["body"].inputs[k])
        if not a.shape and self.plan.kind.get(root(a)) in UNOWNED:
            return f"np.asarray({self.whole(a)})"
        if not is_scalar_const(a):
            return self.whole(a)
        name = self.unique("number")
        self.env[name] = np.asarray(a.value, a.dtype)
        return name
