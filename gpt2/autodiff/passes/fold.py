"""Computes while compiling what is known by then, and takes out what does nothing.

Constants meet constants, and operations that change nothing disappear. What keeps every bit says so. The
rest is for math="fast", and takes two liberties beyond the letter of IEEE 754, as collect.py does. The sign
of a zero is not kept where that costs an operation: 0 + x becomes x, though 0 + -0.0 is +0.0 (Python's
sum() starts every sum of arrays with 0), and -(a - b) becomes b - a. And what is computed while compiling
is rounded once where the program would have rounded at each step. Not taken, in no mode, is what gains
nothing: 0 - x stays, as -x is -0.0 for x = 0.0. Nor what would lie: x * 0 stays, since it is nan where x is
infinite or nan: x * 0 stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph import Node, is_scalar_const
from ..hidden import Hidden, computed
from ..ops import OPS, apply, build, const, evaluate
from ..ops.table import takes_plain_numbers
from .engine import ANY, BITS, ELEMENTWISE, Family
from .match import ONE_NUMBER, as_type_of, full_like, is_number, number

if TYPE_CHECKING:
    from .engine import Sweep

fold = Family("fold")

LARGEST = 1 << 16  # bytes: larger constants are folded only if they do not grow,
FAR_TOO_LARGE = 1 << 24  # and not at all beyond this

# A broadcast number would only be larger; where derivatives end, the graph goes on saying so
_NEVER = ("broadcast", "stop_gradient")


@fold.rule(ANY, reads=("const",))
def evaluate_numbers(n: Node, sweep: Sweep) -> Node | None:
    """Compute an op on numbers, rounded once: not to n.dtype, which would only print worse."""
    if n.shape or not _may_fold(n) or any(a.shape or a.dtype.kind not in "fc" for a in n.args):
        return None
    value = computed(_number_of, n.op, n.attrs, n.dtype, *map(number, n.args))
    return None if value is None else const(value, n.dtype)


def _number_of(op: str, attrs: dict, dtype: np.dtype, *values: complex) -> complex | None:
    value = _evaluated(op, values, attrs)
    if value is None or dtype.kind not in "fc" or value.dtype.kind not in "fc":
        return None
    return value.item() if np.isfinite(value.astype(dtype)) else None


@fold.rule(ANY, keeps=BITS, reads=("const",))
def evaluate_constants(n: Node, sweep: Sweep) -> Node | None:
    """Compute an op on constants, unless that makes a constant that is larger than it has to be."""
    if not _may_fold(n):
        return None
    largest = max(a.nbytes for a in n.args if a.op == "const")
    if n.nbytes > max(min(largest, FAR_TOO_LARGE), LARGEST):
        return None
    alone = n.size == 1 and not (n.shape and sweep.fast)  # a factor 1 is to be seen; fast math looks closer
    arrays = tuple([(a.shape, a.dtype) for a in n.args])
    values = [a.value if a.op == "const" else number(a) for a in n.args]
    value = computed(_constant_of, n.op, n.attrs, n.dtype, alone, arrays, *values)
    if value is None or alone:
        return None if value is None else build.full(n.shape, value, n.dtype)
    if n.dtype.kind == "b" and n.size and not sweep.fast and value.all() == value.any():
        return build.full(n.shape, value.flat[0].item(), n.dtype)
    return const(value, n.dtype)


def _may_fold(n: Node) -> bool:
    """Whether all that it reads is known: constants, and beside arrays numbers that were broadcast."""
    if not n.args or n.op in _NEVER or isinstance(n.dtype, tuple):
        return False
    others = [a for a in n.args if a.op != "const"]
    if not others:
        return True
    array = any(a.op == "const" and a.shape for a in n.args)
    return array and all(number(a) is not None for a in others)


def _constant_of(op: str, attrs: dict, dtype: np.dtype, alone: bool, arrays: tuple, *values: Any) -> Any:
    """The op on constants, or numbers that were broadcast, of these shapes and dtypes: an array, or a number
    where that is `alone`.
    """
    given = [np.asarray(v, d) for v, (_, d) in zip(values, arrays)]
    given = [v if v.shape == s else np.broadcast_to(v, s) for v, (s, _) in zip(given, arrays)]
    value = _evaluated(op, given, attrs)
    return value if value is None else value.astype(dtype).item() if alone else value.astype(dtype)


def _evaluated(op: str, values: Sequence, attrs: dict) -> np.ndarray | None:
    """The op computed by NumPy; None where it fails, which is the running program's to do."""
    with np.errstate(all="ignore"):
        try:
            return np.asarray(evaluate(op, values, attrs))
        except (ArithmeticError, ValueError, np.linalg.LinAlgError):
            return None


@fold.rule("const", keeps=BITS)
def plain_numbers(n: Node, sweep: Sweep) -> Node | None:
    """A float constant holds a float, whatever it was written as: 2 and 2.0 are one value."""
    kind = {"f": float, "c": complex, "i": int, "u": int, "b": bool}.get(n.dtype.kind)
    if n.shape or kind is None or type(n.value) is kind or kind is float and type(n.value) is Hidden:
        return None
    value = number(n)
    return const(kind(value), n.dtype, n.name)


@fold.rule(ELEMENTWISE, keeps=BITS, reads=("broadcast",))
def leave_broadcasting_to_the_op(n: Node, sweep: Sweep) -> Node | None:
    """f(broadcast(x), y) -> f(x, y); where all arguments are smaller than the result, so is the work."""
    if not any(a.op == "broadcast" for a in n.args) or (squares_by_its_exponent(n) and not sweep.fast):
        return None
    args = [a.args[0] if a.op == "broadcast" else a for a in n.args]
    if not all(map(is_scalar_const, args)) and not takes_plain_numbers(args):
        return None
    return build.broadcast(apply(n.op, *args, **n.attrs), n.shape)


def squares_by_its_exponent(n: Node) -> bool:
    """Whether it is a power whose exponent is an array of one number: NumPy squares where 2 stands alone, and
    not where an array is full of it.
    """
    return n.op in ("power", "float_power") and n.args[1].op == "broadcast" and number(n.args[1]) is not None


# arithmetic that changes nothing
@fold.rule("add", "subtract", keeps=BITS, reads=ONE_NUMBER)
def no_change(n: Node, sweep: Sweep) -> Node | None:
    """x + -0.0 -> x, x - 0.0 -> x; of integers with any zero, and 0 - x -> -x."""
    for x, zero in (n.args, n.args[::-1]) if n.op == "add" else (n.args,):
        if is_number(zero, 0) and (n.dtype.kind in "iub" or _negative_zero(n, zero) == (n.op == "add")):
            return as_type_of(n, x)
    if n.op == "subtract" and is_number(n.args[0], 0) and n.dtype.kind in "iu":
        return as_type_of(n, apply("negative", build.cast(n.args[1], n.dtype)))
    return None


def _negative_zero(n: Node, zero: Node) -> bool | None:
    """Whether it is -0.0. None beside complex numbers, whose zeros have two signs."""
    return None if n.dtype.kind == "c" else math.copysign(1.0, number(zero)) < 0


@fold.rule("add", "subtract", reads=ONE_NUMBER)
def add_zero(n: Node, sweep: Sweep) -> Node | None:
    a, b = n.args
    if is_number(b, 0):
        return as_type_of(n, a)
    if is_number(a, 0) and n.op == "add":
        return as_type_of(n, b)
    return None


@fold.rule("add", "subtract", keeps=BITS, reads=("negative",))
def signs_of_terms(n: Node, sweep: Sweep) -> Node | None:
    """a + -b -> a - b, a - -b -> a + b, -a + b -> b - a."""
    a, b = n.args
    if b.op == "negative" and _negates(b, n):
        return apply("subtract" if n.op == "add" else "add", a, b.args[0])
    if a.op == "negative" and n.op == "add" and _negates(a, n):
        return apply("subtract", b, a.args[0])
    return None


def _negates(x: Node, n: Node) -> bool:
    """Whether -x is the negative of x in numbers of n's type. The smallest int8 is its own, and to a complex
    number -1.0 is -1 + 0j, not -1 - 0j.
    """
    return x.dtype.kind == n.dtype.kind == "f" or x.dtype == n.dtype


@fold.rule("multiply", "divide", keeps=BITS, kinds="biuf")
@fold.rule("multiply", "divide", reads=ONE_NUMBER)
def factor_one(n: Node, sweep: Sweep) -> Node | None:
    """x * 1, x / 1 -> x; x * -1, x / -1 -> -x. Of complex numbers inf * (1 + 0j) has a nan."""
    for x, c in (n.args, n.args[::-1]) if n.op == "multiply" else (n.args,):
        if is_number(c, 1):
            return as_type_of(n, x)
        if is_number(c, -1) and n.dtype.kind in "ifc":
            return as_type_of(n, apply("negative", build.cast(x, n.dtype)))
    return None


@fold.rule("multiply", "divide", keeps=BITS, reads=("negative",))
def signs_of_factors(n: Node, sweep: Sweep) -> Node | None:
    """-a * -b -> a * b, and -a * c -> a * -c for a constant c."""
    return _signs_of_factors(n) if {a.dtype.kind for a in n.args} == {"f"} else None


@fold.rule("multiply", "divide", keeps=BITS, reads=("negative",))
def minus_goes_outside(n: Node, sweep: Sweep) -> Node | None:
    """-a * b -> -(a * b), where it may meet another minus, or a sum. Fast math does more (collect.py)."""
    if sweep.fast or {a.dtype for a in n.args} != {n.dtype} or n.dtype.kind != "f":
        return None
    for k, x in enumerate(n.args):
        if x.op == "negative" and x.shape == n.shape and sweep.single(x):
            args = list(n.args)
            args[k] = x.args[0]
            return apply("negative", apply(n.op, *args))
    return None


@fold.rule("multiply", "divide", reads=("negative",))
def signs_of_other_factors(n: Node, sweep: Sweep) -> Node | None:
    """The same of complex numbers and integers."""
    return _signs_of_factors(n)


def _signs_of_factors(n: Node) -> Node | None:
    a, b = n.args
    if a.op == b.op == "negative":
        return apply(n.op, a.args[0], b.args[0])
    for x, c in ((a, b), (b, a)):
        value = number(c)
        if x.op == "negative" and value is not None and c.dtype.kind in "fc" and n.op == "multiply":
            return build.broadcast(apply(n.op, x.args[0], const(-value, c.dtype)), n.shape)
    return None


@fold.rule("negative", keeps=BITS, reads=("negative",))
def negate_twice(n: Node, sweep: Sweep) -> Node | None:
    (x,) = n.args
    return x.args[0] if x.op == "negative" else None


@fold.rule("negative", reads=("subtract",))
def negate_difference(n: Node, sweep: Sweep) -> Node | None:
    (x,) = n.args
    if x.op == "subtract" and sweep.single(x):
        return apply("subtract", x.args[1], x.args[0])
    return None


@fold.rule("positive", keeps=BITS)
@fold.rule("copy")  # made where two arrays have to be two (engine.py)
def the_same(n: Node, sweep: Sweep) -> Node:
    return n.args[0]


@fold.rule("absolute", "fabs", keeps=BITS)
def absolute_value(n: Node, sweep: Sweep) -> Node | None:
    (x,) = n.args
    if x.dtype.kind == "u":  # -x is 256 - x
        return None
    if x.op == "negative" or (x.op == n.op and x.dtype.kind != "c"):
        return apply(n.op, x.args[0]) if x.op == "negative" else x
    return None


@fold.rule(*(name for name, op in OPS.items() if op.idempotent), keeps=BITS)
def with_itself(n: Node, sweep: Sweep) -> Node | None:
    a, b = n.args
    return a if a is b and a.dtype == n.dtype else None


@fold.rule("logical_and", "logical_or", keeps=BITS, reads=ONE_NUMBER)
def known_truth(n: Node, sweep: Sweep) -> Node | None:
    for a, b in (n.args, n.args[::-1]):
        value = number(a)
        if value is not None:
            decides = bool(value) == (n.op == "logical_or")
            return full_like(n, bool(value)) if decides else as_type_of(n, b)
    return None


@fold.rule("logical_not", keeps=BITS, reads=("logical_not",))
def not_not(n: Node, sweep: Sweep) -> Node | None:
    (x,) = n.args
    return x.args[0] if x.op == "logical_not" and x.args[0].dtype.kind == "b" else None


# complex numbers
@fold.rule("conjugate", keeps=BITS)
def conjugate_of(n: Node, sweep: Sweep) -> Node | None:
    (x,) = n.args
    if x.dtype.kind != "c":
        return as_type_of(n, x)  # of bools: int8
    return x.args[0] if x.op == "conjugate" else None


@fold.rule("real", keeps=BITS)
def real_of(n: Node, sweep: Sweep) -> Node | None:
    (x,) = n.args
    if x.dtype.kind != "c":
        return as_type_of(n, x)
    if x.op == "conjugate":
        return apply("real", x.args[0])
    if x.op == "cast" and x.args[0].dtype.kind != "c":
        return build.cast(x.args[0], n.dtype)
    return None


@fold.rule("imag", keeps=BITS)
def imag_of(n: Node, sweep: Sweep) -> Node | None:
    (x,) = n.args
    return full_like(n, 0) if x.dtype.kind != "c" else None


# choices and conversions
@fold.rule("where", keeps=BITS)
def known_choice(n: Node, sweep: Sweep) -> Node | None:
    c, a, b = n.args
    value = number(c)
    if value is not None:
        return as_type_of(n, a if value else b)
    if a is b:
        return as_type_of(n, a)
    if a.op == "where" and a.args[0] is c:
        return _if_alike(apply("where", c, a.args[1], b), n, a.args[1].dtype == a.dtype)
    if b.op == "where" and b.args[0] is c:
        return _if_alike(apply("where", c, a, b.args[2]), n, b.args[2].dtype == b.dtype)
    if c.op == "logical_not":
        return apply("where", c.args[0], b, a)
    return None


def _if_alike(got: Node, n: Node, same_type: bool) -> Node | None:
    """What was left out may have been what gave n its shape, or its type."""
    return got if same_type and got.shape == n.shape else None


@fold.rule("cast", keeps=BITS)
def cast_again(n: Node, sweep: Sweep) -> Node | None:
    """cast(cast(x)) -> cast(x), where the step between loses nothing."""
    (x,) = n.args
    if x.dtype == n.dtype:
        return x
    if x.op == "cast" and _holds(x.dtype, x.args[0].dtype) and _rounds_alike(x.args[0].dtype, n.dtype):
        return build.cast(x.args[0], n.dtype)
    return None


def _holds(wide: np.dtype, narrow: np.dtype) -> bool:
    """Whether every number of the one dtype has its equal in the other. NumPy calls int64 -> float64 safe."""
    if narrow.kind in "iu" and wide.kind in "fc":
        return narrow.itemsize * 8 <= np.finfo(wide).nmant + 1
    return np.can_cast(narrow, wide, "safe")


def _rounds_alike(a: np.dtype, b: np.dtype) -> bool:
    """Whether a number of `a` converted to `b` is what its equal in a wider dtype would be. Where it does not
    fit into an integer, that depends on the processor.
    """
    return b.kind in "fcb" or (a.kind in "iub" and np.can_cast(a, b, "safe"))
