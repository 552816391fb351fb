"""scipy.sparse: matrices that are constants, and products of them with recorded values.

SciPy's own matrices convert their operands to plain arrays. The classes here are subclasses that also take
recorded values in `A @ x`, `x @ A` and `A.dot(x)`. `sparse.csr_array(A)` converts an existing matrix.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as _scipy

from ...errors import located, unsupported
from ...record.record import apply_op
from ...record.source_lines import here
from ...record.value import Recorded
from ..passing import is_recorded, scipy_value
from ..rules.sparse_matrices import Matrix

FORMATS = ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")
COMPRESSED = ("data", "indices", "indptr")
HELD_IN: dict[str, tuple[str, ...]] = dict.fromkeys(("csr", "csc", "bsr"), COMPRESSED)
HELD_IN |= {"coo": ("data", "coords"), "dia": ("data", "offsets")}
PRODUCTS, FROM_RIGHT = ("__matmul__", "dot"), ("__rmatmul__", "__rmul__")
BY_ENTRY = ("__mul__", "__rmul__", "multiply")  # of arrays; of matrices `*` is a product
CONVERSIONS = ("transpose", "conjugate", "conj", "asformat", *(f"to{name}" for name in FORMATS))


def __getattr__(name: str) -> Any:
    value = scipy_value(_scipy, name)
    return value if isinstance(value, (type, ModuleType)) or not callable(value) else _giving_ours(value)


def __dir__() -> list[str]:
    return dir(_scipy)


def _giving_ours(function: Callable) -> Callable:
    """SciPy's function (eye, diags, kron, ...), with sparse results as classes of this module."""

    @functools.wraps(function)
    def giving_ours(*args, **kwargs):
        return ours(function(*args, **kwargs))

    return giving_ours


def ours(x: Any) -> Any:
    """A SciPy sparse matrix as one of this module; anything else as it is."""
    kind = _OURS.get(type(x))
    return x if kind is None else kind(x)


def contents(matrix: Any) -> tuple:
    """The arrays of a matrix; for a format without arrays, those of its CSR form."""
    names = HELD_IN.get(matrix.format)
    if names is None:
        return contents(_scipy.csr_array(matrix))
    return (matrix.shape, *(getattr(matrix, name) for name in names))


def product(name: str, op: str, matrix: Any, x: Any) -> Any:
    """An op of a sparse matrix and a recorded vector, or matrix of columns."""
    if matrix.ndim != 2 or np.ndim(x) not in (1, 2) or matrix.shape[1] != np.shape(x)[0]:
        shapes = ValueError(f"a matrix of shape {matrix.shape}, and a value of shape {np.shape(x)}")
        raise located(shapes, name, here())
    columns = x if np.ndim(x) == 2 else np.reshape(x, (-1, 1))
    out = apply_op(op, columns, matrix=Matrix(matrix))
    return out if np.ndim(x) == 2 else np.reshape(out, (-1,))


class Constant:
    """Mixin of the classes of this module, before SciPy's class."""

    is_array = True  # `*` works entry by entry

    def __init__(self, *args: Any, **kwargs: Any):
        if is_recorded(args, kwargs):
            raise unsupported(
                f"scipy.sparse.{type(self).__name__}",
                here(),
                "of recorded values is not recorded: sparse matrices are constants",
            )
        super().__init__(*args, **kwargs)

    def _reuse_roots(self) -> tuple:
        """What a recording that reads the matrix depends on."""
        return contents(self)

    @property
    def T(self) -> Any:
        return self.transpose()  # type: ignore[attr-defined]


def _converting(name: str) -> Callable:
    """SciPy's method of that name, with its result as a class of this module."""

    def method(self, *args, **kwargs):
        return ours(getattr(super(Constant, self), name)(*args, **kwargs))

    return method


def _multiplying(name: str) -> Callable:
    """SciPy's operator of that name, which also takes a recorded value."""

    def method(self, other):
        if type(other) is not Recorded:
            return getattr(super(Constant, self), name)(other)
        by_entry = name in BY_ENTRY and (self.is_array or np.ndim(other) == 0)
        if by_entry or name == "multiply":
            raise unsupported(
                "scipy.sparse: A * x, entry by entry,",
                here(),
                "would be a sparse matrix of recorded values. Take A.toarray() * x, or multiply A @ x",
            )
        if name in FROM_RIGHT:
            out = product("scipy.sparse: x @ A", "sparse_matmul", self.transpose(), np.transpose(other))
            return np.transpose(out)
        return product("scipy.sparse: A @ x", "sparse_matmul", self, other)

    return method


for _name in CONVERSIONS:
    setattr(Constant, _name, _converting(_name))
for _name in (*PRODUCTS, *FROM_RIGHT, *BY_ENTRY):
    setattr(Constant, _name, _multiplying(_name))


_OURS: dict[type, type] = {}
for _name in (f"{f}_{kind}" for f in FORMATS for kind in ("array", "matrix")):
    _theirs = getattr(_scipy, _name)
    _about = {"__module__": __name__, "__doc__": _theirs.__doc__, "is_array": _name.endswith("array")}
    globals()[_name] = _OURS[_theirs] = type(_name, (Constant, _theirs), _about)
