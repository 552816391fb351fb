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
import math
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..graph import Node, float_text, is_scalar_const, scalar_text, source_name, source_names
from ..hidden import is_hidden
from ..ops import OPS
from ..ops.cost import nanoseconds
from ..ops.rowwise import row_axes
from ..ops.shape import index_text
from ..ops.subgraph import cut_index, cut_of
from ..ops.table import VIEWS, facts, root, views_of
from ..run.memory import arena_views, each_row
from . import numexpr
from .buffers import UNOWNED, Kind
from .expressions import dtype_name, is_written, number_text, view_text, written
from .layout import is_result_of_call
from .plan import Plan
from .regions import Region
from .row_blocks import RowBlocks
from .statements import Statement, with_source

if TYPE_CHECKING:
    from .program import Routine

# Mean nanoseconds of a statement on one block, by ops/cost.py, from which a region is spread over threads.
# Shorter ones lose more by passing on the interpreter lock than another core gains.
SHARE_FROM = 8_000.0
# Views that have a line each. Python takes 20 us to compile such a line, more than for the statement that
# writes to the view: beyond this number those of the arena come from a table, and those that are all rows of
# an argument or a result from one call.
MOST_SPELLED = 50
# Names in emitted code that no variable may have; those of Emitter.own give way to variables instead
RESERVED = {
    *("np", "Fused", "matmul", "run_blocks", "memory", "setup", "arena", "slice", "complex", "k", "i", "j"),
    *(f"i{axis}" for axis in range(64)),
}


class ArenaView(NamedTuple):
    """An array that lies in the arena from this byte on."""

    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]

    def __str__(self) -> str:
        at, dtype, shape = self
        end = at + math.prod(shape) * dtype.itemsize
        return f"arena[{at}:{end}].view(np.{dtype_name(dtype)}).reshape({shape})"


class Emitter:
    """Writes the program of a plan, under a name.

    The views in `setup` are made once for each workspace, those in `prelude` at the start of each call. `env`
    has the globals of the source.
    """

    def __init__(self, plan: Plan, name: str):
        self.plan, self.graph = plan, plan.graph
        self.function = source_name(name, RESERVED)
        self.names = source_names(self.graph, {*RESERVED, self.function})
        self.taken = {*self.names.values(), self.function}
        self.tried: dict[str, int] = {}  # name -> the last number appended to it
        self.owned_names: dict[str, str] = {}
        self.env: dict = {"np": np}
        self.setup: dict[str, str | ArenaView] = {}  # name -> a view of the arena, which is made once
        self.prelude: dict[str, str] = {}  # name -> a view of an argument or result of this call
        self.full: dict = {}  # node (or node and rows) -> text for the whole array
        computed = [o for o in self.graph.outputs if o.op != "input"]
        self.output_index = {o: k for k, o in enumerate(computed)}
        self.result_names = [self.unique(_result_name(o)) for o in computed]
        self.routines: dict[Routine, str] = {}  # the functions that it calls, and their names
        self.works: dict[tuple[Routine, int], str] = {}  # (function, where its arena lies) -> its memory
        self.fused: list[str] = []  # lines that make numexpr's expressions
        self.body: list[str] = []
        self.block_regions: list = []  # (blocks, slot shapes) of each region of row blocks, in order

    def source(self) -> str:
        """All of the text."""
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
        lines = [*memory, *self.prelude_lines(), *self.body, f"return ({returned.strip()})"]
        head = f"def {self.function}({', '.join([*inputs, *self.result_names, 'memory'])}):"
        return "\n".join([head, *(f"    {line}" if line else "" for line in lines)]) + "\n"

    def prelude_lines(self) -> list[str]:
        """The lines that make views of the call's arguments and results."""
        views, lines = dict(self.prelude), []
        if len(views) > MOST_SPELLED:
            named = {view: name for name, view in views.items()}
            inputs = [(i, self.names[i]) for i in self.graph.inputs]
            arrays = [*inputs, *zip(self.output_index, self.result_names)]
            for n, text in arrays:
                rows = list(itertools.takewhile(named.__contains__, _row_texts(text, n.shape)))
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
            lines = [f"{self.names[n]} = {self.expression(n, self.operands(n), n.attrs)}"]
        else:
            lines = list(Statement(self, n).lines())
        self.body += with_source(lines, n)

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
        numbered = enumerate(body.outputs)
        outs = [self.whole(results[k][0]) if k in results else self.unread(n, k, o) for k, o in numbered]
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

    def unread(self, n: Node, k: int, like: Node) -> str:
        """Memory for a result that nothing reads."""
        offset = self.plan.unread[n, k].offset
        return self.define_in_arena(self.unique("unread"), offset, like.dtype, like.shape)

    # ---- operands, and expressions of numbers ----

    def operands(self, n: Node, unread: Container[int] = ()) -> list[str]:
        """The operands of an op, "" for those that are folded into it or not read."""
        unread = {k for k, a in enumerate(n.args) if k in unread or a in self.plan.folded}
        return ["" if k in unread else self.operand(a, n) for k, a in enumerate(n.args)]

    def factors(self, multiply: Node) -> list[str]:
        """The two factors of a folded multiplication: arrays also where they have one element."""
        return [self.whole(a) for a in multiply.args] * (2 // len(multiply.args))

    def target(self, n: Node) -> str:
        """Where the result of an op goes."""
        return self.whole(n)

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
        if x in self.plan.folded:  # a multiplication along the last axis, the only one
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
            if isinstance(value, float):
                texts.append(f"{key}={float_text(value)}")
            elif isinstance(value, (int, str, bool, tuple, type(None))):
                texts.append(f"{key}={value!r}")
            else:
                constant = self.own(f"_{n.op}_{key}_{n.id}")
                self.env[constant] = value
                texts.append(f"{key}={constant}")
        return f"{function}({', '.join(args + texts)})"

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

    # ---- names ----

    def unique(self, text: str) -> str:
        """The text as a name that is not taken, numbered if need be."""
        base, k = text, self.tried.get(text, 1)
        while text in self.taken or text in RESERVED:
            k += 1
            text = f"{base}_{k}"
        self.tried[base] = k
        self.taken.add(text)
        return text

    def own(self, text: str) -> str:
        """The name of a helper or constant of the emitter: the same one each time, and no variable's."""
        if text not in self.owned_names:
            self.owned_names[text] = self.unique(text)
        return self.owned_names[text]

    # ---- whole arrays ----

    def whole(self, n: Node) -> str:
        """Text for all of n, defined in setup or at the start of the call."""
        if is_scalar_const(n):
            return scalar_text(n)
        if n in self.full:
            return self.full[n]
        if n.op == "input":
            text = self.names[n]
        elif n.op == "const":
            text = self.names[n]
            value = n.value
            if not is_hidden(value):
                value = np.asarray(value)
                value.flags.writeable = False
            self.env[text] = value
        elif n.op in VIEWS:
            text = self.view_of(n)
        elif self.plan.kind[n] in UNOWNED:
            text = self.names[n]
        else:
            text = self.owned(n)
        self.full[n] = text
        return text

    def owned(self, n: Node) -> str:
        """Text for a result, a span of the arena or of a result, or a window into one of those."""
        window = self.plan.windows.get(n)
        base = window.base if window else n
        if base in self.output_index:
            owner = self.result_names[self.output_index[base]]
        elif window is not None:
            owner = self.whole(base)
        else:
            name, s = self.whole_name(n), self.plan.storage[n]
            if s.lender is None:
                return self.define_in_arena(name, s.offset, n.dtype, n.shape)
            first = s.offset // n.dtype.itemsize
            memory = f"{self.flat(s.lender)}[{first}:{first + n.size}]"
            return self.define(name, f"{memory}.reshape({n.shape})", n)
        if window is None or not window.steps:
            return owner
        return self.define(self.whole_name(n), owner + window.text(), n)

    def flat(self, o: Node) -> str:
        """The memory of a lending result, as a 1-d array."""
        key = ("flat", o)
        if key not in self.full:
            owner = self.result_names[self.output_index[o]]
            self.full[key] = self.unique(f"{owner}_memory")
            self.prelude[self.full[key]] = f"{owner}.reshape(-1)"
        return self.full[key]

    def whole_name(self, n: Node) -> str:
        """The user's name; with an underscore where the plain name is a block of rows."""
        if n in self.plan.region and self.plan.region[n].N > 1:
            return self.unique(self.names[n] + "_")
        return self.names[n]

    def view_of(self, n: Node) -> str:
        """The name of a view of a whole array; its expression if the array is allocated during the call."""
        r = root(n)
        text = self.whole(r)
        if is_scalar_const(r):
            text = f"np.asarray({text}, np.{dtype_name(r.dtype)})"
        for v in views_of(n):
            text = view_text(text, v)
        if self.plan.kind.get(r) in UNOWNED:
            return text
        return self.define(self.unique(self.names[n]), text, r)

    def part(self, x: Node, index: tuple, like: Node) -> str:
        """The part of a whole array at an index, named as `like` is."""
        key = x, index
        if key not in self.full:
            text = f"{self.whole(x)}[{index_text(index, x.shape)}]"
            self.full[key] = self.define(self.unique(like.name or "part"), text, root(x))
        return self.full[key]

    def define(self, name: str, expression: str, owner: Node) -> str:
        """Name a view of the owner's memory: for each workspace once, or at the start of each call."""
        if owner.op == "input" or self.plan.kind.get(owner) in (Kind.RESULT, Kind.LENT):
            self.prelude[name] = expression
        else:
            self.setup[name] = expression
        return name

    def define_in_arena(self, name: str, offset: int, dtype: np.dtype, shape: tuple) -> str:
        """Name a part of the arena as an array."""
        self.setup[name] = ArenaView(offset, dtype, shape)
        return name

    def whole_rows(self, n: Node, r: Region) -> str:
        """Text for all of n with its rows along the first axis (or, nested, along the leading axes)."""
        p = row_axes(n.shape, r.N)
        if r.nested or p == 1:
            return self.whole(n)
        base, whole = root(n), self.whole(n)
        expression = f"{whole}.reshape({(r.N, *n.shape[p:])})"
        if self.plan.kind.get(base) in UNOWNED:
            return expression
        if expression not in self.full:
            self.full[expression] = self.define(self.unique(whole.rstrip("_") + "_rows"), expression, base)
        return self.full[expression]

    # ---- helpers and constants ----

    def helper(self, function: Callable) -> str:
        """The name of a function of the runtime."""
        name = self.own(function.__name__)
        self.env[name] = function
        return name

    def ones(self, count: int, dtype: np.dtype) -> str:
        """A constant vector of ones: a product with it is the fastest sum NumPy has."""
        text = self.own(f"ones_{count}" + ("" if dtype == np.float32 else f"_{dtype}"))
        self.env.setdefault(text, np.ones(count, dtype))
        return text

    def partial(self, n: Node) -> str:
        """The array of the sums of n over each block of rows."""
        key = ("partial", n)
        if key not in self.full:
            s = self.plan.partials[n]
            name, blocks = self.unique(f"{self.names[n]}_parts"), s.nbytes // max(1, n.nbytes)
            self.full[key] = self.define_in_arena(name, s.offset, n.dtype, (blocks, *n.shape))
        return self.full[key]

    def invariant(self, a: Node, user: Node, r: Region) -> str:
        """A whole argument beside blocks of rows, without axes of length 1 that stand for the row axes."""
        if user.op == "gather":  # its table
            return self.whole(a)
        target = user.args[0] if user in r.sums else user
        p = row_axes(target.shape, r.N)
        extra = a.ndim - (target.ndim - p)
        if extra <= 0:
            return self.whole(a)
        key = (a, "tail", extra)
        if key not in self.full:
            text = self.whole(a)
            expression = f"{text}.reshape({a.shape[extra:]})"
            if self.plan.kind.get(root(a)) not in UNOWNED:  # those are allocated during the call
                expression = self.define(self.unique(text.rstrip("_") + "_tail"), expression, root(a))
            self.full[key] = expression
        return self.full[key]


def _row_texts(text: str, shape: tuple[int, ...]) -> Iterator[str]:
    """The views of one row of an array each, as index_text has them."""
    last = shape[0] - 1 if shape else 0
    return (f"{text}[{k or ''}:{k + 1 if k < last else ''}]" for k in range(last + 1))


def _result_name(o: Node) -> str:
    name = (o if is_result_of_call(o) else root(o.args[0])).name or "result"
    return "result" if name in ("out", "result") else f"{name}_out"
