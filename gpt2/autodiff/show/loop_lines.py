"""The lines of a loop over similar calls in the readable source; loops.py says what calls have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..emit.expressions import ATOM
from ..graph import Node
from ..ops.shape import index_text
from .loops import Carried, Each, Filled, Loop, MovingSlice, ReadLater, Same, SavedRows

if TYPE_CHECKING:
    from .readable import Writer


class LoopLines:
    """Writes one loop with the names of a Writer.

    record   its values that are stored together as rows, or None
    """

    def __init__(self, writer: Writer, loop: Loop, record: SavedRows | None):
        self.writer, self.loop, self.record = writer, loop, record
        self.variable = writer.fresh("k")
        self.before: list[str] = []  # lines above the loop
        self.first: list[str] = []  # in it, above the call
        self.after: list[str] = []  # below the call
        self.carried = {of: self.carry(k) for of, k in loop.carried.items()}
        self.fields: dict[tuple[str, int], str] = {}  # column of a record -> its name in the loop
        self.lists: dict[tuple[Node, ...], str] = {}  # a different value for each call -> the list of them
        if not any(isinstance(x, MovingSlice | Filled) for x in (*loop.args, *loop.results)):
            loop.down = any(self.is_down(arg) for arg in loop.args)

    def write(self) -> None:
        args = self.arguments()
        targets = [self.target(k) for k in range(len(self.loop.results))]
        if self.record is not None:
            self.keep()
        self.after += [f"{self.carried[k]} = {t}" for k, t in enumerate(targets) if self.is_apart(k, t)]
        w, many = self.writer, len(self.loop.calls)
        numbers = f"reversed(range({many}))" if self.loop.down else f"range({many})"
        assigned = ", ".join(targets) + "," * (len(targets) == 1)
        call = f"{assigned} = {w.functions[self.loop.body]}({', '.join(args)})"
        w.lines += [
            *self.before,
            f"for {self.variable} in {numbers}:",
            *(f"    {line}" for line in (*self.first, call, *self.after)),
        ]

    def is_apart(self, k: int, target: str) -> bool:
        """Whether a carried result has a name of its own until the row of the record is stored."""
        return k in self.carried and target != self.carried[k]

    # ---- arguments

    def carry(self, k: int) -> str:
        """The loop-carried variable that is argument k."""
        w, start = self.writer, self.loop.starts[k]
        if start in w.starts:
            return w.names[start]
        name = w.fresh(self.loop.hint(k))
        self.before.append(f"{name} = {w.argument(start)}")
        return name

    def arguments(self) -> list[str]:
        texts = []
        for k, arg in enumerate(self.loop.args):
            if isinstance(arg, Same):
                texts.append(self.writer.argument(arg.node))
            elif isinstance(arg, MovingSlice):
                whole = self.writer.ref(arg.node.args[0]).at(ATOM)
                index, shape = arg.node.attrs["index"], arg.node.args[0].shape
                text = f"{whole}[{self.moving(index, shape, arg.axis, arg.starts)}]"
                texts.append(text + "".join(view_text(n) for n in arg.views))
            elif isinstance(arg, Carried):
                texts.append(self.carried[arg.of])
            else:
                texts.append(self.own(arg, self.loop.body.inputs[k].name or "saved"))
        self.unpack()
        return texts

    def is_down(self, arg: MovingSlice | Carried | Each | Same) -> bool:
        """Whether the calls read a record from its last row to its first."""
        if not isinstance(arg, Each):
            return False
        column = self.writer.column_of(arg.nodes)
        listed = self.writer.listed
        rows = column[2] if column else [listed[n][1] if n in listed else -1 for n in arg.nodes]
        return rows == list(range(len(self.loop.calls)))[::-1]

    def own(self, arg: Each, hint: str) -> str:
        """A different value for each call: from a row of a record, or from a list."""
        place = self.writer.column_of(arg.nodes)
        if place is not None:
            pack, column, rows = place
            if [self.loop.number(i) for i in range(len(rows))] == rows:
                return self.fields.setdefault((pack, column), self.writer.fresh(hint))
            if is_even(rows):
                return f"{pack}[{self.position(rows)}][{column}]"
        listed = [self.writer.listed.get(n) for n in arg.nodes]
        if None not in listed and len({name for name, _ in listed}) == 1 and is_even([i for _, i in listed]):
            return f"{listed[0][0]}[{self.position([i for _, i in listed])}]"
        numbered = tuple(arg.nodes[::-1] if self.loop.down else arg.nodes)
        if numbered not in self.lists:
            name = self.lists[numbered] = self.writer.fresh(f"each_{hint}")
            self.before.append(f"{name} = [{', '.join(map(self.writer.argument, numbered))}]")
        return f"{self.lists[numbered]}[{self.variable}]"

    def unpack(self) -> None:
        """A line for each record of which the call reads a row."""
        for pack in dict.fromkeys(pack for pack, _ in self.fields):
            width = len(self.writer.packs[pack][0])
            names = [self.fields.get((pack, c), "_") for c in range(width)]
            self.first.append(f"{', '.join(names)}{',' * (width == 1)} = {pack}[{self.variable}]")

    # ---- results

    def target(self, k: int) -> str:
        """The target that result k of a call is assigned to."""
        w, result, body = self.writer, self.loop.results[k], self.loop.body
        if isinstance(result, Filled):
            array = result.array
            name = w.begin(array)
            self.before.append(f"{name} = np.empty({array.shape}, np.{array.dtype})")
            index = array.attrs["indices"][0]
            return f"{name}[{self.moving(index, array.shape, result.axis, result.starts)}]"
        hint = body.outputs[k].name or "t"
        in_record = self.record is not None and ("result", k) in self.record.columns
        if k in self.carried:
            name = self.carried[k]
            if self.record is not None and ("argument", self.loop.carried[k]) in self.record.columns:
                name = w.fresh(f"next_{name}")
            if in_record:
                self.fields["result", k] = name
            self.collect_carried(k, result)
            for n in result.nodes[-1]:
                w.names[n] = self.carried[k]
                w.defined.add(n)
            return name
        if not any(result.nodes):
            return "_"
        name = w.fresh(hint)
        if in_record:
            self.fields["result", k] = name
        else:
            self.collect(result, name)
        return name

    def collect(self, result: ReadLater, name: str) -> None:
        """A list of the results of all calls, if they are read later."""
        if self.is_read_later(result.nodes):
            self.listed(f"all_{name}", result.nodes, name, self.after)

    def collect_carried(self, k: int, result: ReadLater) -> None:
        """A list of the carried values of all calls, if they are read later."""
        start = self.loop.starts[self.loop.carried[k]]
        if self.is_read_later(result.nodes[:-1]):
            name = self.carried[k]
            every = self.listed(f"all_{name}", [[], *result.nodes[:-1]], name, self.first)
            self.writer.listed[start] = every, 0

    def listed(self, hint: str, nodes: list[list[Node]], name: str, lines: list[str]) -> str:
        """The name of a list to which each call appends a value; its values are named as its items."""
        every = self.writer.fresh(hint)
        self.before.append(f"{every} = []")
        lines.append(f"{every}.append({name})")
        for i, of_call in enumerate(nodes):
            for n in of_call:
                self.writer.names[n] = f"{every}[{i}]"
                self.writer.listed[n] = every, i
                self.writer.defined.add(n)
        return every

    def is_read_later(self, nodes: list[list[Node]]) -> bool:
        """Whether any of these is read by others than the next call and the readers of the record."""
        return any(self.writer.is_read_later(n, self.loop, self.record) for of_call in nodes for n in of_call)

    def keep(self) -> None:
        """Store the record: a list to which each call appends a row."""
        w = self.writer
        variables = {k: self.carried[of] for of, k in self.loop.carried.items()}
        names = [
            variables[k] if kind == "argument" else self.fields["result", k]
            for kind, k in self.record.columns
        ]
        pack = w.fresh("kept")
        w.record_names[id(self.record)] = pack
        w.packs[pack] = self.record.rows
        w.packed.update(
            {n: (pack, i, c) for i, row in enumerate(self.record.rows) for c, n in enumerate(row)}
        )
        self.before.append(f"{pack} = []")
        self.after.append(f"{pack}.append(({', '.join(names)}{',' * (len(names) == 1)}))")
        for c, (kind, k) in enumerate(self.record.columns):
            for i, row in enumerate(self.record.rows):
                result = self.loop.results[k] if kind == "result" else None
                for n in (row[c], *(result.nodes[i] if isinstance(result, ReadLater) else ())):
                    if n not in w.defined:
                        w.names[n] = f"{pack}[{i}][{c}]"
                        w.defined.add(n)

    # ---- positions

    def position(self, positions: Sequence[int]) -> str:
        """Positions, one for each call, as an expression in the loop's variable."""
        start, step = self.loop.line(positions)
        if step == 1:
            return self.variable if start == 0 else f"{self.variable} + {start}"
        if step == -1:
            return f"{start} - {self.variable}"
        return f"{step} * {self.variable}" + (f" + {start}" if start else "")

    def moving(self, index: tuple, shape: tuple, axis: int, starts: Sequence[int]) -> str:
        """The index of a part whose position along one axis moves."""
        wide = index[axis][1] - index[axis][0]
        ends = [start + wide for start in starts]
        parts = [
            f"{self.position(starts)}:{self.position(ends)}" if a == axis else index_text((i,), (m,))
            for a, (i, m) in enumerate(zip(index, shape))
        ]
        while parts[-1] == ":":
            parts.pop()
        return ", ".join(parts)


def is_even(positions: Sequence[int]) -> bool:
    return len(positions) > 1 and len({b - a for a, b in zip(positions, positions[1:])}) == 1


def view_text(n: Node) -> str:
    """The method call for a reshape or a transpose of an array."""
    if n.op == "reshape":
        return f".reshape({n.shape})"
    return transposed(n.attrs["perm"])


def transposed(perm: Sequence[int]) -> str:
    moved = [k for k, p in enumerate(perm) if k != p]
    if tuple(perm) == (1, 0):
        return ".T"
    return f".swapaxes({moved[0]}, {moved[1]})" if len(moved) == 2 else f".transpose({tuple(perm)})"
