"""Elementwise ops: NumPy's ufuncs, where, cast. Arguments broadcast; the result has the broadcast shape.

`partials(out, *args)` gives d out / d argument for each argument:

    None            zero: no derivative leads through this argument
    1.0, -1.0, 2.5  a number; by 1.0 and -1.0 nothing is multiplied
    a node          the factor itself
    a tuple         the product of its entries; those as small as a broadcast argument leave the sum over axes
    a function      of no arguments, giving one of the above; called only if that derivative is wanted

A real result of a complex argument (absolute, real, angle) has d out = real(partial * d argument).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..graph import Node, const_value, is_scalar_const
from . import leads, shifts
from .build import (
    absolute,
    cast,
    conjugate,
    cos,
    cosh,
    equal,
    exp,
    floor,
    log,
    sin,
    sinh,
    sqrt,
    square,
    trunc,
    where,
)
from .table import EVERYWHERE, EXACTLY, INTEGERS, NEARLY, REALS, Op, apply, const, row


def broadcast_shape(*nodes: Node) -> tuple[int, ...]:
    shape = nodes[0].shape
    for n in nodes[1:]:
        if n.shape == shape or n.shape == ():
            continue
        if shape != ():  # NumPy's own function takes longer than the rest of making a node
            return np.broadcast_shapes(*(n.shape for n in nodes))
        shape = n.shape
    return shape


@lru_cache(maxsize=4096)
def ufunc_dtype(ufunc: np.ufunc, dtypes: tuple) -> np.dtype:
    return ufunc.resolve_dtypes((*dtypes, None))[-1]


def ufunc_row(
    name: str,
    partials: Callable | None = None,
    kind: str = "elementwise",
    **columns: Any,
) -> Op:
    """A row for the NumPy ufunc of that name (one result)."""
    ufunc = getattr(np, name)
    if kind in ("elementwise", "nondiff"):
        columns["leads"] = leads.ELEMENTWISE
    return row(
        name,
        kind,
        infer=lambda *args: (broadcast_shape(*args), ufunc_dtype(ufunc, tuple(a.dtype for a in args))),
        evaluate=ufunc,
        code=lambda *args: f"np.{name}({', '.join(args)})",
        partials=partials,
        ufunc=ufunc,
        streams=True,
        **columns,
    )


def smooth_row(name: str, partials: Callable | None = None, **columns: Any) -> Op:
    """A row for a ufunc that takes small relative changes to small ones."""
    return ufunc_row(name, partials, discontinuous=False, **columns)


# arithmetic
smooth_row(
    "add",
    lambda out, a, b: (1.0, 1.0),
    operator="+",
    cost=0.15,
    commutes=EXACTLY,
    any_strides=True,
    shift=shifts.terms(1),
    exact_on=INTEGERS,
)
smooth_row(
    "subtract",
    lambda out, a, b: (1.0, -1.0),
    operator="-",
    cost=0.15,
    any_strides=True,
    shift=shifts.terms(-1),
    exact_on=INTEGERS,
)
smooth_row(
    "multiply",
    lambda out, a, b: (b, a) if a is not b else ((2.0, a), None),
    operator="*",
    cost=0.15,
    any_strides=True,
    commutes=EXACTLY,
    shift=shifts.factors(1),
    exact_on=INTEGERS,
)
smooth_row(
    "negative",
    lambda out, x: (-1.0,),
    cost=0.1,
    any_strides=True,
    shift=shifts.negative,
    exact_on=EVERYWHERE,
)
smooth_row("positive", lambda out, x: (1.0,), cost=0.3, exact_on=EVERYWHERE)
smooth_row(
    "square",
    lambda out, x: ((2.0, x),),
    cost=0.1,
    any_strides=True,
    shift=shifts.power(2.0),
    exact_on=INTEGERS,
)
smooth_row("reciprocal", lambda out, x: ((square(out), -1.0),), cost=0.25, shift=shifts.power(-1.0))


def _divide(out, a, b):
    if is_scalar_const(b) and const_value(b) != 0:
        return 1.0 / const_value(b), None
    inverse = 1.0 / b
    return inverse, (inverse, out, -1.0)  # g * inverse is common to both


smooth_row("divide", _divide, operator="/", cost=0.2, any_strides=True, shift=shifts.factors(-1))


def _power(out, a, b):
    return lambda: _power_base(a, b), lambda: out * log(where(equal(a, 0.0), 1.0, a))


def _power_base(a, b):
    """The derivative b * a**(b - 1), and 0 where b is 0, though a**(b - 1) is infinite at a = 0."""
    if is_scalar_const(b):
        n = const_value(b)
        if n == 0:
            return None
        return 1.0 if n == 1 else (n, a) if n == 2 else (n, a ** (n - 1))
    return b * a ** where(equal(b, 0.0), 1.0, b - 1.0)


def _powers(a, b):
    """a ** b: of numbers C's pow, as for Python's `**`; of arrays NumPy's loop, which rounds otherwise."""
    if np.ndim(a) == np.ndim(b) == 0:
        return np.asarray(np.asarray(a)[()] ** np.asarray(b)[()])
    return np.power(a, b)


smooth_row("power", _power, cost=10.0).evaluate = _powers
ufunc_row("float_power", _power, cost=10.0)  # always float64 or complex128
ufunc_row(
    "remainder",
    lambda out, a, b: (1.0, lambda: (floor(a / b), -1.0)),
    cost=9.0,
    exact_on=INTEGERS,
)
ufunc_row(
    "fmod",
    lambda out, a, b: (1.0, lambda: (trunc(a / b), -1.0)),
    cost=5.0,
    math="fmod",
)
ufunc_row(
    "ldexp",
    lambda out, a, n: (lambda: apply("ldexp", const(1.0, a.dtype), n), None),
    cost=3.0,
)

# exponentials and logarithms
smooth_row("exp", lambda out, x: (out,), cost=0.45, math="exp", shift=shifts.exp)
smooth_row("exp2", lambda out, x: ((out, math.log(2)),), cost=0.25, math="exp2")
smooth_row("expm1", lambda out, x: (out + 1.0,), cost=0.4, math="expm1")
smooth_row("log", lambda out, x: (1.0 / x,), cost=0.4, math="log", shift=shifts.log)
smooth_row("log2", lambda out, x: (1 / math.log(2) / x,), cost=0.25, math="log2")
smooth_row("log10", lambda out, x: (1 / math.log(10) / x,), cost=0.25, math="log10")
smooth_row("log1p", lambda out, x: (1.0 / (x + 1.0),), cost=0.45, math="log1p")
smooth_row(
    "sqrt",
    lambda out, x: (0.5 / out,),
    cost=0.4,
    any_strides=True,
    math="sqrt",
    shift=shifts.power(0.5),
)
smooth_row("cbrt", lambda out, x: (1 / 3 / square(out),), cost=0.35, math="cbrt")


def _logaddexp(base):
    def partials(out, a, b):
        # -inf - -inf would be nan; the weight of a term e**-inf is 0
        safe = where(equal(out, -math.inf), 0.0, out)
        return lambda: base(a - safe), lambda: base(b - safe)

    return partials


smooth_row("logaddexp", _logaddexp(exp), cost=15.0, commutes=NEARLY)
smooth_row("logaddexp2", _logaddexp(lambda x: apply("exp2", x)), cost=15.0, commutes=NEARLY)

# trigonometric and hyperbolic
smooth_row("sin", lambda out, x: (cos(x),), cost=0.55, math="sin")
smooth_row("cos", lambda out, x: ((sin(x), -1.0),), cost=0.55, math="cos")
smooth_row("tan", lambda out, x: (square(out) + 1.0,), cost=0.45, math="tan")


def _root(x: Node) -> Node:
    """The root of 1 - x * x; of complex numbers on the side of the cut that arcsin and arccos take."""
    return sqrt(-(x - 1.0)) * sqrt(x + 1.0) if x.dtype.kind == "c" else sqrt(1.0 - square(x))


smooth_row("arcsin", lambda out, x: (1.0 / _root(x),), cost=0.4, math="asin")
smooth_row("arccos", lambda out, x: (-1.0 / _root(x),), cost=0.4, math="acos")
smooth_row("arctan", lambda out, x: (1.0 / (square(x) + 1.0),), cost=0.4, math="atan")
smooth_row("sinh", lambda out, x: (cosh(x),), cost=0.4, math="sinh")
smooth_row("cosh", lambda out, x: (sinh(x),), cost=0.35, math="cosh")
smooth_row("tanh", lambda out, x: (1.0 - out * out,), cost=0.4, math="tanh")
smooth_row("arcsinh", lambda out, x: (1.0 / sqrt(square(x) + 1.0),), cost=0.7, math="asinh")
# not sqrt(x*x - 1), which has the other sign left of the complex branch cut
smooth_row(
    "arccosh",
    lambda out, x: (1.0 / (sqrt(x - 1.0) * sqrt(x + 1.0)),),
    cost=0.65,
    math="acosh",
)
smooth_row("arctanh", lambda out, x: (1.0 / (1.0 - square(x)),), cost=0.55, math="atanh")
smooth_row("deg2rad", lambda out, x: (math.pi / 180,), cost=1.4, math="radians")
smooth_row("rad2deg", lambda out, x: (180 / math.pi,), cost=2.2, math="degrees")
smooth_row("radians", lambda out, x: (math.pi / 180,), cost=1.4, math="radians")
smooth_row("degrees", lambda out, x: (180 / math.pi,), cost=2.2, math="degrees")


def _arctan2(out, a, b):
    inverse = 1.0 / (square(a) + square(b))
    return (b, inverse), (a, inverse, -1.0)


ufunc_row("arctan2", _arctan2, cost=0.6, math="atan2")
smooth_row(
    "hypot", lambda out, a, b: (lambda: a / out, lambda: b / out), cost=4.5, math="hypot", commutes=NEARLY
)


def _sinc(out, x):
    """The derivative (cos(pi x) - sinc(x)) / x, and its series near 0, where the difference cancels."""
    near = absolute(x) < 0.05
    far = (cos(math.pi * x) - out) / where(near, 1.0, x)
    t = square(x)
    pi2 = math.pi**2
    series = x * (-pi2 / 3 + t * (pi2**2 / 30 + t * (-(pi2**3) / 840 + t * (pi2**4 / 45360))))
    return (where(near, series, far),)


row(
    "sinc",
    "elementwise",
    # np.sinc puts a Python float into the array first, so that short integers become float64 as well
    infer=lambda x: (x.shape, x.dtype if x.dtype.kind in "fc" else np.dtype(np.float64)),
    evaluate=np.sinc,
    code=lambda x: f"np.sinc({x})",
    partials=_sinc,
    cost=5.0,
    discontinuous=False,
)


# choices. Where both arguments are equal, each gets half of the gradient
def _chosen(out, a, b):
    def share(x):
        return where(equal(a, b), 0.5, cast(equal(out, x), out.dtype))

    return lambda: share(a), lambda: share(b)


for _name in ("maximum", "minimum", "fmax", "fmin"):
    smooth_row(_name, _chosen, cost=0.15, commutes=NEARLY, idempotent=True, exact_on=EVERYWHERE)

smooth_row("fabs", lambda out, x: (apply("sign", x),), cost=1.4, math="fabs", exact_on=EVERYWHERE)
ufunc_row(
    "copysign",
    lambda out, a, b: (lambda: cast(equal(out, a), out.dtype) * 2.0 - 1.0, None),
    cost=0.6,
    math="copysign",
)
ufunc_row("heaviside", lambda out, x, at_zero: (None, lambda: cast(equal(x, 0.0), out.dtype)), cost=2.5)

# piecewise constant: the derivative is zero
for _name, _operator in {"equal": "==", "not_equal": "!="}.items():
    ufunc_row(_name, kind="nondiff", operator=_operator, cost=0.2, commutes=EXACTLY, exact_on=EVERYWHERE)

for _name, _operator in {
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}.items():
    ufunc_row(_name, kind="nondiff", operator=_operator, cost=0.2, exact_on=EVERYWHERE)

for _name in "isnan isinf isfinite".split():
    ufunc_row(_name, kind="nondiff", math=_name, cost=0.2, exact_on=EVERYWHERE)

for _name in "floor ceil trunc rint logical_not signbit".split():
    ufunc_row(_name, kind="nondiff", cost=0.2, exact_on=EVERYWHERE)
ufunc_row("floor_divide", kind="nondiff", cost=0.2, exact_on=INTEGERS)

for _name in "logical_and logical_or logical_xor".split():
    ufunc_row(
        _name,
        kind="nondiff",
        cost=0.2,
        commutes=EXACTLY,
        idempotent=_name != "logical_xor",
        exact_on=EVERYWHERE,
    )

row(
    "stop_gradient",
    "nondiff",
    infer=lambda x: (x.shape, x.dtype),
    evaluate=lambda x: x,
    code=lambda x: x,
    leads=leads.AS_IT_IS,
    work="free",
    discontinuous=False,
    exact_on=EVERYWHERE,
)

# Python's round of a float: correct in decimal, where NumPy's is rint(x * 10**digits) / 10**digits
row(
    "round_decimal",
    "nondiff",
    infer=lambda x, digits: (x.shape, x.dtype),
    evaluate=lambda x, digits: np.asarray(round(np.asarray(x).item(), digits), np.asarray(x).dtype),
    cost=300.0,
)

for _name in "left_shift right_shift".split():
    ufunc_row(_name, kind="nondiff", cost=0.2, exact_on=INTEGERS)
for _name in "bitwise_and bitwise_or bitwise_xor gcd lcm".split():
    facts = {"commutes": EXACTLY, "idempotent": _name in ("bitwise_and", "bitwise_or")}
    ufunc_row(_name, kind="nondiff", cost=0.2, exact_on=INTEGERS, **facts)
ufunc_row("invert", kind="nondiff", cost=0.2, exact_on=INTEGERS)

# complex numbers
smooth_row(
    "absolute", lambda out, x: (_unit(out, x),), cost=0.1, any_strides=True, math="fabs", exact_on=REALS
)


def _unit(out, x):
    if x.dtype.kind != "c":
        return apply("sign", x)
    return conjugate(x) / where(equal(out, 0.0), 1.0, out)


def _sign(out, x):
    if x.dtype.kind == "c":
        raise NotImplementedError("np.sign of complex numbers has no derivative rule: write x / np.abs(x)")
    return (None,)


ufunc_row("sign", _sign, cost=0.45, exact_on=REALS)
smooth_row("conjugate", kind="linear", cost=0.3, transpose=lambda g, out, x: (conjugate(g),))


def _part_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _angle(out, x):
    return ((1.0 / x, -1j) if x.dtype.kind == "c" else None,)


def _part_row(name, partials, **columns):
    # A view in NumPy, at times: of memory that is used for other values. So it is written out.
    row(
        name,
        "elementwise",
        infer=lambda x: (x.shape, _part_dtype(x.dtype)),
        evaluate=getattr(np, name),
        code=lambda x: f"np.{name}({x})",
        partials=partials,
        has_out=True,
        **columns,
    )


_part_row(
    "real",
    lambda out, x: (1.0,),
    cost=0.2,
    discontinuous=False,
    exact_on=EVERYWHERE,
)
_part_row(
    "imag",
    lambda out, x: (-1j if x.dtype.kind == "c" else None,),
    cost=0.2,
    discontinuous=False,
    exact_on=EVERYWHERE,
)


def _angle_dtype(dtype: np.dtype) -> np.dtype:
    part = np.dtype(int) if dtype.kind == "b" else _part_dtype(dtype)  # np.angle's 0 is one beside bools
    return ufunc_dtype(np.arctan2, (part, part))


row(
    "angle",
    "elementwise",
    infer=lambda x: (x.shape, _angle_dtype(x.dtype)),
    evaluate=np.angle,
    code=lambda x: f"np.angle({x})",
    partials=_angle,
    cost=15.0,
)

# selection and conversion. `where` is linear in its branches, not in its condition; its transpose stands in
# chain_rule.py, because it keeps the condition beside the gradient
row(
    "where",
    "linear",
    linear_in=(1, 2),
    infer=lambda c, a, b: (broadcast_shape(c, a, b), np.result_type(a.dtype, b.dtype)),
    evaluate=np.where,
    code=lambda c, a, b: f"np.where({c}, {a}, {b})",
    cost=0.3,
    shift=shifts.where,
    streams=True,
    leads=leads.ELEMENTWISE,
    discontinuous=False,
    exact_on=EVERYWHERE,
)

row(
    "cast",
    "linear",
    linear_in=(0,),
    infer=lambda x, dtype: (x.shape, np.dtype(dtype)),
    evaluate=lambda x, dtype: np.asarray(x).astype(dtype),
    code=lambda x, dtype: f"{x}.astype(np.{'bool_' if dtype == 'bool' else dtype})",
    transpose=lambda g, out, x, dtype: (g,),  # cast to the dtype of x outside
    cost=0.2,
    shift=shifts.unchanged,
    streams=True,
    leads=leads.ELEMENTWISE,
    discontinuous=False,
    exact_on=INTEGERS,
)
