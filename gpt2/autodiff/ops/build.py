"""Small functions that make nodes, so that derivative rules and compositions read as NumPy does.

Each drops what would change nothing: a reshape to the same shape, a sum over no axes, a cast to the same
dtype. Nodes carry their own operators (`a * b`, `a @ b`, `a < b`, ...); comparison for equality is
`equal(a, b)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph import Node
from ..hidden import computed
from .table import apply, const

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


def ufunc(name: str) -> Callable[..., Node]:
    """The function that makes a node of that elementwise op."""

    def make(*args) -> Node:
        return apply(name, *args)

    make.__name__ = name
    return make


exp, log, sqrt, square, tanh = map(ufunc, ("exp", "log", "sqrt", "square", "tanh"))
sin, cos, sinh, cosh = map(ufunc, ("sin", "cos", "sinh", "cosh"))
absolute, sign, floor = map(ufunc, ("absolute", "sign", "floor"))
conjugate, real, imag, equal = map(ufunc, ("conjugate", "real", "imag", "equal"))


def zeros(shape: Sequence[int], dtype: DTypeLike) -> Node:
    return full(shape, 0, dtype)


def full(shape: Sequence[int], value: Any, dtype: DTypeLike) -> Node:
    """A constant array: one scalar, broadcast. `value` becomes a Python number of the dtype's kind."""
    return broadcast(const(computed(_of_dtype, value, np.dtype(dtype)), dtype), shape)


def _of_dtype(value: Any, dtype: np.dtype) -> Any:
    return dtype.type(value).item()


def where(c: Node, a: Node | complex, b: Node | complex) -> Node:
    return apply("where", c, a, b)


def guarded(q: Node, p: Node) -> Node:
    """q as a factor of p, which is 0 where p is 0 and q infinite or nan."""
    return where(equal(p, 0.0) * apply("logical_not", apply("isfinite", q)), 0.0, q)


def cast(x: Node, dtype: DTypeLike) -> Node:
    dtype = np.dtype(dtype)
    return x if x.dtype == dtype else apply("cast", x, dtype=str(dtype))


def reshape(x: Node, shape: Sequence[int]) -> Node:
    shape = tuple(shape)
    return x if x.shape == shape else apply("reshape", x, shape=shape)


def transpose(x: Node, perm: Iterable[int]) -> Node:
    perm = tuple(perm)
    return x if perm == tuple(range(x.ndim)) else apply("transpose", x, perm=perm)


def swap_last(x: Node) -> Node:
    """The matrix transpose: the last two axes exchanged."""
    n = x.ndim
    return transpose(x, (*range(n - 2), n - 1, n - 2))


def adjoint(x: Node) -> Node:
    """The conjugate transpose."""
    x = swap_last(x)
    return conjugate(x) if x.dtype.kind == "c" else x


def broadcast(x: Node, shape: Sequence[int]) -> Node:
    shape = tuple(shape)
    return x if x.shape == shape else apply("broadcast", x, shape=shape)


def fits(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    """Whether an array of `shape` broadcasts to the shape `into`."""
    return len(shape) <= len(into) and all(n in (1, m) for n, m in zip(shape[::-1], into[::-1]))


def sum_(x: Node, axes: int | Sequence[int], keepdims: bool = False) -> Node:
    axes = (axes,) if isinstance(axes, int) else axes
    axes = tuple(sorted(a % x.ndim for a in axes))
    return apply("sum", x, axes=axes, keepdims=keepdims) if axes else x


def slice_(x: Node, index: Iterable[tuple]) -> Node:
    """x[index], with index a (start, stop, step) per axis."""
    index = tuple(index)
    return x if index == full_index(x.shape) else apply("slice", x, index=index)


def full_index(shape: Sequence[int]) -> tuple:
    """The index that takes everything."""
    return tuple([(0, n, 1) for n in shape])


def axis_index(shape: Sequence[int], axis: int, start: int, stop: int | None, step: int = 1) -> tuple:
    """The index that takes start:stop:step along one axis and everything along the others."""
    index = list(full_index(shape))
    index[axis] = (start, stop, step)
    return tuple(index)


def row(x: Node, index: tuple, shape: tuple[int, ...]) -> Node:
    """x[index] of this shape: a slice of one row along the first axis, without that axis."""
    part = x
    if x.shape[0] != 1:
        part = Node("slice", (x,), {"index": index}, (1, *shape), x.dtype)
        part._frozen = (("index", index),)
    made = Node("reshape", (part,), {"shape": shape}, shape, x.dtype)
    made._frozen = (("shape", shape),)
    return made


def take_slice(x: Node, axis: int, start: int, stop: int | None, step: int = 1) -> Node:
    return slice_(x, axis_index(x.shape, axis % x.ndim, start, stop, step))


def assemble(parts: Sequence[Node], shape: Sequence[int], indices: Iterable[tuple], dtype: DTypeLike) -> Node:
    """Zeros with each part added at its index."""
    return apply("assemble", *parts, shape=tuple(shape), indices=tuple(indices), dtype=str(np.dtype(dtype)))


def update(x: Node, v: Node, index: Iterable[tuple]) -> Node:
    return apply("update", x, v, index=tuple(index))


def concatenate(parts: Sequence[Node], axis: int) -> Node:
    """numpy.concatenate, as an assemble whose parts do not overlap."""
    axis %= parts[0].ndim
    stops = np.cumsum([p.shape[axis] for p in parts]).tolist()
    shape = tuple(stops[-1] if i == axis else n for i, n in enumerate(parts[0].shape))
    indices = [axis_index(shape, axis, stop - p.shape[axis], stop) for p, stop in zip(parts, stops)]
    return assemble(parts, shape, indices, np.result_type(*(p.dtype for p in parts)))


def item(x: Node, i: int) -> Node:
    """Element i of a tuple node."""
    return apply("item", x, i=i)


def expand(x: Node, axes: Sequence[int], ndim: int) -> Node:
    """Put back, with length 1, the axes that a reduction took away, so that x has `ndim` axes."""
    if x.ndim == ndim:
        return x
    kept = iter(x.shape)
    return reshape(x, tuple(1 if i in axes else next(kept) for i in range(ndim)))


# The operators of nodes, so that derivative rules read as mathematics
_OPERATORS = dict(add="add", sub="subtract", mul="multiply", truediv="divide", pow="power", matmul="matmul")
_OPERATORS |= dict(neg="negative", lt="less", le="less_equal", gt="greater", ge="greater_equal")

for _name, _op in _OPERATORS.items():
    setattr(Node, f"__{_name}__", ufunc(_op))
    if _name in ("add", "sub", "mul", "truediv", "pow"):
        setattr(Node, f"__r{_name}__", lambda self, other, op=_op: apply(op, other, self))
