"""Handlers for functions that move values: shapes, axes, joining, splitting, repeating, padding."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...graph import Node
from ...ops import build, table
from ..dispatch import Operand, handled, handles, operand, quiet, raw
from ..recorder import innermost
from ..value import Recorded, note_conversion, plain_key, value_of

normalize_axis_index = np.lib.array_utils.normalize_axis_index
normalize_axis_tuple = np.lib.array_utils.normalize_axis_tuple


def axis_of(axis: int, ndim: int) -> int:
    return normalize_axis_index(operator.index(axis), ndim)


def along(a: Node, axis: int | None) -> tuple[Node, int]:
    """(array, axis) to work along: flattened for axis=None, and of a number one element."""
    return (build.reshape(a, (a.size,)), 0) if axis is None or a.ndim == 0 else (a, axis_of(axis, a.ndim))


# the same elements in the same order
@raw(np.reshape)
def reshape_recorded(a: Any, /, shape: Any = None, order: str = "C", *, copy: bool | None = None) -> Recorded:
    """np.reshape. A recorded integer in the shape is read: another shape is another program."""
    kw = {} if copy is None else {"copy": copy}
    if type(a) is not Recorded:  # only the shape is recorded
        return np.reshape(a, plain_shape(shape), order=order, **kw)  # type: ignore[call-overload]
    return handled(np.reshape, (a, plain_shape(shape)), {"order": order, **kw}, reshape)


def plain_shape(shape: Any) -> int | tuple[int, ...]:
    """The shape as plain integers."""
    if type(shape) is Recorded:
        return operator.index(shape) if shape.ndim == 0 else tuple(np.asarray(shape).tolist())
    if isinstance(shape, (tuple, list)):
        return tuple(map(operator.index, shape))
    return shape


def reshape(a: Node, /, shape: Any = None, order: str = "C", *, copy: bool | None = None) -> Node:
    shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(map(operator.index, shape))
    if -1 in shape:
        known = int(np.prod([n for n in shape if n != -1], dtype=np.int64))
        whole = np.empty(a.shape).reshape(shape).shape if not known else shape
        shape = tuple(a.size // known if n == -1 else n for n in whole)
    if order == "F":
        return transpose(build.reshape(transpose(a), shape[::-1]))
    if order == "A":
        raise NotImplementedError("order='A' depends on the array's layout in memory")
    return build.reshape(a, shape)


@handles(np.ravel)
def ravel(a: Node, order: str = "C") -> Node:
    if order == "K" and a.ndim > 1:
        raise NotImplementedError("order='K' depends on the array's layout in memory")
    return reshape(a, -1 if a.size else 0, order="C" if order == "K" else order)


@handles(np.squeeze)
def squeeze(a: Node, axis: int | Sequence[int] | None = None) -> Node:
    if a.ndim == 0:
        return a  # NumPy accepts its axis 0 or -1
    ones = [i for i, n in enumerate(a.shape) if n == 1]
    axes = ones if axis is None else normalize_axis_tuple(axis, a.ndim)
    return build.reshape(a, tuple(n for i, n in enumerate(a.shape) if i not in axes))


def expand_dims(a: Node, axis: int | Sequence[int]) -> Node:
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = normalize_axis_tuple(axes, a.ndim + len(axes))
    lengths = iter(a.shape)
    return build.reshape(a, tuple(1 if i in axes else next(lengths) for i in range(a.ndim + len(axes))))


# axes
@handles(np.transpose, np.permute_dims)
def transpose(a: Node, axes: Any = None) -> Node:
    axes = reversed(range(a.ndim)) if axes is None else normalize_axis_tuple(axes, a.ndim)
    return build.transpose(a, tuple(axes))


handles(np.matrix_transpose, np.linalg.matrix_transpose)(lambda x, /: build.swap_last(x))


@handles(np.swapaxes)
def swapaxes(a: Node, axis1: int, axis2: int) -> Node:
    perm = list(range(a.ndim))
    i, j = axis_of(axis1, a.ndim), axis_of(axis2, a.ndim)
    perm[i], perm[j] = j, i
    return build.transpose(a, perm)


def moveaxis(a: Node, source: int | Sequence[int], destination: int | Sequence[int]) -> Node:
    source, destination = normalize_axis_tuple(source, a.ndim), normalize_axis_tuple(destination, a.ndim)
    perm = [i for i in range(a.ndim) if i not in source]
    for to, axis in sorted(zip(destination, source)):
        perm.insert(to, axis)
    return build.transpose(a, perm)


# broadcasting
@handles(np.broadcast_to)
def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Node:
    return build.broadcast(array, (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape))


@handles(np.broadcast_arrays)
def broadcast_arrays(*args: Any, subok: bool = False) -> list[Node]:
    nodes = [operand(x) for x in args]
    shape = np.broadcast_shapes(*(x.shape for x in nodes))
    return [build.broadcast(x, shape) for x in nodes]


@handles(np.meshgrid)
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Node]:
    nodes = [build.reshape(x, (x.size,)) for x in map(operand, xi)]
    n = len(nodes)
    order = [1, 0, *range(2, n)] if indexing == "xy" and n > 1 else list(range(n))
    nodes = [
        build.reshape(x, tuple(x.size if order[i] == j else 1 for j in range(n))) for i, x in enumerate(nodes)
    ]
    return nodes if sparse else broadcast_arrays(*nodes)


# joining
def _parts_of(arrays: Sequence | Node, dtype: Any) -> list[Node]:
    """The arrays to be joined, in one dtype. They may come as one array along its first axis."""
    if isinstance(arrays, Node):
        arrays = [item_at(arrays, 0, i) for i in range(arrays.shape[0])]
    nodes = [operand(x) for x in arrays]
    dtype = dtype or np.result_type(*(x.dtype for x in nodes))
    return [build.cast(x, dtype) for x in nodes]


def item_at(x: Node, axis: int, i: int) -> Node:
    part = build.take_slice(x, axis, i, i + 1)
    return build.reshape(part, tuple(n for j, n in enumerate(x.shape) if j != axis))


@handles(np.concatenate, np.concat)
def concatenate(arrays, /, axis=0, out=None, *, dtype=None, casting="same_kind") -> Node:
    nodes = _parts_of(arrays, dtype)
    if axis is None:
        nodes, axis = [build.reshape(x, (x.size,)) for x in nodes], 0
    return nodes[0] if len(nodes) == 1 else build.concatenate(nodes, axis_of(axis, nodes[0].ndim))


@handles(np.stack)
def stack(arrays: Sequence, axis: int = 0, out=None, *, dtype=None, casting: str = "same_kind") -> Node:
    nodes = _parts_of(arrays, dtype)
    axis = axis_of(axis, nodes[0].ndim + 1)
    return concatenate([expand_dims(x, axis) for x in nodes], axis)


# repeating and moving along
def take(x: Node, indices: Any, axis: int) -> Node:
    """The elements at constant positions of one axis."""
    spec = (*((0, n, 1) for n in x.shape[:axis]), ("array", 0))
    return table.apply("gather", x, table.const(np.asarray(indices, np.intp)), spec=spec)


@handles(np.repeat)
def repeat(a: Node, repeats: Any, axis: int | None = None) -> Node:
    a, axis = along(a, axis)
    if isinstance(repeats, Node):
        raise NotImplementedError("with counts that are recorded values is not recorded")
    if np.size(repeats) == 1:  # broadcast, whose derivative is a sum
        k = int(np.reshape(repeats, ()))
        lead, n, tail = a.shape[:axis], a.shape[axis], a.shape[axis + 1 :]
        wide = build.broadcast(build.reshape(a, (*lead, n, 1, *tail)), (*lead, n, k, *tail))
        return build.reshape(wide, (*lead, n * k, *tail))
    return take(a, np.repeat(np.arange(a.shape[axis]), repeats), axis)


@handles(np.delete)
def delete(arr: Node, obj: Any, axis: int | None = None) -> Node:
    arr, axis = along(arr, axis)
    return take(arr, np.delete(np.arange(arr.shape[axis]), obj), axis)


@raw(np.insert)
def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Recorded:
    """np.insert. The values take the dtype of the array first."""
    note_conversion(np.asarray(plain_key(arr)).dtype, values, scalars=False)
    obj = plain_shape(obj) if type(obj) is Recorded else obj
    return handled(np.insert, (arr, obj, values, axis), {}, _inserted)


def _inserted(arr: Operand, obj: Any, values: Operand, axis: int | None) -> Node:
    arr, axis = along(operand(arr), axis)
    n = arr.shape[axis]
    value = build.cast(operand(values), arr.dtype)
    count = len(np.insert(np.arange(n), obj, 0)) - n  # one new value a place
    if count == 1:  # or as many as there are, at a single place
        value = build.reshape(value, (1,) * (arr.ndim - value.ndim) + value.shape)
        value = moveaxis(value, 0, axis) if not isinstance(obj, slice) and np.ndim(obj) == 0 else value
        count = value.shape[axis]
    value = build.broadcast(value, tuple(count if i == axis else m for i, m in enumerate(arr.shape)))
    order = np.insert(np.arange(n), obj, np.arange(n, n + count))  # NumPy itself decides the places
    return take(build.concatenate([arr, value], axis), order, axis)


# diagonals and triangles
def diagonal_view(a: Node, offset: int, axis1: int, axis2: int) -> Node:
    """A diagonal as a slice of the flattened matrix, last axis of the result."""
    axis1, axis2 = axis_of(axis1, a.ndim), axis_of(axis2, a.ndim)
    rest = [i for i in range(a.ndim) if i not in (axis1, axis2)]
    a = build.transpose(a, (*rest, axis1, axis2))
    n, m = a.shape[-2:]
    length = max(0, min(n + min(offset, 0), m - max(offset, 0)))
    start = offset if offset >= 0 else -offset * m
    flat = build.reshape(a, (*a.shape[:-2], n * m))
    if length == 0:
        return build.take_slice(flat, -1, 0, 0)
    return build.take_slice(flat, -1, start, start + (length - 1) * (m + 1) + 1, m + 1)


handles(np.diagonal)(lambda a, offset=0, axis1=0, axis2=1: diagonal_view(a, offset, axis1, axis2))


@handles(np.diagflat)
def diagflat(v: Node, k: int = 0) -> Node:
    v = build.reshape(v, (v.size,))
    n = v.size + abs(k)
    start = k if k >= 0 else -k * n
    index = ((start, start + (v.size - 1) * (n + 1) + 1, n + 1),) if v.size else ((0, 0, 1),)
    return build.reshape(build.assemble([v], (n * n,), [index], v.dtype), (n, n))


# questions about types and memory


def _like(x):
    """A plain value of the same type."""
    return (type(x.value)(0) if x.weak else np.empty(x.shape, x.dtype)) if type(x) is Recorded else x


raw(np.result_type)(lambda *args: np.result_type(*map(_like, args)))
raw(np.can_cast)(lambda x, *args, **kwargs: np.can_cast(_like(x), *args, **kwargs))


@raw(np.min_scalar_type)
def min_scalar_type(a: Recorded) -> np.dtype:
    """Of a number it depends on the value."""
    return np.min_scalar_type(_like(a) if a.shape else a._read(a.value, "float"))


@raw(np.shares_memory)
def shares_memory(a: Any, b: Any, max_work: Any = None, function: Callable = np.shares_memory) -> bool:
    innermost([x for x in (a, b) if type(x) is Recorded]).note_query()
    return function(value_of(a), value_of(b), max_work)


raw(np.may_share_memory)(functools.partial(shares_memory, function=np.may_share_memory))


@handles(np.lib.stride_tricks.sliding_window_view)
def sliding_window_view(x, window_shape, axis=None, *, subok=False, writeable=False) -> Node:
    windows = (window_shape,) if isinstance(window_shape, (int, np.integer)) else tuple(window_shape)
    axes = range(x.ndim) if axis is None else normalize_axis_tuple(axis, x.ndim, allow_duplicate=True)
    for axis, width in zip(axes, windows):
        n = x.shape[axis] - width + 1
        x = moveaxis(take(x, np.arange(n)[:, None] + np.arange(width), axis), axis + 1, -1)
    return x


quiet(np.concatenate, np.stack, np.ravel, np.squeeze, np.reshape, moves=True)
quiet(np.transpose, np.matrix_transpose, np.swapaxes, np.broadcast_to, moves=True)
