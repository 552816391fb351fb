"""Who reads each value of a schedule, up to where, and what may therefore be written over it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..graph import Graph, Node
from ..ops.rowwise import ROW, row_axes
from ..ops.table import VIEWS, facts, root, views_of
from ..run import short
from .layout import is_result_of_call
from .regions import Region, by_rows, flags_of


class Schedule:
    """What runs, in order, and the readers of each value.

    graph, regions   what runs, in order; `region` has the region of each op, `order` its position
    outputs          the results, in order
    users            the nodes that have a value as an argument
    folded           multiplications that are part of the sum that reads them
    """

    def __init__(self, graph: Graph, regions: list[Region]):
        self.graph, self.regions = graph, regions
        self.outputs = dict.fromkeys(graph.outputs)
        self.users = graph.users()
        self.region = {n: r for r in regions for n in r.members}
        self.order = {n: k for k, n in enumerate(self.region)}  # of execution
        self._reads: dict[Node, list[tuple[Node, Node]]] = {}
        self._last: dict[Node, int] = {}
        self.folded = _folded(graph, self.users, self.region)

    def reads(self, x: Node) -> list[tuple[Node, Node]]:
        """(op, the argument through which it reads x), for x itself and for views of x."""
        if x not in self._reads:
            pairs = self._reads[x] = []
            todo = [x]
            while todo:
                y = todo.pop()
                for u in self.users[y]:
                    if u.op in VIEWS:
                        todo.append(u)
                    else:
                        pairs.append((u, y))
        return self._reads[x]

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
        if not self.is_done_with(x, n):
            return False
        # ufuncs check for overlap, other code does not: n must read x in no other way
        return [root(a) for a in n.args].count(x) == read_in_step(n).count(x)

    def is_done_with(self, x: Node, n: Node) -> bool:
        """Whether nothing reads x after n, not in a later block of rows either."""
        if self.last_read(x) > self.order[n]:
            return False
        r = self.region[n]
        return r.N == 1 or all(_reads_own_rows(u, y, r) for u, y in self.reads(x) if self.region[u] is r)


def read_in_step(n: Node) -> list[Node]:
    """The values that n reads element by element, where it writes: it may be written over them."""
    args = n.args if facts(n).streams else ()
    if facts(n).changes_first:
        args = n.args[:1]
    elif n.op == "where":  # two copies, first that of the values where the condition is false
        args = n.args[2:]
    return [root(a) for a in args if a.shape == n.shape and all(v.op == "reshape" for v in views_of(a))]


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


def _folded(graph: Graph, users: Mapping[Node, list[Node]], region: Mapping[Node, Region]) -> set[Node]:
    """The multiplications that only a sum over the last axis reads: each such pair is one np.vecdot, or where
    that axis is short, a sum of columns (run/short.py), which has the bits of both."""
    products = set()
    for n in graph.nodes:
        if n.op in ("sum", "sum_as_numpy") and n.args[0].op in ("multiply", "square"):
            m = n.args[0]
            if (n.op == "sum" or goes_by_columns(m)) and (
                len(users[m]) == 1
                and n.attrs["axes"] == (m.ndim - 1,)
                and region[m] is region[n]
                and all(a.shape == m.shape and a.dtype == m.dtype for a in m.args)
                and m.dtype.kind == "f"
                and n not in region[n].sums
            ):
                products.add(m)
    return products
