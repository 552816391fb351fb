"""Computes what is known while compiling, and removes operations that change nothing.

What keeps every bit says so. The rest is for math="fast", and takes two liberties beyond the letter of
IEEE 754, as collect.py does:

    the sign of a zero   is not kept where that costs an operation: 0 + x becomes x, though 0 + -0.0 is +0.0
                         (Python's sum() starts every sum of arrays with 0)
    constants            are rounded once where the program would have rounded at each step

In no mode does 0 - x become -x, which is -0.0 for x = 0.0, and gains nothing; nor x * 0 become 0, which would
be wrong where x is infinite or nan.

A minus has one normal form: `x - y` between two terms, outside of products and quotients, and in the number
where there is one. The other form, `x + -y` in all passes and `x - y` at the end, was tested: a fifth more
rules are tried, and of 1,500 random graphs 188 cost more and 46 less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph import Node, is_scalar_const
from ..hidden import Hidden, computed
from ..ops import apply, build, const, evaluate
from ..ops.table import takes_plain_numbers
from .engine import ANY, BITS, ELEMENTWISE, Family
from .match import number
from .patterns import ALL, R, enter

if TYPE_CHECKING:
    from .engine import Sweep

fold = Family("fold")

LARGEST = 1 << 16  # bytes: larger constants are folded only if they do not grow,
FAR_TOO_LARGE = 1 << 24  # and not at all beyond this

# A broadcast number would only be larger; stop_gradient has to stay, as it ends derivatives
_NEVER = ("broadcast", "stop_gradient")


@fold.rule(ANY, keeps=BITS, reads=("const",))
def evaluate_constants(n: Node, sweep: Sweep) -> Node | None:
    """Compute an op on constants, unless that makes a constant that is larger than it has to be."""
    if not n.args or n.op in _NEVER or isinstance(n.dtype, tuple):
        return None
    others = [a for a in n.args if a.op != "const"]
    if others and not any(a.op == "const" and a.shape for a in n.args):
        return None
    if any(number(a) is None for a in others):  # beside arrays numbers may be broadcast
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


def _constant_of(op: str, attrs: dict, dtype: np.dtype, alone: bool, arrays: tuple, *values: Any) -> Any:
    """The op on constants of these shapes and dtypes: an array, or a number where that is `alone`. None where
    NumPy fails, which is the running program's to do.
    """
    operands = [np.asarray(v, d) for v, (_, d) in zip(values, arrays)]
    operands = [v if v.shape == s else np.broadcast_to(v, s) for v, (s, _) in zip(operands, arrays)]
    with np.errstate(all="ignore"):
        try:
            value = np.asarray(evaluate(op, operands, attrs)).astype(dtype)
        except (ArithmeticError, ValueError, np.linalg.LinAlgError):
            return None
    return value.item() if alone else value


@fold.rule("const", keeps=BITS)
def plain_numbers(n: Node, sweep: Sweep) -> Node | None:
    """A float constant holds a float, also where it was written as an int: 2 and 2.0 are one value."""
    kind = {"f": float, "c": complex, "i": int, "u": int, "b": bool}.get(n.dtype.kind)
    if n.shape or kind is None or type(n.value) is kind or kind is float and type(n.value) is Hidden:
        return None
    value = number(n)
    return const(kind(value), n.dtype, n.name)


@fold.rule(ELEMENTWISE, keeps=BITS, reads=("broadcast",))
def leave_broadcasting_to_the_op(n: Node, sweep: Sweep) -> Node | None:
    """f(broadcast(x), y) -> f(x, y); where all arguments are smaller than the result, so is the work."""
    if not any(a.op == "broadcast" for a in n.args):
        return None
    exponent = n.args[1] if n.op in ("power", "float_power") else n
    if exponent.op == "broadcast" and number(exponent) is not None and not sweep.fast:
        return None  # an array of one number: NumPy squares for the number 2 only
    args = [a.args[0] if a.op == "broadcast" else a for a in n.args]
    if not all(map(is_scalar_const, args)) and not takes_plain_numbers(args):
        return None
    return build.broadcast(apply(n.op, *args, **n.attrs), n.shape)


def _negates(n: Node, values: Mapping[str, Node]) -> bool:
    """Whether -y is y's negative in n's type: not that of the smallest int8, nor of a float as complex."""
    y = values["y"]
    return y.dtype.kind == n.dtype.kind == "f" or y.dtype == n.dtype


enter(
    fold,
    # terms
    R("x + 0", "x", bits="biu"),
    R("x - 0.0", "x", bits="biuf"),
    R("x + -y", "x - y", bits=ALL, when=_negates),
    R("x - -y", "x + y", bits=ALL, when=_negates),
    R("-(-x)", "x", bits=ALL),
    # factors. Of complex numbers inf * (1 + 0j) has a nan
    R("x * 1", "x", bits="biuf"),
    R("x / 1", "x", bits="biuf"),
    R("x * -1", "-cast(x)", bits="biuf"),
    R("x / -1", "-cast(x)", bits="biuf"),
    # -x of unsigned numbers is 256 - x
    R("-x * -y", "x * y", bits="f", kinds="fc"),
    R("-x * C", "x * -C", bits="f", kinds="fc"),
    # functions of one argument
    R("positive(x)", "x", bits=ALL),
    R("conjugate(x)", "x", bits="biuf", kinds="biuf"),
    R("real(x)", "x", bits="biuf", kinds="biuf"),
    # choices
    R("where(True, x, y)", "x", bits=ALL),
    R("where(False, x, y)", "y", bits=ALL),
    R("where(c, x, x)", "x", bits=ALL),
    R("where(c, where(c, x, y), z)", "where(c, x, z)", bits=ALL),
    R("where(c, x, where(c, y, z))", "where(c, x, z)", bits=ALL),
    R("where(logical_not(c), x, y)", "where(c, y, x)", bits=ALL),
)


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
