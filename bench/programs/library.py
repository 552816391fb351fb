"""What formulas ask of a library besides NumPy's names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Library:
    """A library as the formulas see it.

    np           its module with NumPy's names
    scan         scan(body, carry, xs, *others, length=n) -> the last carry, where the next one is
                 body(library, carry, x, *others)
    logsumexp    (x, axis)
    powers       (t, m): the powers 0 to m - 1 of each element, a row each
    smallest     (x, axis): the least along an axis
    cross        (a, b): products of vectors of three, row by row
    triangular   (q, l): lower triangular matrices with exp(q) on the diagonal and l below it
    whiten       (lower, y): what solves lower z = y
    while_loop   while_loop(cond, body, carry, *others) -> the last carry; as scan, and cond(library, ...)
    slope        slope(f)(x, *others): the gradient of f(library, x, *others) in x
    """

    np: Any
    scan: Callable
    logsumexp: Callable
    smallest: Callable
    powers: Any = None
    cross: Any = None
    triangular: Any = None
    whiten: Any = None
    while_loop: Any = None
    slope: Any = None


def python_loop(library, body, carry, xs, *others, length=None):
    """scan as a loop in Python, for libraries that have no other."""
    for k in range(len(_first(xs)) if length is None else length):
        carry = body(library, carry, _at(xs, k), *others)
    return carry


def _first(xs):
    return xs[0] if isinstance(xs, tuple) else xs


def _at(xs, k):
    if xs is None:
        return None
    return tuple([x[k] for x in xs]) if isinstance(xs, tuple) else xs[k]


def powers(np, t, m):
    """One product after the other, on whole arrays: faster in NumPy than np.vander."""
    columns = [np.ones(len(t))]
    for _ in range(m - 1):
        columns.append(columns[-1] * t)
    return np.stack(columns).T


def python_while(library, cond, body, carry, *others):
    while cond(library, carry, *others):
        carry = body(library, carry, *others)
    return carry


def places(l, D):
    """Of l (K, D (D - 1) / 2), column after column: where each entry of a triangle is, if l has a zero behind
    it."""
    table = np.full((D, D), l.shape[1])
    columns, rows = np.triu_indices(D, 1)
    table[rows, columns] = np.arange(l.shape[1])
    return table
