"""Functions that make arrays: zeros, ones, full, their `_like` forms, np.array of recorded values."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import unsupported
from ...graph import Node
from ...ops import apply, build, table
from .. import source_lines
from ..dispatch import RecordedLike, call_function, handles, operand, operands, raw
from ..recorder import current
from ..value import Recorded
from . import shape as shape_functions


def _constant(value: int, function: Callable, *args: Any, **kwargs: Any) -> Node:
    """An array filled with one number, of the shape and dtype that `function` gives it."""
    array = function(*[np.empty(a.shape, a.dtype) if isinstance(a, Node) else a for a in args], **kwargs)
    return build.full(array.shape, value, array.dtype)


handles(np.zeros_like)(functools.partial(_constant, 0, np.empty_like))
handles(np.ones_like)(functools.partial(_constant, 1, np.empty_like))
handles(np.zeros)(functools.partial(_constant, 0, np.empty))
handles(np.ones)(functools.partial(_constant, 1, np.empty))


# Zeros for these: uninitialised memory would differ from run to run
raw(np.empty)(lambda *args, **kwargs: call_function(np.zeros, args, kwargs))
raw(np.empty_like)(lambda prototype, *args, **kw: call_function(np.zeros_like, (prototype, *args), kw))


@handles(np.full)
def full(shape, fill_value, dtype=None, order="C", *, device=None) -> Node:
    value = operand(fill_value)
    shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    return build.broadcast(build.cast(value, dtype or value.dtype), shape)


def _plain(function: Callable, *args: Any, **kwargs: Any) -> Recorded:
    """An array of plain values, which is recorded so that it can be written to."""
    return as_recorded(function(*map(_number, args), **{k: _number(v) for k, v in kwargs.items()}))


def _number(x):
    if type(x) is Recorded:
        return x.__index__() if x.dtype.kind in "iub" else float(x)
    return x


def as_recorded(value: RecordedLike) -> Recorded:
    """A plain array as a recorded value of the innermost recording."""
    return Recorded(current(), table.const(np.array(value)), np.array(value))


for _function in (np.eye, np.identity, np.tri):
    raw(_function)(functools.partial(_plain, _function))


@raw(np.arange)
def arange(start=None, stop=None, step=None, dtype=None, **options) -> Recorded:
    """The length is read. As in NumPy, the step is that of the first two elements, after rounding."""
    if not any(type(v) is Recorded and v.dtype.kind in "fc" for v in (start, stop, step)):
        whole = [_number(v) for v in (start, stop, step)]
        return as_recorded(np.arange(*whole, dtype, **options))  # type: ignore[call-overload]
    if stop is None:
        start, stop = 0.0, start
    step = 1.0 if step is None else step
    plain = [v.value if type(v) is Recorded else v for v in (start, stop, step)]
    expected = np.arange(*plain, dtype, **options)  # type: ignore[call-overload]
    n = max(operator.index(np.ceil((stop - start) / step).astype(np.intp)), 0)
    first, second = start + 0.0 * step, start + step
    rest = first + np.arange(2.0, max(n, 2)) * (second - first)
    result = np.concatenate([np.stack([first, second]), rest])[:n]
    if type(result) is not Recorded:  # only the length depends on a recorded value
        return as_recorded(expected)
    if result.dtype != expected.dtype or not np.array_equal(result.value, expected):
        raise unsupported("np.arange", source_lines.here(), "of numbers of this kind is not recorded")
    return result


@handles(np.array, np.asarray, np.asanyarray, np.ascontiguousarray, np.asfortranarray)
def array(obj, dtype=None, order=None, *, copy=None, subok=False, ndmin=0, ndmax=0, device=None) -> Node:
    """The same numbers; lists of recorded values are stacked."""
    x = operand(obj)
    if dtype is not None:
        x = build.cast(x, np.dtype(dtype))
    return x if x.ndim >= ndmin else build.reshape(x, (1,) * (ndmin - x.ndim) + x.shape)


@handles(np.linspace)
def linspace(start, stop, num=50, endpoint=True, retstep=False, dtype=None, axis=0, *, device=None) -> Node:
    """As NumPy computes it: multiples of one step added to the start, and the end exactly."""
    start, stop = operands(start, stop)
    common = np.result_type(start.dtype, stop.dtype, float(num))
    start, stop = build.cast(start, common), build.cast(stop, common)
    shape = np.broadcast_shapes(start.shape, stop.shape)
    start, stop = build.broadcast(start, shape), build.broadcast(stop, shape)
    num = operator.index(num)
    steps = num - 1 if endpoint else num
    width = (stop - start) / steps if steps > 0 else build.full(shape, np.nan, common)
    index = table.const(np.arange(num).reshape((-1,) + (1,) * len(shape)).astype(build.real(start).dtype))
    first, last = (build.reshape(x, (1, *shape)) for x in (start, stop))
    factor = build.reshape(width, (1, *shape)) if steps > 0 else last - first
    out = index * factor + first
    if endpoint and num > 1:
        out = shape_functions.concatenate((build.take_slice(out, 0, 0, num - 1), last))
    if dtype is not None and np.dtype(dtype).kind in "iu":
        out = apply("floor", out)
    out = build.cast(shape_functions.moveaxis(out, 0, axis), dtype or common)
    return (out, width) if retstep else out
