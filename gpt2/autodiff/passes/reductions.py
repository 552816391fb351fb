"""Takes work out of reductions: less is summed, and what is constant along the summed axes leaves the sum.

    sum(c * x) -> c * sum(x)            sum(x * row) -> row * sum(x), with one value of `row` per sum
    sum(broadcast(x)) -> n * sum(x)

sum(a + row) -> sum(a) + n * row is not among them: in sum(x - mean(x)) it would trade an exact small
difference for that of two large numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..graph import Node
from ..ops import apply, build, const
from .collect import PRODUCTS, Formula, Term, representable
from .engine import BITS, DIGITS, Family
from .match import CHOICES, ONE_NUMBER, constant_along, full_like, is_inexact, number, padded

if TYPE_CHECKING:
    from .engine import Sweep

reduce = Family("reduce")


def reduced(n: Node, x: Node) -> Node:
    """`x`, constant along the reduced axes of `n`, in a shape that broadcasts to that of `n`."""
    ndim = n.args[0].ndim
    shape = padded(x.shape, ndim)
    if not n.attrs["keepdims"]:
        shape = tuple(s for i, s in enumerate(shape) if i not in n.attrs["axes"])
    while x.ndim < len(shape) and shape and shape[0] == 1:
        shape = shape[1:]
    return build.reshape(x, shape)


def count(n: Node) -> int:
    """How many elements go into each result."""
    return math.prod(n.args[0].shape[i] for i in n.attrs["axes"])


@reduce.rule("sum", keeps=BITS, reads=ONE_NUMBER)
def number_once(n: Node, sweep: Sweep) -> Node | None:
    """The sum of one number that is known."""
    value = number(n.args[0])
    once = value is not None and is_inexact(n) and n.args[0].dtype == n.dtype and count(n) == 1
    return full_like(n, value + 0.0) if once else None


@reduce.rule(*CHOICES, keeps=BITS)
@reduce.rule("prod", keeps=BITS, kinds="biuf")
@reduce.rule("sum", "prod")
def over_nothing(n: Node, sweep: Sweep) -> Node | None:
    """A reduction over axes of length 1 is a reshape. But NumPy's sum of -0.0 is 0.0, and its product of
    inf * 1j has a nan: it begins with 1 + 0j.
    """
    (x,) = n.args
    axes = n.attrs["axes"]
    if n.dtype != x.dtype:
        return None
    if all(x.shape[i] == 1 for i in axes):
        return build.reshape(x, n.shape)
    long = tuple(i for i in axes if x.shape[i] != 1)
    if len(long) < len(axes) and n.attrs["keepdims"]:
        return apply(n.op, x, axes=long, keepdims=True)
    return None


@reduce.rule(*CHOICES, keeps=BITS)
@reduce.rule("sum", "prod", keeps=DIGITS)
def again(n: Node, sweep: Sweep) -> Node | None:
    """sum(sum(x)) -> sum(x), if both keep their dimensions or neither does."""
    (x,) = n.args
    if x.op != n.op or x.attrs["keepdims"] != n.attrs["keepdims"] or x.dtype != x.args[0].dtype:
        return None
    inner, axes = x.attrs["axes"], n.attrs["axes"]
    if not n.attrs["keepdims"]:
        left = [i for i in range(x.args[0].ndim) if i not in inner]
        axes = tuple(left[i] for i in axes)
    return apply(n.op, x.args[0], axes=tuple(sorted({*inner, *axes})), keepdims=n.attrs["keepdims"])


@reduce.rule("sum", keeps=DIGITS, reads=("broadcast",))
def copies_counted(n: Node, sweep: Sweep) -> Node | None:
    """sum(broadcast(x)) -> n * sum(x), where n is a number that the dtype holds."""
    held = is_inexact(n) and representable(float(count(n)), n.dtype)
    return of_broadcast(n, sweep) if held else None


@reduce.rule(*CHOICES, keeps=BITS)
@reduce.rule("sum", reads=("broadcast",))
def of_broadcast(n: Node, sweep: Sweep) -> Node | None:
    (x,) = n.args
    if x.op != "broadcast" or n.dtype != x.dtype or (n.op == "sum" and not is_inexact(n)):
        return None
    y, axes = x.args[0], n.attrs["axes"]
    shape = padded(y.shape, x.ndim)
    spread = tuple(i for i in axes if shape[i] == 1 != x.shape[i])
    if not spread or 0 in x.shape:
        return None
    z = apply(n.op, build.reshape(y, shape), axes=axes, keepdims=n.attrs["keepdims"])
    times = math.prod(x.shape[i] for i in spread)
    return build.broadcast(z if n.op in CHOICES else z * const(float(times), n.dtype), n.shape)


@reduce.rule("sum", keeps=DIGITS, reads=("broadcast",))
def spread_afterwards(n: Node, sweep: Sweep) -> Node | None:
    """sum(broadcast(x)) -> broadcast(sum(x)), where other axes were stretched than are summed."""
    (x,) = n.args
    if x.op != "broadcast" or n.dtype != x.dtype or 0 in x.shape:
        return None
    shape, axes = padded(x.args[0].shape, x.ndim), n.attrs["axes"]
    if shape == x.shape or any(shape[i] != x.shape[i] for i in axes):
        return None
    z = apply("sum", build.reshape(x.args[0], shape), axes=axes, keepdims=n.attrs["keepdims"])
    return build.broadcast(z, n.shape)


@reduce.rule("sum", keeps=DIGITS, reads=("transpose",))
def of_transpose(n: Node, sweep: Sweep) -> Node | None:
    (x,) = n.args
    if x.op != "transpose":
        return None
    perm, axes = x.attrs["perm"], n.attrs["axes"]
    s = apply("sum", x.args[0], axes=tuple(sorted(perm[i] for i in axes)), keepdims=n.attrs["keepdims"])
    if n.attrs["keepdims"]:
        return build.transpose(s, perm)
    left = [perm[i] for i in range(x.ndim) if i not in axes]  # axes of the root, in the order of the result
    return build.transpose(s, tuple(sorted(left).index(i) for i in left))


@reduce.rule("sum")
def of_term(n: Node, sweep: Sweep) -> Node | None:
    """Factors that are constant along the summed axes leave the sum."""
    (x,) = n.args
    if not is_inexact(n) or x.dtype != n.dtype or x.op not in PRODUCTS or not sweep.single(x):
        return None
    axes = n.attrs["axes"]
    formula = Formula(x, sweep)
    parts = formula.as_product(x).split(lambda f: constant_along(f, axes, x.ndim))
    if parts is None:
        return None
    outside, inside = parts
    if not inside.factors:
        total = build.full((), float(count(n)), n.dtype)
    else:
        rest = formula.product(inside)
        rest = build.reshape(rest, padded(rest.shape, x.ndim))
        # `rest` may be smaller than x in axes that are not summed: there, the outside factors have the full
        # length
        total = apply("sum", rest, axes=axes, keepdims=n.attrs["keepdims"])
    factors = tuple([(reduced(n, f), side) for f, side in outside.factors])
    return build.broadcast(formula.product(Term(outside.coef, factors) * Term.of(total)), n.shape)
