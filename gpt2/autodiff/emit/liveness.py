"""Liveness: who reads each value, for how long it is needed, and what may be written over it.

Lives are counted in steps: a plain statement is one step, and so is a whole region of row blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from ..graph import Graph, Node
from ..ops.rowwise import ROW, row_axes
from ..ops.table import VIEWS, facts, root, views_of
from .layout import is_result_of_call
from .regions import Region, by_rows, flags_of

if TYPE_CHECKING:
    from .windows import Window


class Liveness:
    """Readers and lives of a program's values.

    windows   the memory of values that live in that of another (windows.py)
    folded    multiplications that are part of the sum that reads them (statements.folded)
    """

    def __init__(
        self,
        graph: Graph,
        regions: list[Region],
        windows: Mapping[Node, Window] | None = None,
        folded: Collection[Node] = (),
    ):
        self.graph = graph
        self.outputs = dict.fromkeys(graph.outputs)
        self.regions, self.windows, self.folded = regions, windows or {}, folded
        self.region = {n: r for r in regions for n in r.members}
        self.order = {n: k for k, n in enumerate(self.region)}  # of execution
        self.start, self.end = _steps(regions)  # first and last step of each value as writer or reader
        self.users = graph.users()
        self._reads: dict[Node, list[tuple[Node, Node]]] = {}
        self._last: dict[Node, int] = {}

    def base(self, n: Node) -> Node:
        """The value in whose memory n lives, n itself for most."""
        window = self.windows.get(n)
        return n if window is None else window.base

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
        """Whether n may be computed in the memory of x, a value or an argument: it fits there, nothing reads
        x afterwards, and n itself reads each element of x where it writes it, if at all.
        """
        r = self.region[n]
        if x.nbytes != n.nbytes or x.dtype != n.dtype or is_result_of_call(n):
            return False
        if r.N > 1 and (x in r.sums or row_axes(x.shape, r.N) is None):
            return False
        return self.is_done_with(x, n) and reads_in_step(n, x)

    def is_done_with(self, x: Node, n: Node) -> bool:
        """Whether nothing reads x after n, not in a later block of rows either."""
        if self.last_read(x) > self.order[n]:
            return False
        r = self.region[n]
        return r.N == 1 or all(_reads_own_rows(u, y, r) for u, y in self.reads(x) if self.region[u] is r)

    def first_writer(self, base: Node) -> Node | None:
        """The op that is the first to write to the memory of `base`, if it writes all of that, in its order,
        as those after it do.
        """
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


def read_in_step(n: Node) -> list[Node]:
    """The values that n reads element by element, each where it writes."""
    return [root(a) for a in _in_step(n)]


def reads_in_step(n: Node, x: Node) -> bool:
    """Whether n reads x element by element alone, if at all. (Ufuncs check operands for overlap; code by
    columns and numexpr do not.)
    """
    return sum(root(a) is x for a in n.args) == sum(root(a) is x for a in _in_step(n))


def _in_step(n: Node) -> Iterator[Node]:
    return (a for a in _overwritable(n) if a.shape == n.shape and all(v.op == "reshape" for v in views_of(a)))


def _overwritable(n: Node) -> tuple[Node, ...]:
    """Arguments whose memory n may take over while it reads them."""
    if facts(n).changes_first:
        return n.args[:1]
    if n.op == "where":  # two copies, first that of the values where the condition is false
        return n.args[2:]
    return n.args if facts(n).streams else ()


def _reads_own_rows(u: Node, y: Node, r: Region) -> bool:
    """Whether u reads, for each row, that row of y's root alone."""
    flags = flags_of(u, r.N)
    if flags is None or any(a is y and flag is not ROW for a, flag in zip(u.args, flags)):
        return False
    return all(by_rows(v, r.N) == (ROW,) for v in views_of(y)) and row_axes(root(y).shape, r.N) is not None


class Overwrites:
    """The pairs (result, input) where the result may be written over that input's memory.

    Computed on demand: a program with thousands of parameters has millions of pairs, few of them needed.
    """

    def __init__(self, live: Liveness, barred: Container[Node]):
        self.live, self.barred = live, barred
        self.known: dict[tuple[int, int], bool] = {}

    def __contains__(self, pair: tuple[int, int]) -> bool:
        if pair not in self.known:
            o, x = self.live.graph.outputs[pair[0]], self.live.graph.inputs[pair[1]]
            first = self.live.first_writer(o)
            may = first is not None and x.shape == o.shape and o not in self.barred
            self.known[pair] = may and self.live.may_write_over(first, x)
        return self.known[pair]
