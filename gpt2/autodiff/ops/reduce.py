"""Reductions and running sums. `axes` is a sorted tuple of non-negative ints; `axis` is one such int."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..graph import Node
from . import build, leads, rowwise, shifts
from .build import broadcast, cast, concatenate, equal, expand, reshape, sum_, take_slice, transpose, where
from .table import EVERYWHERE, INTEGERS, OPS, Leads, Op, apply, const, none, row


def reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of a sum or product: for bools and short integers the machine's integer, as in NumPy."""
    if dtype.kind in "biu" and dtype.itemsize < 8:
        return np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
    return dtype


def axes_text(axes: Sequence[int]) -> str:
    return str(axes[0]) if len(axes) == 1 else str(axes)


def reduction_row(
    name: str, ufunc: str, kind: str, result: Callable = lambda dtype: dtype, **columns: Any
) -> Op:
    """A row for the NumPy reduction of that name, which is ufunc.reduce."""
    function = getattr(np, name)

    def code(x, axes, keepdims):
        return f"np.{name}({x}, axis={axes_text(axes)}{', keepdims=True' if keepdims else ''})"

    return row(
        name,
        kind,
        infer=lambda x, axes, keepdims: (reduced_shape(x.shape, axes, keepdims), result(x.dtype)),
        evaluate=lambda x, axes, keepdims: function(x, axis=axes, keepdims=keepdims),
        code=code,
        work="reduces",
        reducer=ufunc,
        has_out=True,
        leads=leads.AXIS_IN_ROWS,
        **columns,
    )


reduction_row(
    "sum",
    "add",
    "linear",
    sum_dtype,
    transpose=lambda g, out, x, axes, keepdims: (broadcast(expand(g, axes, x.ndim), x.shape),),
    shift=shifts.reduction,
    adds_axes=rowwise.first_axes,
    exact_on=INTEGERS,
)

# The same in NumPy's own order, for strict programs: what emits a "sum" may add blocks of it, or let BLAS add
OPS["sum_as_numpy"] = replace(OPS["sum"], name="sum_as_numpy", adds_axes=none)


_BEATEN = {"max": "less", "min": "greater"}  # says which elements are not the extreme one


def _extreme_jvp(t, out, x, axes, keepdims):
    """The tangent of the largest element; of several equally large ones, their mean; of nan, nan."""
    not_chosen = apply(_BEATEN[out.op], x, expand(out, axes, x.ndim))  # a nan in `out` beats nothing
    count = cast(sum_(apply("logical_not", not_chosen), axes, keepdims), x.dtype)
    count = where(equal(out, out), count, math.nan)
    return sum_(where(not_chosen, 0.0, t[0]), axes, keepdims) / count


def _extreme_transpose(g, out, x, axes, keepdims):
    """The same backwards: the gradient goes to the largest element, in equal shares to several."""
    g, extreme = expand(g, axes, x.ndim), expand(out, axes, x.ndim)
    chosen = apply("logical_not", apply(_BEATEN[out.op], x, extreme))
    return (apply("share_among", g, chosen, extreme, axes=axes),)


for _name, _ufunc in (("max", "maximum"), ("min", "minimum")):
    reduction_row(
        _name,
        _ufunc,
        "nonlinear",
        jvp=_extreme_jvp,
        transpose=_extreme_transpose,
        shift=shifts.reduction,
        discontinuous=False,
        exact_on=EVERYWHERE,
    )
for _name, _ufunc in (("any", "logical_or"), ("all", "logical_and")):
    reduction_row(_name, _ufunc, "nondiff", lambda dtype: np.dtype(bool), exact_on=EVERYWHERE)


def _share_among(g, chosen, extreme, axes):
    dtype = np.asarray(g).dtype
    count = np.sum(chosen, axis=axes, keepdims=True).astype(dtype if dtype.kind in "fc" else float)
    shares = g / np.where(np.isnan(extreme), np.asarray(np.nan, count.dtype), count)
    return np.where(chosen, shares, 0.0).astype(dtype)


def _share_among_code(g, chosen, extreme, axes):
    count = f"np.sum({chosen}, axis={axes_text(axes)}, keepdims=True)"
    return f"np.where({chosen}, ({g}) / np.where(np.isnan({extreme}), np.nan, {count}), 0.0)"


def _shares_of_examples(b: leads.Batch, *args: Node, axes: Sequence[int]) -> Node:
    whole = [b.front(x, has) for x, has in zip(args, b.flags)]
    return apply("share_among", *whole, axes=tuple(a + 1 for a in axes))


row(
    "share_among",  # how max and min hand back a gradient: g and extreme have the axes, of length 1
    "linear",
    infer=lambda g, chosen, extreme, axes: (chosen.shape, g.dtype),
    evaluate=_share_among,
    code=_share_among_code,
    jvp=lambda t, out, g, chosen, extreme, axes: (
        None if t[0] is None else apply("share_among", t[0], chosen, extreme, axes=axes)
    ),
    transpose=lambda g, out, given, chosen, extreme, axes: (
        lambda: (
            sum_(where(chosen, g, 0.0), axes, keepdims=True)
            / where(equal(extreme, extreme), cast(sum_(chosen, axes, keepdims=True), g.dtype), math.nan)
        ),
        None,
        None,
    ),
    work="moves",
    has_out=True,
    leads=Leads(_shares_of_examples, leads.rows_of_axes),
)


def _prod_jvp(t, out, x, axes, keepdims):
    """The tangent of a product, by pairs (product, its tangent): without division, zeros are as others."""
    kept = tuple(i for i in range(x.ndim) if i not in axes)
    flat = (*(x.shape[i] for i in kept), math.prod(x.shape[i] for i in axes))
    p, d = (reshape(transpose(v, (*kept, *axes)), flat) for v in (x, t[0]))
    while p.shape[-1] > 1:
        n, half = p.shape[-1], p.shape[-1] // 2
        p1, p2, p3 = (take_slice(p, -1, *part) for part in ((0, half), (half, 2 * half), (2 * half, n)))
        d1, d2, d3 = (take_slice(d, -1, *part) for part in ((0, half), (half, 2 * half), (2 * half, n)))
        p, d = p1 * p2, d1 * p2 + p1 * d2
        if n % 2:
            p, d = concatenate([p, p3], -1), concatenate([d, d3], -1)
    return reshape(sum_(d, -1), out.shape)  # of length 1, or 0 for an empty product


reduction_row(
    "prod", "multiply", "nonlinear", sum_dtype, jvp=_prod_jvp, discontinuous=False, exact_on=INTEGERS
)


def _reduceat_rule(v, forward, out, x, starts, ufunc, axis):
    """The tangent or gradient of sums, or of the largest or smallest elements, of segments of an axis."""
    # The elements of the segments, which segment each is of, and where each begins
    first = np.array(starts, int)
    lengths = np.maximum(np.append(first[1:], x.shape[axis])[: len(first)] - first, 1)
    begins = np.cumsum(lengths) - lengths
    of = np.repeat(np.arange(len(first)), lengths)
    element, segment = const(np.arange(lengths.sum()) - (begins - first)[of]), const(of)
    spec = (*build.full_index(x.shape[:axis]), ("array", 0))

    def summed(v):
        return apply("reduceat", v, starts=tuple(begins.tolist()), ufunc="add", axis=axis)

    each = apply("gather", v, element if forward else segment, spec=spec)
    if ufunc != "add":
        extreme = apply("gather", out, segment, spec=spec)
        chosen = equal(apply("gather", x, element, spec=spec), extreme)
        count = apply("gather", summed(cast(chosen, x.dtype)), segment, spec=spec)
        unchosen = where(equal(extreme, extreme), const(0.0, x.dtype), const(math.nan, x.dtype))
        each = where(chosen, each / where(chosen, count, 1.0), unchosen)
    if forward:
        return summed(each)
    return apply("scatter_add", build.zeros(x.shape, x.dtype), each, element, spec=spec)


row(
    "reduceat",  # np.add.reduceat, np.maximum.reduceat, np.minimum.reduceat
    "nonlinear",
    infer=lambda x, starts, ufunc, axis: (
        (*x.shape[:axis], len(starts), *x.shape[axis + 1 :]),
        sum_dtype(x.dtype) if ufunc == "add" else x.dtype,
    ),
    evaluate=lambda x, starts, ufunc, axis: getattr(np, ufunc).reduceat(x, starts, axis),
    code=lambda x, starts, ufunc, axis: f"np.{ufunc}.reduceat({x}, {list(starts)}, axis={axis})",
    jvp=lambda t, out, *args, **attrs: _reduceat_rule(t[0], True, out, *args, **attrs),
    transpose=lambda g, out, *args, **attrs: (_reduceat_rule(g, False, out, *args, **attrs),),
    leads=leads.AXIS,
)


def _arg_row(name):
    row(
        name,
        "nondiff",
        infer=lambda x, axis: (reduced_shape(x.shape, (axis,), False), np.dtype(np.intp)),
        evaluate=lambda x, axis: getattr(np, name)(x, axis=axis),
        code=lambda x, axis: f"np.{name}({x}, axis={axis})",
        exact_on=EVERYWHERE,
        work="reduces",
        leads=leads.AXIS_IN_ROWS,
    )


_arg_row("argmax")
_arg_row("argmin")


def _cumsum(x, axis, reverse):
    return np.flip(np.cumsum(np.flip(x, axis), axis), axis) if reverse else np.cumsum(x, axis)


row(
    "cumsum",
    "linear",
    # reverse: the sums of everything from here to the end
    infer=lambda x, axis, reverse: (x.shape, sum_dtype(x.dtype)),
    evaluate=_cumsum,
    code=lambda x, axis, reverse: (
        f"np.flip(np.cumsum(np.flip({x}, {axis}), axis={axis}), {axis})"
        if reverse
        else f"np.cumsum({x}, axis={axis})"
    ),
    transpose=lambda g, out, x, axis, reverse: (apply("cumsum", g, axis=axis, reverse=not reverse),),
    has_out=True,
    leads=leads.AXIS_IN_ROWS,
    exact_on=INTEGERS,
)


def _cumprod_jvp(t, out, x, axis):
    """The tangent of running products, by Hillis and Steele's scan over (product, its tangent)."""
    p, d, n, reach = x, t[0], x.shape[axis], 1
    while reach < n:
        ahead_p, ahead_d, left_p, left_d = (
            take_slice(v, axis, *part) for part in ((reach, n), (0, n - reach)) for v in (p, d)
        )
        first_p, first_d = take_slice(p, axis, 0, reach), take_slice(d, axis, 0, reach)
        p = concatenate([first_p, left_p * ahead_p], axis)
        d = concatenate([first_d, left_d * ahead_p + left_p * ahead_d], axis)
        reach *= 2
    return d


row(
    "cumprod",
    "nonlinear",
    infer=lambda x, axis: (x.shape, sum_dtype(x.dtype)),
    evaluate=lambda x, axis: np.cumprod(x, axis),
    code=lambda x, axis: f"np.cumprod({x}, axis={axis})",
    jvp=_cumprod_jvp,
    leads=leads.AXIS,
    discontinuous=False,
)
