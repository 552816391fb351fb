"""scipy.sparse.linalg: systems of a sparse matrix that is a constant, solved by its factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse.linalg as _scipy

from ...record.value import Recorded
from ..passing import not_like_this, ours, passed_on
from . import contents, product


def __getattr__(name: str) -> Any:
    return passed_on(_scipy, name)


def __dir__() -> list[str]:
    return dir(_scipy)


@ours(_scipy)
def spsolve(A: Any, b: Any, permc_spec: Any = None, use_umfpack: Any = True) -> Any:
    """Columns that are many share the factors, and so do a derivative and what it is of."""
    if permc_spec is not None:
        raise not_like_this("scipy.sparse.linalg.spsolve", "with permc_spec=")
    if type(A) is Recorded:
        raise not_like_this("scipy.sparse.linalg.spsolve", "of a matrix that is a recorded value")
    found = product("scipy.sparse.linalg.spsolve", "sparse_solve", A, b)
    return np.reshape(found, (-1,)) if np.ndim(b) == 2 and np.shape(b)[1] == 1 else found


class Factorized:
    """The factors that scipy.sparse.linalg.splu gives, which also solve for recorded values."""

    def __init__(self, matrix: Any, options: dict):
        self._matrix, self._theirs = matrix, _scipy.splu(matrix, **options)

    def _reuse_roots(self) -> tuple:
        return contents(self._matrix)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)

    def solve(self, rhs: Any, trans: str = "N") -> Any:
        """The x with A x = rhs; with A transposed for trans="T", and conjugated besides for "H"."""
        if type(rhs) is not Recorded:
            return self._theirs.solve(rhs, trans)
        matrix = self._matrix if trans == "N" else self._matrix.T if trans == "T" else self._matrix.T.conj()
        return product("scipy.sparse.linalg.splu(A).solve", "sparse_solve", matrix, rhs)


def splu(A: Any, **options: Any) -> Factorized:
    return Factorized(A, options)


def factorized(A: Any) -> Callable:
    """A function of b that gives the x with A x = b."""
    return Factorized(A.tocsc(), {}).solve
