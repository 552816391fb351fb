"""Finds successive calls of a function that can be written as a loop, and writes its lines.

    x = start
    kept = []
    for k in range(12):
        x_before = x
        x, mean, dw[k:k + 1] = block(x, w[k:k + 1])
        kept.append((x_before, mean))

What is read after the loop is in a record, `kept`: a list with a row for each call.

An argument is a slice of an array that moves with the calls (`Moving`), a result of the call before
(`Carried`), or a list of a value for each call, maybe the same for all. A result is carried to the next call,
fills a part of an array (`Moving`), or is read later. Other calls keep a line each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..emit.expressions import ATOM
from ..emit.windows import covers, parts_apart
from ..graph import Graph, Node, dependent
from ..ops.shape import index_text
from .lines import KeptAt, KeptRows, Writer, view_text

FEWEST = 3  # calls


@dataclass
class Moving:
    """A part of an array, at another position along one axis in each call.

    node     of an argument the slice that the first call reads; of a result the array that it is stored in
    views    the reshapes and transposes of the slice
    """

    node: Node
    axis: int
    starts: list[int]
    views: list[Node] = field(default_factory=list)


@dataclass
class Carried:
    """Result number `of` of the call before; for the first call `start`."""

    start: Node
    of: int


@dataclass
class Loop:
    """Calls of a body in order.

    results   for each result of the body the array that it fills, or a list of its nodes for each call
    carried   result -> the argument that it is in the next call
    down      whether positions come from the last to the first
    inside    slices that only calls of loops read, which need no line: loops write them where they are read
    """

    body: Graph
    calls: list[Node]
    args: list[Moving | Carried | list[Node]]
    results: list[Moving | list[list[Node]]]
    carried: dict[int, int]
    down: bool = False
    inside: set[Node] = field(default_factory=set)

    def by_number(self, items: Sequence) -> list:
        """Items that are given call by call, in the order of the loop's variable."""
        return list(items[::-1] if self.down else items)


def loops_of(graph: Graph, calls: dict[Node, dict[int, list[Node]]]) -> list[Loop]:
    """The loops of a graph; `calls` has its calls with their results (calls.results_of)."""
    grouped: dict[Graph, list[Node]] = {}
    for n in calls:
        grouped.setdefault(n.attrs["body"], []).append(n)
    users = graph.users()
    results = set(graph.outputs)
    groups = [group for group in grouped.values() if len(group) >= FEWEST]
    loops = [loop for group in groups if (loop := _loop(graph, group, calls, users, results)) is not None]
    arguments = [(loop, k) for loop in loops for k, g in enumerate(loop.args) if isinstance(g, Moving)]
    moving = {(c, k) for loop, k in arguments for c in loop.calls}
    inside: set[Node] = set()
    for n in {c.args[k] for c, k in moving}:
        while n.op in ("reshape", "transpose", "slice") and n not in results:
            reads = {(u, k) for u in users[n] for k, a in enumerate(u.args) if a is n}
            if not all(read in moving or read[0] in inside for read in reads):
                break
            inside.add(n)
            n = n.args[0]
    for loop in loops:
        loop.inside = inside
    return loops


def _loop(graph, group, calls, users, results) -> Loop | None:
    after = dependent(graph.nodes, group)
    args = [_argument(column, group, after) for column in zip(*(n.args for n in group))]
    if None in args:
        return None
    carried = {g.of: k for k, g in enumerate(args) if isinstance(g, Carried)}
    if len(carried) != sum(isinstance(g, Carried) for g in args):
        return None  # two arguments are the same result
    loop = Loop(group[0].attrs["body"], group, args, [], carried)
    for k in range(len(loop.body.outputs)):
        nodes = [calls[n].get(k, []) for n in group]
        filled = None if k in carried else _filled(nodes, users, results)
        loop.results.append(filled or nodes)
    steps = [x.starts[1] - x.starts[0] for x in (*args, *loop.results) if isinstance(x, Moving)]
    loop.down = bool(steps) and steps[0] < 0
    return loop


def _argument(column, group, after) -> Moving | Carried | list[Node] | None:
    """The kind of one argument of all calls; None if it depends on another call than the one before."""
    if not any(n in after for n in column):
        return _moving_slice(column) or list(column)
    first, *others = column
    if first in after:
        return None
    number = {n.attrs["i"] if n.op == "item" else -1 for n in others}
    if len(number) > 1 or any(n.op != "item" or n.args[0] is not c for n, c in zip(others, group)):
        return None
    return Carried(first, number.pop())


def _moving_slice(column: Sequence[Node]) -> Moving | None:
    """Slices of one array that move along one axis by equal steps, or equal views of such slices."""
    views: list[Node] = []
    while (first := column[0]).op in ("reshape", "transpose"):
        if any((n.op, n.attrs, n.shape) != (first.op, first.attrs, first.shape) for n in column):
            return None
        views.insert(0, first)
        column = [n.args[0] for n in column]
    if any(n.op != "slice" or n.args[0] is not first.args[0] or n.shape != first.shape for n in column):
        return None
    moving = _moving(first, [n.attrs["index"] for n in column])
    if moving is not None:
        moving.views = views
    return moving


def _moving(node: Node, indices) -> Moving | None:
    """Moving where these indices differ in one axis, and there by equal steps; or None."""
    moving = [a for a in range(len(indices[0])) if len({i[a] for i in indices}) > 1]
    if len(moving) != 1:
        return None
    (axis,) = moving
    starts = [i[axis][0] for i in indices]
    step = starts[1] - starts[0]
    plain = all(i[axis][2] == 1 and i[axis][1] - i[axis][0] == abs(step) for i in indices)
    even = all(b - a == step for a, b in zip(starts, starts[1:]))
    return Moving(node, axis, starts) if plain and even else None


def _filled(nodes: list[list[Node]], users, results) -> Moving | None:
    """The array that is assembled from one result of all calls."""
    if any(len(of_call) != 1 or of_call[0] in results for of_call in nodes):
        return None
    parts = [of_call[0] for of_call in nodes]
    readers = {u for n in parts for u in users[n]}
    array = readers.pop() if len(readers) == 1 else None
    if array is None or array.op != "assemble" or len(array.args) != len(parts):
        return None
    if any(len(users[n]) != 1 for n in parts) or not (parts_apart(array) and covers(array)):
        return None
    index = dict(zip(array.args, array.attrs["indices"]))
    return _moving(array, [index[n] for n in parts])


def in_order(graph: Graph, loops: Sequence[Loop]) -> tuple[list[Node], list[Loop]]:
    """An order in which each loop can stand in the place of its first call, and the loops that have one."""
    order, fitting = list(graph.nodes), []
    after = [dependent(graph.nodes, loop.calls) for loop in loops]
    for i, loop in enumerate(loops):
        others = [j for j in range(len(loops)) if j != i]
        if any(len({c in after[j] for c in loop.calls}) > 1 for j in others):
            continue  # some of its calls need another loop's, and others do not
        position = {n: k for k, n in enumerate(order)}
        first, last = position[loop.calls[0]], position[loop.calls[-1]]
        between, own = order[first : last + 1], set(loop.calls)
        early = [n for n in between if n not in after[i]]
        late = [n for n in between if n in after[i] and n not in own]
        order[first : last + 1] = [*early, loop.calls[0], *late]
        fitting.append(loop)
    return order, fitting


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
            columns = [self.column_of(arg) for arg in loop.args if isinstance(arg, list)]
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

    def argument(self, k: int, arg: Moving | list[Node]) -> str:
        if isinstance(arg, list) and len(set(arg)) == 1:
            return self.writer.argument(arg[0])
        if isinstance(arg, Moving):
            x = arg.node.args[0]
            index = self.moving(arg.node.attrs["index"], x.shape, arg.axis, arg.starts)
            views = "".join(view_text(n) for n in arg.views)
            return f"{self.writer.ref(x).at(ATOM)}[{index}]{views}"
        hint = self.loop.body.inputs[k].name or "saved"
        column = self.column_of(arg)
        if column is None:
            name = self.writer.fresh(f"each_{hint}")
            numbered = map(self.writer.argument, self.loop.by_number(arg))
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
