"""Scratch that lies in planes.

Scratch with a short last axis, as that of points in space is, is held plane by plane instead of row by row: a
block of (rows, 216, 3) numbers lies in memory as three blocks of (rows, 216), and is seen
through a view with its axes in their order. Code by columns (run/short.py) then reads and writes contiguous
numbers. Only statements with the same bits at any strides may see such a view: a slot lies in planes if every
value in it is computed and read by ops that round each element independently, or by sums of columns.
"""

from __future__ import annotations

import math

from ..graph import Node
from ..ops.rowwise import row_axes
from ..ops.table import facts, root, views_of
from ..run import short
from .regions import Region
from .windows import Places

SHORTEST_PLANE = 8  # elements of a plane in each row


def in_planes(r: Region, slots: dict[Node, int], places: Places) -> set[Node]:
    """The values of a region that lie in planes. slots: of all values in the region's scratch."""
    held: dict[int, list[Node]] = {}
    for n, slot in slots.items():
        held.setdefault(slot, []).append(n)
    elsewhere = {*places.windows, *map(places.base, places.windows), *places.schedule.folded}
    planar: set[Node] = set()
    for values in held.values():
        rows = {(n.shape[row_axes(n.shape, r.N) :], n.dtype) for n in values}
        if len(rows) == 1 and all(n not in elsewhere and _suits(n, r, places) for n in values):
            planar.update(values)
    # it pays only where one is computed from values that are not planar, so column by column
    return planar if any(a not in planar for n in planar for a in n.args) else set()


def _suits(n: Node, r: Region, places: Places) -> bool:
    """Whether n has rows of several axes, the last of them short, and is computed and read at any strides."""
    row = n.shape[row_axes(n.shape, r.N) :]
    if len(row) < 2 or not 2 <= row[-1] <= short.FEW_COLUMNS or math.prod(row[:-1]) < SHORTEST_PLANE:
        return False
    if n.dtype.kind != "f" or not facts(n).any_strides or any(a.dtype != n.dtype for a in n.args):
        return False
    return all(u in r.members and _reads_at_any_strides(u, n, r) for u in places.schedule.readers(n))


def _reads_at_any_strides(u: Node, n: Node, r: Region) -> bool:
    """Whether u reads n itself, no view of it, element by element or as a sum of columns."""
    if u.dtype != n.dtype or any(root(a) is n and views_of(a) for a in u.args):
        return False
    if facts(u).reducer != "add":
        return facts(u).any_strides
    if u in r.sums:
        return len(u.attrs["axes"]) == row_axes(n.shape, r.N)
    last = n.ndim - 1
    return u.attrs["axes"] == (last,) or (u.attrs["axes"] == (last - 1,) and u.op == "sum")
