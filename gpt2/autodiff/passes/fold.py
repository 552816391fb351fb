"""Folding: what is known while compiling is not computed when running.

Constants meet constants, and operations that change nothing disappear. Two liberties are taken beyond the
letter of IEEE 754, here and in collect.py. The sign of a zero is not kept where that costs an operation:
0 + x becomes x, though 0 + -0.0 is +0.0 (Python's sum() starts every sum of arrays with 0), and -(a - b)
becomes b - a. And what is computed while compiling is rounded once where the program would have rounded at
each step. Not taken is what gains nothing: 0 - x stays, as -x is -0.0 for x = 0.0. Nor what would lie: x * 0
stays, since it is nan where x is infinite or nan; a program is not cured of its nan by differentiating it.
"""

from __future__ import annotations

import numpy as np

from ..graph import Node
from ..ops import apply, build, const, evaluate
from .engine import ANY, ELEMENTWISE, Family
from .match import as_type_of, full_like, is_number, number

fold = Family("fold")

LARGEST = 1 << 16  # bytes: larger constants are folded only if they do not grow,
FAR_TOO_LARGE = 1 << 24  # and not at all beyond this

_NEVER = frozenset(("call", "scan", "const", "input", "broadcast", "stop_gradient"))


@fold.rule(ANY)
def evaluate_constants(n: Node, sweep) -> Node | None:
    """An op on constants is a constant, if it is not made larger by that than it has to be."""
    if not n.args or n.op in _NEVER or isinstance(n.dtype, tuple):
        return None
    largest = 0
    for a in n.args:
        if a.op != "const":
            return None
        largest = max(largest, a.nbytes)
    if n.nbytes > max(min(largest, FAR_TOO_LARGE), LARGEST):
        return None
    scalars = not any(a.shape for a in n.args)
    values = [number(a) if scalars and a.dtype.kind in "fc" else np.asarray(a.value, a.dtype) for a in n.args]
    with np.errstate(all="ignore"):
        try:
            value = np.asarray(evaluate(n.op, values, n.attrs))
        except (ArithmeticError, ValueError, np.linalg.LinAlgError):
            return None  # it is the running program's to fail
        narrow = value.astype(n.dtype)
    if not n.shape and scalars and n.dtype.kind in "fc" and value.dtype.kind in "fc" and np.isfinite(narrow):
        return const(value.item(), n.dtype)  # not rounded to n.dtype, which would only print worse
    return const(narrow, n.dtype)


@fold.rule("const")
def plain_numbers(n: Node, sweep) -> Node | None:
    """A float constant holds a float, whatever it was written as: 2 and 2.0 are one value."""
    kind = {"f": float, "c": complex, "i": int, "u": int, "b": bool}.get(n.dtype.kind)
    if n.shape or kind is None or type(n.value) is kind:
        return None
    value = number(n)
    return const(kind(value), n.dtype, n.name)


@fold.rule(ELEMENTWISE)
def leave_broadcasting_to_the_op(n: Node, sweep) -> Node | None:
    """f(broadcast(x), y) -> f(x, y); where all arguments are smaller than the result, so is the work."""
    if not any(a.op == "broadcast" for a in n.args):
        return None
    args = [a.args[0] if a.op == "broadcast" else a for a in n.args]
    return build.broadcast(apply(n.op, *args, **n.attrs), n.shape)


# arithmetic that changes nothing
@fold.rule("add")
def add_zero(n: Node, sweep) -> Node | None:
    a, b = n.args
    if is_number(b, 0):
        return as_type_of(n, a)
    if is_number(a, 0):
        return as_type_of(n, b)
    return None


@fold.rule("add", "subtract")
def signs_of_terms(n: Node, sweep) -> Node | None:
    """a + -b -> a - b, a - -b -> a + b, -a + b -> b - a."""
    a, b = n.args
    if b.op == "negative":
        return apply("subtract" if n.op == "add" else "add", a, b.args[0])
    if a.op == "negative" and n.op == "add":
        return apply("subtract", b, a.args[0])
    return None


@fold.rule("subtract")
def subtract_zero(n: Node, sweep) -> Node | None:
    a, b = n.args
    if is_number(b, 0):
        return as_type_of(n, a)
    if is_number(a, 0) and n.dtype.kind in "iu":
        return as_type_of(n, apply("negative", build.cast(b, n.dtype)))
    return None


@fold.rule("multiply")
def multiply_one(n: Node, sweep) -> Node | None:
    for a, b in (n.args, n.args[::-1]):
        if is_number(b, 1):
            return as_type_of(n, a)
        if is_number(b, -1) and n.dtype.kind in "ifc":
            return as_type_of(n, apply("negative", build.cast(a, n.dtype)))
    return None


@fold.rule("divide")
def divide_one(n: Node, sweep) -> Node | None:
    a, b = n.args
    if is_number(b, 1):
        return as_type_of(n, a)
    if is_number(b, -1):
        return as_type_of(n, apply("negative", build.cast(a, n.dtype)))
    return None


@fold.rule("multiply", "divide")
def signs_of_factors(n: Node, sweep) -> Node | None:
    """-a * -b -> a * b, and -a * c -> a * -c for a constant c."""
    a, b = n.args
    if a.op == b.op == "negative":
        return apply(n.op, a.args[0], b.args[0])
    for x, c in ((a, b), (b, a)):
        value = number(c)
        if x.op == "negative" and value is not None and c.dtype.kind in "fc" and n.op == "multiply":
            return apply(n.op, x.args[0], const(-value, c.dtype))
    return None


@fold.rule("negative")
def negate_twice(n: Node, sweep) -> Node | None:
    (x,) = n.args
    if x.op == "negative":
        return x.args[0]
    if x.op == "subtract" and sweep.single(x):
        return apply("subtract", x.args[1], x.args[0])
    return None


@fold.rule("positive", "copy")
def the_same(n: Node, sweep) -> Node:
    return n.args[0]


@fold.rule("absolute", "fabs")
def absolute_value(n: Node, sweep) -> Node | None:
    (x,) = n.args
    if x.op == "negative" or (x.op == n.op and x.dtype.kind != "c"):
        return apply(n.op, x.args[0]) if x.op == "negative" else x
    return None


@fold.rule("maximum", "minimum", "fmax", "fmin", "logical_and", "logical_or", "bitwise_and", "bitwise_or")
def with_itself(n: Node, sweep) -> Node | None:
    a, b = n.args
    return a if a is b and a.dtype == n.dtype else None


@fold.rule("logical_and", "logical_or")
def known_truth(n: Node, sweep) -> Node | None:
    for a, b in (n.args, n.args[::-1]):
        value = number(a)
        if value is not None:
            decides = bool(value) == (n.op == "logical_or")
            return full_like(n, bool(value)) if decides else as_type_of(n, b)
    return None


@fold.rule("logical_not")
def not_not(n: Node, sweep) -> Node | None:
    (x,) = n.args
    return x.args[0] if x.op == "logical_not" and x.args[0].dtype.kind == "b" else None


# complex numbers
@fold.rule("conjugate")
def conjugate_of(n: Node, sweep) -> Node | None:
    (x,) = n.args
    if x.dtype.kind != "c":
        return as_type_of(n, x)  # of bools: int8
    return x.args[0] if x.op == "conjugate" else None


@fold.rule("real")
def real_of(n: Node, sweep) -> Node | None:
    (x,) = n.args
    if x.dtype.kind != "c":
        return as_type_of(n, x)
    if x.op == "conjugate":
        return apply("real", x.args[0])
    if x.op == "cast" and x.args[0].dtype.kind != "c":
        return build.cast(x.args[0], n.dtype)
    return None


@fold.rule("imag")
def imag_of(n: Node, sweep) -> Node | None:
    (x,) = n.args
    return full_like(n, 0) if x.dtype.kind != "c" else None


# choices and conversions
@fold.rule("where")
def known_choice(n: Node, sweep) -> Node | None:
    c, a, b = n.args
    value = number(c)
    if value is not None:
        return as_type_of(n, a if value else b)
    if a is b:
        return as_type_of(n, a)
    if a.op == "where" and a.args[0] is c:
        return apply("where", c, a.args[1], b) if a.args[1].dtype == a.dtype else None
    if b.op == "where" and b.args[0] is c:
        return apply("where", c, a, b.args[2]) if b.args[2].dtype == b.dtype else None
    if c.op == "logical_not":
        return apply("where", c.args[0], b, a)
    return None


@fold.rule("cast")
def cast_again(n: Node, sweep) -> Node | None:
    """cast(cast(x)) -> cast(x), where the step between loses nothing."""
    (x,) = n.args
    if x.dtype == n.dtype:
        return x
    if x.op == "cast" and np.can_cast(x.args[0].dtype, x.dtype, "safe"):
        return build.cast(x.args[0], n.dtype)
    return None
