"""Handlers for products of vectors, matrices and tensors."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph import Node
from ...ops import apply, build, table
from ..dispatch import Operand, RecordedLike, handles, operand, quiet, raw
from ..ufuncs import matmul, vecdot
from .reduce import plain_sum
from .shape import diagonal_view, item_at, moveaxis


def pair(a: Operand, b: Operand) -> tuple[Node, Node]:
    """Both operands in their common dtype."""
    a, b = operand(a), operand(b)
    dtype = np.result_type(a.dtype, b.dtype)
    return build.cast(a, dtype), build.cast(b, dtype)


@handles(np.dot)
def dot(a: Operand, b: Operand, out: Any = None) -> Node:
    a, b = pair(a, b)
    if a.ndim == 0 or b.ndim == 0:
        return _times_number(a, b)
    if b.ndim <= 2:
        if a.ndim <= 2:
            scaled = _scaled(a, b, a.shape[:-1] + b.shape[1:])
            return matmul(a, b) if scaled is None else scaled
        rows = build.reshape(a, (int(np.prod(a.shape[:-1])), a.shape[-1]))
        return build.reshape(matmul(rows, b), a.shape[:-1] + b.shape[1:])
    return _contract(a, b, [a.ndim - 1], [b.ndim - 2])


def _times_number(a: Node, b: Node) -> Node:
    """The product of an array and a number; BLAS adds it to zeros, so that -0.0 becomes 0.0."""
    product = apply("multiply", a, b)
    added = product.dtype.char in "fdFD" and product.ndim in (1, 2) and product.size > 1
    return product + 0.0 if added else product


@handles(np.inner)
def inner(a: Operand, b: Operand, /) -> Node:
    a, b = pair(a, b)
    if a.ndim == 0 or b.ndim == 0:
        return _times_number(a, b)
    return _contract(a, b, [a.ndim - 1], [b.ndim - 1])


@handles(np.vdot)
def vdot(a: Operand, b: Operand, /) -> Node:
    a, b = pair(a, b)
    a = build.conjugate(a) if a.dtype.kind == "c" else a
    return matmul(build.reshape(a, (a.size,)), build.reshape(b, (b.size,)))


@handles(np.outer, np.linalg.outer)
def outer(a: Operand, b: Operand, out: Any = None) -> Node:
    a, b = operand(a), operand(b)
    return apply("multiply", build.reshape(a, (a.size, 1)), build.reshape(b, (1, b.size)))


def _scaled(a: Node, b: Node, shape: tuple[int, ...]) -> Node | None:
    """The product of arrays of one element, numbers to np.dot; None where np.dot is `@`."""
    if a.dtype.char not in "fdFD" or a.size != 1 or b.size != 1 or max(a.ndim, b.ndim) > 2:
        return None
    product = apply("multiply", build.reshape(a, (a.size,)), build.reshape(b, (b.size,)))
    return build.reshape(product, shape)


def _contract(a: Node, b: Node, axes_a, axes_b) -> Node:
    """The sum over pairs of axes, as one matrix product."""
    keep_a = [i for i in range(a.ndim) if i not in axes_a]
    keep_b = [i for i in range(b.ndim) if i not in axes_b]
    inner = int(np.prod([a.shape[i] for i in axes_a]))
    out_a, out_b = tuple(a.shape[i] for i in keep_a), tuple(b.shape[i] for i in keep_b)
    rows = build.reshape(build.transpose(a, (*keep_a, *axes_a)), (int(np.prod(out_a)), inner))
    columns = build.reshape(build.transpose(b, (*axes_b, *keep_b)), (inner, int(np.prod(out_b))))
    scaled = _scaled(rows, columns, out_a + out_b)
    return build.reshape(apply("matmul", rows, columns), out_a + out_b) if scaled is None else scaled


@handles(np.linalg.vecdot)
def linalg_vecdot(x1: Operand, x2: Operand, /, *, axis: int = -1) -> Node:
    a, b = operand(x1), operand(x2)
    return vecdot(moveaxis(a, axis, -1), moveaxis(b, axis, -1))


@handles(np.trace)
def trace(a, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype=None, out=None) -> Node:
    d = diagonal_view(a, offset, axis1, axis2)
    return plain_sum(build.cast(d, dtype) if dtype is not None else d, -1)


@handles(np.cross)
def cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None) -> Node:
    axisa, axisb, axisc = (axis,) * 3 if axis is not None else (axisa, axisb, axisc)
    a, b = operand(a), operand(b)
    a, b = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    p, q = ([item_at(x, x.ndim - 1, i) for i in range(x.shape[-1])] for x in (a, b))
    if len(p) == len(q) == 2:
        return p[0] * q[1] - p[1] * q[0]
    zero = build.zeros((), np.result_type(a.dtype, b.dtype))
    (a0, a1, a2), (b0, b1, b2) = (x if len(x) == 3 else [*x, zero] for x in (p, q))
    columns = [a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0]
    shape = np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    columns = [build.reshape(build.broadcast(c, shape), (*shape, 1)) for c in columns]
    return moveaxis(build.concatenate(columns, len(shape)), -1, axisc)


@handles(np.convolve)
def convolve(a: Operand, v: Operand, mode: str = "full") -> Node:
    a, v = operand(a), operand(v)
    if v.size > a.size:  # NumPy exchanges them, too
        a, v = v, a
    return _slide(a, _reversed(v) if v.size else v, mode)


@handles(np.correlate)
def correlate(a: Operand, v: Operand, mode: str = "valid") -> Node:
    a, v = operand(a), operand(v)
    v = build.conjugate(v) if v.dtype.kind == "c" else v
    if v.size > a.size:  # the same sums, the last one first
        return _reversed(_slide(v, a, mode))
    return _slide(a, v, mode)


def _reversed(x: Node) -> Node:
    return build.slice_(x, ((x.size - 1, None, -1),))


def _slide(a: Node, kernel: Node, mode: str) -> Node:
    """sum_j a[i + j] kernel[j], with a between zeros as far as the mode asks; kernel is not the longer."""
    dtype = np.result_type(a.dtype, kernel.dtype)
    a, kernel = build.cast(a, dtype), build.cast(kernel, dtype)
    n, m = a.size, kernel.size
    before, after = {"full": (m - 1, m - 1), "valid": (0, 0), "same": (m // 2, m - 1 - m // 2)}[mode]
    inside = np.arange(n - m + 1)
    out = apply("matmul", _windows(a, inside, m), build.reshape(kernel, (m, 1)))
    out = build.reshape(out, (len(inside),))
    if not (before or after):
        return out
    # At the ends the parts of the kernel beside `a` are left out, where nan times zero would be nan
    starts = np.r_[:before, n - m + 1 + before : n - m + 1 + before + after]
    places = starts[:, None] + np.arange(m)
    part = build.broadcast(kernel, places.shape)
    part = build.where(table.const((before <= places) & (places < before + n)), part, 0)
    a = build.assemble([a], (n + before + after,), [((before, before + n, 1),)], dtype)
    ends = build.cast(build.sum_(_windows(a, starts, m) * part, 1), dtype)
    first, last = build.take_slice(ends, 0, 0, before), build.take_slice(ends, 0, before, before + after)
    return build.concatenate([first, out, last], 0)


def _windows(a: Node, starts: np.ndarray, m: int) -> Node:
    """The m elements from each of these places on, as rows."""
    return apply("gather", a, table.const(starts[:, None] + np.arange(m)), spec=(("array", 0),))


raw(np.polymul)(lambda a1, a2: np.convolve(_coefficients(a1), _coefficients(a2)))


def _coefficients(p: RecordedLike) -> Any:
    """The coefficients from the first on that is not zero, as np.poly1d has them."""
    p = np.atleast_1d(p)  # type: ignore[arg-type]
    trimmed = np.trim_zeros(p, "f")
    return trimmed if len(trimmed) else np.zeros(1, p.dtype, like=p)


# einsum
@handles(np.einsum)
def einsum(*args, out=None, optimize=False, dtype=None, order: str = "K", casting: str = "safe") -> Node:
    if isinstance(args[0], str):
        text, nodes = args[0], [operand(x) for x in args[1:]]
    else:
        text, nodes = _from_lists(args)
    if dtype is not None:
        nodes = [build.cast(x, dtype) for x in nodes]
    inputs, output = explicit(text.replace(" ", ""), [x.ndim for x in nodes])
    nodes, inputs = zip(*(_without_repeats(x, letters) for x, letters in zip(nodes, inputs)))
    common = np.result_type(*(x.dtype for x in nodes))
    nodes = [build.cast(x, common) for x in nodes]
    if len(nodes) == 1 and set(inputs[0]) == set(output):
        return build.transpose(nodes[0], [inputs[0].index(c) for c in output])
    order = {} if optimize else {"optimize": False}
    return apply("einsum", *nodes, subscripts=",".join(inputs) + "->" + output, **order)


def _from_lists(args) -> tuple[str, list[Node]]:
    """einsum(a, [0, 1], b, [1, 2], [0, 2]) as subscripts."""
    nodes = [operand(x) for x in args[0 : len(args) - len(args) % 2 : 2]]
    lists = list(args[1::2])

    def letters(axes):
        return "".join("..." if p is Ellipsis else string.ascii_letters[p] for p in axes)

    text = ",".join(map(letters, lists[: len(nodes)]))
    return text + ("->" + letters(args[-1]) if len(args) % 2 else ""), nodes


def explicit(text: str, ndims: Sequence[int]) -> tuple[list[str], str]:
    """Subscripts with the output written out and letters in place of the ellipsis."""
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    spare = [c for c in string.ascii_letters if c not in text]
    rest = [n - len(s.replace("...", "")) if "..." in s else 0 for s, n in zip(inputs, ndims)]
    most = max(rest, default=0)
    axes = "".join(spare[:most])
    inputs = [s.replace("...", axes[most - r :]) for s, r in zip(inputs, rest)]
    if arrow:
        return inputs, output.replace("...", axes)
    counts = "".join(inputs)
    once = sorted({c for c in counts if counts.count(c) == 1 and c not in axes})
    return inputs, axes + "".join(once)


def _without_repeats(x: Node, letters: str) -> tuple[Node, str]:
    """Take diagonals until no letter occurs twice."""
    for c in letters:
        while letters.count(c) > 1:
            i = letters.index(c)
            j = letters.index(c, i + 1)
            x = diagonal_view(x, 0, i, j)  # its axis comes last
            letters = letters[:i] + letters[i + 1 : j] + letters[j + 1 :] + c
    return x, letters


quiet(np.dot, np.inner, np.outer)
