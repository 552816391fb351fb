"""det: a determinant by expansion by minors (det_by_minor of cmpad), with all its n! products.

Vectorised: the minors of one recursion depth are one array, with a node for each choice of columns for the
rows above. Equal minors are computed again, as prescribed: sharing them would be another algorithm, with 2**n
products. The 40320 leaves of 8 rows fill the cache, so rows above the last eight are expanded in a loop.
"""

import itertools
import math

import numpy as np

from bench.gradbench import Function, array
from bench.programs import formulas
from bench.programs.library import NUMPY
from gpt2 import autodiff as ad

AT_ONCE = 8  # rows


def determinant(a):
    """a (n, n) -> a number."""
    n = len(a)
    if n <= AT_ONCE:
        return expansion(a)
    above = n - AT_ONCE
    chosen = np.array(list(itertools.permutations(range(n), above)))
    left = columns_left(n, above)
    signs = np.rint(np.linalg.det(np.eye(n)[np.hstack([chosen, left])]))  # of the permutations
    top, bottom = a[:above], a[above:]

    def add_one(total, choice):
        columns, rest, sign = choice
        return total + sign * np.prod(top[np.arange(above), columns]) * expansion(bottom[:, rest]), None

    return ad.scan(add_one, 0.0, (chosen, left, signs))[0]


def expansion(a):
    return formulas.det(NUMPY, a, *minors(len(a)))


def minors(n):
    """(ones, columns, signs) of an n by n matrix: a value for each minor of no rows; then, for each row from
    the last to the first, the columns left to each minor and their signs.
    """
    rows = list(reversed(range(n)))
    signs = [(-1.0) ** np.arange(n - row) for row in rows]
    return np.ones(math.factorial(n)), [columns_left(n, row) for row in rows], signs


def columns_left(m, row):
    """(nodes, m - row): for each choice of columns above this row, the columns left, in order."""
    left = np.arange(m)[None]
    for _ in range(row):
        k = left.shape[1]
        others = np.array([[j for j in range(k) if j != i] for i in range(k)], int).reshape(k, k - 1)
        left = left[:, others].reshape(-1, k - 1)
    return left


def _read(data):
    n = int(data["ell"])
    return (array(data["A"]).reshape(n, n),)


FUNCTIONS = {
    "primal": Function(ad.compile(determinant, pure=True), _read),
    "gradient": Function(ad.grad(determinant, pure=True), _read, lambda d: d.ravel().tolist()),
}
