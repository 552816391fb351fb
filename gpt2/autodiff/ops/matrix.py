"""Products of matrices and tensors."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from . import leads, shifts
from .build import broadcast, reshape, swap_last
from .table import apply, const, row


def _matmul_transpose(g, out, a, b):
    """da = g b^T and db = a^T g; beside a plain b leading axes are rows of one product."""
    if b.ndim > 2:
        return lambda: g @ swap_last(b), lambda: swap_last(a) @ g
    rows, columns = b.shape
    count = math.prod(out.shape[:-1])
    g = reshape(g, (count, columns))
    return lambda: reshape(g @ swap_last(b), a.shape), lambda: swap_last(reshape(a, (count, rows))) @ g


def _filled(x: np.ndarray) -> np.ndarray:
    """The operand with memory for each element, as in emitted programs (emit/layout.py)."""
    return x if all(n == 1 or s for n, s in zip(x.shape, x.strides)) else np.array(x)


def _matmul_infer(a, b):
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul: {a.shape} @ {b.shape}: the last axis of the first must have the length of "
            "the second-last axis of the second"
        )
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (*lead, a.shape[-2], b.shape[-1]), np.result_type(a.dtype, b.dtype)


row(
    "matmul",
    "multilinear",  # both with at least two axes; leading axes broadcast
    infer=_matmul_infer,
    evaluate=lambda a, b: np.matmul(_filled(a), _filled(b)),
    code=lambda a, b: f"{a} @ {b}",
    transpose=_matmul_transpose,
    work="multiplies",
    flops=lambda n: 2.0 * n.size * n.args[0].shape[-1],
    product=lambda a, b: (a, b),
    scheduled_alone=True,
    has_out=True,
    leads=leads.MATMUL,
    shift=shifts.matmul,
)


# x.T @ y, added up over blocks of rows: what the emitter puts in place of products with few elements
row(
    "row_product",
    "multilinear",
    infer=lambda x, y: ((x.shape[1], y.shape[1]), np.result_type(x.dtype, y.dtype)),
    evaluate=lambda x, y: np.matmul(np.transpose(x), y),
    code=lambda x, y: f"{x}.T @ {y}",
    transpose=lambda g, out, x, y: (lambda: y @ swap_last(g), lambda: x @ g),
    work="multiplies",
    flops=lambda n: 2.0 * n.size * n.args[0].shape[0],
    adds_axes=lambda n: 1,
    product=lambda x, y: (f"{x}.T", y),
    has_out=True,
)


def split_subscripts(subscripts: str) -> tuple[list[str], str]:
    """The subscripts of an einsum taken apart: 'ij,jk->ik' -> (['ij', 'jk'], 'ik')."""
    ins, out = subscripts.split("->")
    return ins.split(","), out


def letter_sizes(subscripts: str, args: Sequence) -> dict[str, int]:
    """The length of each letter's axis; 1 gives way to a longer one, as einsum broadcasts it."""
    sizes: dict[str, int] = {}
    for letters, x in zip(split_subscripts(subscripts)[0], args):
        for letter, n in zip(letters, x.shape):
            sizes[letter] = n if sizes.get(letter, 1) == 1 else sizes[letter]
    return sizes


def _einsum_infer(*args, subscripts, optimize=True):
    sizes = letter_sizes(subscripts, args)
    return tuple(sizes[c] for c in split_subscripts(subscripts)[1]), np.result_type(*(a.dtype for a in args))


def _einsum_gradient(k: int, g, args, subscripts: str):
    """The gradient of argument k: an einsum of g with the other arguments. A letter that stands twice in
    argument k puts the gradient on a diagonal; one that stands nowhere else was summed alone, and the
    gradient is constant along it.
    """
    ins, out = split_subscripts(subscripts)
    sizes = letter_sizes(subscripts, args)
    x, letters = args[k], ins[k]
    operands = [g] + [a for i, a in enumerate(args) if i != k]
    terms = [out] + [s for i, s in enumerate(ins) if i != k]
    unused = (c for c in string.ascii_letters if c not in subscripts)
    target: list = []  # the letter of each axis of the gradient, None where it is constant or was stretched
    for position, (letter, n) in enumerate(zip(letters, x.shape)):
        if letter in letters[:position]:
            copy = next(unused)
            operands.append(const(np.eye(n, dtype=g.dtype)))
            terms.append(letter + copy)
            target.append(copy)
        else:
            repeated = letter in letters[position + 1 :]
            elsewhere = any((letter, n) in zip(term, o.shape) for term, o in zip(terms, operands))
            target.append(letter if repeated or (elsewhere and n == sizes[letter]) else None)
    d = apply("einsum", *operands, subscripts=f"{','.join(terms)}->{''.join(c for c in target if c)}")
    return broadcast(reshape(d, tuple(n if c else 1 for c, n in zip(target, x.shape))), x.shape)


def _einsum_shift(n, *given):
    changed = [(e, letters) for e, letters in zip(given, split_subscripts(n.attrs["subscripts"])[0]) if e]
    if len(changed) > 1:
        raise shifts.NotUnderstood
    ((e, letters),) = changed
    out = split_subscripts(n.attrs["subscripts"])[1]
    where = {letter: axis for letter, axis in zip(letters, e.axes) if axis is not None}
    if not set(where) <= set(out) or len(set(letters)) < len(letters):
        raise shifts.NotUnderstood
    return replace(shifts.of_kind(e, shifts.MULTIPLY), axes=tuple(where.get(letter) for letter in out))


row(
    "einsum",
    "multilinear",  # explicit output form, no ellipsis
    infer=_einsum_infer,
    # optimize=False: added up in NumPy's own order, as the user's np.einsum is
    evaluate=lambda *args, subscripts, optimize=True: np.einsum(
        subscripts, *map(_filled, args), optimize=optimize
    ),
    code=lambda *args, subscripts, optimize=True: (
        f"np.einsum({subscripts!r}, {', '.join(args)}, optimize={optimize})"
    ),
    transpose=lambda g, out, *args, subscripts, optimize=True: tuple(
        partial(_einsum_gradient, k, g, args, subscripts) for k in range(len(args))
    ),
    work="multiplies",
    flops=lambda n: 2.0 * math.prod(letter_sizes(n.attrs["subscripts"], n.args).values()),
    scheduled_alone=True,
    has_out=True,
    leads=leads.EINSUM,
    shift=_einsum_shift,
)
