"""Reductions and running sums. `axes` is a sorted tuple of non-negative ints; `axis` is one such int."""

from __future__ import annotations

import numpy as np

from .table import row


def reduced_shape(shape, axes, keepdims) -> tuple[int, ...]:
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """NumPy adds and multiplies bools and short integers in the machine's integer."""
    if dtype.kind == "b" or (dtype.kind == "i" and dtype.itemsize < 8):
        return np.dtype(np.int64)
    if dtype.kind == "u" and dtype.itemsize < 8:
        return np.dtype(np.uint64)
    return dtype


def axes_text(axes) -> str:
    return str(axes[0]) if len(axes) == 1 else str(axes)


def reduction_row(name: str, kind: str, result=lambda dtype: dtype, **columns):
    """A row for the NumPy reduction of that name."""
    function = getattr(np, name)

    def code(x, axes, keepdims):
        return f"np.{name}({x}, axis={axes_text(axes)}{', keepdims=True' if keepdims else ''})"

    return row(
        name,
        kind,
        infer=lambda x, axes, keepdims: (reduced_shape(x.shape, axes, keepdims), result(x.dtype)),
        evaluate=lambda x, axes, keepdims: function(x, axis=axes, keepdims=keepdims),
        code=code,
        **columns,
    )


def _bool(dtype):
    return np.dtype(bool)


reduction_row("sum", "linear", sum_dtype, linear_in=(0,))
reduction_row("max", "nonlinear")
reduction_row("min", "nonlinear")
reduction_row("prod", "nonlinear", sum_dtype)
reduction_row("any", "nondiff", _bool)
reduction_row("all", "nondiff", _bool)

for name in ("argmax", "argmin"):
    row(name, "nondiff",
        infer=lambda x, axis: (reduced_shape(x.shape, (axis,), False), np.dtype(np.intp)),
        evaluate=lambda x, axis, function=getattr(np, name): function(x, axis=axis),
        code=lambda x, axis, name=name: f"np.{name}({x}, axis={axis})")


def _flip(x, axis):
    return np.flip(x, axis)


row("cumsum", "linear", linear_in=(0,),  # reverse: the sums of everything from here to the end
    infer=lambda x, axis, reverse: (x.shape, sum_dtype(x.dtype)),
    evaluate=lambda x, axis, reverse: _flip(np.cumsum(_flip(x, axis), axis), axis) if reverse else np.cumsum(x, axis),
    code=lambda x, axis, reverse: f"np.flip(np.cumsum(np.flip({x}, {axis}), axis={axis}), {axis})" if reverse
    else f"np.cumsum({x}, axis={axis})")

row("cumprod", "nonlinear",
    infer=lambda x, axis: (x.shape, sum_dtype(x.dtype)),
    evaluate=lambda x, axis: np.cumprod(x, axis),
    code=lambda x, axis: f"np.cumprod({x}, axis={axis})")
