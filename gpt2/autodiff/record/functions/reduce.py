"""Handlers for reductions: sums, means, extrema, products, running sums, spread, order statistics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph import Node
from ...ops import apply, build, table
from ..dispatch import Operand, handled, handles, operand, quiet, raw
from ..value import Recorded
from .shape import along, axis_of, expand_dims, item_at, moveaxis, normalize_axis_tuple, take

Axes = int | Sequence[int] | None


def axes_of(axis: Axes, ndim: int) -> tuple[int, ...]:
    """The axes in order; of a number none, as some reductions accept 0 and -1, and others have raised."""
    if axis is None:
        return tuple(range(ndim))
    if ndim == 0 and axis in (0, -1):
        return ()
    return tuple(sorted(normalize_axis_tuple(axis, ndim)))


def reduce_op(op: str, x: Node, axis: Axes, keepdims: Any) -> Node:
    return apply(op, x, axes=axes_of(axis, x.ndim), keepdims=bool(keepdims))


def masked(x: Node, where: Any, neutral: Any) -> Node:
    """x where the mask holds, and the neutral number elsewhere."""
    if where is True:
        return x
    shape = np.broadcast_shapes(x.shape, np.shape(where))
    return build.where(build.broadcast(operand(where), shape), build.broadcast(x, shape), neutral)


def plain_sum(x: Node, axis: Axes, keepdims: Any = False) -> Node:
    axes = axes_of(axis, x.ndim)
    if not axes and x.dtype.kind in "fc":
        return apply("add", x, build.const(0.0, x.dtype))  # NumPy starts at 0.0, so that -0.0 becomes 0.0
    return apply("sum", x, axes=axes, keepdims=bool(keepdims))


def _in_dtype(a: Operand, dtype) -> Node:
    return operand(a) if dtype is None else build.cast(operand(a), dtype)


def _with(x: Node, op: str, initial) -> Node:
    """The result of a reduction combined with the initial value, which NumPy converts to its dtype."""
    if initial is None:
        return x
    if type(initial) is Recorded and x.dtype.kind in "iu" and initial.dtype.kind in "fc":
        initial._rec.unstable.append("it reduces integers from a number, which NumPy may refuse")
    return apply(op, x, build.cast(operand(initial, x.dtype), x.dtype))


def _total(
    reduced, op, neutral, a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=True
):
    return _with(reduced(masked(_in_dtype(a, dtype), where, neutral), axis, keepdims), op, initial)


handles(np.sum)(partial(_total, plain_sum, "add", 0))
handles(np.prod)(partial(_total, partial(reduce_op, "prod"), "multiply", 1))


def _extremum(op: str, ufunc: str, worst, a, axis=None, out=None, keepdims=False, initial=None, where=True):
    a = masked(operand(a), where, worst(a.dtype))
    if not count_of(a, axis):  # the initial value; without one NumPy has raised its error
        whole = plain_sum(build.zeros(a.shape, a.dtype), axis, keepdims)
        return build.broadcast(build.cast(operand(initial, a.dtype), a.dtype), whole.shape)
    return _with(reduce_op(op, a, axis, keepdims), ufunc, initial)


def lowest(dtype: Any) -> float:
    return -np.inf if dtype.kind in "fc" else False if dtype.kind == "b" else int(np.iinfo(dtype).min)


def highest(dtype: Any) -> float:
    return np.inf if dtype.kind in "fc" else True if dtype.kind == "b" else int(np.iinfo(dtype).max)


max_ = handles(np.max, np.amax)(partial(_extremum, "max", "maximum", lowest))
min_ = handles(np.min, np.amin)(partial(_extremum, "min", "minimum", highest))


def _truth(op: str, neutral: bool, a, axis=None, out=None, keepdims=False, *, where=True):
    a = _in_dtype(a, None if where is True else bool)
    return reduce_op(op, masked(a, where, neutral), axis, keepdims)


handles(np.any)(partial(_truth, "any", False))
handles(np.all)(partial(_truth, "all", True))


def _position(op: str, a, axis=None, out=None, *, keepdims=False):
    a = operand(a)
    if axis is None or a.ndim == 0:
        position = apply(op, build.reshape(a, (a.size,)), axis=0)
        return build.reshape(position, (1,) * a.ndim) if keepdims else position
    axis = axis_of(axis, a.ndim)
    position = apply(op, a, axis=axis)
    return expand_dims(position, axis) if keepdims else position


handles(np.argmax)(partial(_position, "argmax"))
handles(np.argmin)(partial(_position, "argmin"))


# means and spread
def count_of(x: Node, axis: Axes) -> int:
    return int(np.prod([x.shape[i] for i in axes_of(axis, x.ndim)]))


def sum_in(x: Node, axis: Axes, dtype: np.dtype, keepdims: Any, where: Any) -> Node:
    """np.sum(x, axis, dtype, keepdims=keepdims, where=where)."""
    return build.cast(plain_sum(masked(build.cast(x, dtype), where, 0), axis, keepdims), dtype)


@handles(np.mean)
def mean(a: Operand, axis: Axes = None, dtype=None, out=None, keepdims=False, *, where=True) -> Node:
    a = operand(a)
    integers = a.dtype.kind not in "fc"
    inner = outer = np.dtype(dtype or (float if integers else a.dtype))
    if dtype is None and a.dtype == np.float16:
        inner = np.dtype(np.float32)
    total = sum_in(a, axis, inner, keepdims, where)
    return build.cast(divided(total, counted(a, axis, keepdims, where), a.size), outer)


def counted(a: Node, axis: Axes, keepdims: Any, where: Any) -> float | Node:
    """The number of elements of a mean: a float, or with a mask a node."""
    if where is True:
        return float(count_of(a, axis))
    return plain_sum(build.cast(build.broadcast(operand(where), a.shape), bool), axis, keepdims)


def divided(total: Node, count: float | Node, most: float) -> Node:
    """A sum divided by a count. NumPy's count is an integer or float64: it divides in the common dtype, and
    casts to that of the sum. A real dtype that holds all counts up to `most` gives the same bits directly.
    """
    dtype = total.dtype
    if isinstance(count, float):
        short = dtype.kind == "f" and float(dtype.type(count)) == count
        return total / count if short else build.cast(_wide(total) / count, dtype)
    if dtype.kind == "f" and most < 2 ** np.finfo(dtype).nmant:
        return total / build.cast(count, dtype)
    return build.cast(_wide(total) / build.cast(count, float), dtype)


def _wide(x: Node) -> Node:
    return build.cast(x, np.result_type(x.dtype, np.float64))


@handles(np.var)
def var(
    a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=None, correction=None
) -> Node:
    a = operand(a)
    ddof = ddof if correction is None else correction
    if dtype is None and a.dtype.kind in "biu":
        dtype = float
    if mean is None:
        total = sum_in(a, axis, np.dtype(dtype or a.dtype), True, where)
        centre = divided(total, counted(a, axis, True, where), a.size)
    else:
        centre = operand(mean, a.dtype)
    squares = _sizes(apply("subtract", a, centre), a.dtype.kind)
    total = sum_in(squares, axis, np.dtype(dtype or squares.dtype), keepdims, where)
    count = counted(a, axis, keepdims, where)
    if isinstance(count, float):
        return divided(total, max(count - ddof, 0.0), a.size)
    whole = float(ddof).is_integer()
    free = apply("maximum", count - int(ddof), 0) if whole else apply("maximum", count - float(ddof), 0.0)
    return divided(total, free, a.size if whole else np.inf)


def _sizes(d: Node, kind: str) -> Node:
    """Squares of the differences from a mean, as np.var makes them of arrays of this kind."""
    if d.dtype.kind != "c":
        return d * d
    return build.square(d) if kind in "fiu" else build.square(build.real(d)) + build.square(build.imag(d))


@handles(np.std)
def std(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, **options) -> Node:
    a = operand(a)
    spread = var(a, axis, dtype, None, ddof, keepdims, **options)
    root = build.cast(build.sqrt(spread), spread.dtype)
    if options.get("mean") is not None:
        return root
    # That of one element has no derivative: it is zero for any value, no root at 0
    count = counted(a, axis, keepdims, options.get("where", True))
    if isinstance(count, float):
        return apply("stop_gradient", root) if count == 1.0 else root
    return build.where(count > 1, root, apply("stop_gradient", root))


@handles(np.average)
def average(a, axis=None, weights=None, returned=False, *, keepdims=False) -> Node | tuple[Node, Node]:
    a = operand(a)
    if weights is None:
        out = mean(a, axis, keepdims=keepdims)
        return (out, build.full(out.shape, count_of(a, axis), out.dtype)) if returned else out
    w = operand(weights)
    floats = a.dtype.kind in "fc" or w.dtype.kind in "fc"
    dtype = np.result_type(a.dtype, w.dtype) if floats else np.dtype(float)
    dtype = np.result_type(a.dtype, w.dtype, np.float64) if a.dtype.kind in "iub" else dtype
    if w.shape != a.shape:
        axes = normalize_axis_tuple(axis, a.ndim)
        w = build.transpose(w, np.argsort(axes).tolist()) if w.ndim > 1 else w
        w = build.reshape(w, tuple(n if i in axes else 1 for i, n in enumerate(a.shape)))
    w = build.cast(w, dtype)
    scale = plain_sum(build.broadcast(w, a.shape), axis, keepdims)
    out = plain_sum(build.cast(a, dtype) * w, axis, keepdims) / scale
    return (out, build.broadcast(scale, out.shape)) if returned else out


# running
def _running(op: str, a, axis=None, dtype=None, out=None):
    a, axis = along(_in_dtype(a, dtype), axis)
    more = {"reverse": False} if op == "cumsum" else {}
    return apply(op, a, axis=axis, **more)


handles(np.cumsum)(partial(_running, "cumsum"))
handles(np.cumprod)(partial(_running, "cumprod"))


# sorting and order statistics
@handles(np.sort)
def sort(a, axis=-1, kind=None, order=None, *, stable=None) -> Node:
    a, axis = along(a, axis)
    return apply("take_along", a, argsort(a, axis, kind, stable=stable), axis=axis)


@handles(np.argsort)
def argsort(a, axis=-1, kind=None, order=None, *, stable=None) -> Node:
    a, axis = along(a, axis)
    return apply("argsort", a, axis=axis, kind="stable" if stable else kind)


@handles(np.partition)
def partition(a, kth, axis=-1, kind="introselect", order=None) -> Node:
    a, axis = along(a, axis)
    return apply("take_along", a, argpartition(a, kth, axis), axis=axis)


@handles(np.argpartition)
def argpartition(a, kth, axis=-1, kind="introselect", order=None) -> Node:
    a, axis = along(a, axis)
    return apply("argpartition", a, kth=tuple(kth) if np.ndim(kth) else int(kth), axis=axis)


_WITHOUT_INTERPOLATION = ("inverted_cdf", "closest_observation", "lower", "higher", "nearest")


def _between(below: Node, above: Node, weight: Node) -> Node:
    """Interpolates from the nearer neighbour, as NumPy does: differences of integers may overflow."""
    far = apply("greater_equal", weight, 0.5)
    step = build.where(far, weight - 1.0, weight)
    near = build.where(build.broadcast(far, below.shape), above, below)
    return near + (above - below) * step


def _quantile(
    a: Operand, q: Any, axis: Axes, keepdims: bool, method: str, weak: bool, skips_nan: bool, between=_between
) -> Node:
    """A quantile along the axes. `weak`: q is a Python number, which takes its dtype beside a."""
    if isinstance(q, Node):
        raise NotImplementedError("with a recorded q is not recorded")
    x, q = operand(a), np.asarray(q)
    axes = axes_of(axis, x.ndim)
    rest = [i for i in range(x.ndim) if i not in axes]
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes)
    x = build.transpose(x, (*rest, *axes))  # the reduced axes become one, the last
    x = sort(build.reshape(x, (*x.shape[: len(rest)], int(np.prod(x.shape[len(rest) :])))))
    dtype = np.result_type(x.dtype, 0.0) if weak else np.result_type(q.dtype, 0.0)
    last, n, shape = x.ndim - 1, x.shape[-1], q.shape + shape
    if not skips_nan:
        # Every method gives a position between two neighbours; the quantile of 0, 1, 2, ... is that position
        at = q.ravel() * (n - 1)
        if method != "linear":
            at = np.quantile(np.arange(float(n)), q.ravel(), method=method)  # type: ignore[call-overload]
        low = np.floor(at).astype(np.intp)
        below, above = take(x, low, last), take(x, np.minimum(low + 1, n - 1), last)
        weight = table.const((at - low).astype(dtype))
    elif n == 0:
        return build.full(shape, np.nan, np.result_type(x.dtype, 0.0))
    else:  # the number of elements, and so the positions, differ from slice to slice
        present = plain_sum(build.cast(_present(x), np.intp), last, True)
        positions = table.const(_quantile_positions(n, q.ravel(), method))
        at = apply("gather", positions, present, spec=(("array", 0),))
        at = build.reshape(at, (*x.shape[:-1], q.size))  # from (..., 1, quantiles)
        low = build.cast(apply("floor", at), np.intp)
        high = apply("minimum", low + 1, apply("maximum", build.broadcast(present, low.shape) - 1, 0))
        below, above = (apply("take_along", x, k, axis=last) for k in (low, high))
        weight = build.cast(at - build.cast(low, at.dtype), dtype)
    discrete = method in _WITHOUT_INTERPOLATION or method == "linear" and q.dtype.kind not in "fc"
    out = below if discrete else between(below, above, weight)
    if not skips_nan and x.dtype.kind in "fc":  # a nan comes last among sorted data
        nan = apply("isnan", item_at(x, last, n - 1))
        out = build.where(expand_dims(nan, -1), np.nan, out)
    return build.reshape(moveaxis(out, -1, 0), shape)


def _order_statistic(percent: bool, skips_nan: bool):
    def handler(
        a, q, axis=None, out=None, overwrite_input=False, method="linear", keepdims=False, *, weights=None
    ):
        if weights is not None or percent and isinstance(q, Node):
            raise NotImplementedError("with a recorded q or with weights is not recorded")
        weak = type(q) in (int, float)
        q = np.true_divide(q, 100) if percent else q
        return _quantile(a, q, axis, keepdims, method, weak, skips_nan)

    return handler


handles(np.quantile)(_order_statistic(percent=False, skips_nan=False))
handles(np.percentile)(_order_statistic(percent=True, skips_nan=False))
handles(np.nanquantile)(_order_statistic(percent=False, skips_nan=True))
handles(np.nanpercentile)(_order_statistic(percent=True, skips_nan=True))


def _quantile_positions(n: int, q: np.ndarray, method) -> np.ndarray:
    """The positions of the quantiles among k elements, for k = 0 .. n: (n + 1, quantiles)."""
    if method == "linear":
        last = np.maximum(np.arange(n + 1) - 1, 0)[:, None]
        return (last.astype(q.dtype) * q).astype(float)  # each in the dtype of q, as of one slice
    if n > _MOST_POSITIONS:
        raise NotImplementedError(f"with method={method!r} along more than {_MOST_POSITIONS} is not recorded")
    rows = [np.zeros(q.size)] + [np.quantile(np.arange(float(k)), q, method=method) for k in range(1, n + 1)]
    return np.stack(rows)


_MOST_POSITIONS = 2000


@raw(np.nanmedian)
def nanmedian(a, axis=None, out=None, overwrite_input=False, keepdims=False) -> Recorded:
    if a.dtype.kind not in "fc":  # no nan, and bools have no quantiles
        return np.median(a, axis, out, keepdims=keepdims is not np._NoValue and bool(keepdims))
    return handled(np.nanmedian, (a, axis, out), {"keepdims": keepdims}, _nanmedian)


def _nanmedian(a: Node, axis: Axes, out: None, keepdims: bool = False) -> Node:
    def middle(below, above, weight):
        """One of them or their mean, which exists for infinities too."""
        return build.where(build.equal(weight, 0.0), below, (below + above) * 0.5)

    return _quantile(a, 0.5, axis, keepdims, "linear", weak=True, skips_nan=True, between=middle)


# reductions that skip nan
def _zero_for_nan(x: Node, value=0):
    return build.where(apply("isnan", x), value, x) if x.dtype.kind in "fc" else x


def _present(x: Node) -> Node:
    if x.dtype.kind in "fc":
        return apply("logical_not", apply("isnan", x))
    return build.broadcast(table.const(True), x.shape)


def _and(where, x: Node) -> Node:
    if where is True:
        return _present(x)
    return apply("logical_and", operand(where), _present(x))


@handles(np.nanmean)
def _nanmean(a, *args, where=True, **options) -> Node:
    a = operand(a)
    return mean(_zero_for_nan(a), *args, where=_and(where, a), **options)


def _nan_spread(
    function, a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, **options
):
    """Spread of the elements that are not nan; nan where there are no more than ddof, unlike without nan."""
    a = operand(a)
    there = _and(where, a)
    spread = function(_zero_for_nan(a), axis, dtype, None, ddof, keepdims, where=there, **options)
    free = options.get("correction", ddof)
    if a.dtype.kind not in "fc" or free <= 1:  # else 0 / 0
        return spread
    enough = apply("greater", counted(a, axis, keepdims, there), free)
    return build.where(enough, spread, np.nan)


handles(np.nanvar)(partial(_nan_spread, var))
handles(np.nanstd)(partial(_nan_spread, std))


def _nan_extremum(extremum, worst, a, axis=None, out=None, keepdims=False, initial=None, where=True):
    a = operand(a)
    best = extremum(_zero_for_nan(a, worst(a.dtype)), axis, None, keepdims, initial, where)
    if a.dtype.kind not in "fc" or initial is not None:
        return best
    some = reduce_op("any", _and(where, a), axis, keepdims)
    return build.where(some, best, np.nan)


handles(np.nanmax)(partial(_nan_extremum, max_, lowest))
handles(np.nanmin)(partial(_nan_extremum, min_, highest))


quiet(np.sum, np.prod, np.max, np.min, np.mean)
