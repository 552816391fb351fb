"""Finds values to compute in the memory of later ones: copies and parts of an assemble then cost nothing."""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..graph import Graph, Node
from ..ops.boxes import FEW_BOXES, alone, disjoint, ranges
from ..ops.rowwise import row_axes
from ..ops.shape import index_text
from ..ops.table import VIEWS, facts, root, views_of
from .layout import Layout, is_result_of_call, reshape_view, slice_view, view, whole

if TYPE_CHECKING:
    from .buffers import Uses


class Window:
    """Memory of a value: `base` is the value that owns it, `steps` the views that lead from base to here.

    A step is ("transpose", perm), ("reshape", shape) or ("slice", index, shape before).
    """

    __slots__ = ("base", "steps", "_layout")

    def __init__(self, base: Node, steps: tuple, layout: Layout | None = None):
        self.base, self.steps, self._layout = base, steps, layout

    @property
    def layout(self) -> Layout:
        """The value's, made when it is first looked at."""
        if self._layout is None:
            self._layout = whole(self.base.shape, self.base.dtype)
        return self._layout

    def text(self) -> str:
        """The view of the base's whole array."""
        return "".join(_step_text(step) for step in self.steps)

    def row_text(self, N: int) -> str:
        """The view of a block of the base's rows, which stand along one axis."""
        text, shape = "", self.base.shape
        for step in self.steps:
            p = row_axes(shape, N)
            if step[0] == "transpose":
                text += f".transpose({(0, *(a - p + 1 for a in step[1][p:]))})"
                shape = tuple(shape[a] for a in step[1])
            elif step[0] == "reshape":
                shape = step[1]
                text += f".reshape({(-1, *shape[row_axes(shape, N) :])})"
            else:
                text += f"[:, {index_text(step[1][p:], step[2][p:])}]"
                shape = tuple(len(range(*slice(*s).indices(m))) for s, m in zip(step[1], step[2]))
        return text


def _step_text(step) -> str:
    if step[0] == "slice":
        return f"[{index_text(step[1], step[2])}]"
    return f".{step[0]}({step[1]})"


def inverse(window: Window, views: list[Node]) -> Window | None:
    """The memory that a root must write so that `views` of it fill `window`; None where there is none."""
    steps, layout = window.steps, window.layout
    for n in reversed(views):
        source = n.args[0]
        if n.op == "transpose":
            perm = n.attrs["perm"]
            back = tuple(sorted(range(len(perm)), key=perm.__getitem__))
            strides = tuple(layout.strides[k] for k in back)
            steps = (*steps, ("transpose", back))
            layout = replace(layout, shape=source.shape, strides=strides)
        elif n.op == "reshape":
            got = reshape_view(layout, source.shape)
            if got is None:
                return None
            steps, layout = (*steps, ("reshape", source.shape)), got
        else:
            return None
    return Window(window.base, steps, layout)


def covers(n: Node) -> bool:
    """Whether an assemble's parts do not overlap and leave no gap."""
    return parts_apart(n) and sum(p.size for p in n.args) == n.size


def fills(n: Node) -> frozenset[int]:
    """The numbers of parts that fill an assemble's result without overlapping: they are put there first, and
    the others are added. Empty where no such parts are found.
    """
    if covers(n):
        return frozenset(range(len(n.args)))
    sizes = [p.size for p in n.args]
    by_size = sorted(range(len(sizes)), key=lambda k: -sizes[k])
    if len(sizes) > FEW_BOXES:  # as in parts_apart, not in pairs
        by_size = by_size[:1]
    boxes = [ranges(i, n.shape) for i in n.attrs["indices"]]
    found: list[int] = []
    for k in by_size:
        if all(disjoint(boxes[k], boxes[j]) for j in found):
            found.append(k)
    return frozenset(found) if sum(sizes[k] for k in found) == n.size else frozenset()


def parts_apart(n: Node) -> bool:
    """Whether no two parts of an assemble overlap."""
    return _apart(n.attrs["indices"], n.shape)


@functools.lru_cache(256)  # asked for each assemble in every stage of emitting
def _apart(indices: tuple, shape: tuple[int, ...]) -> bool:
    spans = [[_span(s, m) for s, m in zip(i, shape)] for i in indices]
    if any(_in_a_row(column) for column in zip(*spans)):
        return True
    if len(spans) > FEW_BOXES:  # drawn on a map: the time for comparing pairs grows with the square
        return all(alone([[range(a, b) for a, b in s] for s in spans], shape))
    return not any(
        all(a0 < b1 and b0 < a1 for (a0, a1), (b0, b1) in zip(one, other))
        for one, other in itertools.combinations(spans, 2)
    )


def _in_a_row(spans: Sequence[tuple[int, int]]) -> bool:
    """Whether stretches of one axis lie one behind the other, as those of parts that are stacked."""
    ordered = sorted(spans)
    return all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ordered))


def _span(s, m) -> tuple[int, int]:
    start, stop, step = s
    if step == 1 and stop is not None and 0 <= start < stop <= m:
        return start, stop
    r = range(*slice(*s).indices(m))
    return (min(r[0], r[-1]), max(r[0], r[-1]) + 1) if len(r) else (0, 0)


def hosts(graph: Graph, uses: Uses) -> tuple[dict[Node, Window], Layouts]:
    """The windows of values that are computed in the memory of a later one, and the layouts of all.

    `uses` (buffers.Uses) tells whether an op may destroy a value while it runs, because nothing reads that
    later.
    """
    found = _Hosts(graph, uses)
    for n in reversed(graph.nodes):
        found.visit(n)
    return found.windows, Layouts(found)


class _Hosts:
    """The search for windows.

    It walks backwards, so that a chain of values (a product, transposed, put beside others, returned) lands
    where it ends.
    """

    def __init__(self, graph: Graph, uses):
        self.graph, self.uses = graph, uses
        self.outputs = set(graph.outputs)
        self.windows: dict[Node, Window] = {}
        self.whole: dict[Node, Window] = {}  # of values in memory of their own
        self.spoiled: dict[Node, Node] = {}  # value -> the op that writes over its memory
        self.views: dict[Node, list[Node]] = defaultdict(list)  # root -> the views of it, in order
        self.multiplied: set[tuple[Node, Node]] = set()  # the roots of the factors of each product
        for n in graph.nodes:
            if n.op in VIEWS:
                self.views[root(n)].append(n)
            elif n.op == "matmul":
                a, b = map(root, n.args)
                self.multiplied |= {(a, b), (b, a)}

    def visit(self, n: Node) -> None:
        """Put what n copies, or writes into a copy of, where n's result goes."""
        if n.op == "copy":
            if (n, root(n.args[0])) in self.multiplied:  # BLAS adds up a @ a.T in an order of its own
                return
            self.settle(n.args[0], self.of(n), n)
        elif n.op == "assemble":
            self.visit_assemble(n)
        elif n.op not in ("input", "item") and facts(n).changes_first:
            self.settle(n.args[0], self.of(n), n, spoils=True)

    def visit_assemble(self, n: Node) -> None:
        """The parts that fill the result between them, to which it then adds the others, if there are any."""
        at, first, often = self.of(n), fills(n), Counter(n.args)
        added = len(first) < len(n.args)
        for k, (x, index) in enumerate(zip(n.args, n.attrs["indices"])):
            if k in first and often[x] == 1:
                steps = (*at.steps, ("slice", index, n.shape))
                self.settle(x, Window(at.base, steps, slice_view(at.layout, index)), n, added)

    def of(self, n: Node) -> Window:
        """The memory of n, its own or another's."""
        if n in self.windows:
            return self.windows[n]
        if n not in self.whole:
            self.whole[n] = Window(n, ())
        return self.whole[n]

    def settle(self, source: Node, window: Window, n: Node, spoils: bool = False) -> None:
        """Put source's root where source then fills the window, if it may be there.

        spoils   n then changes that memory
        """
        r = root(source)
        spoiler = n if spoils else self.spoiled.get(n)
        if not self.may_move(r, window) or (spoiler is not None and not self.may_spoil(r, spoiler, n)):
            return
        inner = inverse(window, views_of(source))
        if inner is not None and is_result_of_call(r) and not inner.layout.contiguous:
            return  # a function of the program's own writes its results as whole arrays
        if inner is not None and self.keeps_views(r, inner):
            self.windows[r] = inner
            if spoiler is not None:
                self.spoiled[r] = spoiler

    def may_move(self, r: Node, window: Window) -> bool:
        """Whether r is computed, into memory that is not in use yet, in the type of what it moves into."""
        taken = r in self.windows or r in self.outputs or r.op in ("input", "const")
        if r.op == "item" and not is_result_of_call(r):
            return False
        return not taken and r.dtype == window.base.dtype

    def may_spoil(self, r: Node, spoiler: Node, n: Node) -> bool:
        """Whether r may lie in memory that spoiler writes over, where n puts it."""
        if not self.uses.last_use(r, spoiler):
            return False
        return spoiler is n or all(u is not spoiler for u, _ in self.uses.readers(r))

    def keeps_views(self, r: Node, window: Window) -> bool:
        """Whether everything that is a view of r can be one of r in that memory."""
        seen = {r: window.layout}
        for n in self.views[r]:
            found = view(seen[n.args[0]], n)
            if found is None:
                return False
            seen[n] = found
        return True


class Layouts(dict[Node, Layout]):
    """The layout of every value that is an array, made when it is asked for: few are."""

    def __init__(self, found: _Hosts):
        super().__init__()
        self.found = found

    def __missing__(self, n: Node) -> Layout:
        r = root(n)
        seen = self[r] = self.found.of(r).layout
        for v in views_of(n):
            through = view(seen, v)
            assert through is not None, f"{v!r}: a view of memory that it cannot view"
            seen = self[v] = through
        return seen
