"""scipy.sparse.linalg: systems with a constant sparse matrix, solved by its factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse.linalg as _scipy

from ...record.value import Recorded
from ..passing import names_of, ours, unsupported_option
from . import contents, product

__getattr__, __dir__ = names_of(_scipy)


@ours(_scipy)
def spsolve(A: Any, b: Any) -> Any:
    """All columns, and the derivatives, share the matrix's factors."""
    if type(A) is Recorded:
        raise unsupported_option("scipy.sparse.linalg.spsolve", "of a matrix that is a recorded value")
    x = product("scipy.sparse.linalg.spsolve", "sparse_solve", A, b)
    return np.reshape(x, (-1,)) if np.ndim(b) == 2 and np.shape(b)[1] == 1 else x


class Factorized:
    """The factors of scipy.sparse.linalg.splu, which also solve for recorded values."""

    def __init__(self, matrix: Any, options: dict):
        self._matrix, self._theirs = matrix, _scipy.splu(matrix, **options)

    def _reuse_roots(self) -> tuple:
        return contents(self._matrix)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)

    def solve(self, rhs: Any, trans: str = "N") -> Any:
        """The x with A x = rhs; with A transposed for trans="T", and also conjugated for "H"."""
        if type(rhs) is not Recorded:
            return self._theirs.solve(rhs, trans)
        matrix = self._matrix if trans == "N" else self._matrix.T if trans == "T" else self._matrix.T.conj()
        return product("scipy.sparse.linalg.splu(A).solve", "sparse_solve", matrix, rhs)


def splu(A: Any, **options: Any) -> Factorized:
    return Factorized(A, options)


def factorized(A: Any) -> Callable:
    """A function of b that gives the x with A x = b."""
    return Factorized(A.tocsc(), {}).solve
