"""Algebra: powers become multiplications, and sums of terms are put together with less work (collect.py).

Only floating-point and complex values are touched. What may be reassociated is listed in collect.py; here

    x**2, x**3, x**10, x**-2    multiplications, by squaring; 1 over them
    x**0.5, x**-0.5             square roots
    x / c                       x * (1 / c), one rounding more where c is not a power of 2

In strict mode only x / 4, x**2 and powers of integers are changed everywhere: floor(x / 49) is another number
than floor(x * (1 / 49)). In derivatives x**3 and x / 49 are as well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..graph import Node
from ..hidden import decided, is_whole
from ..ops import apply, build, const
from .collect import RING, improve, representable
from .engine import BITS, DIGITS, Family
from .match import ONE_NUMBER, is_inexact, number
from .patterns import R, enter

if TYPE_CHECKING:
    from .engine import Sweep

algebra = Family("algebra")

LARGEST_POWER = 32  # that is multiplied out: at most 8 multiplications


@algebra.rule("power", keeps=BITS, reads=ONE_NUMBER)
def power_as_numpy_does(n: Node, sweep: Sweep) -> Node | None:
    """Powers that NumPy itself multiplies out: squares of arrays, and all of integers."""
    p = number(n.args[1])
    if p is None or isinstance(p, (bool, complex)) or n.dtype.kind not in "fiu":
        return None
    if n.dtype.kind == "f" and (p != 2 or not n.shape or n.args[0].dtype != n.dtype or n.args[1].shape):
        return None  # a number by itself goes to C's pow
    return power_by_squaring(n, sweep)


@algebra.rule("power", keeps=DIGITS, reads=ONE_NUMBER)
def power_of_few_factors(n: Node, sweep: Sweep) -> Node | None:
    """x**3 -> x * x * x: p roundings for one, and no step is larger, or smaller, than the result."""
    p = number(n.args[1])
    small = isinstance(p, (int, float)) and type(p) is not bool and -1 <= p <= LARGEST_POWER and is_whole(p)
    return power_by_squaring(n, sweep) if small and n.dtype.kind == "f" else None


@algebra.rule("power", reads=ONE_NUMBER)
def power_by_squaring(n: Node, sweep: Sweep) -> Node | None:
    x, e = n.args
    p = number(e)
    if p is None or isinstance(p, (bool, complex)) or abs(p) > LARGEST_POWER:
        return None
    if not is_whole(p) and abs(p) != 0.5:
        return None  # sqrt(x) * x, for x**1.5, has at 0 a derivative of inf * 0
    if n.dtype.kind not in "fc" and p < 0:
        return None  # integers to negative powers are NumPy's to refuse
    x = build.broadcast(build.cast(x, n.dtype), n.shape)
    if p == 0:
        return build.full(n.shape, 1, n.dtype)
    if n.dtype.kind == "c" and not is_whole(p):
        return None  # the root's branch
    result = _power(x, abs(p))
    return result if p > 0 else 1.0 / result


def _power(x: Node, p) -> Node:
    """x**p for p = 1/2, or a whole number above 0, by squaring."""
    if p == 0.5:
        return build.sqrt(x)
    p = int(p)
    result, square = None, x
    while p:
        if p & 1:
            result = square if result is None else result * square
        p >>= 1
        if p:
            square = build.square(square)
    return result


enter(algebra, R("x * x", "square(x)", bits="fiu"))  # one argument to read, and one to differentiate


@algebra.rule("divide", keeps=BITS, reads=ONE_NUMBER)
def divide_by_power_of_two(n: Node, sweep: Sweep) -> Node | None:
    """x / 4 -> x * 0.25: both round the same number, so to the same bits."""
    c = number(n.args[1])
    if not isinstance(c, float) or n.dtype.kind != "f" or not decided(_is_power_of_two, c):
        return None
    return divide_by_number(n, sweep) if representable(c, n.dtype) else None


def _is_power_of_two(c: float) -> bool:
    return math.isfinite(c) and abs(math.frexp(c)[0]) == 0.5


@algebra.rule("divide", keeps=DIGITS, reads=ONE_NUMBER)
def divide_by_number(n: Node, sweep: Sweep) -> Node | None:
    a, b = n.args
    c = number(b)
    if c is None or c == 0 or not is_inexact(n) or a.dtype != n.dtype or not representable(1 / c, n.dtype):
        return None
    return build.broadcast(apply("multiply", a, const(1 / c, n.dtype)), n.shape)


@algebra.rule("divide")
def divide_by_inverted(n: Node, sweep: Sweep) -> Node | None:
    """x / s -> x * (1 / s), if 1 / s is computed anyway: factors can be put together, and s may go."""
    a, b = n.args
    if number(a) == 1 or not is_inexact(n) or b.dtype != n.dtype:
        return None
    inverse = sweep.known(const(1.0, n.dtype)) / b
    reciprocal = sweep.known(inverse)
    return build.broadcast(a * reciprocal, n.shape) if reciprocal is not inverse or sweep.inverted else None


@algebra.rule(*sorted(RING))
def with_less_work(n: Node, sweep: Sweep) -> Node | None:
    """Sums and multiplications put together with less work. What is part of a larger one is left to that."""
    user = sweep.user
    if user is not None and user.op in RING and user.dtype == n.dtype and user.shape == n.shape:
        if n.op not in ("add", "subtract") or user.op in ("add", "subtract"):
            return None
    return improve(n, sweep)
