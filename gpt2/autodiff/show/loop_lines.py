"""The lines of a loop over similar calls in the readable source; loops.py says what calls have in common.

    x = start
    kept = []
    for k in range(12):
        x_before = x
        x, mean, dw[k:k + 1] = block(x, w[k:k + 1])
        kept.append((x_before, mean))

What is read after the loop is in a record, `kept`: a list with a row for each call.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..emit.expressions import ATOM
from ..graph import Node
from ..ops.shape import index_text
from .lines import KeptAt, KeptRows, Writer, view_text
from .loops import Carried, Each, Loop, Moving


class LoopLines:
    """Writes one loop with the names of a Writer."""

    def __init__(self, writer: Writer, loop: Loop):
        self.writer, self.loop = writer, loop
        self.variable = writer.fresh("k")
        self.before: list[str] = []  # lines above the loop
        self.first: list[str] = []  # in it, above the call
        self.row: list[str] = []  # the values in a row of the loop's record
        self.record: KeptRows | None = None
        # record, position of a row -> a name for each column that the call reads
        self.unpacked: dict[tuple[str, str], list[str]] = {}
        if not any(isinstance(x, Moving) for x in (*loop.args, *loop.results)):
            rows_from_end = list(range(len(loop.calls)))[::-1]
            columns = [self.column_of(arg.nodes) for arg in loop.args if isinstance(arg, Each)]
            loop.down = any(column is not None and column[2] == rows_from_end for column in columns)

    def write(self) -> None:
        w, loop = self.writer, self.loop
        carried = {k: self.carry(k, arg) for k, arg in enumerate(loop.args) if isinstance(arg, Carried)}
        args = [carried.get(k) or self.argument(k, arg) for k, arg in enumerate(loop.args)]
        names = {k: carried[c] for k, c in loop.carried.items()}
        targets = [
            names[k] if k in names else self.target(k, result) for k, result in enumerate(loop.results)
        ]
        for (record, position), names in self.unpacked.items():
            self.first.append(f"{', '.join(_items(names))} = {record}[{position}]")
        numbers = f"range({len(loop.calls)})"
        call = w.call_lines(targets, loop.body, args, depth=1)
        after = w.listed(f"{self.record.name}.append((", _items(self.row), "))", 1) if self.record else []
        w.lines += [
            *self.before,
            f"for {self.variable} in {f'reversed({numbers})' if loop.down else numbers}:",
            *(f"    {line}" for line in (*self.first, *call, *after)),
        ]

    # ---- arguments

    def carry(self, k: int, arg: Carried) -> str:
        """The variable that is argument k, and in the end the last call's result."""
        w, body = self.writer, self.loop.body
        hint = arg.start.name or body.inputs[k].name or body.outputs[arg.of].name or "x"
        name = w.fresh(hint)
        self.before.append(f"{name} = {w.argument(arg.start)}")
        *earlier, last = self.loop.results[arg.of]
        each = [n for of_call in earlier for n in of_call]
        if any(n in w.results or any(u not in self.loop.calls for u in w.users[n]) for n in each):
            self.keep(w.fresh(f"{hint}_before"), [[arg.start], *earlier])
            self.first.append(f"{self.row[-1]} = {name}")
        for n in last:
            w.names[n] = name
            w.defined.add(n)
        return name

    def argument(self, k: int, arg: Moving | Each) -> str:
        if isinstance(arg, Each) and len(set(arg.nodes)) == 1:
            return self.writer.argument(arg.nodes[0])
        if isinstance(arg, Moving):
            x = arg.node.args[0]
            index = self.moving(arg.node.attrs["index"], x.shape, arg.axis, arg.starts)
            views = "".join(view_text(n) for n in arg.views)
            return f"{self.writer.ref(x).at(ATOM)}[{index}]{views}"
        hint = self.loop.body.inputs[k].name or "saved"
        column = self.column_of(arg.nodes)
        if column is None:
            name = self.writer.fresh(f"each_{hint}")
            numbered = map(self.writer.argument, self.loop.by_number(arg.nodes))
            self.before.append(f"{name} = [{', '.join(numbered)}]")
            return f"{name}[{self.variable}]"
        record, c, rows = column
        names = self.unpacked.setdefault((record.name, self.position(rows)), ["_"] * record.width)
        if names[c] == "_":
            names[c] = self.writer.fresh(hint)
        return names[c]

    def column_of(self, nodes: Sequence[Node]) -> tuple[KeptRows, int, list[int]] | None:
        """(record, column, rows) if these values are in one column, in evenly spaced rows."""
        places = [self.writer.places.get(n) for n in nodes]
        if None in places or len({(id(p.record), p.column) for p in places}) > 1:
            return None
        rows = [p.row for p in places]
        even = len({b - a for a, b in zip(rows, rows[1:])}) == 1
        return (places[0].record, places[0].column, rows) if even else None

    # ---- results

    def target(self, k: int, result: Moving | list[list[Node]]) -> str:
        """The target that result k of a call is assigned to."""
        w = self.writer
        if isinstance(result, Moving):
            array = result.node
            name = w.begin(array)
            self.before.append(f"{name} = np.empty({array.shape}, np.{array.dtype})")
            index = array.attrs["indices"][0]
            return f"{name}[{self.moving(index, array.shape, result.axis, result.starts)}]"
        if not any(result):
            return "_"
        name = w.fresh(self.loop.body.outputs[k].name or "t")
        self.keep(name, result)
        return name

    def keep(self, text: str, nodes: Sequence[Sequence[Node]]) -> None:
        """Put a value into the rows of the record: `nodes` are those that it is in each call."""
        if self.record is None:
            self.record = KeptRows(self.writer.fresh("kept"))
            self.before.append(f"{self.record.name} = []")
        for row, of_call in enumerate(nodes):
            for n in of_call:
                self.writer.place(n, KeptAt(self.record, row, len(self.row)))
        self.row.append(text)
        self.record.width = len(self.row)

    # ---- positions

    def position(self, positions: Sequence[int]) -> str:
        """Positions, one for each call, as an expression in the loop's variable."""
        start, second, *_ = self.loop.by_number(positions)
        step = second - start
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


def _items(names: Sequence[str]) -> list[str]:
    """The items of a tuple, with a comma after a single one."""
    return [f"{names[0]},"] if len(names) == 1 else list(names)
