"""Handlers for numpy.linalg: solving, decompositions, norms; and for the transforms of numpy.fft."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ...graph import Node
from ...ops import apply, build
from ...ops.subgraph import items
from ..dispatch import Operand, RecordedLike, handled, handles, operand, raw
from ..ufuncs import matmul
from ..value import Recorded, value_of
from .as_written import Written
from .products import pair
from .reduce import plain_sum
from .shape import axis_of

Order: TypeAlias = "int | float | str | None"  # which norm


def floating(x: Operand) -> Node:
    x = operand(x)
    return x if x.dtype.kind in "fc" else build.cast(x, float)


handles(np.linalg.inv)(lambda a: apply("inv", floating(a)))
handles(np.linalg.det)(lambda a: apply("det", floating(a)))
handles(np.linalg.slogdet)(lambda a: items(apply("slogdet", floating(a))))


@handles(np.linalg.solve)
def solve(a: Operand, b: Operand) -> Node:
    a, b = pair(floating(a), floating(b))
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
    x, residuals, rank, values = np.linalg.lstsq(value_of(a), value_of(b), rcond)  # type: ignore[call-overload]
    numbers = (x, residuals, values)
    x, residuals, values = handled(_found, (a, b, rcond, numbers), {}, _lstsq_nodes)
    return x, residuals, rank, values


def _found(a: Any, b: Any, rcond: Any, numbers: tuple) -> tuple:
    return numbers


def _lstsq_nodes(a: Operand, b: Operand, rcond: Operand, numbers: tuple) -> tuple[Node, ...]:
    a, b = pair(floating(a), floating(b))
    if rcond is None:
        rcond = np.finfo(a.dtype).eps * max(a.shape)
    x = matmul(apply("pinv", a, rcond=float(rcond)), b)
    left_over = build.zeros((0,), build.real(x).dtype)
    if numbers[1].shape != (0,):
        left_over = build.reshape(plain_sum(squares(b - matmul(a, x)), 0), numbers[1].shape)
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
    """NumPy returns reals if all eigenvalues happen to be real; the recording keeps that dtype."""
    result = np.linalg.eig(a.value)
    dtype = str(result[0].dtype)
    parts = tuple(x.astype(dtype) for x in result)
    values, vectors = handled(
        lambda a: parts, (a,), {}, lambda a: items(apply("eig", floating(a), dtype=dtype))
    )
    return type(result)(values, vectors)


raw(np.linalg.eigvals)(lambda a: eig(a)[0])


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


# numpy.fft: along one axis; NumPy composes the others of these
def _transform(kind: str, a: Node, n: int | None = None, axis: int = -1, norm: str | None = None, out=None):
    axis = axis_of(-1 if axis is None else axis, a.ndim)
    if n is None:
        n = a.shape[axis] if kind != "irfft" else 2 * (a.shape[axis] - 1)
    if a.dtype.kind not in "fc":
        a = build.cast(a, float)
    if kind == "rfft" and a.dtype.kind == "c":
        a = build.real(a)
    return apply("fft", a, kind=kind, n=int(n), axis=axis, norm=norm or "backward")


for _kind in ("fft", "ifft", "rfft", "irfft"):
    handles(getattr(np.fft, _kind))(functools.partial(_transform, _kind))
