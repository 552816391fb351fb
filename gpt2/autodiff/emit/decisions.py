"""Decisions made before any line is written: how a block reaches its rows, which multiplications fold into a
sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..graph import Graph, Node
from ..ops.rowwise import ROW, row_axes
from ..run import short
from .layout import Layout, reshape_view, root
from .regions import Region, blocks_of, fewer_rows, flags_of, prefix, widest_row

if TYPE_CHECKING:
    from .windows import Window

SHORTEST = 1 << 14  # bytes of a row axis, from which blocks along it pay


def reach_rows(r: Region, where: dict[Node, Region], layouts: dict[Node, Layout]) -> None:
    """Decide how a block reaches its rows: along one axis, or nested, by fewer and wider rows where the ones
    that it has are numbered in different ways; else the ops are plain statements.
    """
    r.nested = r.N > 1 and not flat(r, where, layouts)
    if not r.nested or _reached(r, where):
        return
    for N in fewer_rows(r, where):
        r.N = N
        r.nested = not flat(r, where, layouts)
        if (not r.nested or _reached(r, where)) and len(blocks_of(r)) > 1:
            return
    # no single index reaches them, or it would reach too few at a time
    r.N, r.sums, r.nested = 1, [], False


def _reached(r: Region, where: dict[Node, Region]) -> bool:
    return one_prefix(r, where) and _is_long(r)


def _is_long(r: Region) -> bool:
    """Whether a block of a nested region takes longer to compute than to call."""
    axes = prefix(r)
    return axes is not None and axes[-1] * widest_row(r) >= SHORTEST


def ends(r: Region, where: dict[Node, Region]) -> list[Node]:
    """The arrays that a region reads or writes by rows."""
    found = []
    for n in r.members:
        if n not in r.sums:
            found.append(n)
        found += [
            a for a, flag in zip(n.args, flags_of(n, r.N)) if flag is ROW and where.get(root(a)) is not r
        ]
    return found


def flat(r: Region, where: dict[Node, Region], layouts: dict[Node, Layout]) -> bool:
    """Whether each array that it reads or writes by rows has a view with its rows along one axis."""
    for a in ends(r, where):
        p = row_axes(a.shape, r.N)
        if p != 1 and reshape_view(layouts[a], (r.N, *a.shape[p:])) is None:
            return False
    return True


def one_prefix(r: Region, where: dict[Node, Region]) -> bool:
    """Whether the same leading axes number the rows of all those arrays, so that one index reaches them."""
    axes = prefix(r)
    return axes is not None and all(a.shape[: row_axes(a.shape, r.N)] == axes for a in ends(r, where))


def goes_by_columns(m: Node) -> bool:
    """Whether the last axis of a product is so short that its columns are added up, in NumPy's order."""
    few = m.ndim > 1 and 2 <= m.shape[-1] <= short.IN_ORDER and m.dtype in (np.float32, np.float64)
    return few and m.size // m.shape[-1] >= short.FEWEST


def folded(
    graph: Graph, users: dict[Node, list[Node]], where: dict[Node, Region], windows: dict[Node, Window]
) -> set[Node]:
    """The multiplications that only a sum over the last axis reads: each such pair is one np.vecdot, or where
    that axis is short, a sum of columns (run/short.py), which has the bits of both."""
    found = set()
    for n in graph.nodes:
        if n.op in ("sum", "sum_as_numpy") and n.args[0].op in ("multiply", "square"):
            m = n.args[0]
            if (n.op == "sum" or goes_by_columns(m)) and (
                len(users[m]) == 1
                and n.attrs["axes"] == (m.ndim - 1,)
                and m not in windows
                and where[m] is where[n]
                and all(a.shape == m.shape and a.dtype == m.dtype for a in m.args)
                and m.dtype.kind == "f"
                and n not in where[n].sums
            ):
                found.add(m)
    return found
