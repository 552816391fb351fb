"""Functions of matrices that SciPy has: expm, logm, sqrtm, sinm, cosm. Loaded on first use.

    matrix_function(x; which)     scipy.linalg's function of that name, of stacks of matrices (..., N, N)
    frechet(x, e; which)          its derivative at x in the direction e, which is linear in e

The derivative is a block of the function of a larger matrix (Mathias 1996), whatever the function:

    f([[x, e], [0, x]]) = [[f(x), L(x, e)], [0, f(x)]]

and its transpose is itself at x^T: <g, L(x, e)> = <L(x^T, g), e>. The derivative of L is computed in the same
way, from a matrix four times as large, so derivatives of any order follow.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from ...graph import Node
from ...ops import leads
from ...ops.build import assemble, full_index, slice_, swap_last
from ...ops.table import apply, float_dtype, row

FUNCTIONS = ("expm", "logm", "sqrtm", "sinm", "cosm")


def _of_stack(x: np.ndarray, which: str, dtype: np.dtype) -> np.ndarray:
    function = getattr(scipy.linalg, which)
    x = np.asarray(x)
    flat = x.reshape((-1, *x.shape[-2:]))
    results = [np.asarray(function(m)) for m in flat]
    for m in results:
        if m.dtype.kind == "c" and dtype.kind != "c" and np.max(np.abs(m.imag), initial=0.0) > 0.0:
            raise ValueError(f"{which}: the result is complex, where the matrix is real. Pass it as complex")
    results = [m.astype(dtype) if dtype.kind == "c" else m.real.astype(dtype) for m in results]
    return np.stack(results).reshape(x.shape) if results else np.zeros(x.shape, dtype)


def _evaluate_frechet(x, e, which):
    x, e = np.broadcast_arrays(x, e)
    n = x.shape[-1]
    dtype = np.result_type(x.dtype, e.dtype)
    if which == "sqrtm" and x.size and np.any(np.linalg.cond(x) > 1.0 / np.finfo(dtype).eps):
        flat = zip(x.reshape(-1, n, n), e.reshape(-1, n, n))
        return np.reshape([_steep_root(*pair) for pair in flat], x.shape).astype(dtype)
    zero = np.zeros(x.shape, dtype)
    whole = np.concatenate([np.concatenate([x, e], -1), np.concatenate([zero, x], -1)], -2)
    return _of_stack(whole, which, dtype)[..., :n, n:]


def _steep_root(x, e):
    """The derivative of a singular matrix's root, in part infinite; nan: too few eigenvectors."""
    w, v = np.linalg.eig(x.astype(complex))
    if np.linalg.cond(v) > 1e6:
        return np.full(x.shape, np.nan)
    root = np.sqrt(np.where(np.abs(w) < 1e-15 * len(w) * np.max(np.abs(w)), 0.0, w))
    sums, inner, back = root[:, None] + root, np.linalg.solve(v, e @ v), np.linalg.inv(v)
    steep = np.real(v @ np.where(sums == 0.0, inner, 0.0) @ back)
    finite = np.real(v @ (inner * (sums != 0.0) / np.where(sums == 0.0, 1.0, sums)) @ back)
    return np.where(np.abs(steep) > 1e-12 * np.max(np.abs(e)), np.copysign(np.inf, steep), finite)


def _corner(x: Node, i: int, j: int) -> tuple:
    n = x.shape[-1]
    return (*full_index(x.shape[:-2]), (i * n, (i + 1) * n, 1), (j * n, (j + 1) * n, 1))


def _block(x: Node, *blocks: tuple[Node, int, int]) -> Node:
    """A matrix of 2 by 2 blocks of the shape of x, zero except for the given ones."""
    n = x.shape[-1]
    parts = [p for p, _, _ in blocks]
    corners = [_corner(x, i, j) for _, i, j in blocks]
    return assemble(parts, (*x.shape[:-2], 2 * n, 2 * n), corners, x.dtype)


def frechet(x: Node, e: Node, which: str) -> Node:
    return apply("frechet", x, e, which=which)


def _frechet_jvp(t, out, x, e, which):
    tx, te = t
    along = None if te is None else frechet(x, te, which)
    if tx is None:
        return along
    larger = frechet(_block(x, (x, 0, 0), (e, 0, 1), (x, 1, 1)), _block(x, (tx, 0, 0), (tx, 1, 1)), which)
    moved = slice_(larger, _corner(x, 0, 1))
    return moved if along is None else moved + along


def _frechet_transpose(g, out, x, e, which):
    def dx():
        turned = swap_last(_block(x, (x, 0, 0), (e, 0, 1), (x, 1, 1)))
        larger = frechet(turned, _block(x, (g, 0, 1)), which)
        return slice_(larger, _corner(x, 0, 0)) + slice_(larger, _corner(x, 1, 1))

    return dx, lambda: frechet(swap_last(x), g, which)


row(
    "matrix_function",
    "nonlinear",
    infer=lambda x, which: (x.shape, float_dtype(x.dtype)),
    evaluate=lambda x, which: _of_stack(x, which, float_dtype(np.asarray(x).dtype)),
    jvp=lambda t, out, x, which: frechet(x, t[0], which),
    cost=1000.0,
    needs="scipy",
    leads=leads.STACKS,
)

row(
    "frechet",
    "nonlinear",
    infer=lambda x, e, which: (
        (*np.broadcast_shapes(x.shape[:-2], e.shape[:-2]), *x.shape[-2:]),
        np.result_type(float_dtype(x.dtype), e.dtype),
    ),
    evaluate=_evaluate_frechet,
    jvp=_frechet_jvp,
    transpose=_frechet_transpose,
    cost=4000.0,
    needs="scipy",
    leads=leads.STACKS,
)
