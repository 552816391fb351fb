"""Equations with a triangular matrix, by substitution in blocks: a third of the time of numpy.linalg.solve.

The blocks of the diagonal are inverted, all at once, and the rest are products of matrices.
"""

from __future__ import annotations

import numpy as np

from ..graph import Node
from .build import swap_last
from .linalg import lower, matrix_row, solve_infer
from .table import apply, float_dtype

BLOCK = 32  # rows
SMALL = 8  # rows of a block that is inverted by LAPACK


def evaluate(a: np.ndarray, b: np.ndarray, upper: bool) -> np.ndarray:
    """The x of T x = b, where T is the lower or upper triangle of a (..., N, N), and b (..., N, K)."""
    if a.shape[-1] <= BLOCK:
        return np.linalg.solve(np.triu(a) if upper else np.tril(a), b)
    dtype = float_dtype(np.result_type(a.dtype, b.dtype))
    a = a.astype(dtype, copy=False)  # or the inverses were of fewer digits than the result
    inverses = _inverses(a, upper)
    n = a.shape[-1]
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = np.empty((*lead, *b.shape[-2:]), dtype)
    blocks = [(k, i, min(i + BLOCK, n)) for k, i in enumerate(range(0, n, BLOCK))]
    for k, i, j in reversed(blocks) if upper else blocks:
        known = slice(j, n) if upper else slice(0, i)
        right = b[..., i:j, :]
        if known.start < known.stop:
            right = right - a[..., i:j, known] @ x[..., known, :]
        np.matmul(inverses[..., k, : j - i, : j - i], right, out=x[..., i:j, :])
    return x


def _inverses(a: np.ndarray, upper: bool) -> np.ndarray:
    """The inverses of the blocks on the diagonal, (..., blocks, BLOCK, BLOCK). The last one may have fewer
    rows: ones stand on the diagonal of the rest."""
    n = a.shape[-1]
    blocks = np.zeros((*a.shape[:-2], -(-n // BLOCK), BLOCK, BLOCK), float_dtype(a.dtype))
    for k, i in enumerate(range(0, n, BLOCK)):
        part = a[..., i : i + BLOCK, i : i + BLOCK]
        blocks[..., k, : part.shape[-1], : part.shape[-1]] = part if upper else part.swapaxes(-1, -2)
    rest = np.arange(n % BLOCK or BLOCK, BLOCK)
    blocks[..., -1, rest, rest] = 1.0
    inverse = _inverse(np.triu(blocks))
    return inverse if upper else inverse.swapaxes(-1, -2)


def _inverse(t: np.ndarray) -> np.ndarray:
    """Of upper triangles (..., s, s): from those of their halves, two products for all at once."""
    s = t.shape[-1]
    if s <= SMALL:
        return np.linalg.inv(t)
    first, second = slice(0, s // 2), slice(s // 2, s)
    p, q = _inverse(np.stack([t[..., first, first], t[..., second, second]]))
    inverse = np.zeros_like(t)
    inverse[..., first, first], inverse[..., second, second] = p, q
    inverse[..., first, second] = -(p @ t[..., first, second] @ q)
    return inverse


def solve_triangular(a: Node, b: Node, upper: bool = False) -> Node:
    return apply("solve_triangular", a, b, upper=upper)


def triangle_of(x: Node, upper: bool) -> Node:
    """The triangle of a matrix, zeros elsewhere."""
    ones = lower(x.shape[-1], x.dtype)
    return x * (swap_last(ones) if upper else ones)


def _jvp(t, out, a, b, upper):
    ta, tb = t
    if ta is None:
        return solve_triangular(a, tb, upper)
    moved = triangle_of(ta, upper) @ out
    return solve_triangular(a, -moved if tb is None else tb - moved, upper)


def _transpose(g, out, a, b, upper):
    db = solve_triangular(swap_last(a), g, not upper)
    return lambda: triangle_of(-(db @ swap_last(out)), upper), db


matrix_row(
    "solve_triangular",
    lambda a, b, upper: solve_infer(a, b),
    evaluate=evaluate,
    code=None,  # NumPy has no name for it
    jvp=_jvp,
    transpose=_transpose,
)
