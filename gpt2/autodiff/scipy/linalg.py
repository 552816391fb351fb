"""scipy.linalg: compositions of numpy.linalg's functions; functions of matrices are ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg as _scipy

from ..custom.custom import custom_vjp
from ..record.record import apply_op
from .passing import names_of, ours, unsupported_option
from .rules import matrix_functions

__getattr__, __dir__ = names_of(_scipy)


def _adjoint(a):
    """The conjugate transpose."""
    return np.conj(np.swapaxes(a, -1, -2))


# ---- Functions of a matrix -------------------------------------------------------------------------------


def _matrix_function(name: str) -> Callable:
    def function(A: Any) -> Any:
        return apply_op("matrix_function", A, which=name)

    function.__name__ = function.__qualname__ = name
    return ours(_scipy)(function)


expm, logm, sqrtm, sinm, cosm = map(_matrix_function, matrix_functions.FUNCTIONS)


inv, det, svd = map(ours(_scipy), (np.linalg.inv, np.linalg.det, np.linalg.svd))


@ours(_scipy)
def pinv(a, *, rtol=None) -> Any:
    """SciPy leaves out singular values up to max(a.shape) eps times the largest, NumPy up to 1e-15 of it."""
    return np.linalg.pinv(a, rtol=rtol)


@ours(_scipy)
def norm(a, ord=None, axis=None, keepdims=False) -> Any:
    return np.linalg.norm(a, ord, axis, keepdims)


# ---- Factorisations --------------------------------------------------------------------------------------


@ours(_scipy)
def cholesky(a, lower=False) -> Any:
    """Of the triangle that SciPy reads: the upper one unless lower=True."""
    return np.linalg.cholesky(a) if lower else _adjoint(np.linalg.cholesky(_adjoint(a)))


@ours(_scipy)
def cho_factor(a, lower=False) -> Any:
    """The factor, with zeros in the other triangle."""
    return cholesky.__wrapped__(a, lower), lower


@ours(_scipy)
def eigh(a, b=None, *, lower=True, eigvals_only=False, subset_by_index=None, subset_by_value=None) -> Any:
    """A subset is selected from all eigenvalues and vectors."""
    if b is None:
        w, v = np.linalg.eigh(a, "L" if lower else "U")
    else:
        half = np.linalg.cholesky(b if lower else _adjoint(b))
        inner = np.linalg.solve(half, _adjoint(np.linalg.solve(half, _adjoint(_hermitian(a, lower)))))
        w, v = np.linalg.eigh(inner)
        v = np.linalg.solve(_adjoint(half), v)
    chosen = slice(None)
    if subset_by_index is not None:
        low, high = subset_by_index
        chosen = slice(int(low), int(high) + 1)
    elif subset_by_value is not None:
        low, high = subset_by_value
        chosen = np.flatnonzero((low < w) & (w <= high))
    return w[..., chosen] if eigvals_only else (w[..., chosen], v[..., :, chosen])


@ours(_scipy)
def eigvalsh(a, b=None, *, lower=True, subset_by_index=None, subset_by_value=None) -> Any:
    return eigh(
        a, b, lower=lower, eigvals_only=True, subset_by_index=subset_by_index, subset_by_value=subset_by_value
    )


@ours(_scipy)
def svdvals(a) -> Any:
    return np.linalg.svd(a, compute_uv=False)


@custom_vjp
def _pivots(a):
    return _scipy.qr(a, mode="r", pivoting=True)[-1]


_pivots.defvjp(lambda dout, out, a: (None,))


@ours(_scipy)
def qr(a, mode="full", pivoting=False) -> Any:
    if pivoting:
        if np.ndim(a) != 2:
            raise unsupported_option("scipy.linalg.qr", "of several matrices with pivoting")
        order = _pivots(a)  # of the columns, which does not change with small changes of a
        return (*qr(a[:, order], mode=mode), order)
    if mode not in ("full", "economic"):
        raise unsupported_option("scipy.linalg.qr", f"with mode={mode!r}")
    return tuple(np.linalg.qr(a, "complete" if mode == "full" else "reduced"))


# ---- Equations -------------------------------------------------------------------------------------------


def _hermitian(a, lower: bool):
    part = np.tril(a, -1) if lower else np.triu(a, 1)
    n = a.shape[-1]
    return part + _adjoint(part) + np.real(a) * np.eye(n)


@ours(_scipy)
def solve(a, b, lower=False, assume_a=None, transposed=False) -> Any:
    """numpy.linalg.solve; reads one triangle if assume_a says that the matrix is symmetric or Hermitian."""
    if assume_a in ("pos", "her", "positive definite", "hermitian", "sym", "symmetric"):
        if assume_a.startswith("sym") and np.iscomplexobj(a):
            raise unsupported_option("scipy.linalg.solve", "of a complex symmetric matrix")
        a = _hermitian(a, lower)
    elif assume_a not in (None, "gen", "general"):
        raise unsupported_option("scipy.linalg.solve", f"with assume_a={assume_a!r}")
    return np.linalg.solve(np.swapaxes(a, -1, -2) if transposed else a, b)


@ours(_scipy)
def solve_triangular(a, b, trans=0, lower=False, unit_diagonal=False) -> Any:
    n = np.shape(a)[-1]
    if unit_diagonal:
        a = (np.tril(a, -1) if lower else np.triu(a, 1)) + np.eye(n)
    if trans in (1, "T"):
        a, lower = np.swapaxes(a, -1, -2), not lower
    elif trans in (2, "C"):
        a, lower = _adjoint(a), not lower
    return _substituted(a, b, lower)


def _substituted(a, b, lower):
    """The x of a x = b, of the lower or upper triangle of a."""
    upper = not lower
    if np.ndim(b) == 1:
        return apply_op("solve_triangular", a, np.reshape(b, (-1, 1)), upper=upper)[..., 0]
    return apply_op("solve_triangular", a, b, upper=upper)


@ours(_scipy)
def cho_solve(c_and_lower, b) -> Any:
    c, lower = c_and_lower
    c = c if lower else _adjoint(c)
    return _substituted(_adjoint(c), _substituted(c, b, True), False)


@custom_vjp
def _factors(a):
    """(L below the diagonal and U, the permutation of rows, its inverse, SciPy's pivots)."""
    lu, piv = _scipy.lu_factor(a)
    return lu, *_order_and_inverse(piv), piv.astype(np.intp)


@_factors.defvjp
def _factors_vjp(dout, out, a):
    """With permuted rows, da = L^-T (strictly lower part of L^T dL + upper part of dU U^T) U^-T."""
    (dlu, *_), (lu, _, place, _) = dout, out
    lower, upper = _unit_lower(lu), np.triu(lu)
    inner = np.tril(lower.T @ np.tril(dlu, -1), -1) + np.triu(np.triu(dlu) @ upper.T)
    left = _substituted(lower.T, inner, False)
    return (_substituted(upper, left.T, False).T[place],)


@ours(_scipy)
def lu_factor(a) -> Any:
    """The factors with derivatives, and the pivots, which have none."""
    if np.ndim(a) != 2 or np.shape(a)[0] != np.shape(a)[1]:
        raise unsupported_option(
            "scipy.linalg.lu_factor", f"of an array of shape {np.shape(a)}, not one square,"
        )
    lu, _, _, piv = _factors(a)
    return lu, piv


def _unit_lower(lu):
    return np.tril(lu, -1) + np.eye(np.shape(lu)[-1])


def _order_and_inverse(piv):
    """The permutation of rows by a list of exchanges, and its inverse."""
    order = np.arange(len(piv))
    for i, p in enumerate(piv):
        order[[i, p]] = order[[p, i]]
    return order, np.argsort(order)


_row_order = custom_vjp(_order_and_inverse)
_row_order.defvjp(lambda dout, out, piv: (None,))


@ours(_scipy)
def lu_solve(lu_and_piv, b, trans=0) -> Any:
    """The pivots are constants: the derivative is by the factors and b."""
    lu, piv = lu_and_piv
    order, place = _row_order(piv)
    lower, upper = _unit_lower(lu), np.triu(lu)
    if trans == 0:
        return _substituted(upper, _substituted(lower, b[order], True), False)
    turn = _adjoint if trans == 2 else (lambda x: np.swapaxes(x, -1, -2))
    return _substituted(turn(lower), _substituted(turn(upper), b, True), False)[place]


@custom_vjp
def _sylvester(a, b, q):
    return np.asarray(_scipy.solve_sylvester(a, b, q))


@_sylvester.defvjp
def _sylvester_vjp(dout, out, a, b, q):
    """a x + x b = q: the adjoint equation has the transposed matrices."""
    s = _sylvester(a.T, b.T, dout)
    return -s @ out.T, -out.T @ s, s


@ours(_scipy)
def solve_sylvester(a, b, q) -> Any:
    return _sylvester(a, b, q)


@ours(_scipy)
def solve_continuous_lyapunov(a, q) -> Any:
    return _sylvester(a, _adjoint(a), q)


@ours(_scipy)
def solve_discrete_lyapunov(a, q) -> Any:
    """As one system of N**2 equations."""
    n = np.shape(a)[0]
    x = np.linalg.solve(np.eye(n * n) - np.kron(a, np.conj(a)), np.reshape(q, (n * n,)))
    return np.reshape(x, (n, n))


@ours(_scipy)
def toeplitz(c, r=None) -> Any:
    c = np.ravel(c)
    r = np.conj(c) if r is None else np.ravel(r)
    values = np.concatenate([r[:0:-1], c])
    n, m = np.shape(c)[0], np.shape(r)[0]
    return values[m - 1 + np.arange(n)[:, None] - np.arange(m)]


@ours(_scipy)
def solve_toeplitz(c_or_cr, b) -> Any:
    """As a dense system: n**3 operations, where Levinson's recursion takes n**2."""
    c, r = c_or_cr if isinstance(c_or_cr, tuple) else (c_or_cr, None)
    return np.linalg.solve(toeplitz.__wrapped__(c, r), b)


@ours(_scipy)
def solve_banded(l_and_u, ab, b) -> Any:
    """As a dense system: n**3 operations."""
    low, up = l_and_u
    n = np.shape(ab)[-1]
    i, j = np.indices((n, n))
    row = np.clip(up + i - j, 0, low + up)
    inside = (j - i <= up) & (i - j <= low)
    return np.linalg.solve(np.where(inside, ab[row, j], 0.0), b)


@ours(_scipy)
def block_diag(*arrs) -> Any:
    blocks = [np.atleast_2d(a) for a in arrs]
    width = sum(np.shape(a)[1] for a in blocks)
    rows, start = [], 0
    for a in blocks:
        rows.append(np.pad(a, [(0, 0), (start, width - start - np.shape(a)[1])]))
        start += np.shape(a)[1]
    return np.concatenate(rows, axis=0)
