"""What rows of a value are, for programs that run in blocks of them.

A value with N rows has a prefix of its axes whose lengths multiply to N; its rows are numbered in C order, so
(B, T, C) and (B*T, C) have the same rows. An op works row by row if row r of its result needs only row r of
some arguments (`ROW`) and the whole of the others (`WHOLE`); the rules in leads.py say so.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Node

ROW, WHOLE = True, False
Flags = tuple[bool, ...] | None


def row_axes(shape: tuple[int, ...], N: int) -> int | None:
    """How many leading axes make up N rows; None where no prefix does."""
    n = 1
    for p, s in enumerate(shape):
        if n == N:
            return p
        n *= s
    return len(shape) if n == N else None


def first_axes(n: Node) -> int:
    """The rule of sums for the column `adds_axes`: how many axes, from the first on, are reduced."""
    p = 0
    while p in n.attrs["axes"]:
        p += 1
    return p


def takes_rows(spec: Sequence, table: Node, arrays: Sequence[Node]) -> bool:
    """Whether an index picks whole rows of a table: one array, then nothing but full slices."""
    if len(arrays) != 1 or spec[0] != ("array", 0) or len(spec) > table.ndim:
        return False
    return all(tuple(s) in ((0, m, 1), (None, None, None)) for s, m in zip(spec[1:], table.shape[1:]))
