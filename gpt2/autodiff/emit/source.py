"""From regions to NumPy source: `out=` everywhere, the user's names, and where each statement comes from.

    def f(inputs..., results..., memory):            the program
        def rows(k, i, j, ...):                      a region: block k, rows i:j, and this thread's scratch
            ...
        run_blocks(rows, blocks, scratch)

Memory is set up once for each workspace by `setup(arena)`, so a call allocates nothing but what an op without
`out=` allocates by itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from ..graph import Graph, Node, is_scalar_const, scalar_text
from ..ops import OPS
from ..ops.cost import nanoseconds
from . import numexpr
from .array_names import Places, row_view_text
from .buffers import Overwrites, Plan, Uses, lends, plan
from .decisions import flat, folded, one_prefix
from .layout import chain, hosts, is_elementwise, lower, root
from .regions import Region, blocks_of, flags_of, prefix, schedule
from .rowwise import ROW, row_axes
from .statements import Frame, Statement, sum_rows

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
# region is spread over threads. Shorter ones lose more by passing on the interpreter lock than a core gives.
SHARE_FROM = 8_000.0
NS_FUSED = 1.0  # an element of a numexpr expression


@dataclass
class Emitted:
    function: str  # the name that the program has in the source
    source: str
    env: dict
    regions: list  # (blocks, slot shapes) of each region of row blocks, in order
    arena_bytes: int
    results: list  # shape and dtype of each result; None for an input handed back
    overwrites: Overwrites | None  # (result, input): the result may be written over that input's memory


def emit(
    graph: Graph,
    name: str,
    share_inputs: bool = False,
    lend: bool = False,
    fusing: Callable | None = None,
) -> Emitted:
    """The source of a graph. `fusing(graph, regions)` may give elementwise trees to another backend."""
    graph = lower(graph, share_inputs)
    regions = schedule(graph)
    if fusing is not None:
        graph = fusing(graph, regions)
    where = {n: r for r in regions for n in r.members}
    uses = Uses(graph, regions)
    placed, stands = hosts(graph, uses)
    products = folded(graph, where, placed)
    nested: dict[Region, bool] = {}
    for r in regions:
        nested[r] = r.N > 1 and not flat(r, where, stands)
        if nested[r] and not one_prefix(r, where):  # rows that no single index reaches: plain statements
            r.N, r.sums, nested[r] = 1, [], False
    overwrites = Overwrites(graph, placed, uses, lambda o: lend and lends(o))

    def n_blocks(r: Region) -> int:
        return len(blocks_of(r, nested[r]))

    p = plan(graph, regions, where, placed, products, uses, n_blocks, stands if lend else None)
    emitted = Emitter(graph, name, regions, where, p, nested, stands).emit()
    emitted.overwrites = overwrites
    return emitted


class Emitter(Places):
    """Writes the program, region by region."""

    def __init__(self, graph: Graph, name: str, regions, where, p: Plan, nested, stands):
        super().__init__(graph, name, where, p, nested, stands)
        self.regions = regions
        self.fused: list[str] = []  # lines that make numexpr's expressions
        self.body: list[str] = []
        self.block_regions: list = []

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
            None,
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

    def fused_name(self, n: Node) -> str:
        """The name of the function that computes a tree of elementwise ops."""
        names = [self.names[root(a)] for a in n.args]
        text, types = numexpr.expression(n, names)
        name = self.unique("fused")
        if not self.fused:
            self.fused.append("from gpt2.autodiff.emit.numexpr import Fused")
            self.fused.append("")
        self.fused.append(f"{name} = Fused({text!r}, {types})")
        return name


def _with_source(lines: list[str], n: Node) -> list[str]:
    """The statement's lines, the last one with a comment naming the user's line that it comes from."""
    if not lines or n.loc is None:
        return lines
    file, line = n.loc[0], n.loc[1]
    comment = f"# {os.path.basename(file)}:{line}"
    return [*lines[:-1], f"{lines[-1]}  {comment}"]


def _hoist(lines: list[str], e: Places) -> list[str]:
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
