"""Records reduce, accumulate, outer and at, the methods of NumPy's ufuncs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..atoms import SCALARS
from ..errors import located, unsupported
from ..graph import Node
from ..ops import apply
from ..ops.build import cast
from . import dispatch, source_lines
from .memory import writes
from .recorder import label, lost_write
from .value import Recorded, as_node, check_level, copied, plain_key, scattered, value_of

# methods
REDUCTIONS = {
    "add": np.sum,
    "multiply": np.prod,
    "maximum": np.max,
    "minimum": np.min,
    "logical_and": np.all,
    "logical_or": np.any,
}
ACCUMULATIONS = {"add": np.cumsum, "multiply": np.cumprod}


def call_method(ufunc: np.ufunc, method: str, inputs: Sequence, kwargs: dict) -> Any:
    if method == "reduce":
        return _reduce(ufunc, *inputs, **kwargs)
    if method == "accumulate":
        return _accumulate(ufunc, *inputs, **kwargs)
    if method == "outer":
        a, b = (x if type(x) is Recorded else np.asarray(x) for x in inputs)
        return ufunc(a.reshape(a.shape + (1,) * b.ndim), b, **kwargs)
    if method == "at":
        return _at(ufunc, *inputs)
    if method == "reduceat" and ufunc in (np.add, np.maximum, np.minimum):
        return _reduceat(ufunc, *inputs, **kwargs)
    raise unsupported(f"{dispatch.full_name(ufunc)}.{method}", source_lines.here())


def _without_none(**kwargs) -> dict:
    return {k: v for k, v in kwargs.items() if v is not None}


def _reduce(ufunc, x, axis=0, dtype=None, out=None, keepdims=False, initial=None, where=True):
    out = out[0] if isinstance(out, tuple) else out
    initial = None if initial is np._NoValue else initial
    axis = () if x.ndim == 0 and axis in (0, -1) else axis  # of a number NumPy accepts 0 and -1
    function = REDUCTIONS.get(ufunc.__name__)
    takes_all = function in (np.sum, np.prod)
    takes_these = dtype is None and (function in (np.max, np.min) or initial is None)
    if takes_all or function is not None and takes_these:
        options = _without_none(out=out, initial=initial, dtype=dtype, where=None if where is True else where)
        return dispatch.call_function(function, (x,), dict(axis=axis, keepdims=bool(keepdims), **options))
    if where is not True:
        raise unsupported(
            f"{dispatch.full_name(ufunc)}.reduce(where=)", source_lines.here(), "is not recorded"
        )
    x = _in_loop_dtype(ufunc.reduce, x, axis=axis, dtype=dtype)
    axes = tuple(range(x.ndim)) if axis is None else np.lib.array_utils.normalize_axis_tuple(axis, x.ndim)
    rest = [n for k, n in enumerate(x.shape) if k not in axes]
    parts = list(np.moveaxis(x, axes, range(len(axes))).reshape(-1, *rest))  # slices along the axes
    if initial is not None:
        start = initial if type(initial) is Recorded else x.dtype.type(initial)
        total = start if parts else np.full(rest, start, like=x)
    elif not parts:  # NumPy's own result, or error, for an empty array
        return np.asarray(ufunc.reduce(np.empty(x.shape, x.dtype), axes, keepdims=keepdims), like=x)
    else:
        total, *parts = parts
        if not parts:  # never a view of the slice; as in NumPy with the identity: hypot gives abs(x)
            total = total.copy() if ufunc.identity is None else ufunc(ufunc.identity, total)
    for part in parts:
        total = ufunc(total, part)
    result = np.expand_dims(total, axes) if keepdims else total
    return result if out is None else copied(out, result)


def _in_loop_dtype(method, x, *args, shape=None, **options):
    """x in the dtype that a ufunc's reduce or accumulate computes in."""
    one = np.ones((1,) * x.ndim if shape is None else shape, x.dtype)
    try:
        dtype = method(one, *args, **options).dtype
    except (ValueError, TypeError, IndexError) as error:
        name = f"{dispatch.full_name(method.__self__)}.{method.__name__}"
        raise located(error, name, source_lines.here()) from error
    return x if dtype == x.dtype else x.astype(dtype)


def _accumulate(ufunc, x, axis=0, dtype=None, out=None):
    out = out[0] if isinstance(out, tuple) else out
    function = ACCUMULATIONS.get(ufunc.__name__)
    if function is not None:
        return dispatch.call_function(function, (x,), dict(axis=axis, **_without_none(dtype=dtype, out=out)))
    x = _in_loop_dtype(ufunc.accumulate, x, axis=axis, dtype=dtype)
    parts = list(np.moveaxis(x, axis, 0))
    totals = parts[:1]
    for part in parts[1:]:
        totals.append(ufunc(totals[-1], part))
    result = np.stack(totals, axis) if totals else x.copy()
    if out is not None:
        return copied(out, result)
    if x.flags.c_contiguous or not totals:
        return result
    # in memory as NumPy's: what a view of the result shares depends on that
    strides = ufunc.accumulate(x.value, axis).strides
    order = sorted(range(x.ndim), key=lambda k: -abs(strides[k]))
    return np.transpose(np.transpose(result, order).copy(), np.argsort(order).tolist())


def _reduceat(ufunc, x, indices, axis=0, dtype=None, out=None):
    if type(indices) is Recorded or type(x) is not Recorded:
        name = f"{dispatch.full_name(ufunc)}.reduceat"
        raise unsupported(name, source_lines.here(), "with recorded indices is not recorded")
    starts = np.array(indices)
    x = _in_loop_dtype(ufunc.reduceat, x, starts, shape=x.shape, axis=axis, dtype=dtype)

    def node(x: Node) -> Node:
        attrs = {"ufunc": ufunc.__name__, "axis": axis % x.ndim}
        return apply("reduceat", x, starts=tuple(starts.tolist()), **attrs)

    result = dispatch.handled(lambda v: ufunc.reduceat(v, starts, axis), (x,), {}, node)
    return result if out is None else copied(out[0] if isinstance(out, tuple) else out, result)


def _at(ufunc, x, index, values=None):
    """ufunc.at: every repetition of an index counts."""
    if type(x) is not Recorded:
        raise lost_write(x, f"{dispatch.full_name(ufunc)}.at")
    if ufunc.__name__ not in ("add", "subtract") or _adds_in(x.dtype, plain_key(values)) != x.dtype:
        return _at_in_rounds(ufunc, x, index, values)
    plain, concrete = plain_key(index), value_of(values)
    ufunc.at(np.array(x.value), plain, concrete)  # its errors
    if type(values) is Recorded:
        check_level(x, values)
    value = as_node(x._rec, values if not isinstance(values, (list, tuple)) else np.asarray(values), x.dtype)
    value = cast(value, x.dtype)
    value = -value if ufunc is np.subtract else value
    new = scattered("scatter_add", x, index, value)
    label(new, source_lines.site())
    writes.write(x, new, lambda array: ufunc.at(array, plain, concrete))


def _adds_in(dtype: np.dtype, values: Any) -> np.dtype:
    """The dtype in which NumPy adds these to elements of an array."""
    return np.result_type(dtype, values if type(values) in SCALARS else np.asarray(values).dtype)


def _at_in_rounds(ufunc, x, index, values):
    """Any other ufunc: the first occurrences of each index, then the second ones, and so on."""
    if type(values) in (list, tuple):
        values = np.array(values)
    # Its errors
    ufunc.at(np.array(x.value), plain_key(index), *([] if values is None else [value_of(values)]))
    where = np.arange(x.size).reshape(x.shape)[plain_key(index)]
    if values is not None:
        shape = np.broadcast_shapes(where.shape, np.shape(values))
        where, values = np.broadcast_to(where, shape).ravel(), np.broadcast_to(values, shape).reshape(-1)
    where, counts = where.ravel(), Counter()
    rank = np.zeros(len(where), int)
    for k, place in enumerate(where.tolist()):  # which occurrence of the index it is
        rank[k] = counts[place]
        counts[place] += 1
    flat = x.reshape(-1).copy()
    for turn in range(rank.max(initial=-1) + 1):
        chosen = np.flatnonzero(rank == turn)
        at = where[chosen]
        flat[at] = ufunc(flat[at]) if values is None else ufunc(flat[at], values[chosen])
    x[...] = flat.reshape(x.shape)
