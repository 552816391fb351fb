"""Writes NumPy source: `out=` everywhere, the user's names, and where each statement comes from.

    def f(inputs..., results..., memory):            the program
        def rows(k, i, j, ...):                      a region: block k, rows i:j, and this thread's scratch
            ...
        run_blocks(rows, blocks, scratch)

Memory is set up once for each workspace by `setup(arena)`, so a call allocates nothing but what an op without
`out=` allocates by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from ..graph import Graph, Node, is_scalar_const, scalar_text
from ..ops import OPS
from ..ops.cost import nanoseconds
from ..ops.table import facts, root
from ..run.memory import Needs, arena_views
from . import numexpr
from .array_names import ArenaView, ArrayTexts
from .buffers import BufferPlan, Kind, assign
from .calls import CallLines, Routine, Routines, no_routines, results_of
from .expressions import is_written, number_text, written
from .layout import is_result_of_call, lower
from .liveness import Liveness, Overwrites
from .regions import Region, reach_rows, schedule
from .row_blocks import RowBlocks
from .statements import Statement, folded, with_source
from .windows import find_windows

# Mean nanoseconds of a statement on one block, by ops/cost.py, from which a region is spread over threads.
# Shorter ones lose more by passing on the interpreter lock than another core gains.
SHARE_FROM = 8_000.0
# Views of the arena that have a line each. Python takes 20 us to compile such a line, more than for the
# statement that writes to the view: beyond this number they come from a table.
MOST_SPELLED = 50


@dataclass
class Emitted:
    """The source of a program, and what is needed to run it."""

    function: str  # the name that the program has in the source
    source: str
    env: dict
    regions: list  # (blocks, slot shapes) of each region of row blocks, in order
    arena_bytes: int
    results: list  # shape and dtype of each result; None for an input handed back
    overwrites: Overwrites  # (result, input): the result may be written over that input's memory
    routines: list[Routine]  # the functions that it calls
    calls: list[tuple[Needs, int]]  # (needs of a routine, where in the arena its memory begins)


def planned(
    graph: Graph,
    share_inputs: bool = False,
    lend: bool = False,
    fusing: Callable | None = None,
    exact: Container[int] = frozenset(),
    routines: Routines = no_routines,
    results_early: bool = False,
) -> BufferPlan:
    """A graph as `emit` writes it: lowered, in regions, and with memory for each value.

    fusing     fusing(graph, regions) may give elementwise ops to another backend
    exact      ids of values that are summed in NumPy's own order
    routines   routines(body) is the function that outlined calls of it call
    results_early   as `schedule` takes it
    """
    graph = lower(graph, share_inputs, exact)
    regions = schedule(graph, results_early)
    if fusing is not None:
        graph = fusing(graph, regions)
    live = Liveness(graph, regions)
    windows, layouts = find_windows(live)
    products = folded(live, windows)
    for r in regions:
        reach_rows(r, live.region, layouts)
    called = {n: routines(n.attrs["body"]) for n in graph.nodes if n.op == "outlined"}
    return assign(Liveness(graph, regions, windows, products), layouts, called, lend)


def emit(plan: BufferPlan, name: str) -> Emitted:
    """The source of a planned graph, as a function of this name."""
    emitter = Emitter(plan, name)
    for r in plan.live.regions:
        emitter.region(r)
    results = [None if o.op == "input" else (o.shape, o.dtype) for o in plan.live.graph.outputs]
    source, env = emitter.source(), emitter.env
    return Emitted(
        emitter.function,
        source,
        env,
        emitter.block_regions,
        plan.arena_bytes,
        results,
        plan.overwrites,
        list(dict.fromkeys(plan.called.values())),
        [(r.needs, at) for r, at in emitter.works],
    )


class Emitter(ArrayTexts):
    """Writes the program, region by region."""

    def __init__(self, plan: BufferPlan, name: str):
        super().__init__(plan, name)
        self.results = results_of(self.graph)
        self.calls = CallLines(self)
        self.works: dict[tuple[Routine, int], str] = {}  # (function, where its arena lies) -> its memory
        self.fused: list[str] = []  # lines that make numexpr's expressions
        self.body: list[str] = []
        self.block_regions: list = []

    def source(self) -> str:
        """All of the text, once every region has its lines."""
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
        inputs = [self.names[i] for i in self.graph.inputs]
        memory = []
        if self.block_regions:
            scratch = ", ".join(self.own(f"scratch{k + 1}") for k in range(len(self.block_regions)))
            memory.append(f"({scratch},) = memory.scratch")
        if self.works:
            memory.append(f"({', '.join(self.works.values())},) = memory.calls")
        if self.setup:
            memory.append(f"({', '.join(self.setup)},) = memory.arrays")
        returned = "".join(
            f"{self.names[o] if o.op == 'input' else self.result_names[self.output_index[o]]}, "
            for o in self.graph.outputs
        )
        lines = [*memory, *self.prelude, *self.body, f"return ({returned.strip()})"]
        head = f"def {self.function}({', '.join([*inputs, *self.result_names, 'memory'])}):"
        return "\n".join([head, *(f"    {line}" if line else "" for line in lines)]) + "\n"

    # ---- regions ----

    def region(self, r: Region) -> None:
        """Write the lines of one region."""
        if r.N > 1:
            self.blocks(r)
        else:
            for n in r.members:
                self.plain(n)

    def plain(self, n: Node) -> None:
        """The statement for n on whole arrays."""
        if n in self.folded or is_result_of_call(n):
            return
        kind = self.plan.kind[n]
        if n.op == "outlined":
            lines = self.calls.lines(n)
        elif kind is Kind.NUMBER:
            lines = [f"{self.names[n]} = {self.number(n)}"]
        else:
            if kind is Kind.ALLOCATED:
                lines = [f"{self.names[n]} = {self.expression(n, self.operands(n), n.attrs)}"]
            else:
                statement = Statement(self, n)
                statement.args, statement.target = self.operands(n, statement.in_place_args), self.whole(n)
                if n.args and n.args[0] in self.folded:
                    statement.factors = self.factors(n.args[0])
                lines = list(statement.lines())
        self.body += with_source(lines, n)

    def factors(self, multiply: Node) -> list[str]:
        """The two factors of a folded multiplication: a square has its argument twice."""
        return [self.whole(y) for y in multiply.args] * (2 // len(multiply.args))

    def operands(self, n: Node, unread: Container[int] = ()) -> list[str]:
        """The operands of an op, "" for those that are folded into it or not read."""
        return ["" if k in unread or a in self.folded else self.operand(a, n) for k, a in enumerate(n.args)]

    def operand(self, a: Node, user: Node) -> str:
        """Text for all of a: for an elementwise op a number is as good as an array of one element."""
        if self.is_held_as_number(a) and facts(user).streams:
            return self.names[root(a)]
        return self.whole(a)

    def is_held_as_number(self, a: Node) -> bool:
        """Whether a name in the source stands for the number itself, not for an array."""
        return self.plan.kind.get(root(a)) is Kind.NUMBER

    def number(self, n: Node) -> str:
        """The expression for a number, from numbers."""
        if n.op == "sum":
            return self.total(n)
        if n.op == "sum_as_numpy":
            return f"np.add.reduce({self.whole(n.args[0])}, axis={n.attrs['axes']})"
        if n.op == "power" and n.shape == ():
            return self.power(n)
        texts = [self.scalar(a) for a in n.args]
        if is_written(n.op):  # several times as fast as a ufunc that writes to an array
            return written(n.op, map(number_text, texts)).text
        return self.expression(n, texts, n.attrs)

    def power(self, n: Node) -> str:
        """A power of single numbers by `**`, as NumPy computes it: C's pow, not the loop over arrays."""
        return " ** ".join(f"({self.scalar(a)})" for a in n.args)

    def scalar(self, a: Node) -> str:
        """The one element of a as a NumPy scalar."""
        if is_scalar_const(a):
            return scalar_text(a)
        if self.is_held_as_number(a):
            return self.names[root(a)]
        return f"{self.whole(a)}[{', '.join('0' * a.ndim) or '()'}]"

    def total(self, n: Node) -> str:
        """The sum of all elements."""
        (x,) = n.args
        if x in self.folded:  # a multiplication along the last axis, the only one
            a, b = self.factors(x)
            return f"{a}.dot({b})"
        if x.ndim == 1 and x.size >= 16:
            return f"{self.whole(x)}.dot({self.ones(x.size, x.dtype)})"
        return f"np.add.reduce({self.whole(x)}, axis={n.attrs['axes']})"

    def expression(self, n: Node, args: list[str], attrs: dict) -> str:
        """The op as its row writes it, or as a call of the function that evaluates it."""
        op = OPS[n.op]
        if op.code is not None:
            return op.code(*args, **attrs)
        if op.drop_unused is not None:
            attrs = op.drop_unused({m.attrs["i"] for m in self.graph.nodes if m.args == (n,)}, attrs)
        function = self.own(f"_{n.op}")
        self.env[function] = op.evaluate
        texts = []
        for key, value in attrs.items():
            if isinstance(value, (int, float, str, bool, tuple, type(None))):
                texts.append(f"{key}={value!r}")
            else:
                constant = self.own(f"_{n.op}_{key}_{n.id}")
                self.env[constant] = value
                texts.append(f"{key}={constant}")
        return f"{function}({', '.join(args + texts)})"

    def blocks(self, r: Region) -> None:
        """The function of a region of row blocks, and the line that runs it."""
        rows = RowBlocks(self, r)
        lines = rows.lines()
        if not lines:  # nothing but copies of what is in place already
            return
        number = len(self.block_regions) + 1
        function = self.unique(f"rows{number}" if number > 1 else "rows")
        constant, scratch = self.own(f"blocks{number}"), self.own(f"scratch{number}")
        self.env[constant] = rows.blocks
        alone = "" if self.pays_to_share(r, len(rows.blocks)) else ", alone=True"
        parameters = ", ".join(["k", *rows.outer, "i", "j", *rows.scratch.values()])
        self.body += ["", f"def {function}({parameters}):  # {rows.title}"]
        self.body += [f"    {line}" for line in lines]
        self.body += ["", f"run_blocks({function}, {constant}, {scratch}{alone})"]
        for n in r.sums:
            self.body.append(f"np.add.reduce({self.partial(n)}, axis=0, out={self.whole(n)})")
        self.block_regions.append((rows.blocks, [(*key[1:], key[0]) for key in rows.scratch]))

    def pays_to_share(self, r: Region, blocks: int) -> bool:
        """Whether a statement of one block takes long enough to be worth a thread."""
        return sum(map(nanoseconds, r.members)) / len(r.members) / blocks >= SHARE_FROM

    def function_of(self, n: Node) -> str | None:
        """The function that computes n and takes out=, if there is one."""
        if n.op == "fused":
            return self.fused_name(n)
        return f"np.{n.op}" if OPS[n.op].ufunc is not None else None

    def fused_name(self, n: Node) -> str:
        """The name of the function that computes a fusion."""
        names = [self.names[root(a)] for a in n.args]
        text, types = numexpr.expression(n, names)
        name = self.unique("fused")
        if not self.fused:
            self.fused.append("from gpt2.autodiff.emit.numexpr import Fused")
            self.fused.append("")
        self.fused.append(f"{name} = Fused({text!r}, {types})")
        return name
