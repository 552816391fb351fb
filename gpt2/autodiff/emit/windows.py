"""Whose memory each value lies in, and where there: `Places`.

Many values are computed in the memory of a later one: copies and parts of an assemble then cost nothing.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from dataclasses import replace
from typing import NamedTuple

from ..graph import Node
from ..ops.boxes import FEW_BOXES, alone, disjoint, ranges
from ..ops.shape import index_text
from ..ops.table import VIEWS, facts, root, views_of
from .expressions import row_view_text
from .layout import Layout, is_result_of_call, reshape_view, slice_view, view, whole
from .schedule import Schedule


class Window(NamedTuple):
    """Memory of a value: `base` is the value that owns it, `steps` the views that lead from base to here, and
    `layout` that of the value.

    A step is (op, its attribute, shape before): ("transpose", perm, ...), ("reshape", shape, ...) or
    ("slice", index, ...).
    """

    base: Node
    steps: tuple
    layout: Layout

    def text(self) -> str:
        """The view of the base's whole array."""
        return "".join(
            f"[{index_text(attr, before)}]" if op == "slice" else f".{op}({attr})"
            for op, attr, before in self.steps
        )

    def row_text(self, N: int) -> str:
        """The view of a block of the base's rows, which stand along one axis."""
        return "".join(row_view_text(op, attr, before, N) for op, attr, before in self.steps)


def inverse(window: Window, views: list[Node]) -> Window | None:
    """The memory that a root must write so that `views` of it fill `window`; None where there is none."""
    steps, layout = window.steps, window.layout
    for n in reversed(views):
        source = n.args[0]
        if n.op == "transpose":
            perm = n.attrs["perm"]
            back = tuple(sorted(range(len(perm)), key=perm.__getitem__))
            strides = tuple(layout.strides[k] for k in back)
            steps = (*steps, ("transpose", back, layout.shape))
            layout = replace(layout, shape=source.shape, strides=strides)
        elif n.op == "reshape":
            reshaped = reshape_view(layout, source.shape)
            if reshaped is None:
                return None
            steps, layout = (*steps, ("reshape", source.shape, layout.shape)), reshaped
        else:
            return None
    return Window(window.base, steps, layout)


def covers(n: Node) -> bool:
    """Whether an assemble's parts do not overlap and leave no gap."""
    return parts_apart(n) and sum(p.size for p in n.args) == n.size


def fills(n: Node) -> frozenset[int]:
    """The numbers of parts that fill an assemble's result without overlapping; the others are added."""
    if covers(n):
        return frozenset(range(len(n.args)))
    sizes = [p.size for p in n.args]
    by_size = sorted(range(len(sizes)), key=lambda k: -sizes[k])
    if len(sizes) > FEW_BOXES:  # as in parts_apart, not in pairs
        by_size = by_size[:1]
    boxes = [ranges(i, n.shape) for i in n.attrs["indices"]]
    filling: list[int] = []
    for k in by_size:
        if all(disjoint(boxes[k], boxes[j]) for j in filling):
            filling.append(k)
    return frozenset(filling) if sum(sizes[k] for k in filling) == n.size else frozenset()


def parts_apart(n: Node) -> bool:
    """Whether no two parts of an assemble overlap."""
    return _apart(n.attrs["indices"], n.shape)


@functools.lru_cache(256)  # called for each assemble in every stage of emitting
def _apart(indices: tuple, shape: tuple[int, ...]) -> bool:
    return all(alone([ranges(i, shape) for i in indices], shape))


class Places:
    """The memory of each value.

    windows   the values that are computed in the memory of a later one

    The search for them walks backwards, so that a chain of values (a product, transposed, put beside others,
    returned) lands where it ends.
    """

    def __init__(self, schedule: Schedule):
        self.schedule = schedule
        self.windows: dict[Node, Window] = {}
        self._layouts: dict[Node, Layout] = {}
        self._overwritten_by: dict[Node, Node] = {}  # value -> the op that writes over its memory
        self._views: dict[Node, list[Node]] = defaultdict(list)  # root -> the views of it, in order
        self._multiplied: set[tuple[Node, Node]] = set()  # the roots of the factors of each product
        for n in schedule.graph.nodes:
            if n.op in VIEWS:
                self._views[root(n)].append(n)
            elif n.op == "matmul":
                a, b = map(root, n.args)
                self._multiplied |= {(a, b), (b, a)}
        for n in reversed(schedule.graph.nodes):
            # Place what n copies, or what it changes a copy of, where n's result goes
            if n.op == "copy":
                # Not what meets its copy in a product: BLAS adds up a @ a.T in an order of its own
                if (n, root(n.args[0])) not in self._multiplied:
                    self._place(n.args[0], n)
            elif n.op == "assemble":  # the parts that fill the result, to which the others are then added
                first, often = fills(n), Counter(n.args)
                added = len(first) < len(n.args)
                for k, (x, index) in enumerate(zip(n.args, n.attrs["indices"])):
                    if k in first and often[x] == 1:
                        self._place(x, n, index, changes=added)
            elif n.op not in ("input", "item") and facts(n).changes_first:
                self._place(n.args[0], n, changes=True)
        self._writers: dict[Node, list[Node]] = {}  # the values in each memory, in the order of execution
        for n in schedule.order:
            self._writers.setdefault(self.base(n), []).append(n)

    def layout(self, n: Node) -> Layout:
        """Where the elements of a value that is an array lie, computed on demand: few are needed."""
        if n not in self._layouts:
            r = root(n)
            window = self.windows.get(r)
            if r not in self._layouts:
                self._layouts[r] = window.layout if window else whole(r.shape, r.dtype)
            for v in views_of(n):
                through = view(self._layouts[v.args[0]], v)
                assert through is not None, f"{v!r}: a view of memory that it cannot view"
                self._layouts[v] = through
        return self._layouts[n]

    def base(self, n: Node) -> Node:
        """The value in whose memory n lives, n itself for most."""
        window = self.windows.get(n)
        return n if window is None else window.base

    def first_writer(self, base: Node) -> Node | None:
        """The op that writes all memory of `base` first, in its order, as those after it do."""
        writers = self._writers.get(base, [])
        steps = (step for n in writers if n in self.windows for step in self.windows[n].steps)
        return writers[0] if writers and all(step[0] == "reshape" for step in steps) else None

    def _place(self, source: Node, n: Node, index: tuple | None = None, changes: bool = False) -> None:
        """Place source's root in memory where source is n, or its part at an index, if it may lie there.

        changes   n then writes over that memory
        """
        r = root(source)
        taken = r in self.windows or r in self.schedule.outputs or r.op in ("input", "const")
        if taken or r.op == "item" and not is_result_of_call(r) or r.dtype != self.base(n).dtype:
            return
        writer = n if changes else self._overwritten_by.get(n)
        if writer is not None:
            readings = sum(root(a) is r for a in writer.args)  # of which n may be one
            if readings > (writer is n) or not self.schedule.is_done_with(r, writer):
                return
        window = self.windows.get(n) or Window(n, (), self.layout(n))
        if index is not None:
            steps = (*window.steps, ("slice", index, n.shape))
            window = Window(window.base, steps, slice_view(window.layout, index))
        inner = inverse(window, views_of(source))
        if inner is None or is_result_of_call(r) and not inner.layout.contiguous:
            return  # a routine writes its results as whole arrays
        layouts = {r: inner.layout}  # all views must be views in that memory too
        for v in self._views[r]:
            layout = view(layouts[v.args[0]], v)
            if layout is None:
                return
            layouts[v] = layout
        self.windows[r] = inner
        if writer is not None:
            self._overwritten_by[r] = writer
