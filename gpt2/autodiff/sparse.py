"""ad.sparse_jacobian: a Jacobian with a known sparsity pattern, from a few directions.

Columns that share no row are computed together, as one tangent: A. R. Curtis, M. J. D. Powell and J. K. Reid,
"On the estimation of sparse Jacobian matrices", 1974. The groups are a greedy colouring of the columns, those
with most entries first; or of the rows, where they need fewer colours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import AutodiffError
from .programs.compile import compile
from .transforms.forward import jvp
from .transforms.vjp import vjp
from .transforms.vmap import vmap

NAME = "sparse_jacobian"


def sparse_jacobian(f: Callable, pattern: Any, argnum: int = 0, *, check: bool = True) -> Callable:
    """The Jacobian of f, where only the entries of a sparsity pattern may differ from zero.

    pattern   (m, n), for a result of m elements and an argument of n, both in C order: the nonzero entries of
              an array, or the stored entries of a SciPy sparse array
    argnum    which argument
    check     also compute one random combination of the rows or columns, and compare: a pattern that leaves
              out an entry is an error. Entries below about the square root of the rounding pass unnoticed

    The derived function returns (m, n): a dense array, or SciPy's CSR format for a sparse pattern. It costs
    as many directions as the pattern needs colours, 3 for a tridiagonal one, and one more to check.

    Raises AutodiffError where shapes do not fit, values are complex, or an entry outside of the pattern is
    not zero; it names the row or column.

        >>> second = lambda x: np.diff(x, 2) + x[1:-1] ** 2
        >>> band = np.eye(3, 5) + np.eye(3, 5, 1) + np.eye(3, 5, 2)
        >>> ad.sparse_jacobian(second, band)(np.arange(5.0))
        array([[1., 0., 1., 0., 0.],
               [0., 1., 2., 1., 0.],
               [0., 0., 1., 4., 1.]])
    """
    shape, rows, cols = _entries(pattern)
    by_column, by_row = colours(cols, rows, shape[1]), colours(rows, cols, shape[0])
    across = by_column.max(initial=-1) <= by_row.max(initial=-1)
    # `own` is what is coloured, a column or a row; `other` says where the entry is in its result
    own, other, colour, name = (cols, rows, by_column, "row") if across else (rows, cols, by_row, "column")
    seeds = np.zeros((int(colour.max(initial=-1)) + 1 + check, colour.size))
    seeds[colour, np.arange(colour.size)] = 1.0
    if check:
        seeds[-1] = np.random.default_rng(0).uniform(0.5, 1.5, colour.size)
    compute = compile(_products)

    def derived(*args: Any, **kwargs: Any) -> Any:
        if not -len(args) <= argnum < len(args):
            raise AutodiffError(f"{NAME}: argnum is {argnum}, and {len(args)} arguments are given")
        x = np.asarray(args[argnum])
        if x.dtype.kind != "f":
            raise AutodiffError(f"{NAME}: argument {argnum} is {x.dtype}, expected real floating numbers")
        if x.size != shape[1]:
            raise AutodiffError(
                f"{NAME}: the pattern has {shape[1]} columns, and argument {argnum} has {x.size} elements"
            )
        args = tuple(x if k == argnum % len(args) else a for k, a in enumerate(args))
        products = compute(f, args, kwargs, argnum, seeds.astype(x.dtype), shape[0], across)
        values = products[colour[own], other]
        if check:
            _compare(values, seeds[-1], products[-1], own, other, name)
        if hasattr(pattern, "tocoo"):
            matrix = type(pattern)(shape, dtype=values.dtype).tocoo()
            return type(matrix)((values, (rows, cols)), shape=shape).tocsr()
        dense = np.zeros(shape, values.dtype)
        dense[rows, cols] = values
        return dense

    return derived


def colours(own: np.ndarray, other: np.ndarray, n: int) -> np.ndarray:
    """A colour for each of n lines, such that two that cross the same line have different ones.

    Entry k is where the line own[k] crosses the line other[k]. Returns integers from 0, (n,).
    """
    crossed: list[list[int]] = [[] for _ in range(n)]
    for line, across in zip(own.tolist(), other.tolist()):
        crossed[line].append(across)
    used_across: dict[int, int] = {}  # line across -> its colours, a bit each
    colour = np.zeros(n, np.intp)
    for line in sorted(range(n), key=lambda line: -len(crossed[line])):
        used = 0
        for across in crossed[line]:
            used |= used_across.get(across, 0)
        free = ~used & (used + 1)  # the lowest bit that is not set
        for across in crossed[line]:
            used_across[across] = used_across.get(across, 0) | free
        colour[line] = free.bit_length() - 1
    return colour


def _products(f, args, kwargs, argnum, seeds, m, across):
    """The Jacobian times each seed, or each seed times the Jacobian."""
    x = args[argnum]

    def of_one(flat):
        """The flat result, of the one argument, flat."""
        all_args = list(args)
        all_args[argnum] = flat.reshape(x.shape)
        out = np.ravel(f(*all_args, **kwargs))
        if out.size != m or out.dtype.kind != "f":
            raise AutodiffError(
                f"{NAME}: the pattern has {m} rows, and the result is {out.size} elements of {out.dtype}"
                + ("" if out.dtype.kind == "f" else "; expected real floating numbers")
            )
        return out

    if across:
        return vmap(lambda tangent: jvp(of_one, (np.ravel(x),), (tangent,))[1])(seeds)
    out, pullback = vjp(of_one, np.ravel(x))
    return vmap(lambda row: pullback(row.astype(out.dtype))[0])(seeds)


def _entries(pattern):
    """(shape, rows, columns) of a pattern's entries."""
    if hasattr(pattern, "tocoo"):
        entries = pattern.tocoo()
        if len(entries.shape) == 2:
            both = np.unique(np.stack([entries.row, entries.col]).astype(np.intp), axis=1)
            return entries.shape, both[0], both[1]
    shape = np.shape(pattern)
    if len(shape) != 2:
        raise AutodiffError(f"{NAME}: the pattern has the shape {shape}, expected (results, arguments)")
    return shape, *np.nonzero(np.asarray(pattern))


def _compare(values, weights, expected, own, other, name):
    """Raise unless the entries add up to the random combination."""
    terms = values * weights[own]
    total = np.bincount(other, terms, expected.size)
    size = np.bincount(other, np.abs(terms), expected.size) + np.abs(expected)
    wrong = np.flatnonzero(np.abs(total - expected) > np.sqrt(np.finfo(values.dtype).eps) * size)
    if wrong.size:
        raise AutodiffError(
            f"{NAME}: {name} {wrong[0]} has an entry outside of the pattern"
            + (f", and {wrong.size - 1} more have" if wrong.size > 1 else "")
            + "; give a pattern with every entry that can differ from zero"
        )
