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
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..graph import Node, const_value, is_scalar_const
from ..hidden import decided
from . import leads, shifts, table
from .build import absolute, cast, conjugate, cos, cosh, equal, exp, log, sin, sinh, sqrt, square, where
from .table import EVERYWHERE, EXACTLY, INTEGERS, NEARLY, REALS, SEVERAL, Leads, apply, const, row


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


def ufunc_row(name: str, kind: str, cost: float, **columns: Any) -> None:
    """A row for the NumPy ufunc of that name (one result)."""
    ufunc = getattr(np, name)
    row(
        name,
        kind,
        infer=lambda *args: (broadcast_shape(*args), ufunc_dtype(ufunc, tuple(a.dtype for a in args))),
        code=lambda *args: f"np.{name}({', '.join(args)})",
        ufunc=ufunc,
        streams=True,
        cost=cost,
        operator=_OPERATORS.get(name),
        math=_MATH.get(name),
        **{"evaluate": ufunc, "leads": leads.ELEMENTWISE, **columns},
    )


# Partial derivatives that take more than an expression


def _divide(out, a, b):
    if is_scalar_const(b) and const_value(b) != 0:
        return 1.0 / const_value(b), None
    inverse = 1.0 / b
    return inverse, (inverse, out, -1.0)  # g * inverse is common to both


def _power(out, a, b):
    return lambda: _power_base(a, b), lambda: out * log(where(equal(a, 0.0), 1.0, a))


def _power_base(a, b):
    """The derivative b * a**(b - 1), and 0 where b is 0, though a**(b - 1) is infinite at a = 0."""
    if is_scalar_const(b):
        n = const_value(b)
        if n == 0:
            return None
        if not isinstance(n, complex) and 0 < n < 1 and is_sum_of(_is_square, a):
            return n, or_zero(a, lambda v: v ** (n - 1))
        return 1.0 if n == 1 else (n, a) if n == 2 else (n, a ** (n - 1))
    return b * a ** where(equal(b, 0.0), 1.0, b - 1.0)


def _powers(a, b):
    """a ** b: of numbers C's pow, as for Python's `**`; of arrays NumPy's loop, which rounds otherwise."""
    if np.ndim(a) == np.ndim(b) == 0:
        return np.asarray(np.asarray(a)[()] ** np.asarray(b)[()])
    return np.power(a, b)


def _logaddexp(base):
    def partials(out, a, b):
        # inf - inf would be nan. The weight of a term e**-inf is 0, and one of e**inf has all of it
        infinite = apply("isinf", out)
        safe, shares = where(infinite, 0.0, out), _chosen(out, a, b)

        def weight(x, share):
            return where(infinite, where(out > 0.0, share(), 0.0), base(x - safe))

        return lambda: weight(a, shares[0]), lambda: weight(b, shares[1])

    return partials


def _root(x: Node) -> Node:
    """The root of 1 - x * x; of complex numbers on the side of the cut that arcsin and arccos take."""
    return sqrt(-(x - 1.0)) * sqrt(x + 1.0) if x.dtype.kind == "c" else sqrt(1.0 - square(x))


# Norms. A root of a sum of squares has at 0 the derivative 0, the least of its subgradients, as abs has
_SHAPES = frozenset("sum sum_as_numpy reshape transpose broadcast slice cast real positive conjugate".split())


def or_zero(x: Node, f: Callable[[Node], Node]) -> Node:
    """f(x), but 0 where x is 0."""
    zero = equal(x, 0.0)
    return where(zero, 0.0, f(where(zero, 1.0, x)))


def is_sum_of(term: Callable[[Node], bool], n: Node) -> bool:
    """Whether n is made of such terms alone, by adding and scaling: it is 0 only where all of them are."""
    while not term(n):
        if n.op == "add":
            return all(is_sum_of(term, a) for a in n.args)
        if n.op == "multiply" and any(_is_weight(a) for a in n.args):
            n = n.args[1] if _is_weight(n.args[0]) else n.args[0]
        elif n.op in _SHAPES or n.op == "divide":
            n = n.args[0]
        else:
            return False
    return True


def _is_weight(n: Node) -> bool:
    """Whether n is a constant that scales without changing a sign."""
    n = table.root(n)
    return n.op == "const" and decided(_nowhere_negative, n.value)


def _nowhere_negative(value: Any) -> bool:
    return bool(np.all(np.greater_equal(value, 0)))


def _is_square(n: Node) -> bool:
    """Whether n is a square, or another power of an absolute value, or a product of a vector with itself."""
    a, b = (n.args * 2)[:2] if n.args else (n, n)
    if n.op == "power" and is_scalar_const(b):
        p = const_value(b)
        return bool(p > 1.0 if a.op in ("absolute", "fabs") else p == 2.0 and n.dtype.kind != "c")
    alike = n.op in ("square", "multiply") or n.op == "matmul" and n.size == 1
    if n.op == "einsum":
        alike = len(set(n.attrs["subscripts"].partition("->")[0].split(","))) == 1
    return alike and (n.dtype.kind != "c" or a.op != b.op) and _same(a, b)


def _same(a: Node, b: Node, depth: int = 6) -> bool:
    """Whether two nodes have the same elements, or conjugates, in the same order."""
    a, b = (v.args[0] if v.op in ("reshape", "conjugate") else v for v in (a, b))
    if a is b:
        return True
    if a.op == "const" or not depth:
        return is_scalar_const(a) and is_scalar_const(b) and bool(a.value == b.value)
    if (a.op, a.shape, a.attrs) != (b.op, b.shape, b.attrs):
        return False
    return (table.is_elementwise(a.op) or a.op in table.VIEWS) and all(
        _same(*pair, depth - 1) for pair in zip(a.args, b.args)
    )


def _sqrt(out, x):
    return (or_zero(out, lambda r: 0.5 / r) if is_sum_of(_is_square, x) else 0.5 / out,)


def _hypot(out, a, b):
    return lambda: or_zero(out, lambda r: a / r), lambda: or_zero(out, lambda r: b / r)


def squared_norm(n: Node) -> tuple[Sequence[Node], tuple] | None:
    """The values through which a square of a norm or absolute value is differentiated, and the derivatives by
    them: smooth at 0, where those of the norm are not. None for any other node.
    """
    if n.op not in ("square", "multiply", "power"):
        return None
    r, p = n.args[0], n.args[-1]
    if r is not p and not (n.op == "power" and is_scalar_const(p) and const_value(p) == 2.0):
        return None
    if (r.shape, r.dtype) != (n.shape, n.dtype) or n.dtype.kind != "f":
        return None
    if r.op == "sqrt" and is_sum_of(_is_square, r.args[0]):
        return r.args, (1.0,)
    if r.op in ("hypot", "absolute", "fabs"):
        return r.args, tuple((2.0, conjugate(a) if a.dtype.kind == "c" else a) for a in r.args)
    return None


def _log(out, x):
    """0 where x is a sum of exponentials of -inf, as of np.logaddexp."""
    return (or_zero(x, lambda v: 1.0 / v) if is_sum_of(_may_vanish, x) else 1.0 / x,)


def _may_vanish(n: Node) -> bool:
    """Whether n is an exponential, but not of a difference from a maximum, whose sum is at least 1."""
    if n.op not in ("exp", "exp2"):
        return False
    x = n.args[0]
    return not (x.op == "subtract" and table.root(x.args[1]).op in ("max", "stop_gradient"))


def _arctan2(out, a, b):
    inverse = 1.0 / (square(a) + square(b))
    return (b, inverse), (a, inverse, -1.0)


def _chosen(out, a, b):
    def share(x):
        return where(equal(a, b), 0.5, cast(equal(out, x), out.dtype))

    return lambda: share(a), lambda: share(b)


def _absolute(out, x):
    if x.dtype.kind != "c":
        return (apply("sign", x),)
    return (conjugate(x) / where(equal(out, 0.0), 1.0, out),)


def _sign(out, x):
    if x.dtype.kind == "c":
        raise NotImplementedError("np.sign of complex numbers has no derivative rule: write x / np.abs(x)")
    return (None,)


# name: (partials, nanoseconds an element, other columns). These take a small relative change of an argument
# to a small one of the result
_NUMBERS = dict(any_strides=True, exact_on=INTEGERS)
_SINGULAR = dict(singular=SEVERAL)
_CONTINUOUS: dict[str, tuple[Callable, float, dict[str, Any]]] = {
    # arithmetic
    "add": (lambda out, a, b: (1.0, 1.0), 0.15, _NUMBERS | dict(commutes=EXACTLY, shift=shifts.terms(1))),
    "subtract": (lambda out, a, b: (1.0, -1.0), 0.15, _NUMBERS | dict(shift=shifts.terms(-1))),
    "multiply": (
        lambda out, a, b: (b, a) if a is not b else ((2.0, a), None),
        0.15,
        _NUMBERS | dict(commutes=EXACTLY, shift=shifts.factors(1)),
    ),
    "divide": (_divide, 0.2, dict(any_strides=True, shift=shifts.factors(-1))),
    "negative": (
        lambda out, x: (-1.0,),
        0.1,
        dict(any_strides=True, exact_on=EVERYWHERE, shift=shifts.negative),
    ),
    "positive": (lambda out, x: (1.0,), 0.3, dict(exact_on=EVERYWHERE)),
    "square": (lambda out, x: ((2.0, x),), 0.1, _NUMBERS | dict(shift=shifts.power(2.0))),
    "reciprocal": (lambda out, x: ((square(out), -1.0),), 0.25, dict(shift=shifts.power(-1.0))),
    "power": (_power, 10.0, _SINGULAR | dict(evaluate=_powers)),
    # exponentials, logarithms, roots
    "exp": (lambda out, x: (out,), 0.45, dict(shift=shifts.exp)),
    "exp2": (lambda out, x: ((out, math.log(2)),), 0.25, {}),
    "expm1": (lambda out, x: (out + 1.0,), 0.4, {}),
    "log": (_log, 0.4, dict(shift=shifts.log)),
    "log2": (lambda out, x: (1 / math.log(2) / x,), 0.25, {}),
    "log10": (lambda out, x: (1 / math.log(10) / x,), 0.25, {}),
    "log1p": (lambda out, x: (1.0 / (x + 1.0),), 0.45, {}),
    "logaddexp": (_logaddexp(exp), 15.0, _SINGULAR | dict(commutes=NEARLY)),
    "logaddexp2": (_logaddexp(lambda x: apply("exp2", x)), 15.0, _SINGULAR | dict(commutes=NEARLY)),
    "sqrt": (_sqrt, 0.4, dict(any_strides=True, shift=shifts.power(0.5))),
    "cbrt": (lambda out, x: (1 / 3 / square(out),), 0.35, {}),
    "hypot": (_hypot, 4.5, dict(commutes=NEARLY)),
    # trigonometric and hyperbolic functions
    "sin": (lambda out, x: (cos(x),), 0.55, {}),
    "cos": (lambda out, x: ((sin(x), -1.0),), 0.55, {}),
    "tan": (lambda out, x: (square(out) + 1.0,), 0.45, {}),
    "arcsin": (lambda out, x: (1.0 / _root(x),), 0.4, {}),
    "arccos": (lambda out, x: (-1.0 / _root(x),), 0.4, {}),
    "arctan": (lambda out, x: (1.0 / (square(x) + 1.0),), 0.4, {}),
    "sinh": (lambda out, x: (cosh(x),), 0.4, {}),
    "cosh": (lambda out, x: (sinh(x),), 0.35, {}),
    "tanh": (lambda out, x: (1.0 - out * out,), 0.4, {}),
    "arcsinh": (lambda out, x: (1.0 / sqrt(square(x) + 1.0),), 0.7, {}),
    # not sqrt(x*x - 1), which has the other sign left of the complex branch cut
    "arccosh": (lambda out, x: (1.0 / (sqrt(x - 1.0) * sqrt(x + 1.0)),), 0.65, {}),
    "arctanh": (lambda out, x: (1.0 / (1.0 - square(x)),), 0.55, {}),
    **dict.fromkeys(("deg2rad", "radians"), (lambda out, x: (math.pi / 180,), 1.4, {})),
    **dict.fromkeys(("rad2deg", "degrees"), (lambda out, x: (180 / math.pi,), 2.2, {})),
    # choices and sizes
    **dict.fromkeys(
        ("maximum", "minimum", "fmax", "fmin"), (_chosen, 0.15, dict(commutes=NEARLY, exact_on=EVERYWHERE))
    ),
    "fabs": (lambda out, x: (apply("sign", x),), 1.4, dict(exact_on=EVERYWHERE)),
    "absolute": (_absolute, 0.1, dict(any_strides=True, exact_on=REALS)),
}
# The same for those that jump somewhere
_WITH_JUMPS: dict[str, tuple[Callable, float, dict[str, Any]]] = {
    "float_power": (_power, 10.0, _SINGULAR),  # always float64 or complex128
    # by b: minus the whole number of times that b was taken, of which the rounded a / b may be one off
    "remainder": (
        lambda out, a, b: (1.0, lambda: (apply("floor_divide", a, b), -1.0)),
        9.0,
        dict(exact_on=INTEGERS),
    ),
    "fmod": (lambda out, a, b: (1.0, lambda: (apply("rint", (a - out) / b), -1.0)), 5.0, {}),
    "ldexp": (lambda out, a, n: (lambda: apply("ldexp", const(1.0, a.dtype), n), None), 3.0, {}),
    "arctan2": (_arctan2, 0.6, {}),
    "copysign": (lambda out, a, b: (lambda: apply("sign", a) * apply("sign", out), None), 0.6, {}),
    "heaviside": (lambda out, x, at_zero: (None, lambda: cast(equal(x, 0.0), out.dtype)), 2.5, {}),
    "sign": (_sign, 0.45, dict(exact_on=REALS)),
}
# Piecewise constant: the derivative is zero
_STEPS: dict[str, dict[str, Any]] = {
    **dict.fromkeys("equal not_equal logical_and logical_or logical_xor".split(), dict(commutes=EXACTLY)),
    **dict.fromkeys("less less_equal greater greater_equal isnan isinf isfinite".split(), {}),
    **dict.fromkeys("floor ceil trunc rint logical_not signbit".split(), {}),
    **dict.fromkeys("floor_divide left_shift right_shift invert".split(), dict(exact_on=INTEGERS)),
    **dict.fromkeys(
        "bitwise_and bitwise_or bitwise_xor gcd lcm".split(), dict(commutes=EXACTLY, exact_on=INTEGERS)
    ),
}

# How Python spells them for floats: operators, and functions of the math module
_OPERATORS = {
    **{"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "equal": "==", "not_equal": "!="},
    **{"less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="},
}
_MATH = {
    **{name: name for name in "exp exp2 expm1 log log2 log10 log1p sqrt cbrt sin cos tan sinh cosh".split()},
    **{name: name for name in "tanh hypot fabs fmod copysign isnan isinf isfinite radians degrees".split()},
    **{f"arc{name}": f"a{name}" for name in "sin cos tan tan2 sinh cosh tanh".split()},
    **{"deg2rad": "radians", "rad2deg": "degrees", "absolute": "fabs"},
}


for _table, _jumps in ((_CONTINUOUS, False), (_WITH_JUMPS, True)):
    for _name, (_partials, _cost, _columns) in _table.items():
        ufunc_row(_name, "elementwise", _cost, partials=_partials, discontinuous=_jumps, **_columns)
for _name, _columns in _STEPS.items():
    ufunc_row(_name, "nondiff", 0.2, **{"exact_on": EVERYWHERE, **_columns})
ufunc_row("conjugate", "linear", 0.3, transpose=lambda g, out, x: (conjugate(g),), leads=Leads())


def _sinc(out, x):
    """The derivative (cos(pi x) - sinc(x)) / x, and its series near 0, where the difference cancels."""
    near = absolute(x) < 0.05
    far = (cos(math.pi * x) - out) / where(near, 1.0, x)
    t = square(x)
    pi2 = math.pi**2
    series = x * (-pi2 / 3 + t * (pi2**2 / 30 + t * (-(pi2**3) / 840 + t * (pi2**4 / 45360))))
    return (where(near, series, far),)


row(
    "stop_gradient",
    "nondiff",
    infer=lambda x: (x.shape, x.dtype),
    evaluate=lambda x: x,
    code=lambda x: x,
    leads=leads.STACKS,
    work="free",
    discontinuous=False,
    exact_on=EVERYWHERE,
)

row(
    "frexp_exponent",
    "nondiff",
    infer=lambda x: (x.shape, np.dtype(np.intc)),
    evaluate=lambda x: np.frexp(x)[1],
    code=lambda x: f"np.frexp({x})[1]",
    leads=leads.ELEMENTWISE,
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


def _angle_dtype(dtype: np.dtype) -> np.dtype:
    part = np.dtype(int) if dtype.kind == "b" else table.real_dtype(dtype)  # np.angle's 0 is one beside bools
    return ufunc_dtype(np.arctan2, (part, part))


def _function_row(name: str, result: Callable[[np.dtype], np.dtype], partials: Callable, **columns: Any):
    """A row for a NumPy function of one argument that is not a ufunc."""
    row(
        name,
        "elementwise",
        infer=lambda x: (x.shape, result(x.dtype)),
        evaluate=getattr(np, name),
        code=lambda x: f"np.{name}({x})",
        partials=partials,
        **columns,
    )


# Views in NumPy, at times: of memory that is used for other values. So they are written out
_PART = dict(cost=0.2, has_out=True, discontinuous=False, exact_on=EVERYWHERE)
_function_row("real", table.real_dtype, lambda out, x: (1.0,), **_PART)
_function_row("imag", table.real_dtype, lambda out, x: (-1j if x.dtype.kind == "c" else None,), **_PART)


def _complex(real: Any, imag: Any) -> np.ndarray:
    """real + 1j * imag, also where a part is infinite, nan or a zero with a sign."""
    dtype = np.result_type(real, imag, np.complex64)
    out = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imag)), dtype)
    out.real, out.imag = real, imag
    return out


def _complex_type(a: Node, b: Node) -> tuple[tuple[int, ...], np.dtype]:
    if "c" in (a.dtype.kind, b.dtype.kind):
        raise TypeError("the parts of a complex number are real")
    return broadcast_shape(a, b), np.result_type(a.dtype, b.dtype, np.complex64)


row(
    "complex",
    "elementwise",
    infer=_complex_type,
    evaluate=_complex,
    partials=lambda out, a, b: (1.0, 1j),
    cost=0.5,
    discontinuous=False,
    exact_on=EVERYWHERE,
)
_function_row(
    "angle", _angle_dtype, lambda out, x: ((1.0 / x, -1j) if x.dtype.kind == "c" else None,), cost=15.0
)
# np.sinc puts a Python float into the array first, so that short integers become float64 as well
_function_row("sinc", table.float_dtype, _sinc, cost=5.0, discontinuous=False)

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
    exact_on=EVERYWHERE,
)

row(
    "cast",
    "linear",
    infer=lambda x, dtype: (x.shape, np.dtype(dtype)),
    evaluate=lambda x, dtype: np.asarray(x).astype(dtype),
    code=lambda x, dtype: f"{x}.astype(np.{'bool_' if dtype == 'bool' else dtype})",
    transpose=lambda g, out, x, dtype: (g,),  # cast to the dtype of x outside
    cost=0.2,
    shift=shifts.unchanged,
    streams=True,
    leads=leads.ELEMENTWISE,
    exact_on=INTEGERS,
)
