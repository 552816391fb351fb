"""Choosing and looking up: where, clip, select, take, indexing by masks, and what cleans values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from ...graph import Node
from ...ops import apply, build, table
from ..dispatch import REFUSED, Given, Operand, call_function, handles, helper, operand, operands, raw
from ..ufuncs import operate
from ..value import Recorded
from .reduce import axes_of, mean
from .shape import axis_of, diagonal_view, squeeze


@raw(np.where)
def where(condition: Given, x: Given | None = None, y: Given | None = None, /) -> Recorded | np.ndarray:
    if x is None and y is None:
        return nonzero(condition)
    return call_function(_where, (condition, x, y), {})


def _where(condition, x, y):
    return np.where(condition, x, y)


_where.__module__, _where.__name__ = "numpy", "where"


@helper(_where)
def where_node(condition: Operand, x: Operand, y: Operand) -> Node:
    x, y = weak_operands(x, y)
    condition = operand(condition)
    return apply(
        "where", condition if condition.dtype.kind == "b" else apply("not_equal", condition, 0), x, y
    )


def weak_operands(*xs: Any) -> list[Node]:
    """Nodes in one dtype; Python numbers take that of the arrays, with whatever kind they need (NEP 50)."""
    arrays = [
        x
        for x in xs
        if not isinstance(x, (bool, int, float, complex)) or type(x) is Recorded or isinstance(x, np.generic)
    ]
    nodes = [operand(x) for x in arrays]
    numbers = [
        x
        for x in xs
        if isinstance(x, (bool, int, float, complex))
        and type(x) is not Recorded
        and not isinstance(x, np.generic)
    ]
    dtype = np.result_type(*(n.dtype for n in nodes), *(type(v)(0) for v in numbers))
    made = iter(nodes)
    return [build.cast(next(made), dtype) if any(x is a for a in arrays) else operand(x, dtype) for x in xs]


@raw(np.clip)
def clip(
    a: Recorded | np.ndarray,
    a_min: Given = np._NoValue,
    a_max: Given = np._NoValue,
    out: Recorded | None = None,
    *,
    min: Given = np._NoValue,
    max: Given = np._NoValue,
    **kwargs: Any,
) -> Recorded:
    low = a_min if a_min is not np._NoValue else min
    high = a_max if a_max is not np._NoValue else max
    mask = kwargs.pop("where", True)
    x = a
    for ufunc, bound in ((np.maximum, low), (np.minimum, high)):
        if bound is None or bound is np._NoValue or _is_no_bound(a, ufunc, bound):
            continue
        if kwargs or type(x) is not Recorded and type(bound) is not Recorded:
            x = ufunc(x, bound, **kwargs)
        else:
            x = operate(ufunc, ufunc, x, bound)
    x = np.positive(a, **kwargs) if x is a else x
    if out is None:  # what NumPy leaves undefined is 0
        return x if mask is True else np.where(mask, x, np.zeros((), x.dtype))
    casting = kwargs.get("casting", "same_kind")
    if not np.can_cast(x.dtype, out.dtype, casting):
        raise TypeError(f"np.clip: cannot cast {x.dtype} to {out.dtype}, the dtype of out=, by {casting!r}")
    out[...] = x if mask is True else np.where(mask, x, out)
    return out


def _is_no_bound(a: Given, ufunc: np.ufunc, bound: Given) -> bool:
    """Whether an integer lies at the end of the array's dtype or beyond, where it has no effect."""
    dtype = getattr(a, "dtype", None)
    if type(bound) is not int or dtype is None or dtype.kind not in "iu":
        return False
    limits = np.iinfo(dtype)
    return bound <= limits.min if ufunc is np.maximum else bound >= limits.max


@raw(np.select)
def select(condlist: Sequence, choicelist: Sequence, default: Given = 0) -> Recorded:
    if not condlist or len(condlist) != len(choicelist):
        raise ValueError("select: condlist and choicelist must have the same length, at least 1")
    shape = np.broadcast_shapes(*map(np.shape, (*condlist, *choicelist)))
    out = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist)):
        out = np.where(condition, choice, out)
    return np.broadcast_to(out, shape).copy()


@raw(np.choose)
def choose(a: Given, choices: Any, out: Recorded | None = None, mode: str = "raise") -> Recorded:
    index = a.astype(np.intp) if type(a) is Recorded else np.asarray(a, np.intp)
    choices = np.stack(np.broadcast_arrays(*choices)) if isinstance(choices, (list, tuple)) else choices
    index = _in_range(index, choices.shape[0], mode)
    shape = np.broadcast_shapes(index.shape, choices.shape[1:])
    ones = (1,) * (len(shape) - choices.ndim + 1)
    choices = np.reshape(choices, (choices.shape[0], *ones, *choices.shape[1:]))
    result = np.take_along_axis(
        np.broadcast_to(choices, (choices.shape[0], *shape)), np.broadcast_to(index, shape)[None], 0
    )[0]
    return result if out is None else _store(out, result)


def _in_range(index, n: int, mode: str):
    if mode == "wrap":
        return index % n
    if mode == "clip":
        return np.clip(index, 0, n - 1)
    return index


def _store(out, result):
    out[...] = result
    return out


# looking up
@raw(np.take)
def take(
    a: Given,
    indices: Given,
    axis: int | None = None,
    out: Recorded | None = None,
    mode: Literal["raise", "wrap", "clip"] = "raise",
) -> Recorded:
    if type(a) is not Recorded and type(indices) is not Recorded and out is not None:
        out[...] = np.take(a, indices, axis, mode=mode)
        return out
    if axis is None:
        a, axis = np.reshape(a, -1), 0
    axis = axis_of(axis, np.ndim(a))
    if not isinstance(indices, (Recorded, np.ndarray)):
        indices = np.asarray(indices) if isinstance(indices, (list, tuple, bool, np.bool_)) else indices
    if isinstance(indices, (Recorded, np.ndarray)) and indices.dtype.kind == "b":
        indices = indices.astype(np.intp)  # places, to np.take, and no mask
    if mode != "raise":
        indices = _in_range(indices, np.shape(a)[axis], mode)
    key = (slice(None),) * axis + (indices,)
    if type(a) is not Recorded:  # a plain table, looked up at recorded positions
        result = call_function(_look_up, (a, indices, axis), {})
    else:
        result = a[key]
        result = result.copy() if result._root is not None else result
    return result if out is None else _store(out, result)


def _look_up(table, indices, axis):
    return np.take(table, indices, axis)


@helper(_look_up)
def look_up(table: Operand, indices: Operand, axis: int) -> Node:
    table = operand(table)
    spec = (
        *((0, n, 1) for n in table.shape[:axis]),
        ("array", 0),
        *((0, n, 1) for n in table.shape[axis + 1 :]),
    )
    return apply("gather", table, operand(indices), spec=spec)


@handles(np.take_along_axis)
def take_along_axis(arr: Operand, indices: Operand, axis: int | None = -1) -> Node:
    arr, indices = operand(arr), operand(indices)
    if axis is None:
        arr, axis = build.reshape(arr, (arr.size,)), 0
    return apply("take_along", arr, indices, axis=axis_of(axis, arr.ndim))


@raw(np.compress)
def compress(condition: Given, a: Given, axis: int | None = None, out: Recorded | None = None) -> Recorded:
    condition = np.asarray(condition) if type(condition) is not Recorded else np.asarray(condition != 0)
    if axis is None:
        a, axis = np.reshape(a, -1), 0
    result = np.take(a, np.flatnonzero(condition), axis)
    return result if out is None else _store(out, result)


@raw(np.extract)
def extract(condition: Given, arr: Given) -> Recorded:
    return np.compress(np.ravel(condition), np.ravel(arr))


# what looks at values: the positions are plain integers, and the recording notes that it looked
@raw(np.nonzero)
def nonzero(a: Given) -> tuple[np.ndarray, ...]:
    return np.nonzero(_looked_at(a))


@raw(np.flatnonzero)
def flatnonzero(a: Given) -> np.ndarray:
    return np.flatnonzero(_looked_at(a))


@raw(np.argwhere)
def argwhere(a: Given) -> np.ndarray:
    return np.argwhere(_looked_at(a))


def _looked_at(a: Recorded) -> np.ndarray:
    """Which elements are not zero, as a plain array."""
    a = a if a.dtype.kind == "b" else a != 0
    return np.asarray(a)


@handles(np.count_nonzero)
def count_nonzero(a: Node, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Node:
    return apply("sum", build.cast(a, bool), axes=axes_of(axis, a.ndim), keepdims=bool(keepdims))


@raw(np.unique, np.unique_values)
def unique(
    ar: Recorded,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    **kwargs: Any,
) -> Recorded | tuple:
    """The sorted different values: which they are is looked at, and they are taken from where they first
    stand.
    """
    value = ar.value
    ar._read(np.array(value), "array")
    found = np.unique(value, True, return_inverse, return_counts, axis, **kwargs)  # type: ignore[call-overload]
    wanted = [np.take(ar, found[1], axis)]
    wanted += [found[1]] * bool(return_index) + list(found[2:])
    return wanted[0] if len(wanted) == 1 else tuple(wanted)


def _all_of_unique(function: Callable, **wanted: bool) -> None:
    """np.unique_all and its kin: a named tuple of what np.unique gives, with nans that differ."""
    kind = type(function(np.zeros(1)))

    @raw(function)
    def handler(x: Recorded) -> tuple:
        found = list(np.unique(x, **wanted, equal_nan=False))  # type: ignore[call-overload]
        if "return_inverse" in wanted:
            field = kind._fields.index("inverse_indices")
            found[field] = found[field].reshape(x.shape)
        return kind(*found)


_all_of_unique(np.unique_counts, return_counts=True)
_all_of_unique(np.unique_inverse, return_inverse=True)
_all_of_unique(np.unique_all, return_index=True, return_inverse=True, return_counts=True)


@raw(np.union1d)
def union1d(ar1: Given, ar2: Given) -> Recorded | np.ndarray:
    return np.unique(np.concatenate((ar1, ar2), axis=None))


def _looked_over(x: Given) -> np.ndarray:
    """A plain array of what is in there, noted as looked at."""
    return x._read(np.array(x.value), "array") if type(x) is Recorded else np.asarray(x)


@raw(np.setdiff1d)
def setdiff1d(ar1: Given, ar2: Given, assume_unique: bool = False) -> Recorded | np.ndarray:
    ar1 = np.ravel(ar1) if assume_unique else np.unique(ar1)
    return ar1[np.flatnonzero(np.isin(_looked_over(ar1), _looked_over(ar2), invert=True))]


@raw(np.setxor1d)
def setxor1d(ar1: Given, ar2: Given, assume_unique: bool = False) -> Recorded | np.ndarray:
    ar1, ar2 = (np.ravel(a) if assume_unique else np.unique(a) for a in (ar1, ar2))
    both = np.concatenate((ar1, ar2))
    values = _looked_over(both)
    order = np.argsort(values, kind="stable")
    different = np.concatenate(([True], values[order][1:] != values[order][:-1], [True]))
    return both[order[different[1:] & different[:-1]]] if values.size else both


@raw(np.sort_complex)
def sort_complex(a: Given) -> Recorded | np.ndarray:
    found = np.sort(a)
    if found.dtype.kind == "c":
        return found
    return found.astype(np.complex64 if found.dtype.char in "bhBH" else np.complex128)


@handles(np.searchsorted)
def searchsorted(a: Operand, v: Operand, side: str = "left", sorter: Operand | None = None) -> Node:
    a = operand(a)
    if sorter is not None:
        a = apply("gather", a, operand(sorter), spec=(("array", 0),))
    return apply("searchsorted", a, operand(v, a.dtype), side=side)


@handles(np.interp)
def interp(
    x: Operand,
    xp: Operand,
    fp: Operand,
    left: Operand | None = None,
    right: Operand | None = None,
    period: Operand | None = None,
) -> Node:
    """Piecewise linear: the derivative of each piece, and 0 beyond the ends."""
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
    """The value at x, computed from the left. Where that is nan, as with an infinity at an end, NumPy takes
    the point itself, or what both points have, or computes from the right.
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

    def ends(v):
        return build.take_slice(v, 0, n - 1, n), build.take_slice(v, 0, 0, 1)

    (last, first), (f_last, f_first) = ends(xp), ends(fp)
    xp = build.concatenate([last - float(period), xp, first + float(period)], 0)
    return x, xp, build.concatenate([f_last, fp, f_first], 0)


# comparisons that are not ufuncs
@handles(np.isclose)
def isclose(
    a: Operand, b: Operand, rtol: Operand = 1e-05, atol: Operand = 1e-08, equal_nan: bool = False
) -> Node:
    x, y = operands(a, b)
    y = build.cast(y, np.result_type(y.dtype, 1.0))  # the size of the least integer is none
    size = abs(b) if type(b) in _NUMBERS else build.absolute(y)
    bound = _as_numpy("add", atol, _as_numpy("multiply", rtol, size))
    close = apply("less_equal", *operands(build.absolute(apply("subtract", x, y)), bound))
    close = apply("logical_and", close, apply("isfinite", y))
    close = apply("logical_or", close, build.equal(x, y))
    if equal_nan:
        close = apply("logical_or", close, apply("logical_and", apply("isnan", x), apply("isnan", y)))
    return close


_NUMBERS = (bool, int, float, complex)


def _as_numpy(op: str, a: Operand, b: Operand) -> Operand:
    """The op on arrays, and on two of Python's numbers what Python gives."""
    if type(a) in _NUMBERS and type(b) in _NUMBERS:
        return getattr(operator, {"add": "add", "multiply": "mul"}[op])(a, b)
    return apply(op, *operands(a, b))


@raw(np.allclose)
def allclose(a: Given, b: Given, rtol: Given = 1e-05, atol: Given = 1e-08, equal_nan: bool = False) -> bool:
    return bool(np.all(np.isclose(a, b, rtol, atol, equal_nan)))


@raw(np.array_equal)
def array_equal(a1: Given, a2: Given, equal_nan: bool = False) -> bool:
    if np.shape(a1) != np.shape(a2):
        return False
    same = a1 == a2
    if equal_nan:
        same = same | (np.isnan(a1) & np.isnan(a2))
    return bool(np.all(same))


@raw(np.array_equiv)
def array_equiv(a1: Given, a2: Given) -> bool:
    try:
        np.broadcast_shapes(np.shape(a1), np.shape(a2))
    except ValueError:
        return False
    return bool(np.all(a1 == a2))


def _without_out(out: Any) -> None:
    """`out=` given by its name is seen to for all functions (dispatch.py)."""
    if out is not None:
        raise NotImplementedError("where the array to write to has no out= before it")


@handles(np.isneginf)
def isneginf(x: Operand, out: None = None) -> Node:
    _without_out(out)
    return apply("equal", x, -np.inf)


@handles(np.isposinf)
def isposinf(x: Operand, out: None = None) -> Node:
    _without_out(out)
    return apply("equal", x, np.inf)


@handles(np.isreal)
def isreal(x: Node) -> Node:
    return apply("equal", build.imag(x), 0) if x.dtype.kind == "c" else build.full(x.shape, 1, bool)


@handles(np.iscomplex)
def iscomplex(x: Node) -> Node:
    return apply("not_equal", build.imag(x), 0) if x.dtype.kind == "c" else build.full(x.shape, 0, bool)


# values
@handles(np.real)
def real(val: Node) -> Node:
    return build.real(val) if val.dtype.kind == "c" else val


@handles(np.imag)
def imag(val: Node) -> Node:
    return build.imag(val) if val.dtype.kind == "c" else build.zeros(val.shape, val.dtype)


@handles(np.angle)
def angle(z: Node, deg: bool = False) -> Node:
    phase = apply("angle", z)
    return phase * (180 / np.pi) if deg else phase


@handles(np.real_if_close)
def real_if_close(a: Node, tol: float = 100) -> Node:
    if a.dtype.kind == "c":
        raise NotImplementedError("gives a dtype that depends on values; np.real(x) is recorded")
    return a


@handles(np.sinc)
def sinc(x: Node) -> Node:
    return apply("sinc", x if x.dtype.kind in "fc" else build.cast(x, float))


@handles(np.i0)
def i0(x: Node) -> Node:
    """The modified Bessel function, as the mean of exp(x cos t) over a circle: the trapezoidal rule is
    exact to the last digits on so smooth a function (256 points up to |x| = 700, where exp overflows).
    """
    x = build.absolute(x if x.dtype.kind == "f" else build.cast(x, float))
    cosines = table.const(np.cos(np.arange(256) * (2 * np.pi / 256)).astype(x.dtype) - x.dtype.type(1))
    return build.sum_(build.exp(build.reshape(x, (*x.shape, 1)) * cosines), x.ndim) / 256.0 * build.exp(x)


@handles(np.fix)
def fix(x: Node, out: None = None) -> Node:
    _without_out(out)
    return apply("trunc", x) if x.dtype.kind == "f" else x


@handles(np.round, np.around)
def round_(a: Node, decimals: int = 0, out: None = None) -> Node:
    _without_out(out)
    if a.dtype.kind in "biu":
        return a if decimals >= 0 else build.cast(round_(build.cast(a, float), decimals), a.dtype)
    if a.dtype.kind == "c":
        raise NotImplementedError("of complex numbers is not recorded")
    if decimals == 0:
        return apply("rint", a)
    scale = 10.0 ** abs(decimals)
    return apply("rint", a * scale) / scale if decimals > 0 else apply("rint", a / scale) * scale


@raw(np.nan_to_num)
def nan_to_num(
    x: Recorded, copy: bool = True, nan: Given = 0.0, posinf: Given | None = None, neginf: Given | None = None
) -> Recorded:
    result = call_function(_nan_to_num, (x,), dict(nan=nan, posinf=posinf, neginf=neginf))
    if copy or not isinstance(x.value, np.ndarray):
        return result
    return _store(x, result)


def _nan_to_num(x, nan, posinf, neginf):
    return np.nan_to_num(x, True, nan, posinf, neginf)


_nan_to_num.__module__, _nan_to_num.__name__ = "numpy", "nan_to_num"


@helper(_nan_to_num)
def nan_to_num_node(x: Node, nan: Operand, posinf: Operand, neginf: Operand) -> Node:
    if x.dtype.kind == "c":
        parts = [nan_to_num_node(p, nan, posinf, neginf) for p in (build.real(x), build.imag(x))]
        return build.cast(parts[0] + parts[1] * 1j, x.dtype)
    if x.dtype.kind != "f":
        return x
    limits = np.finfo(x.dtype)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    x = build.where(apply("isnan", x), operand(nan, x.dtype), x)
    x = build.where(apply("equal", x, np.inf), operand(high, x.dtype), x)
    return build.where(apply("equal", x, -np.inf), operand(low, x.dtype), x)


@raw(np.apply_along_axis)
def apply_along_axis(func1d: Callable, axis: int, arr: Any, *args: Any, **kwargs: Any) -> Recorded:
    axis = axis_of(axis, arr.ndim)
    moved = np.moveaxis(arr, axis, -1)
    lead = moved.shape[:-1]
    rows = moved.reshape(-1, moved.shape[-1])
    out = np.stack([np.asarray(func1d(rows[i], *args, **kwargs), like=arr) for i in range(rows.shape[0])])
    if out.ndim == 1:
        return out.reshape(lead)
    out = out.reshape(*lead, *out.shape[1:])
    return np.moveaxis(out, range(len(lead), out.ndim), range(axis, axis + out.ndim - len(lead)))


@raw(np.apply_over_axes)
def apply_over_axes(func: Callable, a: Recorded | np.ndarray, axes: int | Sequence[int]) -> Recorded:
    for axis in (axes,) if isinstance(axes, int) else axes:
        result = func(a, axis)
        a = result if result.ndim == a.ndim else np.expand_dims(result, axis)
    return a


@handles(np.convolve)
def convolve(a: Operand, v: Operand, mode: str = "full") -> Node:
    a, v = operand(a), operand(v)
    if v.size > a.size:  # NumPy exchanges them, too
        a, v = v, a
    return _slide(a, _turned(v) if v.size else v, mode)


@handles(np.correlate)
def correlate(a: Operand, v: Operand, mode: str = "valid") -> Node:
    a, v = operand(a), operand(v)
    v = build.conjugate(v) if v.dtype.kind == "c" else v
    if v.size > a.size:  # the same sums, the last one first
        return _turned(_slide(v, a, mode))
    return _slide(a, v, mode)


def _turned(x: Node) -> Node:
    return build.slice_(x, ((x.size - 1, None, -1),))


def _slide(a: Node, kernel: Node, mode: str) -> Node:
    """sum_j a[i + j] kernel[j], with a between zeros as far as the mode asks; kernel is not the longer."""
    dtype = np.result_type(a.dtype, kernel.dtype)
    a, kernel = build.cast(a, dtype), build.cast(kernel, dtype)
    n, m = a.size, kernel.size
    before, after = {"full": (m - 1, m - 1), "valid": (0, 0), "same": (m // 2, m - 1 - m // 2)}[mode]
    if before or after:
        a = build.assemble([a], (n + before + after,), [((before, before + n, 1),)], dtype)
    positions = np.arange(a.size - m + 1)[:, None] + np.arange(m)
    windows = apply("gather", a, table.const(positions), spec=(("array", 0),))
    out = apply("matmul", windows, build.reshape(kernel, (m, 1)))
    return build.reshape(out, (out.shape[0],))


@handles(np.vander)
def vander(x: Node, N: int | None = None, increasing: bool = False) -> Node:
    n = x.size if N is None else N
    x = build.cast(x, np.promote_types(x.dtype, int))
    columns = [build.full(x.shape, 1, x.dtype)]
    while len(columns) < n:
        columns.append(columns[-1] * x)
    columns = [build.reshape(c, (x.size, 1)) for c in (columns if increasing else reversed(columns))]
    return build.concatenate(columns, 1) if n else build.zeros((x.size, 0), x.dtype)


@raw(np.unwrap)
def unwrap(
    p: Recorded | np.ndarray, discont: float | None = None, axis: int = -1, *, period: Given = 2 * np.pi
) -> Recorded:
    """Jumps of more than half a period are moved by whole periods. Integers stay what they are where the
    period is one too; their differences overflow as NumPy's do.
    """
    axis = axis_of(axis, p.ndim)
    first, rest = ((slice(None),) * axis + (part,) for part in (slice(None, 1), slice(1, None)))
    step = np.diff(p, axis=axis)
    dtype = np.result_type(step.dtype, period)
    half, odd = divmod(period, 2) if dtype.kind in "iu" else (period / 2, 0)
    least = -half  # which an unsigned type cannot hold: NumPy's error
    within = np.remainder(step - least, period) + least
    if not odd:  # a jump of exactly half a period keeps its sign
        within = np.where((within == least) & (step > 0), half, within)
    shift = np.where(np.abs(step) < (period / 2 if discont is None else discont), 0, within - step)
    moved = p[rest] + np.cumsum(shift, axis)
    return np.concatenate([p[first].astype(dtype), moved.astype(dtype)], axis)


@handles(np.polyval)
def polyval(p: Operand, x: Operand) -> Node:
    p = operand(p)
    x = operand(x if isinstance(x, Node) else np.asarray(x))  # an array, also of one of Python's numbers
    out = build.zeros(x.shape, np.result_type(p.dtype, x.dtype))
    for i in range(p.shape[0]):
        out = out * x + build.reshape(build.take_slice(p, 0, i, i + 1), ())
    return out


@handles(np.cov)
def cov(
    m: Operand,
    y: Operand | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: float = None,
    fweights: Operand | None = None,
    aweights: Operand | None = None,
    *,
    dtype: DTypeLike | None = None,
) -> Node:
    if fweights is not None or aweights is not None:
        raise NotImplementedError("with weights is not recorded")
    given = [operand(m)] if y is None else [operand(m), operand(y)]
    dtype = np.dtype(dtype or np.result_type(*(v.dtype for v in given), np.float64))
    x = build.concatenate([_variables(build.cast(v, dtype), rowvar) for v in given], 0)
    x = x - mean(x, 1, keepdims=True)
    free = x.shape[1] - (ddof if ddof is not None else 0 if bias else 1)
    with np.errstate(divide="ignore"):
        factor = np.true_divide(1, max(free, 0.0))
    out = x @ build.adjoint(x)
    out = build.cast(build.cast(out, np.result_type(dtype, np.float64)) * float(factor), dtype)
    return squeeze(out)


def _variables(x: Node, rowvar: bool) -> Node:
    """One variable a row."""
    if x.ndim < 2:
        return build.reshape(x, (1, x.size))
    if not rowvar and x.shape[0] == 1:
        raise NotImplementedError(
            "with rowvar=False of a single row is not recorded: NumPy's versions differ"
        )
    return x if rowvar else build.swap_last(x)


@handles(np.corrcoef)
def corrcoef(
    x: Operand, y: Operand | None = None, rowvar: bool = True, *, dtype: DTypeLike | None = None
) -> Node:
    c = cov(x, y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return c / c
    spread = build.sqrt(build.real(diagonal_view(c, 0, 0, 1)))
    c = c / build.reshape(spread, (spread.size, 1)) / spread
    if c.dtype.kind != "c":
        return _within_one(c)
    return apply("add", _within_one(build.real(c)), apply("multiply", _within_one(build.imag(c)), 1j))


def _within_one(c: Node) -> Node:
    return apply("minimum", apply("maximum", c, -1.0), 1.0)


REFUSED.update({
    np.save: "writes a file, which would happen only when the function is recorded",
    np.savez: "writes a file, which would happen only when the function is recorded",
    np.savez_compressed: "writes a file, which would happen only when the function is recorded",
    np.savetxt: "writes a file, which would happen only when the function is recorded",
})  # fmt: skip
