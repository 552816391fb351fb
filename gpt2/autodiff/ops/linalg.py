"""Linear algebra on stacks of matrices: every argument has shape (..., M, N).

The rules are those of Giles 2008, "An extended collection of matrix derivative results for forward and
reverse mode algorithmic differentiation", in forward form; reverse mode transposes them. `t` is the tangent
of the argument.

cholesky and eigh read one triangle of their argument, and their derivative is that of the program: the
gradient has zeros in the other triangle. Eigenvectors and singular vectors have a derivative where their
values differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph import Node, float_text
from . import leads
from .build import adjoint, conjugate, expand, imag, item, real, reshape, square, sum_, swap_last, take_slice
from .table import Op, apply, const, float_dtype, real_dtype, row


def matrix_row(name: str, infer: Callable, evaluate: Callable | None = None, **columns: Any) -> Op:
    columns = {"code": lambda *args: f"np.linalg.{name}({', '.join(args)})", "leads": leads.STACKS, **columns}
    evaluate = evaluate or getattr(np.linalg, name)
    return row(name, "nonlinear", infer=infer, evaluate=evaluate, cost=100.0, **columns)


def _same(x):
    return x.shape, float_dtype(x.dtype)


# pieces of matrices, as products with constant masks
def eye(n: int, dtype: np.dtype) -> Node:
    return const(np.eye(n, dtype=real_dtype(dtype)))


def lower(n: int, dtype: np.dtype, diagonal: float = 1.0) -> Node:
    """A lower triangular matrix of ones, with `diagonal` on its diagonal."""
    d = real_dtype(dtype)
    return const(np.tril(np.ones((n, n), d), -1) + np.asarray(diagonal, d) * np.eye(n, dtype=d))


def diagonal(x: Node) -> Node:
    """The diagonals: (..., N, N) -> (..., N)."""
    return sum_(x * eye(x.shape[-1], x.dtype), -1)


def as_row(w: Node) -> Node:
    """A vector as a matrix of one row, which scales columns: (..., N) -> (..., 1, N)."""
    return reshape(w, (*w.shape[:-1], 1, w.shape[-1]))


def as_column(w: Node) -> Node:
    """A vector as a matrix of one column, which scales rows: (..., N) -> (..., N, 1)."""
    return reshape(w, (*w.shape, 1))


def inverse_gaps(w: Node) -> Node:
    """The matrix of 1 / (w_j - w_i), with 0 on its diagonal."""
    one = eye(w.shape[-1], w.dtype)
    return 1.0 / (as_row(w) - as_column(w) + one) - one


def hermitian(t: Node, uplo: str) -> Node:
    """The Hermitian matrix that the triangle of t stands for."""
    strict = lower(t.shape[-1], t.dtype, 0.0)
    if uplo == "U":
        strict = swap_last(strict)
    part = t * strict
    return part + adjoint(part) + real(t) * eye(t.shape[-1], t.dtype)


def solve(a: Node, b: Node) -> Node:
    return apply("solve", a, b)


def substituted(a: Node, b: Node) -> Node:
    """The x of a x = b for a lower triangular a; the row of the op is in triangular.py."""
    return apply("solve_triangular", a, b, upper=False)


def inv(x: Node) -> Node:
    return apply("inv", x)


# inverse, determinant, solution
matrix_row("inv", _same, jvp=lambda t, out, x: -(out @ t[0] @ out))


def _as_matrix(det: Node) -> Node:
    return reshape(det, (*det.shape, 1, 1))


def _cofactors(x, det):
    """By the inverse, or where that has lost digits by singular values."""
    try:
        inverse = np.linalg.inv(x)
    except np.linalg.LinAlgError:
        return _turned_cofactors(x)
    condition = np.linalg.norm(x, axis=(-2, -1)) * np.linalg.norm(inverse, axis=(-2, -1))
    return _turned_cofactors(x) if np.any(condition > 1e5) else det * np.swapaxes(inverse, -1, -2)


def _turned_cofactors(x, e=None):
    """The cofactors of matrices u s vh of any rank, or the derivative of them in the direction e. Those of
    the diagonal matrix s are products of all its elements but one, their derivatives of all but two.
    """
    dtype = float_dtype(np.result_type(x, *([] if e is None else [e])))
    finite = np.all(np.isfinite(x), (-2, -1), keepdims=True)
    n, (u, s, vh) = np.shape(x)[-1], np.linalg.svd(np.where(finite, x, 0.0))
    size = np.where(s[..., :1] == 0.0, 1.0, s[..., :1]).astype(float)
    s = np.maximum(s / size, 1e-150)  # 1e-150 stands for 0 in quotients of products
    others = np.prod(s, -1, keepdims=True) / s
    if e is None:
        inner = (others * size ** (n - 1))[..., None] * np.eye(n)
    else:
        pairs = others[..., None] / s[..., None, :] * (1.0 - np.eye(n)) * size[..., None] ** float(n - 2)
        m = np.conj(np.swapaxes(u, -1, -2)) @ e @ np.conj(np.swapaxes(vh, -1, -2))
        inner = pairs @ np.diagonal(m, axis1=-2, axis2=-1)[..., None] * np.eye(n)
        inner = inner - pairs * np.swapaxes(m, -1, -2)
    turn = (np.linalg.det(u) * np.linalg.det(vh))[..., None, None]
    return np.where(finite, turn * (np.conj(u) @ inner @ np.conj(vh)), np.nan).astype(dtype)


def _third_derivative(x, e, t):
    """Of det along e and t, as the matrix of its derivatives. By the inverse: not of singular matrices."""
    b = inv(x)
    be, bt = b @ e, b @ t
    along_e, along_t, both = (as_column(sum_(diagonal(m), -1, keepdims=True)) for m in (be, bt, be @ bt))
    turned = (along_e * along_t - both) * b - along_e * (bt @ b) - along_t * (be @ b)
    return swap_last(_as_matrix(apply("det", x)) * (turned + (be @ bt + bt @ be) @ b))


def _along_jvp(t, out, x, e):
    along = None if t[1] is None else apply("cofactors_along", x, t[1])
    if t[0] is None:
        return along
    moved = _third_derivative(x, e, t[0])
    return moved if along is None else moved + along


matrix_row(
    "det",
    lambda x: (x.shape[:-2], float_dtype(x.dtype)),
    jvp=lambda t, out, x: sum_(apply("cofactors", x, _as_matrix(out)) * t[0], (-2, -1)),
)
# the derivative of det, which is given as (..., 1, 1); and the derivative of that in a direction
matrix_row(
    "cofactors",
    lambda x, det: _same(x),
    evaluate=_cofactors,
    code=None,
    jvp=lambda t, out, x, det: apply("cofactors_along", x, t[0]),
)
matrix_row(
    "cofactors_along",
    lambda x, e: (np.broadcast_shapes(x.shape, e.shape), float_dtype(np.result_type(x.dtype, e.dtype))),
    evaluate=_turned_cofactors,
    code=None,
    jvp=_along_jvp,
    transpose=lambda g, out, x, e: (
        lambda: _third_derivative(x, e, g),
        lambda: apply("cofactors_along", x, g),
    ),
)


def _slogdet_jvp(t, out, x):
    growth = sum_(swap_last(inv(x)) * t[0], (-2, -1))
    if x.dtype.kind != "c":
        return None, growth  # the sign is piecewise constant
    return item(out, 0) * imag(growth) * 1j, real(growth)


matrix_row(
    "slogdet",
    lambda x: ((x.shape[:-2],) * 2, (float_dtype(x.dtype), real_dtype(float_dtype(x.dtype)))),
    jvp=_slogdet_jvp,
)


def solve_infer(a: Node, b: Node) -> tuple[tuple[int, ...], np.dtype]:
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (*lead, *b.shape[-2:]), float_dtype(np.result_type(a.dtype, b.dtype))


def _solve_jvp(t, out, a, b):
    ta, tb = t
    if ta is None:
        return solve(a, tb)
    return solve(a, -(ta @ out) if tb is None else tb - ta @ out)


def _solve_transpose(g, out, a, b):
    db = solve(swap_last(a), g)
    return lambda: -(db @ swap_last(out)), db


# b is a matrix: the recorder gives a vector a second axis
matrix_row("solve", solve_infer, jvp=_solve_jvp, transpose=_solve_transpose)


def _pinv_jvp(t, out, x, rcond):
    """The tangent of a pseudoinverse, for matrices whose rank stays. Golub and Pereyra 1973."""
    t = t[0]
    outside_rows = eye(x.shape[-2], x.dtype) - x @ out
    outside_columns = eye(x.shape[-1], x.dtype) - out @ x
    left = out @ (adjoint(out) @ adjoint(t)) @ outside_rows
    return left + outside_columns @ (adjoint(t) @ adjoint(out)) @ out - out @ t @ out


matrix_row(
    "pinv",
    lambda x, rcond: ((*x.shape[:-2], x.shape[-1], x.shape[-2]), float_dtype(x.dtype)),
    evaluate=lambda x, rcond: np.linalg.pinv(x) if rcond is None else np.linalg.pinv(x, rcond),
    code=lambda x, rcond: f"np.linalg.pinv({x}{'' if rcond is None else f', {float_text(rcond)}'})",
    jvp=_pinv_jvp,
)


# factorisations
def _cholesky_jvp(t, out, x):
    t = hermitian(t[0], "L")
    inner = substituted(out, adjoint(substituted(out, t)))  # L^-1 t L^-H, which is Hermitian
    return out @ (inner * lower(x.shape[-1], x.dtype, 0.5))


matrix_row("cholesky", _same, jvp=_cholesky_jvp)


def _qr_infer(x):
    *lead, m, n = x.shape
    return ((*lead, m, min(m, n)), (*lead, min(m, n), n)), (float_dtype(x.dtype),) * 2


def _qr_jvp(t, out, x):
    """The tangents of q and r: Q^H dQ is skew and dR R^-1 upper triangular; together they are Q^H dA R^-1."""
    t, (q, r) = t[0], (item(out, 0), item(out, 1))
    k = r.shape[-2]
    square_r, square_t = r, t
    if x.shape[-1] > k:  # a wide matrix: its left square part settles Q
        square_r, square_t = take_slice(r, -1, 0, k), take_slice(t, -1, 0, k)
    y = swap_last(solve(swap_last(square_r), swap_last(square_t)))  # t R^-1
    inner = adjoint(q) @ y
    below = inner * lower(k, x.dtype, 0.0)
    skew = below - adjoint(below)
    if x.dtype.kind == "c":
        skew = skew + imag(inner) * eye(k, x.dtype) * 1j
    dq = q @ (skew - inner) + y
    return dq, adjoint(dq) @ x + adjoint(q) @ t


# the reduced form: Q (..., M, K), R (..., K, N), K = min(M, N)
matrix_row("qr", _qr_infer, evaluate=lambda x: tuple(np.linalg.qr(x)), jvp=_qr_jvp)


def _eigh_jvp(t, out, x, uplo):
    w, v = item(out, 0), item(out, 1)
    inner = adjoint(v) @ hermitian(t[0], uplo) @ v
    return real(diagonal(inner)), v @ (inner * inverse_gaps(w))


matrix_row(
    "eigh",
    lambda x, uplo: ((x.shape[:-1], x.shape), (real_dtype(float_dtype(x.dtype)), float_dtype(x.dtype))),
    evaluate=lambda x, uplo: tuple(np.linalg.eigh(x, uplo)),
    code=lambda x, uplo: f"np.linalg.eigh({x}{'' if uplo == 'L' else ', ' + repr(uplo)})",
    jvp=_eigh_jvp,
)


def _eig_jvp(t, out, x, dtype):
    """v^-1 dA v has dw on its diagonal. Two more terms keep what LAPACK keeps: columns of length 1 whose
    largest entry is real."""
    w, v = item(out, 0), item(out, 1)
    inner = solve(v, t[0] @ v)
    dv = v @ (inner * inverse_gaps(w))
    dv = dv - v * as_row(sum_(real(conjugate(v) * dv), -2))
    if v.dtype.kind == "c":
        axis = v.ndim - 2
        largest = expand(apply("argmax", apply("absolute", v), axis=axis), (axis,), v.ndim)
        turn = apply("take_along", dv, largest, axis=axis) / apply("take_along", v, largest, axis=axis)
        dv = dv - v * imag(turn) * 1j
    return diagonal(inner), dv


def _eig(x, dtype):
    """numpy.linalg.eig in a dtype settled beforehand: NumPy before 2.5 gives reals if all values happen to be
    real, and complex numbers from then on."""
    w, v = np.linalg.eig(x)
    if np.iscomplexobj(w) and np.dtype(dtype).kind != "c":
        if np.any(w.imag):
            raise ValueError("eig: complex eigenvalues, where the recording had real ones")
        w, v = w.real, v.real
    return w.astype(dtype), v.astype(dtype)


# dtype: that of the values and vectors, real or complex, as NumPy gave it while recording
matrix_row(
    "eig",
    lambda x, dtype: ((x.shape[:-1], x.shape), (np.dtype(dtype),) * 2),
    evaluate=_eig,
    code=None,
    jvp=_eig_jvp,
)


def _svd_infer(x, full_matrices):
    *lead, m, n = x.shape
    k, d = min(m, n), float_dtype(x.dtype)
    inner_m, inner_n = (m, n) if full_matrices else (k, k)
    return ((*lead, m, inner_m), (*lead, k), (*lead, inner_n, n)), (d, real_dtype(d), d)


def _no_full_vectors():
    raise NotImplementedError(
        "np.linalg.svd: the vectors of a matrix that is not square have a derivative only with "
        "full_matrices=False"
    )


def _svd_jvp(t, out, x, full_matrices):
    """The tangents of u, s and v. Townsend 2016, "Differentiating the singular value decomposition"."""
    t, (u, s, vh) = t[0], (item(out, i) for i in range(3))
    m, n = x.shape[-2:]
    if full_matrices and m != n:
        # the vectors of the null space are arbitrary: only the singular values have a derivative
        thin = apply("svd", x, full_matrices=False)
        u, vh = item(thin, 0), item(thin, 2)
        return _no_full_vectors, real(diagonal(adjoint(u) @ t @ adjoint(vh))), _no_full_vectors
    v = adjoint(vh)
    inner = adjoint(u) @ t @ v
    k = s.shape[-1]
    gaps = inverse_gaps(square(s))
    columns_scaled, rows_scaled = inner * as_row(s), inner * as_column(s)
    du = u @ ((columns_scaled + adjoint(columns_scaled)) * gaps)
    dv = v @ ((rows_scaled + adjoint(rows_scaled)) * gaps)
    if x.dtype.kind == "c":
        du = du + u @ (imag(inner) * eye(k, x.dtype) / as_row(s) * 1j)
    if m > k:
        y = t @ v
        du = du + (y - u @ (adjoint(u) @ y)) / as_row(s)
    if n > k:
        y = adjoint(t) @ u
        dv = dv + (y - v @ (vh @ y)) / as_row(s)
    return du, real(diagonal(inner)), adjoint(dv)


matrix_row(
    "svd",
    _svd_infer,
    evaluate=lambda x, full_matrices: tuple(np.linalg.svd(x, full_matrices)),
    code=lambda x, full_matrices: f"np.linalg.svd({x}, full_matrices={full_matrices})",
    jvp=_svd_jvp,
)
