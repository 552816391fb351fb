"""Finds repeated parts of a program, such as the blocks of a deep model or the steps of a loop, and makes
them `outlined` nodes: calls of one graph, one for each copy.

    x = np.tanh(x @ w0 + b0)            x = outlined(x, w0, b0)
    x = np.tanh(x @ w1 + b1)     ->     x = outlined(x, w1, b1)         outlined(x, w, b): np.tanh(x @ w + b)
    ...                                 ...

Later passes (derivation, simplification, the choice of what is kept, memory, source) then handle the graph
once, whatever the number of its calls.

Nodes become a row of numbers, one for each op with its settings and types. Repetitions in this row are the
candidates (`_periods`); then the flow of data is checked (`_Rolled`): a value read within a copy must be read
at the same position in each, and everything else becomes an argument. So a call computes what its nodes
computed; if that cannot be arranged, they stay.

Slices of the program's inputs are not in the row: the weights of a block are slices of stacked arrays, at
different indices for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np

from ..graph import Graph, Node, const_value, freeze, is_scalar_const, rewrite, with_args
from ..ops import input_node
from ..ops.build import fits
from ..ops.subgraph import Cut, given, items, outlined, splice
from ..ops.table import VIEWS, facts, is_elementwise, root
from .match import calls_back

FEWEST = 3  # copies; fewer gain nothing
LEAST = 240  # nodes in all the copies of a part: smaller programs compile at once as they are
SHORT = 48  # nodes; shorter parts are joined, so that there are fewer calls
GRAM = 8  # nodes in a row by which repetitions are recognised
CANDIDATES = 8  # distances between repetitions that are tried
FACTORS = ("add", "subtract", "multiply", "divide")  # ops whose constant may become an argument


def outline(graph: Graph, simplified: Callable[[Graph], Graph]) -> Graph:
    """The graph with repeated parts as calls of one graph, which `simplified` has simplified.

    The graph itself if nothing repeats.
    """
    graph = _with_recorded_calls(graph, simplified)
    if any(n.op == "outlined" for n in graph.nodes):
        return _cut(graph)
    if len(graph.nodes) < LEAST:
        return graph
    row = _in_a_row(graph)
    index_of = {n.id: k for k, n in enumerate(row)}
    last = _last_readers(graph, index_of, len(row))
    held = {n.id for n in row if n.op in VIEWS} | _masked(graph)
    repeats: list[_Rolled] = []
    todo = [(0, len(row))]
    numbers = _numbered(row)  # first with equal constants, which stay in the part
    todo = _find_repeats(graph, row, index_of, last, held, numbers, todo, repeats)
    _find_repeats(graph, row, index_of, last, held, _with_any_factor(row, numbers), todo, repeats)
    return _cut(_with_calls(graph, repeats, last, simplified)) if repeats else graph


def _find_repeats(
    graph: Graph,
    row: Sequence[Node],
    index_of: dict[int, int],
    last: dict[int, int],
    held: Container[int],
    numbers: np.ndarray,
    todo: list[tuple[int, int]],
    repeats: list[_Rolled],
) -> list[tuple[int, int]]:
    """Add the repetitions in these parts of the row to `repeats`; returns the parts that are left.

    held   ids of values that no call may return: views and what is `_masked`
    """
    left = []
    while todo:
        first, stop = todo.pop()
        run = _longest(numbers, first, stop)
        if run is None:
            left.append((first, stop))
            continue
        begin, period, copies = run
        end = begin + period * copies
        if end < stop:  # part of another copy: there is room to choose where a copy begins
            begin, copies = _narrowest(row, index_of, held, begin, period, stop, numbers)
            end = begin + period * copies
        together = _together(period, copies)
        rolled = _Rolled(graph, row, index_of, begin, period * together, copies // together)
        if rolled.fits() and rolled.pays(last) and not rolled.gives(held, last):
            repeats.append(rolled)
            todo += [(first, begin), (rolled.end, stop)]
        else:
            left.append((begin, end))
            todo += [(first, begin), (end, stop)]
    return left


def _last_readers(graph: Graph, index_of: dict[int, int], beyond: int) -> dict[int, int]:
    """Id of a node -> the index in the row of the last one that reads it; `beyond` for a result."""
    last: dict[int, int] = {}
    for n in graph.nodes:
        at = index_of.get(n.id, beyond)
        for a in n.args:
            if at > last.get(a.id, -1):
                last[a.id] = at
    for o in graph.outputs:
        last[o.id] = beyond
    return last


def _masked(graph: Graph) -> set[int]:
    """Ids of values whose gradient is handed on with a mask: all they make leads to sides of a `where`."""
    # id -> the masks of its readers, each as (what it is, its side, its shape); None: a reader needs all
    masks: dict[int, set] = {o.id: {None} for o in graph.outputs}
    masked: set[int] = set()
    for n in reversed(graph.nodes):
        if n.id not in masks or facts(n).kind == "nondiff":
            continue
        handed: set = masks[n.id]
        if None in handed or any((m, 3 - side, shape) in handed for m, side, shape in handed):
            handed = {None}
        elif n.op == "where" and {m for m, *_ in handed} == {n.args[0].id}:  # it has the same mask itself
            handed = {None}
        else:
            masked.add(n.id)
        if not is_elementwise(n.op):
            handed = {None}
        for k, a in enumerate(n.args):
            if isinstance(a.dtype, tuple) or a.dtype.kind in "fc":
                wanted = handed
                if n.op == "where":
                    inner = np.broadcast_shapes(n.args[0].shape, *[m[2] for m in handed if m])
                    wanted = {(n.args[0].id, k, inner) if None in handed else (n.id, 0, inner)}
                fit = all(m is None or fits(m[2], a.shape) for m in wanted)
                masks.setdefault(a.id, set()).update(wanted if fit else {None})
    return masked


def flat(graph: Graph, keep: Container[Graph] = ()) -> Graph:
    """The graph with all outlined calls inlined, except for bodies in `keep`."""
    image: dict[Node, Any] = {}
    opened: dict[Node, list[Node]] = {}
    if not any(n.op == "outlined" for n in graph.nodes):
        return graph
    for n in graph.nodes:
        if n.op == "outlined" and n.attrs["body"] not in keep:
            args = given([image[a] for a in n.args], n.attrs["cuts"])
            opened[n] = splice(flat(n.attrs["body"]), args)
        elif n.op == "item" and n.args[0] in opened:
            image[n] = opened[n.args[0]][n.attrs["i"]]
        else:
            args = tuple([image[a] for a in n.args])
            image[n] = n if all(a is b for a, b in zip(args, n.args)) else with_args(n, args)
    return Graph(graph.inputs, [image[o] for o in graph.outputs], graph.name)


def inline_calls(graph: Graph) -> Graph:
    """The graph with the bodies of calls in their place, once their rules have no more to say.

    Checkpoints stay: side by side with the forward, what they compute again would be recognised as known.
    """
    if not any(n.op == "call" for n in graph.nodes):
        return graph
    bodies: dict[Node, list[Node]] = {}

    def opened(n: Node, args: tuple) -> Node | None:
        if n.op != "item" or args[0].op != "call" or not args[0].attrs["rule"].inlined:
            return None
        (call,) = args
        if call not in bodies:
            bodies[call] = splice(inline_calls(call.attrs["graph"]), call.args)
        return bodies[call][n.attrs["i"]]

    return rewrite(graph, opened)


# ---- recorded calls ----------------------------------------------------------------------------------------


def _with_recorded_calls(graph: Graph, simplified: Callable[[Graph], Graph]) -> Graph:
    """The graph with few recorded calls (programs/repeated.py) inlined, many simplified."""
    calls: dict[Graph, list[Node]] = {}
    for n in graph.nodes:
        if n.op == "outlined":
            calls.setdefault(n.attrs["body"], []).append(n)
    many = {b for b, c in calls.items() if len(c) >= FEWEST and len(c) * len(b.nodes) >= LEAST}
    if len(many) < len(calls):
        graph = flat(graph, many)
    if not many:
        return graph
    absorbing = {b: _AbsorbsViews(b, calls[b], simplified) for b in calls if b in many}

    def called(n: Node, args: tuple) -> Node | None:
        return absorbing[n.attrs["body"]].call(n, args) if n.op == "outlined" else None

    return rewrite(graph, called)


class _AbsorbsViews:
    """A body that absorbs the views that all of its calls have as arguments: w.reshape(3, 4)."""

    def __init__(self, body: Graph, calls: Sequence[Node], simplified: Callable[[Graph], Graph]):
        self.depth: list[int] = []  # for each argument the number of views absorbed
        inputs, args = [], []
        arguments = [given(n.args, n.attrs["cuts"]) for n in calls]
        for k, i in enumerate(body.inputs):
            views: list[Node] = []
            column = [args[k] for args in arguments]
            while len({_view(n) for n in column}) == 1 and _view(column[0]) is not None:
                views.append(column[0])
                column = [n.args[0] for n in column]
            inputs.append(input_node(column[0].shape, column[0].dtype, i.name))
            args.append(inputs[-1])
            for v in reversed(views):
                args[-1] = with_args(v, (args[-1],))
            self.depth.append(len(views))
        self.body = simplified(Graph(inputs, splice(body, args), body.name))

    def call(self, n: Node, args: tuple[Node, ...]) -> Node:
        operands = []
        for a, depth in zip(given(args, n.attrs["cuts"]), self.depth):
            for _ in range(depth):
                a = a.args[0]
            operands.append(a)
        call = outlined(self.body, operands)
        call.loc = n.loc
        return call


def _view(n: Node) -> tuple | None:
    """The key of a view that a body can absorb. Slices stay outside, as they differ from call to call."""
    if n.op not in VIEWS or n.op == "slice":
        return None
    return n.op, n.frozen(), n.args[0].shape, n.args[0].dtype


def _cut(graph: Graph) -> Graph:
    """The graph with calls that slice inputs themselves.

    So every later pass sees one node for a call and its slices. A slice with another reader, be it a call,
    stays: its gradient is one sum.
    """
    times = Counter([_part(a) for n in graph.nodes for a in n.args if a.op == "slice"])
    times.update([_part(o) for o in graph.outputs if o.op == "slice"])

    def cut(n: Node, args: tuple) -> Node | None:
        if n.op != "outlined":
            return None
        cuts = [_cut_of(a) if a.op == "slice" and times[_part(a)] == 1 else None for a in n.args]
        operands = [a if c is None else a.args[0] for a, c in zip(args, cuts)]
        call = outlined(n.attrs["body"], operands, cuts, n.attrs["of"])
        call.loc = n.loc
        return call

    return rewrite(graph, cut)


def _part(a: Node) -> tuple:
    """A key, equal for equal slices of one array."""
    return a.args[0].id, a.attrs["index"]


def _cut_of(a: Node) -> Cut | None:
    """A slice of an input along one axis as a Cut; None for others."""
    (x,) = a.args
    index = a.attrs["index"]
    axes = [k for k, (part, n) in enumerate(zip(index, x.shape)) if part != (0, n, 1)]
    if x.op != "input" or len(axes) != 1 or index[axes[0]][2] != 1:
        return None
    return axes[0], *index[axes[0]][:2]


# ---- the row of numbers ----------------------------------------------------------------------------------


def _in_a_row(graph: Graph) -> list[Node]:
    """The nodes that are searched for repetitions: all but inputs, constants, and slices of inputs."""
    viewed: set[int] = set()  # inputs and their views
    sliced: set[int] = set()  # those that are sliced, and the slice
    for n in graph.nodes:
        if n.op == "input":
            viewed.add(n.id)
        elif n.op in VIEWS and n.args[0].id in viewed:
            viewed.add(n.id)
            if n.op == "slice":
                x = n
                while x.op in VIEWS and x.id not in sliced:
                    sliced.add(x.id)
                    x = x.args[0]
    return [n for n in graph.nodes if n.op not in ("input", "const") and n.id not in sliced]


def _numbered(row: Sequence[Node]) -> np.ndarray:
    """A number for each node: equal for the same op with the same settings on arguments of the same types."""
    known: dict[tuple, int] = {}
    numbers: list[int] = []
    for k, n in enumerate(row):
        if n.derived or isinstance(n.dtype, tuple) or calls_back(n):
            numbers.append(-k - 1)  # a unique number: this may not be repeated
        else:
            numbers.append(known.setdefault(_kind(n, False), len(known)))
    return np.array(numbers, np.int64)


def _with_any_factor(row: Sequence[Node], numbers: np.ndarray) -> np.ndarray:
    """The same with equal numbers for sums and products that differ only in their constants."""
    known: dict[tuple, int] = {}
    merged, beyond = numbers.tolist(), len(row)
    for k, n in enumerate(row):
        if n.op in FACTORS and merged[k] >= 0 and any([a.op == "const" and not a.shape for a in n.args]):
            merged[k] = known.setdefault(_kind(n, True), beyond + len(known))
    return np.array(merged, np.int64)


def _kind(n: Node, free: bool) -> tuple:
    attrs = freeze(n.attrs) if n.attrs else ()
    return n.op, n.shape, n.dtype, attrs, tuple([_argument(a, free) for a in n.args])


def _argument(a: Node, free: bool) -> tuple:
    if is_scalar_const(a):
        return a.dtype, "constant" if free and a.dtype.kind == "f" else repr(const_value(a))
    return a.shape, a.dtype


def _longest(numbers: np.ndarray, first: int, stop: int) -> tuple[int, int, int] | None:
    """(begin, period, copies) of the longest repetition between two positions."""
    part = numbers[first:stop]
    best = None
    for period in _periods(part):
        same = part[period:] == part[:-period]
        # the longest run of True
        edges = np.flatnonzero(np.diff(np.concatenate(([0], same.view(np.int8), [0]))))
        if not len(edges):
            continue
        lengths = edges[1::2] - edges[::2]
        k = int(np.argmax(lengths))
        copies = int(lengths[k]) // period + 1
        if copies < FEWEST or copies * period < LEAST:
            continue
        if best is None or copies * period > best[1] * best[2]:
            best = first + int(edges[2 * k]), period, copies
    return best


def _periods(numbers: np.ndarray) -> list[int]:
    """The distances at which the row repeats most often, smallest first."""
    count = len(numbers) - GRAM + 1
    if count < LEAST // 2:
        return []
    marks = np.zeros(count, np.uint64)
    for k in range(GRAM):
        marks = marks * np.uint64(0x9E3779B97F4A7C15) + numbers[k : k + count].astype(np.uint64)
    order = np.argsort(marks, kind="stable")
    again = marks[order[1:]] == marks[order[:-1]]
    gaps, times = np.unique((order[1:] - order[:-1])[again], return_counts=True)
    often = np.argsort(-times, kind="stable")[:CANDIDATES]
    return sorted(int(gaps[k]) for k in often)


def _narrowest(
    row: Sequence[Node],
    index_of: dict,
    held: Container,
    begin: int,
    period: int,
    stop: int,
    numbers: np.ndarray,
) -> tuple[int, int]:
    """(begin of the first copy, copies), so that nothing `held` and few bytes cross from copy to copy."""
    length = period
    part = numbers[begin:stop]
    same = part[period:] == part[:-period]
    length += int(np.argmin(same)) if not same.all() else len(same)
    last: dict[int, int] = {}
    for k, n in enumerate(row):
        for a in n.args:
            if a.id in index_of:
                last[index_of[a.id]] = k
    living = np.zeros((2, len(row) + 2))  # bytes, and those of held values
    for k, end in last.items():
        nbytes = np.array([row[k].nbytes, row[k].nbytes if row[k].id in held else 0])
        living[:, k + 1] += nbytes
        living[:, end + 1] -= nbytes
    handed, wrong = np.cumsum(living, axis=1)
    spare = length % period
    middle = begin + (length // period // 2) * period
    at = min(range(period), key=lambda r: (wrong[middle + r], handed[middle + r], r > spare, r))
    return begin + at, (length - at) // period


def _together(period: int, copies: int) -> int:
    """How many short parts to join: a program costs its part and its calls."""
    if period >= SHORT:
        return 1
    nodes = max(SHORT, 2 * round((period * copies) ** 0.5))
    return max(1, min(nodes // period, copies // FEWEST))


# ---- one graph for all copies ----------------------------------------------------------------------------


class _Rolled:
    """Consecutive copies of `length` nodes of the row: what they share, and how they differ."""

    def __init__(
        self, graph: Graph, row: Sequence, index_of: dict[int, int], begin: int, length: int, copies: int
    ):
        self.graph, self.row, self.index_of = graph, row, index_of
        self.begin, self.length, self.copies = begin, length, copies
        self.end = begin + length * copies
        self.slots: dict[tuple, int] = {}  # the ids of an argument in all copies -> its number
        self.arguments: list[list[Node]] = []  # argument -> its node in each copy
        self.reads: list[tuple] = []  # node of the part -> the sources of its arguments

    def fits(self) -> bool:
        """Whether every copy reads its own values at the same positions."""
        if self.copies < FEWEST:
            return False
        for j in range(self.length):
            nodes = self.row[self.begin + j : self.end : self.length]
            sources = []
            for column in zip(*(n.args for n in nodes)):
                source = self.source(column)
                if source is None:
                    return False
                sources.append(source)
            self.reads.append(tuple(sources))
        return True

    def source(self, column: Sequence[Node]) -> tuple | None:
        """("inside", position), ("const", node) or ("argument", slot) that copies read; None: too unlike."""
        offsets = set()
        for k, a in enumerate(column):
            at = self.index_of.get(a.id)
            start = self.begin + k * self.length
            offsets.add(at - start if at is not None and start <= at < start + self.length else None)
        if len(offsets) > 1:
            return None
        (offset,) = offsets
        if offset is not None:
            return "inside", offset
        if column[0].op == "const" and all(_same_constant(column[0], a) for a in column[1:]):
            return "const", column[0]
        slot = self.slots.setdefault(tuple([a.id for a in column]), len(self.arguments))
        if slot == len(self.arguments):
            self.arguments.append(list(column))
        return "argument", slot

    def outputs(self, users: dict[int, int]) -> list[int]:
        """The positions whose values are read outside of their copy; `users`: id -> its last reader."""
        positions = []
        for j in range(self.length):
            for k in range(self.copies):
                start = self.begin + k * self.length
                if users.get(self.row[start + j].id, -1) >= start + self.length:
                    positions.append(j)
                    break
        return positions

    def pays(self, last: dict[int, int]) -> bool:
        """Whether there will be fewer nodes. A node becomes two to four, with its derivative and what that
        reads; a result of a call two, with its cotangent; an argument that may have a gradient two as well.
        """
        constants = sum(g[0].op == "const" for g in self.arguments)
        call = 2 * (len(self.arguments) - constants + len(self.outputs(last)) + 1) + constants
        return call <= 3 * self.length

    def gives(self, held: Container[int], last: dict[int, int]) -> bool:
        """Whether a call would return one of these values.

        Of a view it would return a copy, with another memory layout, for which BLAS may sum in another order.
        And a mask would be applied at the end of the call: beyond it 0 * inf is nan. The numbers would differ
        from those of the program as written.
        """
        outputs = self.outputs(last)
        starts = range(self.begin, self.end, self.length)
        return any(self.row[start + j].id in held for j in outputs for start in starts)

    def body(self, outputs: Sequence[int]) -> Graph:
        """The graph of one copy, with the names and lines of the first."""
        inputs = [input_node(g[0].shape, g[0].dtype, _name_of(g)) for g in self.arguments]
        nodes: list[Node] = []
        for n, sources in zip(self.row[self.begin : self.begin + self.length], self.reads):
            place = {"inside": nodes, "argument": inputs}
            args = tuple([place[kind][x] if kind in place else x for kind, x in sources])
            nodes.append(Node(n.op, args, n.attrs, n.shape, n.dtype, n.name, n.loc, n.derived))
        return Graph(inputs, [nodes[j] for j in outputs], f"{self.graph.name}_outlined")


def _name_of(column: Sequence[Node]) -> str | None:
    """An argument's name: the first copy's, or that of the input that all copies slice."""
    if column[0].name is not None:
        return column[0].name
    roots = {root(n) for n in column}
    return roots.pop().name if len(roots) == 1 else None


def _same_constant(a: Node, b: Node) -> bool:
    if a is b or (b.op == "const" and a.value is b.value and a.dtype == b.dtype):
        return True
    if b.op != "const" or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.shape:
        return repr(const_value(a)) == repr(const_value(b))
    return a.value.tobytes() == b.value.tobytes()


def _with_calls(graph: Graph, repeats: list[_Rolled], last: dict[int, int], simplified: Callable) -> Graph:
    """The graph with the copies replaced by calls."""
    row = repeats[0].row
    image: dict[int, Node] = {}
    due: dict[int, tuple[_Rolled, int, list[int], Graph]] = {}  # id of a copy's last node -> the copy
    inside: set[int] = set()
    for rolled in repeats:
        outputs = rolled.outputs(last)
        body = simplified(rolled.body(outputs))
        for k in range(rolled.copies):
            nodes = row[rolled.begin + k * rolled.length : rolled.begin + (k + 1) * rolled.length]
            inside.update(n.id for n in nodes)
            due[nodes[-1].id] = rolled, k, outputs, body
    for n in graph.nodes:
        if n.id in due:
            rolled, k, outputs, body = due[n.id]
            call = outlined(body, [image[g[k].id] for g in rolled.arguments])
            call.loc = n.loc
            first = rolled.begin + k * rolled.length
            for j, value in zip(outputs, items(call)):
                old = row[first + j]
                value.name, value.loc = old.name, old.loc
                image[old.id] = value
        if n.id in inside:
            continue
        args = tuple([image[a.id] for a in n.args])
        image[n.id] = n if all(a is b for a, b in zip(args, n.args)) else with_args(n, args)
    return Graph(graph.inputs, [image[o.id] for o in graph.outputs], graph.name)
