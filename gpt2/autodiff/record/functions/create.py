"""Functions that make arrays: zeros, ones, full, their `_like` forms, np.array of recorded values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ...graph import Node
from ...ops import apply, build, table
from ..dispatch import call_function, handles, operand, operands, raw
from ..recording import current, innermost
from ..value import Recorded
from . import shape as shape_functions


def constant(value: int, function: Callable) -> Callable:
    """A handler for what gives one number everywhere. `function` finds shape and dtype, and fills nothing."""

    def handler(*args, **kwargs):
        made = function(*(_bare(a) for a in args), **kwargs)
        return build.full(made.shape, value, made.dtype)

    return handler


def _bare(x):
    """An array of the type of a node, which nobody reads."""
    return np.empty(x.shape, x.dtype) if hasattr(x, "attrs") else x


handles(np.zeros_like, np.empty_like)(constant(0, np.empty_like))
handles(np.ones_like)(constant(1, np.empty_like))
handles(np.zeros, np.empty)(constant(0, np.empty))
handles(np.ones)(constant(1, np.empty))


@raw(np.empty_like)
def empty_like(prototype: Any, *args: Any, **kwargs: Any) -> Recorded:
    """Zeros: what was in the memory before must not show."""
    return call_function(np.zeros_like, (prototype, *args), kwargs)


@raw(np.empty)
def empty(*args: Any, **kwargs: Any) -> Recorded:
    return call_function(np.zeros, args, kwargs)


@handles(np.full_like)
def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Node:
    dtype = np.dtype(dtype) if dtype is not None else a.dtype
    return build.broadcast(
        build.cast(operand(fill_value, dtype), dtype), _shape(shape) if shape is not None else a.shape
    )


@handles(np.full)
def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", *, device: Any = None) -> Node:
    value = operand(fill_value)
    return build.broadcast(build.cast(value, dtype or value.dtype), _shape(shape))


def _shape(shape) -> tuple:
    return (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)


def _plain(function):
    """Arrays of numbers that depend on no recorded one: recorded, so that they can be written to."""

    def handler(*args, **kwargs):
        if any(type(a) is Recorded for a in (*args, *kwargs.values())):
            args = [_number(a) for a in args]
            kwargs = {k: _number(v) for k, v in kwargs.items()}
        return as_recorded(function(*args, **kwargs))

    return handler


def _number(x):
    if type(x) is Recorded:
        return x.__index__() if x.dtype.kind in "iub" else float(x)
    return x


def as_recorded(value: Any) -> Recorded:
    """A plain array as a recorded value of the innermost recording."""
    rec = current()
    return Recorded(rec, table.const(np.array(value)), np.array(value))


for _function in (np.eye, np.identity, np.arange, np.tri):
    raw(_function)(_plain(_function))


@raw(np.array, np.asarray, np.asanyarray, np.ascontiguousarray, np.asfortranarray)
def array(
    obj: Any,
    dtype: Any = None,
    *,
    copy: bool = True,
    order: Literal["K", "A", "C", "F"] = "K",
    subok: bool = False,
    ndmin: int = 0,
    device: Any = None,
) -> Recorded:
    """np.array([a, b], like=a), and lists of recorded values wherever an array is expected."""
    x = obj if type(obj) is Recorded else _stacked(obj)
    if type(x) is not Recorded:
        x = as_recorded(np.array(x))
    if dtype is not None and x.dtype != dtype:
        x = x.astype(dtype)
    elif copy or not isinstance(x.value, np.ndarray):
        value = np.array(x.value, order=order)
        x = Recorded(innermost((x,)), x.node, value)
    return x if x.ndim >= ndmin else x.reshape((1,) * (ndmin - x.ndim) + x.shape)


def _stacked(obj):
    """Nested lists as one array, recorded if anything in it is."""
    if not isinstance(obj, (list, tuple)):
        return obj if type(obj) is Recorded else np.asarray(obj)
    parts = [_stacked(v) for v in obj]
    if not any(type(p) is Recorded for p in parts):
        return np.array(parts) if parts else np.array([])
    return np.stack(parts)


def _no_copy(function):
    def handler(obj, dtype=None, order=None, *, copy=None, device=None):
        if (
            type(obj) is Recorded
            and isinstance(obj.value, np.ndarray)
            and dtype in (None, obj.dtype)
            and not copy
        ):
            return obj
        return array(obj, dtype)

    return handler


for _function in (np.asarray, np.asanyarray, np.ascontiguousarray, np.asfortranarray):
    raw(_function)(_no_copy(_function))


@raw(np.copy)
def copy(a: Any, order: str = "K", subok: bool = False) -> Recorded:
    return array(a)


@raw(np.astype)
def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Recorded:
    return x.astype(dtype, copy=copy)


@handles(np.linspace)
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Node:
    start, stop = operands(start, stop)
    common = np.result_type(start.dtype, stop.dtype, float(num))
    start, stop = build.cast(start, common), build.cast(stop, common)
    shape = np.broadcast_shapes(start.shape, stop.shape)
    start, stop = build.broadcast(start, shape), build.broadcast(stop, shape)
    steps = num - 1 if endpoint else num
    weight = table.const(np.arange(num).reshape((-1,) + (1,) * len(shape)) / max(steps, 1))
    weight = build.cast(weight, build.real(start).dtype)
    row, last = (build.reshape(x, (1, *shape)) for x in (start, stop))
    out = row * (1.0 - weight) + last * weight  # exact at both ends
    out = build.cast(shape_functions.moveaxis(out, 0, axis), dtype or common)
    return (out, (stop - start) / steps) if retstep else out


@handles(np.logspace)
def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Node:
    if np.ndim(base):
        raise NotImplementedError("with an array for base is not recorded")
    exponents = linspace(start, stop, num, endpoint, axis=axis)
    out = apply("power", operand(base, exponents.dtype), exponents)
    return build.cast(out, dtype or out.dtype)


@handles(np.geomspace)
def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Node:
    start, stop = operands(start, stop)
    common = np.result_type(start.dtype, stop.dtype, np.float64)
    start, stop = build.cast(start, common), build.cast(stop, common)
    if common.kind == "c":
        raise NotImplementedError("of complex numbers is not recorded")
    sign = apply("sign", start)
    powers = linspace(build.log(start * sign), build.log(stop * sign), num, endpoint, axis=0)
    out = shape_functions.moveaxis(build.exp(powers) * sign, 0, axis)
    return build.cast(out, dtype or common)
