"""Which ops work row by row: what may run in one region, block after block, on several cores.

A region has N rows. A value with N rows has a prefix of its axes whose lengths multiply to N; its rows are
numbered in C order, so (B, T, C) and (B*T, C) have the same rows. An op works row by row if row r of its
result needs only row r of some arguments (`ROW`) and the whole of the others (`WHOLE`).
"""

from __future__ import annotations

from ..graph import Node
from ..ops import OPS

ROW, WHOLE = True, False


def row_axes(shape: tuple[int, ...], N: int) -> int | None:
    """How many leading axes make up N rows; None where no prefix does."""
    n = 1
    for p, s in enumerate(shape):
        if n == N:
            return p
        n *= s
    return len(shape) if n == N else None


def rest(shape: tuple[int, ...], N: int) -> tuple[int, ...]:
    """Shape of one row."""
    p = row_axes(shape, N)
    assert p is not None
    return shape[p:]


def by_rows(n: Node, N: int) -> tuple[bool, ...] | None:
    """For each argument ROW or WHOLE; None where `n` does not work row by row with N rows."""
    rule = _RULES.get(n.op)
    if rule is None and OPS[n.op].kind in ("elementwise", "nondiff") and OPS[n.op].ufunc is not None:
        rule = _elementwise
    if rule is None:
        return None
    p = row_axes(n.shape, N)
    return None if p is None else rule(n, N, p)


def sums_rows(n: Node) -> int:
    """N, if `n` adds up N rows of its argument into one value (a bias' gradient, say); else 0."""
    if n.op != "sum" or n.attrs["keepdims"]:
        return 0
    axes = n.attrs["axes"]
    p = 0
    while p in axes:
        p += 1
    N = 1
    for s in n.args[0].shape[:p]:
        N *= s
    return N if p else 0


def finest(n: Node) -> int:
    """The largest number of rows that `n` can be cut into, leaving the last axis whole; 1 if it cannot be."""
    if n.ndim == 0:
        return 1
    N = 1
    best = 1
    for s in n.shape[: max(1, n.ndim - 1)]:
        N *= s
        if N > 1 and by_rows(n, N) is not None:
            best = N
    return best


def _elementwise(n: Node, N: int, p: int):
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


def _reduction(n: Node, N: int, p: int):
    (x,) = n.args
    axes = n.attrs["axes"] if "axes" in n.attrs else (n.attrs["axis"],)
    same = x.shape[:p] == n.shape[:p]
    return (ROW,) if same and all(a >= p for a in axes) else None


def _along_axis(n: Node, N: int, p: int):
    """cumsum, take_along, ...: the axis lies within a row and every argument has the rows."""
    if n.attrs["axis"] < p or any(a.shape[:p] != n.shape[:p] for a in n.args):
        return None
    return (ROW,) * len(n.args)


def _reshape(n: Node, N: int, p: int):
    return (ROW,) if row_axes(n.args[0].shape, N) is not None else None


def _transpose(n: Node, N: int, p: int):
    return (ROW,) if n.attrs["perm"][:p] == tuple(range(p)) else None


def _full(index, shape, p: int) -> bool:
    return all(
        tuple(s) in ((0, m, 1), (None, None, None), (0, m, None), (0, None, 1))
        for s, m in zip(index[:p], shape)
    )


def _slice(n: Node, N: int, p: int):
    return (ROW,) if _full(n.attrs["index"], n.args[0].shape, p) else None


def _update(n: Node, N: int, p: int):
    x, v = n.args
    if not _full(n.attrs["index"], x.shape, p) or v.shape[:p] != x.shape[:p]:
        return None
    return (ROW, ROW)


def _assemble(n: Node, N: int, p: int):
    return (ROW,) * len(n.args) if all(_full(i, n.shape, p) for i in n.attrs["indices"]) else None


def _matmul(n: Node, N: int, p: int):
    return None if p > n.ndim - 2 else _elementwise_batch(n, p)


def _elementwise_batch(n: Node, p: int):
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


def _gather(n: Node, N: int, p: int):
    """Rows of a table: table[index], the index alone first and the rest of the table whole."""
    table, *arrays = n.args
    return (WHOLE, ROW) if takes_rows(n.attrs["spec"], table, arrays) and p <= arrays[0].ndim else None


def takes_rows(spec, table: Node, arrays) -> bool:
    """Whether an index picks whole rows of a table: one array, then nothing but full slices."""
    return (
        len(arrays) == 1
        and spec[0] == ("array", 0)
        and len(spec) <= table.ndim
        and all(tuple(s) in ((0, m, 1), (None, None, None)) for s, m in zip(spec[1:], table.shape[1:]))
    )


_RULES = {
    "where": _elementwise,
    "cast": _elementwise,
    "copy": _elementwise,
    "clip": _elementwise,
    "fused": _elementwise,
    "broadcast": _elementwise,
    "sum": _reduction,
    "max": _reduction,
    "min": _reduction,
    "prod": _reduction,
    "any": _reduction,
    "all": _reduction,
    "argmax": _reduction,
    "argmin": _reduction,
    "cumsum": _along_axis,
    "take_along": _along_axis,
    "scatter_along_add": _along_axis,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "update": _update,
    "assemble": _assemble,
    "matmul": _matmul,
    "gather": _gather,
}
