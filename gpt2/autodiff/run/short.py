"""Arrays whose last axis is short, as that of points in space is: column by column instead of row by row.

NumPy's inner loop goes along the last axis wherever axes cannot be joined: in a sum over it, or where one
operand is broadcast. For three numbers it is entered again and again: some 12 ns for each row, where a number
takes 0.3. These functions give the same bits in a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

LONGEST = 15  # elements at most of a last axis
FEW_COLUMNS = 4  # of elementwise functions, which gain less
MOST_COLUMNS = 32  # of extremes, for which NumPy needs as long for a row of 20 as for one of 60
FEWEST = 64  # rows, below which a call for every column costs more
AGAIN = 8  # reads of a column, from which a contiguous copy pays
IN_ORDER = 7  # elements that NumPy adds up one after the other, where more are added in pairs
TOGETHER = 1 << 14  # products that are in memory at once
AT_ONCE = 4096  # rows whose sums in pairs are in memory at once


def sum_last(x: np.ndarray, out: np.ndarray) -> None:
    """np.add.reduce(x, axis=-1, out=out) for a last axis of 2 to LONGEST elements; out is no part of x."""
    n = x.shape[-1]
    if out.size < FEWEST or (n >= 8 and not (x.flags.c_contiguous and out.flags.c_contiguous)):
        np.add.reduce(x, axis=x.ndim - 1, out=out)
        return
    if n >= 8:
        rows, sums = x.reshape(-1, n), out.reshape(-1)
        scratch = np.empty((2, min(len(rows), AT_ONCE)), out.dtype)
        for i in range(0, len(rows), AT_ONCE):
            _sum_in_pairs(rows[i : i + AT_ONCE].T, sums[i : i + AT_ONCE], scratch)
    else:
        np.add(x[..., 0], x[..., 1], out=out)
        for k in range(2, n):
            np.add(out, x[..., k], out=out)
    np.add(out, 0.0, out=out)  # NumPy starts from 0.0, so that a sum of nothing but -0.0 is 0.0


def sum_products(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """np.add.reduce(a * b, axis=-1, out=out) for a last axis of 2 to IN_ORDER elements, at the same bits; out
    is no part of a or b. The products are made a column of some rows at a time, and stay in cache."""
    n = a.shape[-1]
    rows = max(1, TOGETHER * len(out) // max(out.size, 1))
    scratch = np.empty_like(out[:rows], order="C")
    for i in range(0, len(out), rows):
        x, y, sums = a[i : i + rows], b[i : i + rows], out[i : i + rows]
        product = scratch[: len(sums)]
        np.multiply(x[..., 0], y[..., 0], out=sums)
        for k in range(1, n):
            np.multiply(x[..., k], y[..., k], out=product)
            np.add(sums, product, out=sums)
        np.add(sums, 0.0, out=sums)  # as in sum_last


def _sum_in_pairs(columns: np.ndarray, out: np.ndarray, scratch: np.ndarray) -> None:
    """The sum of 8 to 15 columns in NumPy's order: of eight in pairs of pairs, then one after the other."""
    s, t = scratch[:, : len(out)]
    a, b, c, d, e, f, g, h, *rest = columns
    np.add(a, b, out=out)
    np.add(c, d, out=s)
    np.add(out, s, out=out)
    np.add(e, f, out=s)
    np.add(g, h, out=t)
    np.add(s, t, out=s)
    np.add(out, s, out=out)
    for column in rest:
        np.add(out, column, out=out)


def by_columns(f: Callable, *args: np.ndarray | float, out: np.ndarray) -> np.ndarray:
    """f(*args, out=out) for a ufunc that computes each element by itself; out is no part of an argument, or
    is one of them."""
    n = out.shape[-1]
    if out.size < FEWEST * n:
        return f(*args, out=out)
    small = [isinstance(a, np.ndarray) and AGAIN * a.size <= out.size for a in args]
    for k in range(n):
        columns = [_column(a, k) for a in args]
        f(*[np.ascontiguousarray(c) if s else c for c, s in zip(columns, small)], out=out[..., k])
    return out


def sum_in_planes(x: np.ndarray, ones: np.ndarray, out: np.ndarray) -> None:
    """The sum over the axis before the last, of an array whose last axis comes first in memory."""
    for k in range(x.shape[-1]):
        plane = x[..., k]
        out[..., k] = np.matmul(plane.reshape(-1, plane.shape[-1]), ones).reshape(plane.shape[:-1])


def add_planes(x: np.ndarray, ones: np.ndarray, out: np.ndarray) -> None:
    """The sum over the first axis of such an array; there are as many ones as it has rows, or more."""
    for k in range(x.shape[-1]):
        plane = x[..., k].reshape(len(x), -1)
        out[..., k] = np.matmul(ones[: len(x)], plane).reshape(out.shape[:-1])


def extreme_last(f: np.ufunc, x: np.ndarray, out: np.ndarray) -> None:
    """f.reduce(x, axis=-1, out=out) for np.minimum or np.maximum and a last axis of 2 to MOST_COLUMNS."""
    if out.size < FEWEST:
        f.reduce(x, axis=x.ndim - 1, out=out)
        return
    f(x[..., 0], x[..., 1], out=out)
    for k in range(2, x.shape[-1]):
        f(out, x[..., k], out=out)


def put_where(out: np.ndarray, value: np.ndarray | float, where: np.ndarray) -> None:
    """np.copyto(out, value, where=where)"""
    n = out.shape[-1]
    if out.size < FEWEST * n:
        np.copyto(out, value, where=where)
        return
    for k in range(n):
        np.copyto(out[..., k], _column(value, k), where=_column(where, k))


def _column(a: np.ndarray | float, k: int) -> np.ndarray | float:
    """The part of a that broadcasts against column k."""
    if not isinstance(a, np.ndarray) or a.ndim == 0:
        return a
    return a[..., 0 if a.shape[-1] == 1 else k]
