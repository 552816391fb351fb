"""The plan of a program: what runs together and in which order, who reads each value and for how long, and in
which memory it lives.

`Plan` takes all of these decisions, one after the other; an Emitter (emitter.py) then writes the text. Lives
are counted in steps: a plain statement is one step, and so is a whole region of row blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Graph, Node
from ..ops.rowwise import ROW, row_axes
from ..ops.table import VIEWS, root, views_of
from ..run import short
from . import buffers, lives
from .layout import Layout, is_result_of_call, lower, results_of, view, whole
from .regions import Region, by_rows, flags_of, reach_rows, schedule
from .windows import Window, find_windows

if TYPE_CHECKING:
    from .program import Routine


class Plan:
    """The plan of a graph's program. Its attributes, in the order in which they are decided:

    graph      lowered (layout.py): every copy that NumPy would make is an op
    regions    ops that run together, in order (regions.py); `region` has that of each op
    folded     multiplications that are part of the sum that reads them
    windows    values that are computed in the memory of a later one (windows.py)
    kind       where each value lives (buffers.py); for those in the arena `storage` has which part of it, for
               those in scratch `slots` the number of their slot in the region
    """

    def __init__(
        self,
        graph: Graph,
        exact: Container[int],
        fusing: Callable | None,
        routines: Callable[[Graph], Routine],
        share_inputs: bool = False,
        lend: bool = False,
        results_early: bool = False,
    ):
        """
        exact          ids of values that are summed in NumPy's own order
        fusing         fusing(graph, regions) may give elementwise ops to another backend
        routines       routines(body) is the function that outlined calls of it call
        share_inputs   a result that is an argument is that very array, not a copy
        lend           results lend their memory to other values until they are written
        results_early  as `schedule` takes it
        """
        self.graph = lower(graph, share_inputs, exact)
        self.regions = schedule(self.graph, results_early)
        if fusing is not None:
            self.graph = fusing(self.graph, self.regions)
        for r in self.regions:
            if r.N > 1:
                lives.shorten(r)
        self.outputs = dict.fromkeys(self.graph.outputs)
        self.users = self.graph.users()
        self.region = {n: r for r in self.regions for n in r.members}
        self.order = {n: k for k, n in enumerate(self.region)}  # of execution
        self._reads: dict[Node, list[tuple[Node, Node]]] = {}
        self._last: dict[Node, int] = {}
        self._layouts: dict[Node, Layout] = {}
        self.folded = _folded(self)
        self.windows: dict[Node, Window] = {}
        find_windows(self)
        for r in self.regions:
            reach_rows(r, self)
        self.start, self.end = _steps(self.regions)  # first and last step of each value as writer or reader
        self.called = {n: routines(n.attrs["body"]) for n in self.graph.nodes if n.op == "outlined"}
        self.results = results_of(self.graph)
        self.kind = buffers.kinds(self)
        self.storage = buffers.storage(self, lend)
        self.partials = buffers.partials(self)
        self.work, self.unread = buffers.memory_of_calls(self)
        self.arena_bytes = buffers.place(self)
        self.slots, self.planes = buffers.slots(self)
        self._lenders = buffers.lenders(self, lend)
        self._overwrites: dict[tuple[int, int], bool] = {}

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

    # ---- who reads a value

    def reads(self, x: Node) -> list[tuple[Node, Node]]:
        """(op, the argument through which it reads x), for x itself and for views of x."""
        pairs = self._reads.get(x)
        if pairs is not None:
            return pairs
        pairs = self._reads[x] = []
        todo = [x]
        while todo:
            y = todo.pop()
            for u in self.users[y]:
                if u.op in VIEWS:
                    todo.append(u)
                else:
                    pairs.append((u, y))
        return pairs

    def readers(self, x: Node) -> list[Node]:
        """The ops whose statements read x: a folded op's argument is read by the op that it is part of."""
        direct = [u for u, _ in self.reads(x)]
        if not any([u in self.folded for u in direct]):
            return direct
        return [w for u in direct for w in (self.readers(u) if u in self.folded else [u])]

    def last_read(self, x: Node) -> int:
        """The position of the last reader in the order; -1 if there is none."""
        if x not in self._last:
            self._last[x] = max([self.order[u] for u in self.readers(x)], default=-1)
        return self._last[x]

    def outlives(self, n: Node, r: Region) -> bool:
        """Whether n is made or read outside of a region: scratch ends with it."""
        return self.region[n] is not r or any(self.region.get(u) is not r for u in self.readers(n))

    # ---- what may be written over

    def may_write_over(self, n: Node, x: Node) -> bool:
        """Whether n may be computed in the memory of x: it fits, and nothing but n reads x from then on."""
        r = self.region[n]
        if x.nbytes != n.nbytes or x.dtype != n.dtype or is_result_of_call(n):
            return False
        if r.N > 1 and (x in r.sums or row_axes(x.shape, r.N) is None):
            return False
        return self.is_done_with(x, n) and buffers.reads_in_step(n, x)

    def is_done_with(self, x: Node, n: Node) -> bool:
        """Whether nothing reads x after n, not in a later block of rows either."""
        if self.last_read(x) > self.order[n]:
            return False
        r = self.region[n]
        return r.N == 1 or all(_reads_own_rows(u, y, r) for u, y in self.reads(x) if self.region[u] is r)

    def first_writer(self, base: Node) -> Node | None:
        """The op that writes all memory of `base` first, in its order, as those after it do."""
        writers = self._writers.get(base)
        if writers is None:
            return None
        steps = (step for n in writers if n in self.windows for step in self.windows[n].steps)
        return writers[0] if all(step[0] == "reshape" for step in steps) else None

    @cached_property
    def _writers(self) -> dict[Node, list[Node]]:
        """The values in each memory, in the order of execution."""
        writers: dict[Node, list[Node]] = {}
        for n in self.order:
            writers.setdefault(self.base(n), []).append(n)
        return writers

    def result_over_input(self, k: int, i: int) -> bool:
        """Whether result k may be written over the memory of input i.

        Found out on demand: a program with thousands of parameters has millions of pairs, few of them needed.
        """
        if (k, i) not in self._overwrites:
            o, x = self.graph.outputs[k], self.graph.inputs[i]
            first = self.first_writer(o)
            may = first is not None and x.shape == o.shape and o not in self._lenders
            self._overwrites[k, i] = may and self.may_write_over(first, x)
        return self._overwrites[k, i]


def _steps(regions: list[Region]) -> tuple[dict[Node, int], dict[Node, int]]:
    """First and last step of each member's life as a writer or reader."""
    start: dict[Node, int] = {}
    end: dict[Node, int] = {}
    step = 0
    for r in regions:
        for n in r.members:
            step += r.N == 1
            start[n] = end[n] = step
            if is_result_of_call(n):  # written while the call runs
                start[n] = start[n.args[0]]
        step += 1
    return start, end


def _reads_own_rows(u: Node, y: Node, r: Region) -> bool:
    """Whether u reads, for each row, that row of y's root alone."""
    flags = flags_of(u, r.N)
    if flags is None or any(a is y and flag is not ROW for a, flag in zip(u.args, flags)):
        return False
    return all(by_rows(v, r.N) == (ROW,) for v in views_of(y)) and row_axes(root(y).shape, r.N) is not None


def goes_by_columns(m: Node) -> bool:
    """Whether the last axis of a product is so short that its columns are added up, in NumPy's order."""
    few = m.ndim > 1 and 2 <= m.shape[-1] <= short.IN_ORDER and m.dtype in (np.float32, np.float64)
    return few and m.size // m.shape[-1] >= short.FEWEST


def _folded(plan: Plan) -> set[Node]:
    """The multiplications that only a sum over the last axis reads: each such pair is one np.vecdot, or where
    that axis is short, a sum of columns (run/short.py), which has the bits of both."""
    products, region = set(), plan.region
    for n in plan.graph.nodes:
        if n.op in ("sum", "sum_as_numpy") and n.args[0].op in ("multiply", "square"):
            m = n.args[0]
            if (n.op == "sum" or goes_by_columns(m)) and (
                len(plan.users[m]) == 1
                and n.attrs["axes"] == (m.ndim - 1,)
                and region[m] is region[n]
                and all(a.shape == m.shape and a.dtype == m.dtype for a in m.args)
                and m.dtype.kind == "f"
                and n not in region[n].sums
            ):
                products.add(m)
    return products
