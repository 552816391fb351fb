"""Products with a sparse matrix, and solutions of its systems. The matrix is a constant; loaded on first use.

    sparse_matmul(x; matrix)   A x, column by column of x (N, K)
    sparse_solve(b; matrix)    the x with A x = b, column by column of b (N, K)

Both are linear, and their transposes are the same ops with the matrix transposed.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from typing import Any

import numpy as np
import scipy.sparse.linalg

from ...graph import Node
from ...ops.build import reshape, transpose
from ...ops.leads import Batch
from ...ops.table import Leads, apply, float_dtype, row


class Matrix:
    """A constant matrix in CSR format, its transpose and factors; equal if its entries are."""

    def __init__(self, matrix: Any, origin: Matrix | None = None):
        self.rows = scipy.sparse.csr_array(matrix, copy=origin is None)
        self.origin = origin  # the matrix that it is the transpose of
        self.shape, self.dtype = self.rows.shape, self.rows.dtype
        self._factors: dict[str, Any] = {}

    @functools.cached_property
    def transposed(self) -> Matrix:
        return Matrix(self.rows.T, self) if self.origin is None else self.origin

    @functools.cached_property
    def key(self) -> tuple:
        arrays = (self.rows.indptr, self.rows.indices, self.rows.data)
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()
        return self.shape, self.dtype.str, digest

    def structure(self) -> tuple:
        return self.key

    def __eq__(self, other: object) -> bool:
        return type(other) is Matrix and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"<{self.shape[0]} by {self.shape[1]}, {self.rows.nnz} entries>"

    def solve(self, b: np.ndarray) -> np.ndarray:
        """By cached factors; nan if it is singular, as from scipy.sparse.linalg.spsolve."""
        if b.dtype.kind == "c" and self.dtype.kind != "c":
            return self.solve(b.real) + 1j * self.solve(b.imag)
        dtype = float_dtype(np.result_type(self.dtype, b.dtype))
        own = self if self.origin is None else self.origin
        try:
            return own.factors(dtype).solve(np.ascontiguousarray(b, dtype), "N" if own is self else "T")
        except RuntimeError as error:
            warnings.warn(f"{self!r}: {error}", scipy.sparse.linalg.MatrixRankWarning, stacklevel=2)
            return np.full(b.shape, np.nan, dtype)

    def factors(self, dtype: np.dtype) -> Any:
        if dtype.str not in self._factors:
            self._factors[dtype.str] = scipy.sparse.linalg.splu(self.rows.tocsc().astype(dtype))
        return self._factors[dtype.str]


def _as_columns(b: Batch, x: Node, *, matrix: Matrix) -> Node:
    """A batch as columns of one matrix."""
    n, k = x.shape[1:]
    flat = reshape(transpose(x, (1, 0, 2)), (n, b.n * k))
    out = apply(b.out.op, flat, matrix=matrix)
    return transpose(reshape(out, (out.shape[0], b.n, k)), (1, 0, 2))


row(
    "sparse_matmul",
    "linear",
    infer=lambda x, matrix: ((matrix.shape[0], x.shape[1]), np.result_type(matrix.dtype, x.dtype)),
    evaluate=lambda x, matrix: matrix.rows @ x,
    transpose=lambda g, out, x, matrix: (apply("sparse_matmul", g, matrix=matrix.transposed),),
    cost=10.0,
    scheduled_alone=True,
    needs="scipy",
    leads=Leads(_as_columns),
)

row(
    "sparse_solve",
    "linear",
    infer=lambda b, matrix: (b.shape, float_dtype(np.result_type(matrix.dtype, b.dtype))),
    evaluate=lambda b, matrix: matrix.solve(b),
    transpose=lambda g, out, b, matrix: (apply("sparse_solve", g, matrix=matrix.transposed),),
    cost=100.0,
    scheduled_alone=True,
    needs="scipy",
    leads=Leads(_as_columns),
)
