"""From regions to NumPy source: `out=` everywhere, the user's names, and where each statement comes from.

    def f(inputs..., results..., memory):            the program
        def rows(k, i, j, ...):                      a region: block k, rows i:j, and this thread's scratch
            ...
        run_blocks(rows, blocks, scratch)

Memory is set up once for each workspace by `setup(arena)`, so a call allocates nothing but what an op without
`out=` allocates by itself.
"""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass

import numpy as np

from . import numexprs, runtime
from .buffers import Plan, Uses, lends, plan
from .graph import Graph, Node, is_scalar_const, source_name, source_names
from .layout import (
    VIEWS,
    chain,
    disjoint,
    hosts,
    is_elementwise,
    lower,
    reshape_view,
    root,
    same_memory,
    slices_text,
)
from .ops import OPS
from .ops.shape import index_slices
from .passes.cost import nanoseconds
from .rows import ROW, row_axes, takes_rows
from .schedule import Region, blocks_of, flags_of, prefix, schedule

# One number at a time, Python's operators are several times as fast as a ufunc that writes to an array
NUMBER_SIGNS = {
    "add": "{} + {}",
    "subtract": "{} - {}",
    "multiply": "{} * {}",
    "divide": "{} / {}",
    "negative": "-{}",
    "square": "{0} * {0}",
}
# Nanoseconds that a statement of one block takes on the average, as passes/cost.py counts, from which a
# region is spread over threads. Shorter ones lose more by passing the interpreter lock to and fro than a core
# gives.
SHARE_FROM = 8_000.0
NS_FUSED = 1.0  # an element of a numexpr expression
# Names in emitted code that no variable may have; those of _Emitter.own give way to variables instead
RESERVED = {
    *("np", "Fused", "matmul", "run_blocks", "memory", "setup", "arena", "slice", "complex", "k", "i", "j"),
    *(f"i{axis}" for axis in range(64)),
}


@dataclass
class Emitted:
    function: str  # the name that the program has in the source
    source: str
    env: dict
    regions: list  # (blocks, slot shapes) of each region of row blocks, in order
    arena_bytes: int
    results: list  # shape and dtype of each result; None for an input handed back
    overwrites: set  # (result, input): the result may be written over that input's memory


def emit(
    graph: Graph, name: str, share_inputs: bool = False, lend: bool = False, elementwise: str = "numpy"
) -> Emitted:
    graph = lower(graph, share_inputs)
    regions = schedule(graph)
    if elementwise != "numpy":
        graph = numexprs.fused_regions(graph, regions, elementwise)
    where = {n: r for r in regions for n in r.members}
    uses = Uses(graph, regions)
    placed, stands = hosts(graph, uses)
    folded = _folded(graph, where, placed)
    nested: dict[Region, bool] = {}
    for r in regions:
        nested[r] = r.N > 1 and not _flat(r, where, stands)
        if nested[r] and not _one_prefix(r, where):  # rows that no single index reaches: plain statements
            r.N, r.sums, nested[r] = 1, [], False
    overwrites = {
        (k, i)
        for k, o in enumerate(graph.outputs)
        for i, x in enumerate(graph.inputs)
        if may_overwrite(o, x, placed, uses) and not (lend and lends(o))
    }

    def n_blocks(r: Region) -> int:
        return len(blocks_of(r, nested[r]))

    p = plan(graph, regions, where, placed, folded, uses, n_blocks, stands if lend else None)
    emitted = _Emitter(graph, name, regions, where, p, nested, stands).emit()
    emitted.overwrites = overwrites
    return emitted


def may_overwrite(o: Node, x: Node, placed, uses: Uses) -> bool:
    """Whether output o may be computed in the memory of input x: nothing reads x once o's memory is
    written."""
    if o.op == "input" or x.shape != o.shape or x.dtype != o.dtype:
        return False
    writers = [n for n in uses.order if n is o or (n in placed and placed[n].base is o)]
    if any(step[0] != "reshape" for n in writers if n in placed for step in placed[n].steps):
        return False
    first = min(writers, key=uses.order.__getitem__)
    if not is_elementwise(first) and any(root(a) is x for a in first.args):
        return False
    if uses.region[first].N > 1 and row_axes(x.shape, uses.region[first].N) is None:
        return False
    return uses.last_use(x, first)


def _ends(r: Region, where) -> list[Node]:
    """The arrays that a region reads or writes by rows."""
    ends = []
    for n in r.members:
        if n not in r.sums:
            ends.append(n)
        ends += [
            a for a, flag in zip(n.args, flags_of(n, r.N)) if flag is ROW and where.get(root(a)) is not r
        ]
    return ends


def _flat(r: Region, where, stands) -> bool:
    """Whether each of those arrays has a view with its rows along one axis."""
    for a in _ends(r, where):
        p = row_axes(a.shape, r.N)
        if p != 1 and reshape_view(stands[a], (r.N, *a.shape[p:])) is None:
            return False
    return True


def _one_prefix(r: Region, where) -> bool:
    """Whether the rows are numbered by the same leading axes in all of them, so that one index reaches
    them."""
    axes = prefix(r)
    return axes is not None and all(a.shape[: row_axes(a.shape, r.N)] == axes for a in _ends(r, where))


def _folded(graph: Graph, where, placed) -> set[Node]:
    """Products that only a sum over the last axis reads: the pair is one np.vecdot."""
    users = graph.users()
    found = set()
    for n in graph.nodes:
        if n.op == "sum" and n.args[0].op in ("multiply", "square"):
            m = n.args[0]
            if (
                len(users[m]) == 1
                and n.attrs["axes"] == (m.ndim - 1,)
                and m not in placed
                and where[m] is where[n]
                and all(a.shape == m.shape and a.dtype == m.dtype for a in m.args)
                and m.dtype.kind == "f"
                and n not in where[n].sums
            ):
                found.add(m)
    return found


class _Emitter:
    def __init__(self, graph: Graph, name: str, regions, where, p: Plan, nested, stands):
        self.graph, self.regions, self.where, self.plan = graph, regions, where, p
        self.nested, self.stands = nested, stands
        self.function = source_name(name, RESERVED)
        self.names = source_names(graph, {*RESERVED, self.function})
        self.taken = {*self.names.values(), self.function}
        self.owned_names: dict[str, str] = {}
        self.env: dict = {"np": np}
        self.fused: list[str] = []  # lines that make numexpr's expressions
        self.setup: list[str] = []  # lines that make views of the arena, once
        self.kept: list[str] = []  # names that setup hands over
        self.prelude: list[str] = []  # views of this call's arguments and results
        self.body: list[str] = []
        self.full: dict = {}  # node (or node and rows) -> text for the whole array
        self.block_regions: list = []
        made = [o for o in graph.outputs if o.op != "input"]
        self.output_index = {o: k for k, o in enumerate(made)}
        self.result_names = [self.unique(_result_name(o)) for o in made]

    def unique(self, text: str) -> str:
        base, k = text, 2
        while text in self.taken or text in RESERVED:
            text, k = f"{base}_{k}", k + 1
        self.taken.add(text)
        return text

    def own(self, text: str) -> str:
        """The name of something that the emitter brings along: the same one each time, and no variable's."""
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
            value = np.asarray(n.value)
            value.flags.writeable = False
            self.env[text] = value
        elif n.op in VIEWS:
            text = self.view_of(n)
        elif self.plan.kind[n] in ("free", "number"):
            text = self.names[n]
        else:
            text = self.owned(n)
        self.full[n] = text
        return text

    def owned(self, n: Node) -> str:
        """A result, an arena array, or a place inside one."""
        place = self.plan.placed.get(n)
        base = place.base if place else n
        if base in self.output_index:
            owner = self.result_names[self.output_index[base]]
            if place is None or not place.steps:
                return owner
            text = self.whole_name(n)
            self.prelude.append(f"{text} = {owner}{place.text()}")
            return text
        if place is not None:
            owner = self.whole(base)
            if not place.steps:
                return owner
            text = self.whole_name(n)
            if self.plan.kind[n] == "lent":
                self.prelude.append(f"{text} = {owner}{place.text()}")
                return text
            self.setup.append(f"{text} = {owner}{place.text()}")
        else:
            s = self.plan.storage[n]
            text = self.whole_name(n)
            if s.lender is not None:
                first = s.offset // n.dtype.itemsize
                part = f"{self.flat(s.lender)}[{first}:{first + n.size}]"
                self.prelude.append(f"{text} = {part}.reshape({n.shape})")
                return text
            self.setup.append(f"{text} = {_arena_text(s.offset, n)}")
        self.kept.append(text)
        return text

    def flat(self, o: Node) -> str:
        """The memory of a result that lends it, as one row."""
        key = ("flat", o)
        if key not in self.full:
            owner = self.result_names[self.output_index[o]]
            self.full[key] = self.unique(f"{owner}_memory")
            self.prelude.append(f"{self.full[key]} = {owner}.reshape(-1)")
        return self.full[key]

    def whole_name(self, n: Node) -> str:
        """The user's name; with an underscore where the plain name is a block of rows."""
        if n in self.where and self.where[n].N > 1:
            return self.unique(self.names[n] + "_")
        return self.names[n]

    def view_of(self, n: Node) -> str:
        r = root(n)
        base = self.whole(r)
        if is_scalar_const(r):
            base = f"np.asarray({base}, np.{_dtype_name(r.dtype)})"
        expression = base + "".join(view_text(v) for v in chain(n))
        if chain(n)[-1].op == "broadcast" or any(v.op == "broadcast" for v in chain(n)):
            expression = base
            for v in chain(n):
                expression = (
                    f"np.broadcast_to({expression}, {v.shape})"
                    if v.op == "broadcast"
                    else expression + view_text(v)
                )
        if self.plan.kind.get(r) in ("free", "number"):
            return expression
        return self.define(expression, self.names[n], r)

    def define(self, expression: str, hint: str, r: Node) -> str:
        text = self.unique(hint)
        line = f"{text} = {expression}"
        if r.op == "const":
            self.setup.append(line)
            self.kept.append(text)
        elif r.op == "input" or self.plan.kind[r] in ("result", "lent"):
            self.prelude.append(line)
        else:
            self.setup.append(line)
            self.kept.append(text)
        return text

    def whole_rows(self, n: Node, r: Region) -> str:
        """Text for all of n with its rows along the first axis (or, nested, along the leading axes)."""
        p = row_axes(n.shape, r.N)
        if self.nested[r] or p == 1:
            return self.whole(n)
        base, whole = root(n), self.whole(n)
        expression = f"{whole}.reshape({(r.N, *n.shape[p:])})"
        if self.plan.kind.get(base) in ("free", "number"):
            return expression
        if expression not in self.full:
            self.full[expression] = self.define(expression, whole.rstrip("_") + "_rows", base)
        return self.full[expression]

    # ---- regions ----

    def emit(self) -> Emitted:
        for r in self.regions:
            if r.N == 1:
                for n in r.members:
                    self.plain(n)
            else:
                self.blocks(r)
        inputs = [self.names[i] for i in self.graph.inputs]
        head = f"def {self.function}({', '.join(inputs + self.result_names + ['memory'])}):"
        text = []
        if self.kept:
            names = ", ".join(self.kept)
            text.append(
                "def setup(arena):\n"
                + "".join(f"    {line}\n" for line in self.setup)
                + f"    return ({names},)\n"
            )
            self.prelude.insert(0, f"({names},) = memory.arrays")
        if self.block_regions:
            scratch = ", ".join(self.own(f"scratch{k + 1}") for k in range(len(self.block_regions)))
            self.prelude.insert(0, f"({scratch},) = memory.scratch")
        lines = [f"    {line}" if line else "" for line in self.prelude + self.body]
        returned = "".join(
            f"{self.names[o] if o.op == 'input' else self.result_names[self.output_index[o]]}, "
            for o in self.graph.outputs
        )
        text.append("\n".join([head, *lines, f"    return ({returned.strip()})"]) + "\n")
        source = "\n".join(["import numpy as np", *self.fused]) + "\n\n\n" + "\n\n".join(text)
        return Emitted(
            self.function,
            source,
            self.env,
            self.block_regions,
            self.plan.arena_bytes,
            [None if o.op == "input" else (o.shape, o.dtype) for o in self.graph.outputs],
            set(),
        )

    def plain(self, n: Node) -> None:
        if n in self.plan.folded:
            return
        if self.plan.kind[n] == "number":
            self.body += _with_source([f"{self.names[n]} = {self.number(n)}"], n)
            return
        args = ["" if a in self.plan.folded else self.operand(a, n) for a in n.args]
        if self.plan.kind[n] == "free":
            lines = [f"{self.names[n]} = {self.expression(n, args, n.attrs)}"]
        else:
            lines = Statement(self, n, self.whole(n), args, frame=None).lines()
        self.body += _with_source(lines, n)

    def operand(self, a: Node, user: Node) -> str:
        """All of a, for an op: where that is elementwise, a number is as good as an array of one element."""
        if self.is_number(a) and is_elementwise(user):
            return self.names[root(a)]
        return self.whole(a)

    def is_number(self, a: Node) -> bool:
        return self.plan.kind.get(root(a)) == "number"

    def number(self, n: Node) -> str:
        """The expression for a number, from numbers."""
        if n.op == "sum":
            return self.total(n)
        texts = [self.scalar(a) for a in n.args]
        if n.op in NUMBER_SIGNS:
            return NUMBER_SIGNS[n.op].format(*texts)
        return self.expression(n, texts, n.attrs)

    def scalar(self, a: Node) -> str:
        """The one element of a as a NumPy scalar."""
        if is_scalar_const(a):
            return scalar_text(a)
        if self.is_number(a):
            return self.names[root(a)]
        return f"{self.whole(a)}[{', '.join('0' * a.ndim) or '()'}]"

    def total(self, n: Node) -> str:
        """The sum of all elements."""
        (x,) = n.args
        if x in self.plan.folded:  # a product along the last axis, the only one
            a, b = (self.whole(y) for y in x.args * (2 if x.op == "square" else 1))
            return f"{a}.dot({b})"
        if x.ndim == 1 and x.size >= 16:
            return f"{self.whole(x)}.dot({self.ones(x.size, x.dtype)})"
        return f"np.add.reduce({self.whole(x)}, axis={n.attrs['axes']})"

    def expression(self, n: Node, args: list[str], attrs: dict) -> str:
        op = OPS[n.op]
        if op.code is not None:
            return op.code(*args, **attrs)
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
        number = len(self.block_regions) + 1
        nested = self.nested[r]
        blocks = blocks_of(r, nested)
        axes = prefix(r) if nested else None
        index = ", ".join([f"i{a}" for a in range(len(axes) - 1)] + ["i:j"]) if nested else "i:j"
        outer = [f"i{a}" for a in range(len(axes) - 1)] if nested else []
        frame = Frame(r, index, nested)
        # names of the scratch arguments: one for each shape that a slot is used in
        shapes: dict[tuple, str] = {}
        slot_views: list[tuple] = []

        def scratch_name(n: Node) -> str:
            slot = self.plan.slots[n]
            row = n.shape[row_axes(n.shape, r.N) :]
            key = (slot, row, n.dtype)
            if key not in shapes:
                shapes[key] = self.own(f"s{len(shapes) + 1}")
                slot_views.append(key)
            return shapes[key]

        lines: list[str] = []
        local: dict[Node, str] = {}

        def operand(a: Node, flag: bool, user: Node) -> str:
            if is_scalar_const(a):
                return scalar_text(a)
            x = root(a)
            if self.is_number(a) and is_elementwise(user):
                return self.names[x]
            if self.where.get(x) is r and x not in r.sums:
                return local[x] + "".join(row_view_text(v, r.N) for v in chain(a))
            if flag is ROW:
                return f"\x01{self.whole_rows(a, r)}[{index}]\x02"
            return self.invariant(a, user, r)

        for n in r.members:
            if n in self.plan.folded:
                continue
            flags = flags_of(n, r.N)
            args = ["" if a in self.plan.folded else operand(a, f, n) for a, f in zip(n.args, flags)]
            name = self.names[n]
            if n in r.sums:
                partial = self.partial(n)
                lines += _with_source(sum_rows(self, n, f"{partial}[k]", args[0], r), n)
                continue
            if self.plan.kind[n] == "scratch":
                place = self.plan.placed.get(n)
                if place is None:
                    target = scratch_name(n)
                else:
                    target = scratch_name(place.base) + place.row_text(r.N)
            else:
                target = f"{self.whole_rows(n, r)}[{index}]"
            fold = (
                [operand(b, f, n.args[0]) for b, f in zip(n.args[0].args, flags_of(n.args[0], r.N))]
                if n.args and n.args[0] in self.plan.folded
                else None
            )
            statement = Statement(self, n, target, args, frame, name, fold)
            local[n] = name
            lines += _with_source(statement.lines(), n)
        lines = _hoist(lines, self)
        if not lines:  # nothing but copies of what is in place already
            return
        names = [shapes[k] for k in slot_views]
        function = self.unique(f"rows{number}" if number > 1 else "rows")
        count = f"{r.N} rows" if not nested else f"{' x '.join(map(str, axes))} rows"
        self.body.append("")
        parameters = ", ".join(["k", *outer, "i", "j", *names])
        self.body.append(f"def {function}({parameters}):  # {count} in {len(blocks)} blocks")
        self.body += [f"    {line}" for line in lines]
        self.body.append("")
        constant, scratch = self.own(f"blocks{number}"), self.own(f"scratch{number}")
        self.env[constant] = blocks
        alone = "" if self.pays_to_share(r, len(blocks)) else ", alone=True"
        self.body.append(f"run_blocks({function}, {constant}, {scratch}{alone})")
        for n in r.sums:
            self.body.append(f"np.add.reduce({self.partial(n)}, axis=0, out={self.whole(n)})")
        self.block_regions.append((blocks, [(row, dtype, slot) for slot, row, dtype in slot_views]))

    def pays_to_share(self, r: Region, blocks: int) -> bool:
        """Whether a statement of one block takes long enough to be worth a thread."""
        costs = [nanoseconds(n) if n.op in OPS else NS_FUSED * n.size for n in r.members]
        return sum(costs) / len(r.members) / blocks >= SHARE_FROM

    def helper(self, function) -> str:
        """The name of a function of the runtime."""
        name = self.own(function.__name__)
        self.env[name] = function
        return name

    def ones(self, count: int, dtype) -> str:
        """A constant vector of ones: a product with it is the fastest sum NumPy has."""
        text = self.own(f"ones_{count}" + ("" if dtype == np.float32 else f"_{dtype}"))
        self.env.setdefault(text, np.ones(count, dtype))
        return text

    def fused_name(self, n: Node) -> str:
        """The name of the function that computes a tree of elementwise ops."""
        names = [self.names[root(a)] for a in n.args]
        text, types = numexprs.expression(n, names)
        name = self.unique("fused")
        if not self.fused:
            self.fused.append("from gpt2.autodiff.numexprs import Fused")
            self.fused.append("")
        self.fused.append(f"{name} = Fused({text!r}, {types})")
        return name

    def partial(self, n: Node) -> str:
        key = ("partial", n)
        if key not in self.full:
            s = self.plan.partials[n]
            blocks = s.nbytes // max(1, n.nbytes)
            text = self.unique(f"{self.names[n]}_parts")
            place = f"arena[{s.offset}:{s.offset + s.nbytes}]"
            self.setup.append(f"{text} = {place}.view(np.{n.dtype}).reshape({(blocks, *n.shape)})")
            self.kept.append(text)
            self.full[key] = text
        return self.full[key]

    def invariant(self, a: Node, user: Node, r: Region) -> str:
        """A whole argument beside blocks of rows: leading axes of length 1 that stand for the row axes are
        dropped."""
        if user.op in ("gather",):
            return self.whole(a)
        target = user.args[0] if user in r.sums else user
        p = row_axes(target.shape, r.N)
        extra = a.ndim - (target.ndim - p)
        if extra <= 0:
            return self.whole(a)
        key = (a, "tail", extra)
        if key not in self.full:
            self.full[key] = self.define(
                f"{self.whole(a)}.reshape({a.shape[extra:]})", self.whole(a).rstrip("_") + "_tail", root(a)
            )
        return self.full[key]


@dataclass
class Frame:
    """How a statement in a block sees arrays: rows along the first axis."""

    region: Region
    index: str
    nested: bool

    def axes_of(self, n: Node) -> int:
        return row_axes(n.shape, self.region.N)


class Statement:
    """The lines for one op. `frame` is None for whole arrays; in a block, `name` is bound to the block of
    the result."""

    def __init__(
        self,
        emitter: _Emitter,
        n: Node,
        target: str,
        args: list[str],
        frame: Frame | None,
        name: str = "",
        fold=None,
    ):
        self.emitter, self.n, self.target, self.args, self.frame = emitter, n, target, args, frame
        self.name, self.fold = name, fold

    def lines(self) -> list[str]:
        n, op = self.n, self.n.op
        if op == "copy" and self.in_place(0):
            return [] if n in self.emitter.output_index else self.bind(self.target)
        special = getattr(self, f"op_{op}", None)
        if special is not None:
            return special()
        if OPS[op].ufunc is not None:
            return self.returning(f"np.{op}({', '.join(self.args)}, out=@)")
        return self.copying(self.emitter.expression(n, self.args, self.shifted_attrs()))

    # -- forms of statement

    def bind(self, target: str) -> list[str]:
        return [f"{self.name} = {target}"] if self.frame else []

    def returning(self, call: str) -> list[str]:
        """A call that takes out= and returns it: the block's name is bound on the same line."""
        call = call.replace("@", self.target)
        return [f"{self.name} = {call}"] if self.frame else [call]

    def then(self, *lines: str) -> list[str]:
        """Bind the block first, then fill it."""
        if not self.frame:
            return [line.replace("@", self.target) for line in lines]
        return [f"{self.name} = {self.target}", *(line.replace("@", self.name) for line in lines)]

    def copying(self, expression: str) -> list[str]:
        if not self.frame and self.n.shape == ():
            return [f"{self.target}[...] = {expression}"]
        return self.then(f"np.copyto(@, {expression})")

    # -- facts

    def in_place(self, k: int) -> bool:
        """Whether argument k is already where the result goes."""
        p, n, x = self.emitter.plan, self.n, self.n.args[k]
        r = root(x)
        if r in p.placed:
            return same_memory(self.emitter.stands[x], self.emitter.stands[n])
        if n in p.placed:
            return False
        if n in p.storage and r in p.storage:
            return p.storage[n] is p.storage[r]
        return (
            n in p.slots
            and r in p.slots
            and self.emitter.where[r] is self.emitter.where[n]
            and p.slots[n] == p.slots[r]
        )

    def shift(self, x: Node, axis: int) -> int:
        return axis if self.frame is None else axis - self.frame.axes_of(x) + 1

    def shifted_attrs(self) -> dict:
        n = self.n
        attrs = dict(n.attrs)
        if self.frame is None:
            return attrs
        if "axes" in attrs:
            attrs["axes"] = tuple(self.shift(n.args[0], a) for a in attrs["axes"])
        if "axis" in attrs:
            attrs["axis"] = self.shift(n.args[0], attrs["axis"])
        return attrs

    def part(self, x: Node, index) -> str:
        """Index text for a part of the result."""
        if self.frame is None:
            return _index(index, x.shape)
        p = self.frame.axes_of(x)
        return ", ".join([":", _index(index[p:], x.shape[p:])])

    # -- ops with a spelling of their own

    def op_copy(self):
        return self.then(f"np.copyto(@, {self.args[0]})")

    def op_fused(self):
        return self.returning(f"{self.emitter.fused_name(self.n)}({', '.join(self.args)}, out=@)")

    def op_cast(self):
        return self.then(f'np.copyto(@, {self.args[0]}, casting="unsafe")')

    def op_where(self):
        c, a, b = self.args
        lines = [] if self.in_place(2) else [f"np.copyto(@, {b})"]
        return self.then(*lines, f"np.copyto(@, {a}, where={c})")

    def op_sum(self):
        n = self.n
        (x,) = n.args
        axes = n.attrs["axes"]
        keep = n.attrs["keepdims"]
        if x in self.emitter.plan.folded:
            a, b = (self.fold if self.frame else [self.emitter.whole(y) for y in x.args]) * (
                2 if x.op == "square" else 1
            )
            return self.then(f"np.vecdot({a}, {b}, out=@{_drop_last(n, keep)})")
        if (
            axes == (x.ndim - 1,)
            and x.dtype.kind == "f"
            and x.dtype == n.dtype
            and x.shape[-1] >= 16
            and self.contiguous(x)
        ):
            ones = self.emitter.ones(x.shape[-1], x.dtype)
            rank = x.ndim if self.frame is None else x.ndim - self.frame.axes_of(x) + 1
            if rank == 2:
                return self.then(f"np.matmul({self.args[0]}, {ones}, out=@{_drop_last(n, keep)})")
            if self.contiguous(n):
                return self.then(
                    f"np.matmul({self.args[0]}.reshape(-1, {x.shape[-1]}), {ones}, out=@.reshape(-1))"
                )
        return self.reduce("add")

    def contiguous(self, x: Node) -> bool:
        """Whether x is contiguous, or in a block, each of its rows and the next."""
        r = root(x)
        if (
            self.frame
            and self.emitter.where.get(r) is self.frame.region
            and self.emitter.plan.kind.get(r) == "scratch"
        ):
            return r not in self.emitter.plan.placed and all(v.op == "reshape" for v in chain(x))
        return self.emitter.stands[x].flags.c_contiguous

    def reduce(self, ufunc: str):
        n = self.n
        axes = tuple(self.shift(n.args[0], a) for a in n.attrs["axes"])
        axis = axes[0] if len(axes) == 1 else axes
        keep = ", keepdims=True" if n.attrs["keepdims"] else ""
        if self.frame is None and n.shape == ():
            return [f"np.{ufunc}.reduce({self.args[0]}, axis={axis}, out={self.target})"]
        return self.returning(f"np.{ufunc}.reduce({self.args[0]}, axis={axis}{keep}, out=@)")

    def op_max(self):
        return self.reduce("maximum")

    def op_min(self):
        return self.reduce("minimum")

    def op_prod(self):
        return self.reduce("multiply")

    def op_any(self):
        return self.reduce("logical_or")

    def op_all(self):
        return self.reduce("logical_and")

    def op_matmul(self):
        call = (
            "matmul" if self.frame is None and self.n.ndim == 2 and self.n.dtype.kind == "f" else "np.matmul"
        )
        return self.returning(f"{call}({self.args[0]}, {self.args[1]}, out=@)")

    def op_einsum(self):
        args = ", ".join(self.args)
        return self.then(f"np.einsum({self.n.attrs['subscripts']!r}, {args}, out=@, optimize=True)")

    def op_assemble(self):
        n, e = self.n, self.emitter
        settled = [
            root(x) in e.plan.placed and same_memory(e.stands[x], e.stands[n][index_slices(i)])
            for x, i in zip(n.args, n.attrs["indices"])
        ]
        lines = []
        apart = disjoint(n)
        covered = apart and sum(x.size for x in n.args) == n.size
        if not any(settled) and not covered:
            full = [k for k, x in enumerate(n.args) if x.size == n.size]
            if full:
                k = full[0]
                lines.append(f"np.copyto(@[{self.part(n, n.attrs['indices'][k])}], {self.args[k]})")
                settled[k] = True
                apart = False
            else:
                lines.append("@.fill(0)")
        whole = any(x.size == n.size for x in n.args)
        for k, (index, arg) in enumerate(zip(n.attrs["indices"], self.args)):
            if settled[k]:
                continue
            part = f"@[{self.part(n, index)}]"
            lines.append(
                f"np.copyto({part}, {arg})" if covered or apart and not whole else f"{part} += {arg}"
            )
        return self.then(*lines)

    def first(self) -> list[str]:
        return [] if self.in_place(0) else [f"np.copyto(@, {self.args[0]})"]

    def op_update(self):
        return self.then(*self.first(), f"@[{self.part(self.n, self.n.attrs['index'])}] = {self.args[1]}")

    def op_scatter(self):
        return self.then(*self.first(), f"@[{self.spec()}] = {self.args[1]}")

    def op_scatter_add(self):
        table, _, *arrays = self.n.args
        if table.ndim == 2 and takes_rows(self.n.attrs["spec"], table, arrays):
            add_rows = self.emitter.helper(runtime.add_rows)
            return self.then(*self.first(), f"{add_rows}(@, {self.args[2]}, {self.args[1]})")
        return self.then(*self.first(), f"np.add.at(@, ({self.spec()},), {self.args[1]})")

    def spec(self) -> str:
        arrays = self.args[2:]
        texts = []
        for s in self.n.attrs["spec"]:
            if s == "new":
                texts.append("None")
            elif s[0] == "array":
                texts.append(arrays[s[1]])
            else:
                texts.append(repr(slice(*s)))
        return ", ".join(texts)

    def op_scatter_along_add(self):
        _, idx, v = self.args
        axis = self.shift(self.n, self.n.attrs["axis"])
        add_along = self.emitter.helper(runtime.add_along)
        return self.then(*self.first(), f"{add_along}(@, {idx}, {v}, axis={axis})")

    def op_gather(self):
        n = self.n
        table, *arrays = n.args
        if takes_rows(n.attrs["spec"], table, arrays):
            return self.then(f"{self.emitter.helper(runtime.take_rows)}({self.args[0]}, {self.args[1]}, @)")
        if self.frame is None:
            return self.copying(self.emitter.expression(n, self.args, n.attrs))
        raise AssertionError("a gather that is not by rows stands in a region of rows")


def _drop_last(n: Node, keepdims: bool) -> str:
    return "[..., 0]" if keepdims else ""


def _index(index, shape) -> str:
    return slices_text(index, shape) if index else "..."


def _arena_text(offset: int, n: Node) -> str:
    if n.nbytes == 0:
        return f"np.empty({n.shape}, np.{n.dtype})"
    return f"arena[{offset}:{offset + n.nbytes}].view(np.{_dtype_name(n.dtype)}).reshape({n.shape})"


def _dtype_name(dtype) -> str:
    return "bool_" if dtype.kind == "b" else str(dtype)


def view_text(n: Node) -> str:
    if n.op == "reshape":
        return f".reshape({n.shape})"
    if n.op == "transpose":
        return f".transpose({n.attrs['perm']})"
    if n.op == "slice":
        return f"[{_index(n.attrs['index'], n.args[0].shape)}]"
    return ""


def row_view_text(n: Node, N: int) -> str:
    """A view op inside a block, where the row axes are one axis in front."""
    p = row_axes(n.shape, N)
    q = row_axes(n.args[0].shape, N)
    if n.op == "reshape":
        return f".reshape({', '.join(map(str, (-1, *n.shape[p:])))})"
    if n.op == "transpose":
        return f".transpose({(0, *(a - q + 1 for a in n.attrs['perm'][p:]))})"
    if n.op == "slice":
        return f"[:, {_index(n.attrs['index'][q:], n.args[0].shape[q:])}]"
    return ""  # broadcasts in a row: the ufunc does them


def sum_rows(e: _Emitter, n: Node, target: str, x: str, r: Region) -> list[str]:
    """The sum of one block of rows, into its own place: blocks are added up afterwards, in their order."""
    a = n.args[0]
    p = row_axes(a.shape, r.N)
    axes = (0, *(ax - p + 1 for ax in n.attrs["axes"] if ax >= p))
    if axes == (0,) and a.ndim - p == 1 and a.dtype.kind == "f" and a.dtype == n.dtype:
        rows = max(b[-1] - b[-2] for b in blocks_of(r, e.nested[r]))
        ones = e.ones(rows, a.dtype)
        sizes = {b[-1] - b[-2] for b in blocks_of(r, e.nested[r])}
        return [f"np.matmul({ones if len(sizes) == 1 else f'{ones}[:j - i]'}, {x}, out={target})"]
    axis = axes[0] if len(axes) == 1 else axes
    if not n.shape:
        target = target.replace("[k]", "[k:k + 1].reshape(())")
    return [f"np.add.reduce({x}, axis={axis}, out={target})"]


def _with_source(lines: list[str], n: Node) -> list[str]:
    """The statement's lines, the last one with a comment naming the user's line that it comes from."""
    if not lines or n.loc is None:
        return lines
    file, line = n.loc[0], n.loc[1]
    comment = f"# {os.path.basename(file)}:{line}"
    return [*lines[:-1], f"{lines[-1]}  {comment}"]


def _hoist(lines: list[str], e: _Emitter) -> list[str]:
    """Blocks of outside arrays that are read more than once get a name of their own."""
    pattern = re.compile("\x01(.*?)\x02")
    counts: dict[str, int] = {}
    for line in lines:
        for text in pattern.findall(line):
            counts[text] = counts.get(text, 0) + 1
    named: dict[str, str] = {}
    out: list[str] = []
    for line in lines:
        for text in pattern.findall(line):
            if counts[text] > 1 and text not in named:
                named[text] = e.unique(re.sub(r"_+$", "", (re.match(r"\w+", text) or ["rows"])[0]) + "_block")
                out.append(f"{named[text]} = {text}")
        out.append(pattern.sub(lambda m: named.get(m.group(1), m.group(1)), line))
    return out


def scalar_text(n: Node) -> str:
    """A scalar constant as a literal: weak beside arrays (NEP 50), so the dtype of its surroundings is
    kept."""
    v = n.value
    if isinstance(v, complex):
        return _complex_text(v)
    return _float_text(v) if isinstance(v, float) else repr(v)


def _float_text(v: float) -> str:
    if np.isfinite(v):
        return repr(v)
    return "np.nan" if np.isnan(v) else ("np.inf" if v > 0 else "-np.inf")


def _complex_text(v: complex) -> str:
    """A literal that gives v back, signs of zeros included: what Python shows as -1j is read as -0 - 1j."""
    if np.isfinite(v):
        for text in (repr(v), repr(complex(0.0, v.imag))):
            if repr(ast.literal_eval(text)) == repr(v):
                return text
    return f"complex({_float_text(v.real)}, {_float_text(v.imag)})"


def _result_name(o: Node) -> str:
    name = root(o.args[0]).name or "result"
    return "result" if name in ("out", "result") else f"{name}_out"
