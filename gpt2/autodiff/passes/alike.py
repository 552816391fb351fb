"""Finds repeated parts of a program, such as the blocks of a deep model or the steps of a loop, and makes
them `outlined` nodes: calls of one graph, one for each copy.

    x = np.tanh(x @ w0 + b0)            x = outlined(x, w0, b0)
    x = np.tanh(x @ w1 + b1)     ->     x = outlined(x, w1, b1)         outlined(x, w, b): np.tanh(x @ w + b)
    ...                                 ...

Later passes then handle the graph once, whatever the number of its calls.

Nodes become a row of numbers, one for each op with its settings and types. Repetitions in this row are the
candidates; then the flow of data is checked: a value read within a copy must be read at the same position in
each, and everything else becomes an argument. Slices of the program's inputs are not in the row: the weights
of a block are slices of stacked arrays, at different indices for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

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
FACTORS = ("add", "subtract", "multiply", "divide")  # ops whose constants may become arguments


def outline(graph: Graph, simplified: Callable[[Graph], Graph]) -> Graph:
    """The graph with repeated parts as calls of one graph that `simplified` has simplified; or the graph."""
    graph = _with_recorded_calls(graph, simplified)
    if any(n.op == "outlined" for n in graph.nodes):
        return _cut(graph)
    if len(graph.nodes) < LEAST:
        return graph
    row = _Row(graph)
    repeats = []
    todo = [(0, len(row.nodes))]
    while todo:
        first, stop = todo.pop()
        run = row.longest(first, stop)
        if run is None:
            continue
        begin, period, copies = run
        end = begin + period * copies
        if end < stop:  # part of another copy: there is room to choose where a copy begins
            begin, copies = row.narrowest(begin, period, stop)
            end = begin + period * copies
        together = _together(period, copies)
        rolled = _rolled(row, begin, period * together, copies // together)
        if rolled is not None and pays(rolled):
            repeats.append(rolled)
            end = rolled.end
        todo += [(first, begin), (end, stop)]
    return _cut(_with_calls(row, repeats, simplified)) if repeats else graph


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

    def opened(call: Node) -> list[Node] | None:
        body = call.attrs["body"]
        return None if body in keep else splice(flat(body), given(call.args, call.attrs["cuts"]))

    return _inlined(graph, "outlined", opened)


def inline_calls(graph: Graph) -> Graph:
    """The graph with the bodies of calls in their place, once their rules have no more to say.

    Checkpoints stay: side by side with the forward, what they compute again would be recognised as known.
    """

    def opened(call: Node) -> list[Node] | None:
        inlined = call.attrs["rule"].inlined
        return splice(inline_calls(call.attrs["graph"]), call.args) if inlined else None

    return _inlined(graph, "call", opened)


def _inlined(graph: Graph, op: str, opened: Callable[[Node], list[Node] | None]) -> Graph:
    """The graph with the results of opened(call) in place of those of each call, unless it gives None."""
    if not any(n.op == op for n in graph.nodes):
        return graph
    results: dict[Node, list[Node] | None] = {}

    def inlined(n: Node, args: tuple) -> Node | None:
        if n.op != "item" or args[0].op != op:
            return None
        (call,) = args
        if call not in results:
            results[call] = opened(call)
        values = results[call]
        return None if values is None else values[n.attrs["i"]]

    return rewrite(graph, inlined)


# ---- recorded calls ----------------------------------------------------------------------------------------


def _with_recorded_calls(graph: Graph, simplified: Callable[[Graph], Graph]) -> Graph:
    """The graph with few recorded calls (programs/repeated.py) inlined, many simplified."""
    calls: dict[Graph, list[Node]] = {}
    for n in graph.nodes:
        if n.op == "outlined":
            calls.setdefault(n.attrs["body"], []).append(n)
    many = [b for b, c in calls.items() if len(c) >= FEWEST and len(c) * len(b.nodes) >= LEAST]
    if len(many) < len(calls):
        graph = flat(graph, many)
    absorbing = {b: _absorbing_views(b, calls[b], simplified) for b in many}

    def called(n: Node, args: tuple) -> Node | None:
        if n.op != "outlined":
            return None
        body, depths = absorbing[n.attrs["body"]]
        operands = []
        for a, depth in zip(given(args, n.attrs["cuts"]), depths):
            for _ in range(depth):
                (a,) = a.args
            operands.append(a)
        return outlined(body, operands, loc=n.loc)

    return rewrite(graph, called) if many else graph


def _absorbing_views(
    body: Graph, calls: Sequence[Node], simplified: Callable[[Graph], Graph]
) -> tuple[Graph, list[int]]:
    """The body with the views that all of its calls have as arguments, such as w.reshape(3, 4), and for each
    argument their number.
    """
    inputs, args, depths = [], [], []
    for column, i in zip(zip(*[given(n.args, n.attrs["cuts"]) for n in calls]), body.inputs):
        views = []
        while len({_view(n) for n in column}) == 1 and _view(column[0]) is not None:
            views.append(column[0])
            column = tuple([n.args[0] for n in column])
        x = input_node(column[0].shape, column[0].dtype, i.name)
        inputs.append(x)
        for v in reversed(views):
            x = with_args(v, (x,))
        args.append(x)
        depths.append(len(views))
    return simplified(Graph(inputs, splice(body, args), body.name)), depths


def _view(n: Node) -> tuple | None:
    """The key of a view that a body can absorb. Slices stay outside, as they differ from call to call."""
    if n.op not in VIEWS or n.op == "slice":
        return None
    return n.op, n.frozen(), n.args[0].shape, n.args[0].dtype


def _cut(graph: Graph) -> Graph:
    """The graph with calls that slice inputs themselves: later passes see one node for a call and its slices.
    A slice with another reader, be it a call, stays: its gradient is one sum.
    """
    times = Counter([_part(a) for n in graph.nodes for a in n.args if a.op == "slice"])
    times.update([_part(o) for o in graph.outputs if o.op == "slice"])

    def cut(n: Node, args: tuple) -> Node | None:
        if n.op != "outlined":
            return None
        cuts = [_cut_of(a) if a.op == "slice" and times[_part(a)] == 1 else None for a in n.args]
        operands = [a if c is None else a.args[0] for a, c in zip(args, cuts)]
        return outlined(n.attrs["body"], operands, cuts, n.attrs["of"], n.loc)

    return rewrite(graph, cut)


def _part(a: Node) -> tuple:
    """A key, equal for equal slices of one array."""
    return a.args[0].id, a.attrs["index"]


def _cut_of(a: Node) -> Cut | None:
    """A slice of an input along one axis as a Cut; None for others."""
    (x,) = a.args
    cuts = [(k, part) for k, (part, n) in enumerate(zip(a.attrs["index"], x.shape)) if part != (0, n, 1)]
    if x.op != "input" or len(cuts) != 1:
        return None
    ((axis, (start, stop, step)),) = cuts
    return (axis, start, stop) if step == 1 else None


# ---- the row of numbers ----------------------------------------------------------------------------------


class _Row:
    """The nodes in which repetitions are searched: all but inputs, constants, and slices of inputs.

    numbers   one for each: equal for the same op with the same settings on arguments of the same types
    last      id of a node -> the index in the row of the last one that reads it; beyond it for a result
    held      ids of values that no call may return. Of a view it would return a copy, with another memory
              layout, for which BLAS may sum in another order. And a mask (see `_masked`) would be applied at
              the end of the call: beyond it 0 * inf is nan. The numbers would differ from those of the
              program as written.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        of_input: set[int] = set()  # inputs and their views
        for n in graph.nodes:
            if n.op == "input" or (n.op in VIEWS and n.args[0].id in of_input):
                of_input.add(n.id)
        sliced: set[int] = set()  # slices of inputs, and what they slice
        for n in reversed(graph.nodes):
            if n.id in sliced or (n.op == "slice" and n.id in of_input):
                sliced.update([n.id, *[a.id for a in n.args]])
        self.nodes = [n for n in graph.nodes if n.op not in ("input", "const") and n.id not in sliced]
        self.index_of = {n.id: k for k, n in enumerate(self.nodes)}
        self.numbers = _numbered(self.nodes)
        self.last = dict.fromkeys([o.id for o in graph.outputs], len(self.nodes))
        for n in graph.nodes:
            at = self.index_of.get(n.id, len(self.nodes))
            for a in n.args:
                self.last[a.id] = max(at, self.last.get(a.id, at))
        self.held = {n.id for n in self.nodes if n.op in VIEWS} | _masked(graph)

    def longest(self, first: int, stop: int) -> tuple[int, int, int] | None:
        """(begin, period, copies) of the longest repetition between two positions."""
        part = self.numbers[first:stop]
        best = None
        for period in _periods(part):
            same = part[period:] == part[:-period]
            edges = np.flatnonzero(np.diff(same.view(np.int8), prepend=0, append=0))
            if not len(edges):
                continue
            lengths = edges[1::2] - edges[::2]  # of runs of True
            k = int(np.argmax(lengths))
            copies = int(lengths[k]) // period + 1
            if copies < FEWEST or copies * period < LEAST:
                continue
            if best is None or copies * period > best[1] * best[2]:
                best = first + int(edges[2 * k]), period, copies
        return best

    def narrowest(self, begin: int, period: int, stop: int) -> tuple[int, int]:
        """(begin of the first copy, copies), so that nothing `held` and few bytes cross from copy to copy."""
        part = self.numbers[begin:stop]
        same = part[period:] == part[:-period]
        length = period + (len(same) if same.all() else int(np.argmin(same)))
        living = np.zeros((2, len(self.nodes) + 2))  # bytes, and those of held values
        for k, n in enumerate(self.nodes):
            nbytes = np.array([n.nbytes, n.nbytes if n.id in self.held else 0])
            living[:, k + 1] += nbytes
            living[:, self.last[n.id] + 1] -= nbytes
        handed, wrong = np.cumsum(living, axis=1)
        middle = begin + (length // period // 2) * period
        spare = length % period
        at = min(range(period), key=lambda r: (wrong[middle + r], handed[middle + r], r > spare, r))
        return begin + at, (length - at) // period


def _numbered(row: Sequence[Node]) -> np.ndarray:
    known: dict[tuple, int] = {}
    numbers = []
    for k, n in enumerate(row):
        if n.derived or isinstance(n.dtype, tuple) or calls_back(n):
            numbers.append(-k - 1)  # a unique number: this may not be repeated
            continue
        free = n.op in FACTORS
        arguments = tuple([_kind(a, free) for a in n.args])
        kind = n.op, n.shape, n.dtype, freeze(n.attrs) if n.attrs else (), arguments
        numbers.append(known.setdefault(kind, len(known)))
    return np.array(numbers, np.int64)


def _kind(a: Node, free: bool) -> tuple:
    """The type of an argument, with its value if it is a constant that is not `free` to differ."""
    if is_scalar_const(a) and not (free and a.dtype.kind == "f"):
        return a.dtype, repr(const_value(a))
    return a.shape, a.dtype, a.op == "const" and not a.shape


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


def _together(period: int, copies: int) -> int:
    """How many short parts to join: a program costs its part and its calls."""
    if period >= SHORT:
        return 1
    nodes = max(SHORT, 2 * round((period * copies) ** 0.5))
    return max(1, min(nodes // period, copies // FEWEST))


# ---- one graph for all copies ----------------------------------------------------------------------------


@dataclass
class _Rolled:
    """Consecutive copies of `length` nodes of a row, as calls of one graph.

    arguments   for each input of the body its node in each copy
    outputs     the positions in a copy whose values are read outside of it
    body        the graph of one copy, with the names and lines of the first
    """

    begin: int
    length: int
    copies: int
    arguments: list[Sequence[Node]]
    outputs: list[int]
    body: Graph

    @property
    def end(self) -> int:
        return self.begin + self.length * self.copies


def _rolled(row: _Row, begin: int, length: int, copies: int) -> _Rolled | None:
    """The copies as one graph; None unless each reads its own values at the same positions, or where a call
    would return a value that is held.
    """
    if copies < FEWEST:
        return None
    end = begin + length * copies
    starts = range(begin, end, length)
    slots: dict[tuple, Node] = {}  # the ids of an argument in all copies -> the input of the body
    arguments, nodes = [], []
    for j in range(length):
        column = row.nodes[begin + j : end : length]
        args = []
        for sources in zip(*[n.args for n in column]):
            offsets = {_offset(row.index_of.get(a.id), s, length) for a, s in zip(sources, starts)}
            if len(offsets) > 1:
                return None
            (offset,) = offsets
            first = sources[0]
            if offset is not None:
                args.append(nodes[offset])
            elif first.op == "const" and all(_same_constant(first, a) for a in sources[1:]):
                args.append(first)
            else:
                key = tuple([a.id for a in sources])
                if key not in slots:
                    slots[key] = input_node(first.shape, first.dtype, _name_of(sources))
                    arguments.append(sources)
                args.append(slots[key])
        n = column[0]
        nodes.append(Node(n.op, tuple(args), n.attrs, n.shape, n.dtype, n.name, n.loc, n.derived))
    outputs = []
    for j in range(length):
        column = row.nodes[begin + j : end : length]
        if any(row.last[n.id] >= s + length for n, s in zip(column, starts)):
            if any(n.id in row.held for n in column):
                return None
            outputs.append(j)
    body = Graph([*slots.values()], [nodes[j] for j in outputs], f"{row.graph.name}_outlined")
    return _Rolled(begin, length, copies, arguments, outputs, body)


def _offset(at: int | None, start: int, length: int) -> int | None:
    """The position within the copy that starts there; None outside of it."""
    return at - start if at is not None and start <= at < start + length else None


def pays(rolled: _Rolled) -> bool:
    """Whether there will be fewer nodes. A node becomes two to four, with its derivative and what that
    reads; a result of a call two, with its cotangent; an argument that may have a gradient two as well.
    """
    constants = sum(nodes[0].op == "const" for nodes in rolled.arguments)
    call = 2 * (len(rolled.arguments) - constants + len(rolled.outputs) + 1) + constants
    return call <= 3 * rolled.length


def _name_of(column: Sequence[Node]) -> str | None:
    """An argument's name: the first copy's, or that of the input that all copies slice."""
    if column[0].name is not None:
        return column[0].name
    roots = {root(n) for n in column}
    return roots.pop().name if len(roots) == 1 else None


def _same_constant(a: Node, b: Node) -> bool:
    if b.op != "const" or (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if not a.shape:
        return repr(const_value(a)) == repr(const_value(b))
    return a.value is b.value or a.value.tobytes() == b.value.tobytes()


def _with_calls(row: _Row, repeats: Sequence[_Rolled], simplified: Callable) -> Graph:
    """The graph with the copies replaced by calls."""
    graph = row.graph
    image: dict[int, Node] = {}
    due: dict[int, tuple[_Rolled, int, Graph]] = {}  # id of a copy's last node -> which copy, and its body
    inside: set[int] = set()
    for rolled in repeats:
        body = simplified(rolled.body)
        inside.update([n.id for n in row.nodes[rolled.begin : rolled.end]])
        for k in range(rolled.copies):
            due[row.nodes[rolled.begin + (k + 1) * rolled.length - 1].id] = rolled, k, body
    for n in graph.nodes:
        if n.id in due:
            rolled, k, body = due[n.id]
            call = outlined(body, [image[nodes[k].id] for nodes in rolled.arguments], loc=n.loc)
            for j, value in zip(rolled.outputs, items(call)):
                old = row.nodes[rolled.begin + k * rolled.length + j]
                value.name, value.loc = old.name, old.loc
                image[old.id] = value
        if n.id in inside:
            continue
        args = tuple([image[a.id] for a in n.args])
        image[n.id] = n if all(a is b for a, b in zip(args, n.args)) else with_args(n, args)
    return Graph(graph.inputs, [image[o.id] for o in graph.outputs], graph.name)
