"""What formulas use of a library beyond NumPy's names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpt2 import autodiff as ad
from gpt2.autodiff.scipy import linalg


@dataclass(frozen=True)
class Library:
    """A library's functions, as the formulas call them.

    np           its module with NumPy's names
    grad         grad(f)(x): the gradient of f
    vjp          vjp(f, *inputs) -> pullback, of several inputs
    scan         scan(body, carry, xs, *others, length=n) -> the last carry; a step is
                 body(library, carry, x, *others) -> carry
    logsumexp    (x, axis)
    powers       (t, m) -> (len(t), m): powers 0 to m - 1 of each element
    smallest     (x, axis): the minimum along an axis
    cross        (a, b): cross products, row by row
    triangular   (q, l): lower triangular matrices with exp(q) on the diagonal and l below it
    whiten       (lower, y): the solution z of lower z = y
    while_loop   while_loop(cond, body, carry, *others) -> the last carry; cond and body are called as in scan
    slope        slope(f)(x, *others): the gradient of f(library, x, *others) with respect to x
    """

    np: Any
    grad: Callable
    vjp: Callable
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
    """scan as a Python loop, for libraries without one."""
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
    """By repeated multiplication of whole arrays, which is faster in NumPy than np.vander."""
    columns = [np.ones(len(t))]
    for _ in range(m - 1):
        columns.append(columns[-1] * t)
    return np.stack(columns).T


def python_while(library, cond, body, carry, *others):
    while cond(library, carry, *others):
        carry = body(library, carry, *others)
    return carry


def places(l, D):
    """(D, D): for each matrix entry its index in l (K, D (D - 1) / 2), which has the strictly lower triangle
    column by column. Other entries have the index after the last, for a zero appended to l.
    """
    table = np.full((D, D), l.shape[1])
    columns, rows = np.triu_indices(D, 1)
    table[rows, columns] = np.arange(l.shape[1])
    return table


# ---- NumPy, with this compiler -----------------------------------------------------------------------------


def scan(body, carry, xs, *others, length=None):
    return ad.scan(lambda c, x: (body(NUMPY, c, x, *others), None), carry, xs, length=length)[0]


def logsumexp(x, axis):
    largest = np.max(x, axis=axis, keepdims=True)
    return np.squeeze(largest, axis) + np.log(np.sum(np.exp(x - largest), axis=axis))


def triangular(q, l):
    K, D = q.shape
    factors = np.zeros((K, D, D), like=l)
    columns, rows = np.triu_indices(D, 1)
    factors[:, rows, columns] = l
    factors[:, np.arange(D), np.arange(D)] = np.exp(q)
    return factors


NUMPY = Library(
    np=np,
    grad=ad.grad,
    vjp=lambda f, *inputs: ad.vjp(f, *inputs)[1],
    scan=scan,
    logsumexp=logsumexp,
    smallest=lambda x, axis: np.min(x, axis=axis),
    powers=lambda t, m: powers(np, t, m),
    cross=np.cross,
    triangular=triangular,
    whiten=lambda lower, y: linalg.solve_triangular(lower, y, lower=True),
)
