"""Handlers for numpy.linalg: solving, decompositions, norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from ...graph import Node
from ...ops import apply, build
from ...ops.subgraph import items
from ..dispatch import Operand, RecordedLike, handled, handles, operand, raw
from ..ufuncs import matmul
from ..value import Recorded, value_of
from .as_written import Written
from .products import pair
from .reduce import plain_sum

Order: TypeAlias = "int | float | str | None"  # which norm


def floating(x: Operand) -> Node:
    x = operand(x)
    return x if x.dtype.kind in "fc" else build.cast(x, float)


handles(np.linalg.inv)(lambda a: apply("inv", floating(a)))
handles(np.linalg.det)(lambda a: apply("det", floating(a)))
handles(np.linalg.slogdet)(lambda a: items(apply("slogdet", floating(a))))


@handles(np.linalg.solve)
def solve(a: Operand, b: Operand) -> Node:
    a, b = floating(a), floating(b)
    dtype = np.result_type(a.dtype, b.dtype)
    a, b = build.cast(a, dtype), build.cast(b, dtype)
    if b.ndim == 1:
        out = apply("solve", a, build.reshape(b, (b.size, 1)))
        return build.reshape(out, out.shape[:-1])
    return apply("solve", a, b)


@handles(np.linalg.tensorsolve)
def tensorsolve(a: Operand, b: Operand, axes: Sequence[int] | None = None) -> Node:
    a, b = operand(a), operand(b)
    if axes is not None:
        raise NotImplementedError("with axes is not recorded; np.moveaxis first")
    n = b.size
    return build.reshape(solve(build.reshape(a, (n, n)), build.reshape(b, (n,))), a.shape[b.ndim :])


@raw(np.linalg.lstsq)
def lstsq(a: RecordedLike, b: RecordedLike, rcond: RecordedLike | None = None) -> tuple:
    """Least squares by the pseudoinverse, the same solution. Rank and the number of residuals are plain."""
    plain = [value_of(x) for x in (a, b)]
    _, residuals, rank, _ = np.linalg.lstsq(*plain, rcond)  # type: ignore[call-overload]
    x, residuals, values = handled(_lstsq, (a, b, rcond, residuals.shape), {}, lstsq_nodes)
    return x, residuals, rank, values


def _lstsq(a, b, rcond, residual_shape):
    x, residuals, _, values = np.linalg.lstsq(a, b, rcond)
    return x, residuals, values


def lstsq_nodes(a: Operand, b: Operand, rcond: Operand, residual_shape: tuple[int, ...]) -> tuple[Node, ...]:
    a, b = pair(floating(a), floating(b))
    if rcond is None:
        rcond = np.finfo(a.dtype).eps * max(a.shape)
    x = matmul(apply("pinv", a, rcond=float(rcond)), b)
    left_over = build.zeros((0,), build.real(x).dtype)
    if residual_shape != (0,):
        left_over = build.reshape(plain_sum(squares(b - matmul(a, x)), 0), residual_shape)
    return x, left_over, svd(a, compute_uv=False)


@handles(np.linalg.pinv)
def pinv(a, rcond=None, hermitian=False, *, rtol=np._NoValue) -> Node:
    cut = rcond if rtol is np._NoValue else rtol
    if hermitian or isinstance(cut, Node) or np.ndim(cut):
        raise NotImplementedError("with hermitian=True, or with a recorded rcond or several, is not recorded")
    a = floating(a)
    if rtol is None:
        cut = max(a.shape[-2:]) * np.finfo(a.dtype).eps
    return apply("pinv", a, rcond=None if cut is None else float(cut))


@handles(np.linalg.cholesky)
def cholesky(a: Operand, /, *, upper: bool = False) -> Node:
    a = floating(a)
    if upper:
        return build.adjoint(apply("cholesky", build.adjoint(a)))
    return apply("cholesky", a)


@handles(np.linalg.qr)
def qr(a: Operand, mode: str = "reduced") -> Any:
    a = floating(a)
    if mode not in ("reduced", "r") and not (mode == "complete" and a.shape[-2] <= a.shape[-1]):
        raise NotImplementedError(f"with mode={mode!r} is not recorded; mode='reduced' is")
    q, r = items(apply("qr", a))
    return r if mode == "r" else (q, r)


@handles(np.linalg.eigh)
def eigh(a: Operand, UPLO: str = "L") -> Any:
    return items(apply("eigh", floating(a), uplo=UPLO.upper()))


@raw(np.linalg.eig)
def eig(a: Recorded) -> tuple:
    values, vectors = handled(_eig, (a, str(np.linalg.eig(a.value)[0].dtype)), {}, eig_nodes)
    return _EigResult(values, vectors)


raw(np.linalg.eigvals)(lambda a: eig(a)[0])


_EigResult = type(np.linalg.eig(np.eye(1)))


def _eig(a, dtype):
    return tuple(x.astype(dtype) for x in np.linalg.eig(a))


def eig_nodes(a: Operand, dtype: DTypeLike) -> tuple[Node, ...]:
    """NumPy returns reals if all eigenvalues happen to be real; the recording keeps that dtype."""
    return items(apply("eig", floating(a), dtype=dtype))


handles(np.linalg.eigvalsh)(lambda a, UPLO="L": eigh(a, UPLO)[0])


@handles(np.linalg.svd)
def svd(a: Operand, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    if hermitian:
        raise NotImplementedError("with hermitian=True is not recorded; np.linalg.eigh is")
    parts = items(apply("svd", floating(a), full_matrices=bool(full_matrices) if compute_uv else False))
    return parts if compute_uv else parts[1]


_other_norm = Written(np.linalg.norm)


@raw(np.linalg.norm)
def norm(x, ord=None, axis=None, keepdims=False) -> Recorded:
    """Of all elements NumPy's own code computes it in the order in which they lie in memory."""
    usual = {1: (2, None), 2: ("f", "fro", None)}.get(np.ndim(x), (None,))
    if axis is None and ord in usual:
        return handled(np.linalg.norm, (x, ord, axis, keepdims), {}, norm_of_all)
    return _other_norm(x, ord, axis, keepdims)


def norm_of_all(x: Operand, ord: Order, axis: None, keepdims: bool) -> Node:
    x = floating(x)
    wide = build.cast(x, np.float32) if x.dtype == np.float16 else x  # as NumPy's dot accumulates
    total = build.sqrt(build.cast(plain_sum(squares(wide), None), build.real(x).dtype))
    return build.reshape(total, (1,) * x.ndim) if keepdims else total


def squares(x: Node) -> Node:
    if x.dtype.kind == "c":
        return build.square(build.real(x)) + build.square(build.imag(x))
    return build.square(x)


@raw(np.linalg.cond)
def cond(x: RecordedLike, p: Order = None) -> Recorded:
    if p in (None, 2, -2):
        values = np.linalg.svd(x, compute_uv=False)  # type: ignore[call-overload]
        big, small = values[..., 0], values[..., -1]
        return small / big if p == -2 else big / small
    return np.linalg.norm(x, p, (-2, -1)) * np.linalg.norm(np.linalg.inv(x), p, (-2, -1))
