"""How ops work row by row: the rules of the columns `by_rows` and `adds_axes`.

A value with N rows has a prefix of its axes whose lengths multiply to N; its rows are numbered in C order, so
(B, T, C) and (B*T, C) have the same rows. An op works row by row if row r of its result needs only row r of
some arguments (`ROW`) and the whole of the others (`WHOLE`).

A rule is called as rule(n, N, p), where the first p axes of n make up its N rows. It gives for each argument
ROW or WHOLE, or None where n does not work row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Node

ROW, WHOLE = True, False


def row_axes(shape: tuple[int, ...], N: int) -> int | None:
    """How many leading axes make up N rows; None where no prefix does."""
    n = 1
    for p, s in enumerate(shape):
        if n == N:
            return p
        n *= s
    return len(shape) if n == N else None


Flags = tuple[bool, ...] | None


def elementwise(n: Node, N: int, p: int) -> Flags:
    """The rule of ops whose arguments are broadcast: each has the rows, or length 1 in place of them."""
    flags = []
    for a in n.args:
        padded = (1,) * (n.ndim - a.ndim) + a.shape
        if padded[:p] == n.shape[:p]:
            flags.append(ROW)
        elif all(s == 1 for s in padded[:p]):
            flags.append(WHOLE)
        else:
            return None
    return tuple(flags)


def reduction(n: Node, N: int, p: int) -> Flags:
    """The rule of reductions: the reduced axes lie within a row."""
    (x,) = n.args
    axes = n.attrs["axes"] if "axes" in n.attrs else (n.attrs["axis"],)
    same = x.shape[:p] == n.shape[:p]
    return (ROW,) if same and all(a >= p for a in axes) else None


def first_axes(n: Node) -> int:
    """The rule of sums for the column `adds_axes`: how many axes, from the first on, are reduced."""
    p = 0
    while p in n.attrs["axes"]:
        p += 1
    return p


def along_axis(n: Node, N: int, p: int) -> Flags:
    """The rule of ops along an axis that lies within a row, where every argument has the rows."""
    if n.attrs["axis"] < p or any(a.shape[:p] != n.shape[:p] for a in n.args):
        return None
    return (ROW,) * len(n.args)


def reshape(n: Node, N: int, p: int) -> Flags:
    return (ROW,) if row_axes(n.args[0].shape, N) is not None else None


def transpose(n: Node, N: int, p: int) -> Flags:
    return (ROW,) if n.attrs["perm"][:p] == tuple(range(p)) else None


def _full(index, shape, p: int) -> bool:
    return all(
        tuple(s) in ((0, m, 1), (None, None, None), (0, m, None), (0, None, 1))
        for s, m in zip(index[:p], shape)
    )


def slice_(n: Node, N: int, p: int) -> Flags:
    return (ROW,) if _full(n.attrs["index"], n.args[0].shape, p) else None


def update(n: Node, N: int, p: int) -> Flags:
    x, v = n.args
    if not _full(n.attrs["index"], x.shape, p) or v.shape[:p] != x.shape[:p]:
        return None
    return (ROW, ROW)


def assemble(n: Node, N: int, p: int) -> Flags:
    if any(a.shape[:p] != n.shape[:p] for a in n.args):  # of a part that is stretched over its slice
        return None
    return (ROW,) * len(n.args) if all(_full(i, n.shape, p) for i in n.attrs["indices"]) else None


def matmul(n: Node, N: int, p: int) -> Flags:
    return None if p > n.ndim - 2 else elementwise(n, N, p)


def gather(n: Node, N: int, p: int) -> Flags:
    """The rule of gathers that pick rows, table[index]: the index comes first, and no other axis is cut."""
    table, *arrays = n.args
    return (WHOLE, ROW) if takes_rows(n.attrs["spec"], table, arrays) and p <= arrays[0].ndim else None


def takes_rows(spec: Sequence, table: Node, arrays: Sequence[Node]) -> bool:
    """Whether an index picks whole rows of a table: one array, then nothing but full slices."""
    return (
        len(arrays) == 1
        and spec[0] == ("array", 0)
        and len(spec) <= table.ndim
        and all(tuple(s) in ((0, m, 1), (None, None, None)) for s, m in zip(spec[1:], table.shape[1:]))
    )
