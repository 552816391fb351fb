"""Gives matrix products the form that BLAS likes: two-dimensional, of views, scaled where it is cheapest.

BLAS adds up in an order of its own, and another one for other shapes. In strict mode these rules are tried
where digits are enough; scale_the_smallest is not: (1e-30 * a) @ b is finite where a @ b overflows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..graph import Node
from ..ops import apply, build
from ..ops.matrix import letter_sizes, split_subscripts
from .collect import Formula, Term
from .engine import DIGITS, Family
from .match import is_inexact, strip_ones

if TYPE_CHECKING:
    from .engine import Sweep

matrix = Family("matrix")


@matrix.rule("matmul", keeps=DIGITS)
def without_broadcasting(n: Node, sweep: Sweep) -> Node | None:
    """matmul broadcasts leading axes itself; leading axes of length 1 are dropped from the operands."""
    args = []
    for x in n.args:
        if x.op == "broadcast" and x.args[0].ndim >= 2 and x.args[0].shape[-2:] == x.shape[-2:]:
            (x,) = x.args
        args.append(build.reshape(x, (*strip_ones(x.shape[:-2]), *x.shape[-2:])))
    if all(x is a for x, a in zip(args, n.args)):
        return None
    batch = math.prod(n.shape[:-2])
    if math.prod(max(args, key=lambda a: a.ndim).shape[:-2]) != batch:
        return None  # both were broadcast: one of them has to stay so
    return build.reshape(apply("matmul", *args), n.shape)


@matrix.rule("matmul", keeps=DIGITS)
def rows_flattened(n: Node, sweep: Sweep) -> Node | None:
    """(B, T, C) @ (C, D): one product of B*T rows instead of B small ones."""
    a, b = n.args
    if b.ndim != 2 or a.ndim == 2 or 0 in n.shape:
        return None
    rows = build.reshape(a, (math.prod(a.shape[:-1]), a.shape[-1]))
    return build.reshape(apply("matmul", rows, b), n.shape)


@matrix.rule("matmul", keeps=DIGITS)
def product_of_column_and_row(n: Node, sweep: Sweep) -> Node | None:
    """A product with nothing to add up is elementwise."""
    a, b = n.args
    return a * b if a.shape[-1] == 1 and a.dtype == b.dtype and is_inexact(n) else None


@matrix.rule("transpose", keeps=DIGITS)
def transpose_of_product(n: Node, sweep: Sweep) -> Node | None:
    """(a @ b).T -> b.T @ a.T: the result is made in the order in which it is wanted, the operands stay views.
    Other axes may be moved too, as long as the last one comes from the rows of the product.
    """
    (x,) = n.args
    last = x.ndim - 1
    perm = n.attrs["perm"]
    if x.op != "matmul" or perm[last] != last - 1 or not sweep.single(x):
        return None
    a, b = x.args
    product = apply("matmul", build.swap_last(b), build.swap_last(a))
    swapped = {last: last - 1, last - 1: last}
    return build.transpose(product, tuple(swapped.get(p, p) for p in perm))


def _below_views(x: Node, f: Callable[[Node], Node]) -> Node:
    """f(x), computed in the order in which x lies in memory: a product reads views as they are."""
    if x.op in ("reshape", "transpose"):
        return apply(x.op, _below_views(x.args[0], f), **x.attrs)
    return f(x)


@matrix.rule("matmul")
def scale_the_smallest(n: Node, sweep: Sweep) -> Node | None:
    """(c * a) @ b: the number multiplies whichever of a, b and the result is smallest."""
    if not is_inexact(n):
        return None
    (c, a), (d, b) = (_unscaled(x, sweep) for x in n.args)
    if c * d == 1 or a.dtype != n.dtype or b.dtype != n.dtype:
        return None
    now = (a.size if c != 1 else 0) + (b.size if d != 1 else 0)
    smallest = min(a.size, b.size, n.size)
    if smallest >= now:
        return None
    if n.size == smallest:
        return apply("matmul", a, b) * (c * d)
    args, k = [a, b], int(a.size != smallest)
    args[k] = _below_views(args[k], lambda y: y * (c * d))
    return apply("matmul", *args)


def _unscaled(x: Node, sweep):
    """(c, y) such that x = c * y and only y needs to be computed; the number is found through views, too."""
    if not sweep.single(x) or not is_inexact(x):
        return 1.0, x
    if x.op in ("reshape", "transpose"):
        c, y = _unscaled(x.args[0], sweep)
        return (c, apply(x.op, y, **x.attrs)) if c != 1 else (1.0, x)
    if x.op not in ("multiply", "negative"):
        return 1.0, x
    formula = Formula(x, sweep)
    p = formula.as_product(x)
    if p.coef == 1 or not p.factors:
        return 1.0, x
    return p.coef, build.broadcast(formula.product(Term(1.0, p.factors)), x.shape)


# einsum
@matrix.rule("einsum", keeps=DIGITS)
def einsum_as_product(n: Node, sweep: Sweep) -> Node | None:
    """A contraction of two operands is a matmul of reshaped views; of one operand, a sum and a transpose."""
    letters, out = split_subscripts(n.attrs["subscripts"])
    if any(len(set(t)) != len(t) for t in letters) or len(set(out)) != len(out) or not 1 <= len(n.args) <= 2:
        return None
    sizes = letter_sizes(n.attrs["subscripts"], n.args)
    if any(x.shape[i] != sizes[c] for t, x in zip(letters, n.args) for i, c in enumerate(t)):
        return None  # an axis of length 1 that einsum broadcasts
    if any(x.dtype != n.dtype for x in n.args):
        return None
    args, names = [], []
    for k, (x, t) in enumerate(zip(n.args, letters)):
        # Summed over the letters that no other operand has; short integers and bools stay what they are
        others = out + "".join(u for j, u in enumerate(letters) if j != k)
        alone = tuple(i for i, c in enumerate(t) if c not in others)
        args.append(build.cast(build.sum_(x, alone), x.dtype))
        names.append("".join(c for c in t if c in others))
    if len(args) == 1:
        return _arranged(args[0], names[0], out)
    return _contracted(args, names, out, sizes)


def _arranged(x: Node, t: str, order: str) -> Node:
    return build.transpose(x, tuple(t.index(c) for c in order))


def _contracted(args, names, out: str, sizes) -> Node:
    a, b = args
    p, q = names
    batch = [c for c in out if c in p and c in q]
    inner = [c for c in p if c in q and c not in out]
    left = [c for c in out if c in p and c not in q]
    right = [c for c in out if c in q and c not in p]

    def size(group):
        return math.prod(sizes[c] for c in group)

    if not inner:
        a = _spread(a, p, out)
        return a * _spread(b, q, out)
    lead = tuple(sizes[c] for c in batch)
    a = build.reshape(_arranged(a, p, "".join(batch + left + inner)), (*lead, size(left), size(inner)))
    b = build.reshape(_arranged(b, q, "".join(batch + inner + right)), (*lead, size(inner), size(right)))
    product = apply("matmul", a, b)
    order = batch + left + right
    return _arranged(build.reshape(product, tuple(sizes[c] for c in order)), "".join(order), out)


def _spread(x: Node, t: str, out: str) -> Node:
    """`x` with its axes in the order of `out`, and axes of length 1 for the letters that it lacks."""
    x = _arranged(x, t, "".join(c for c in out if c in t))
    lengths = iter(x.shape)
    return build.reshape(x, tuple(next(lengths) if c in t else 1 for c in out))
