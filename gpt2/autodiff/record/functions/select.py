"""Handlers for selection, lookup and counting: where, take, masks, histograms; for real, imag, round."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import located
from ...graph import Node
from ...ops import apply, build, table
from .. import source_lines
from ..dispatch import Operand, RecordedLike, handled, handles, operand, operands, raw, refuse
from ..value import Recorded, copied
from . import shape as shape_functions
from .as_written import Written, replaces
from .reduce import axes_of
from .shape import axis_of


@raw(np.where)
def where(condition, x=None, y=None, /) -> Recorded | np.ndarray:
    if x is None and y is None:
        return nonzero(condition)
    return handled(np.where, (condition, x, y), {}, where_node)


def where_node(condition: Operand, x: Operand, y: Operand) -> Node:
    dtype = np.result_type(*(n.dtype for n in operands(x, y)))
    condition, x, y = operand(condition), operand(x, dtype), operand(y, dtype)
    condition = condition if condition.dtype.kind == "b" else apply("not_equal", condition, 0)
    return apply("where", condition, build.cast(x, dtype), build.cast(y, dtype))


@raw(np.choose)
def choose(a: RecordedLike, choices: Any, out: Recorded | None = None, mode: str = "raise") -> Recorded:
    index = a.astype(np.intp) if type(a) is Recorded else np.asarray(a, np.intp)
    index, *choices = np.broadcast_arrays(_in_range(index, len(choices), mode), *choices)
    return _stored(np.take_along_axis(np.stack(choices), index[None], 0)[0], out, "np.choose")


def _stored(result: Recorded, out: Recorded | None, name: str) -> Recorded:
    """The result, written to `out` if there is one, which must have its shape."""
    if out is None:
        return result
    if out.shape != result.shape:
        error = ValueError(f"out= has the shape {out.shape}, and the result {result.shape}")
        raise located(error, name, source_lines.here())
    return copied(out, result)


def _in_range(index, n: int, mode: str):
    if mode == "wrap":
        return index % n
    if mode == "clip":
        return np.clip(index, 0, n - 1)
    return index


# looking up
@raw(np.take)
def take(a, indices, axis=None, out=None, mode="raise") -> Recorded:
    if type(a) is not Recorded and type(indices) is not Recorded and out is not None:
        return _stored(np.take(a, indices, axis, mode=mode), out, "np.take")
    if axis is None:
        a, axis = np.reshape(a, -1), 0
    axis = axis_of(axis, np.ndim(a))
    if not isinstance(indices, (Recorded, np.ndarray)):
        indices = np.asarray(indices) if isinstance(indices, (list, tuple, bool, np.bool_)) else indices
    if isinstance(indices, (Recorded, np.ndarray)) and indices.dtype.kind == "b":
        indices = indices.astype(np.intp)  # np.take treats them as positions, not as a mask
    if mode != "raise":
        indices = _in_range(indices, np.shape(a)[axis], mode)
    key = (slice(None),) * axis + (indices,)
    if type(a) is not Recorded:  # a plain table, looked up at recorded positions
        result = handled(np.take, (a, indices, axis), {}, look_up)
    else:
        result = a[key]
        if result._root is not None or not np.asarray(result.value).flags.c_contiguous:
            result = result.copy()
    return _stored(result, out, "np.take")


def look_up(table: Operand, indices: Operand, axis: int) -> Node:
    table = operand(table)
    before, after = ([(0, n, 1) for n in part] for part in (table.shape[:axis], table.shape[axis + 1 :]))
    spec = (*before, ("array", 0), *after)
    return apply("gather", table, operand(indices), spec=spec)


@handles(np.take_along_axis)
def take_along_axis(arr: Operand, indices: Operand, axis: int | None = -1) -> Node:
    arr, indices = operand(arr), operand(indices)
    if axis is None:
        arr, axis = build.reshape(arr, (arr.size,)), 0
    return apply("take_along", arr, indices, axis=axis_of(axis, arr.ndim))


@raw(np.compress)
def compress(condition, a, axis=None, out=None) -> Recorded:
    condition = np.asarray(condition) if type(condition) is not Recorded else np.asarray(condition != 0)
    if axis is None:
        a, axis = np.reshape(a, -1), 0
    return _stored(np.take(a, np.flatnonzero(condition), axis), out, "np.compress")


# functions that read values: the positions are plain integers, and the recorder notes the read
@raw(np.nonzero)
def nonzero(a: Recorded) -> tuple[np.ndarray, ...]:
    return np.nonzero(np.asarray(a if a.dtype.kind == "b" else a != 0))


@handles(np.count_nonzero)
def count_nonzero(a: Node, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Node:
    return apply("sum", build.cast(a, bool), axes=axes_of(axis, a.ndim), keepdims=bool(keepdims))


@raw(np.unique)
def unique(
    ar, return_index=False, return_inverse=False, return_counts=False, axis=None, **kwargs
) -> Recorded | tuple:
    """The sorted different values, taken from their first positions, which are read."""
    parts = np.unique(_plain(ar), True, return_inverse, return_counts, axis, **kwargs)  # type: ignore[call-overload]
    results = [np.take(ar, parts[1], axis)]
    results += [parts[1]] * bool(return_index) + list(parts[2:])
    return results[0] if len(results) == 1 else tuple(results)


@handles(np.searchsorted)
def searchsorted(a: Operand, v: Operand, side: str = "left", sorter: Operand | None = None) -> Node:
    a = operand(a)
    if sorter is not None:
        a = apply("gather", a, operand(sorter), spec=(("array", 0),))
    return apply("searchsorted", a, operand(v, a.dtype), side=side)


@handles(np.interp)
def interp(x, xp, fp, left=None, right=None, period=None) -> Node:
    """Piecewise linear interpolation; the derivative beyond the ends is 0."""
    x, xp, fp = operand(x, np.dtype(float)), operand(xp, np.dtype(float)), operand(fp)
    x, xp = build.cast(x, float), build.cast(xp, float)
    fp = build.cast(fp, complex if fp.dtype.kind == "c" else float)
    if period is not None:
        x, xp, fp = _periodic(x, xp, fp, abs(period))
        left = right = None
    elif xp.op == "const":
        if not np.all(xp.value[1:] >= xp.value[:-1]):
            raise NotImplementedError("of points that are not in order is not recorded: sort them first")
    else:
        xp = apply("in_order", xp)
    n = xp.shape[0]
    if n == 1:
        inside = build.broadcast(build.reshape(fp, ()), x.shape)
    else:
        i = apply("searchsorted", xp, x, side="right") - 1
        i = apply("minimum", apply("maximum", i, 0), n - 2)
        inside = _on_the_line(x, *(_at(v, k) for k in (i, i + 1) for v in (xp, fp)))
    first, last = (build.reshape(build.take_slice(fp, 0, k, k + 1), ()) for k in (0, n - 1))
    ends = [build.reshape(build.take_slice(xp, 0, k, k + 1), ()) for k in (0, n - 1)]
    out = build.where(x >= ends[1], last, inside)
    out = build.where(x > ends[1], last if right is None else operand(right, fp.dtype), out)
    return build.where(x < ends[0], first if left is None else operand(left, fp.dtype), out)


def _on_the_line(x: Node, x0: Node, f0: Node, x1: Node, f1: Node) -> Node:
    """The value at x, computed from the left point. Where that is nan, as with an infinite point, NumPy takes
    the value of the point itself, or the common one, or computes from the right.
    """
    slope = (f1 - f0) / (x1 - x0)
    left = f0 + (x - x0) * slope
    if left.dtype.kind == "c":
        return left
    other = build.where(build.equal(f0, f1), f0, f1 + (x - x1) * slope)
    return build.where(apply("isnan", left), build.where(build.equal(x, x0), f0, other), left)


def _at(x: Node, i: Node) -> Node:
    return apply("gather", x, i, spec=(("array", 0),))


def _periodic(x: Node, xp: Node, fp: Node, period: float):
    """Everything within one period, sorted, and a neighbour from the periods around it at each end."""
    x, xp = apply("remainder", x, float(period)), apply("remainder", xp, float(period))
    order = apply("argsort", xp, axis=0, kind=None)
    xp, fp = _at(xp, order), _at(fp, order)
    n = xp.shape[0]
    places, shift = [n - 1, *range(n), 0], np.zeros(n + 2)
    shift[[0, -1]] = -period, period
    return x, shape_functions.take(xp, places, 0) + table.const(shift), shape_functions.take(fp, places, 0)


# values
handles(np.imag)(lambda val: build.imag(val) if val.dtype.kind == "c" else build.zeros(val.shape, val.dtype))


handles(np.real)(lambda val: build.real(val) if val.dtype.kind == "c" else val)


@handles(np.angle)
def angle(z: Node, deg: bool = False) -> Node:
    phase = apply("angle", z)
    return phase * (180 / np.pi) if deg else phase


handles(np.sinc)(lambda x: apply("sinc", x if x.dtype.kind in "fc" else build.cast(x, float)))


@handles(np.i0)
def i0(x: Node) -> Node:
    """The modified Bessel function, as the mean of exp(x cos t) over a circle: the trapezoidal rule is
    exact to the last digits on so smooth a function (256 points up to |x| = 700, where exp overflows).
    """
    x = x if x.dtype.kind == "f" else build.cast(x, float)
    x = build.where(x < 0.0, -x, x)  # with the slope 1 at 0, not 0 as np.abs: the function is even and smooth
    cosines = table.const(np.cos(np.arange(256) * (2 * np.pi / 256)).astype(x.dtype) - x.dtype.type(1))
    return build.sum_(build.exp(build.reshape(x, (*x.shape, 1)) * cosines), x.ndim) / 256.0 * build.exp(x)


@handles(np.round, np.around)
def round_(a: Node, decimals: int = 0, out: None = None) -> Node:
    if a.dtype.kind in "biu":
        return a if decimals >= 0 else build.cast(round_(build.cast(a, float), decimals), a.dtype)
    if a.dtype.kind == "c":
        raise NotImplementedError("of complex numbers is not recorded")
    if decimals == 0:
        return apply("rint", a)
    scale = 10.0 ** abs(decimals)
    return apply("rint", a * scale) / scale if decimals > 0 else apply("rint", a / scale) * scale


refuse(
    "writes a file, which would happen only when the function is recorded",
    *(np.save, np.savez, np.savez_compressed, np.savetxt),
)


# counting: the values are read, as others make other programs
@raw(np.bincount)
def bincount(x, /, weights=None, minlength=0) -> Recorded | np.ndarray:
    x, minlength = _plain(x), operator.index(minlength)
    if type(weights) is not Recorded:
        return np.bincount(x, weights, minlength)
    return handled(np.bincount, (x, weights, minlength), {}, _bincount)


def _plain(x) -> np.ndarray:
    return x._read(np.array(x.value), "array") if type(x) is Recorded else np.asarray(x)


def _bincount(x: np.ndarray, weights: Operand, minlength: int) -> Node:
    weights = build.cast(operand(weights), float)
    sums = build.zeros((max(minlength, int(x.max()) + 1 if x.size else 0),), weights.dtype)
    if not x.size:
        return sums
    return apply("scatter_add", sums, weights, table.const(x.astype(np.intp)), spec=(("array", 0),))


@replaces(sys.modules["numpy.lib._histograms_impl"]._search_sorted_inclusive)
def _search_sorted_inclusive(a: Any, v: Any) -> Any:
    """NumPy's own calls the method of an array, which takes no recorded edges."""
    return np.concatenate((np.searchsorted(a, v[:-1], "left"), np.searchsorted(a, v[-1:], "right")))


_histogram = Written(np.histogram)


@raw(np.histogram)
def histogram(a, bins=10, range=None, density=None, weights=None) -> tuple[Any, Any]:
    """As NumPy wrote it. Where the edges do not depend on `a`, it is read as it is: the program holds for
    the same values, and not only for the same rounded bins.
    """
    sources = (bins,) if np.ndim(bins) else (a,) if range is None else range
    if not any(type(x) is Recorded for x in sources):
        a = _plain(a)
    return _histogram(a, bins, range, density, weights)
