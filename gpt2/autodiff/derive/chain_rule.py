"""One step of the chain rule: a gradient pulled back through a node, a tangent pushed through it.

    push(node, tangents)    tangents of the arguments (None: zero) -> tangent of the node, or None
    total(parts)            the sum of the gradients that a node's readers gave it

Here is all that the rules leave out: zeros, broadcasting, dtypes, complex parts, masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np

from ..errors import AutodiffError, UnsupportedError, unsupported
from ..graph import Node, is_scalar_const
from ..ops import OPS, apply
from ..ops.build import broadcast, cast, real, reshape, sum_, where, zeros


class Masked:
    """A gradient that counts where `mask` is `side`, and is zero elsewhere, whatever `value` holds there.

    The branch that `where(c, a, b)` does not take may be infinite or nan, its partials too, and 0 * nan is
    nan. So the mask stays beside the gradient through elementwise ops and is applied at their end:
    where(c, g * partial, 0).
    """

    def __init__(self, value: Node, mask: Node, side: bool):
        self.value, self.mask, self.side = value, mask, side

    def applied(self) -> Node:
        return where(self.mask, self.value, 0.0) if self.side else where(self.mask, 0.0, self.value)


def applied(g: Node | Masked | None) -> Node | None:
    """The gradient as a node; None stays None."""
    return g.applied() if isinstance(g, Masked) else g


@contextmanager
def errors_at(node: Node) -> Iterator[None]:
    """Within this context, what a rule cannot do is an error with the user's line that asks for it."""
    try:
        yield
    except AutodiffError:
        raise
    except NotImplementedError as e:
        raise UnsupportedError(str(e), node.loc) from None


def force(entry: Any) -> Any:
    """The derivative that an entry stands for: a rule may give a function of no arguments, which is called
    only here, where its result is needed.
    """
    return applied(entry()) if callable(entry) else entry


def pull_elementwise(node: Node, g: Node | Masked, needed: Sequence[bool]) -> list:
    grads = []
    for arg, factors, need in zip(node.args, partials(node), needed):
        factors = factor_list(factors) if need else None
        grads.append(None if factors is None else pull_factors(g, factors, arg, node))
    return grads


def partials(node: Node) -> tuple:
    rule = OPS[node.op].partials
    if rule is None:
        raise unsupported(f"np.{node.op}", node.loc)
    return rule(node, *node.args)


def factor_list(entry: Any) -> tuple | None:
    """A partial derivative as a tuple of factors, or None for zero."""
    if callable(entry):
        entry = entry()
    return entry if entry is None or isinstance(entry, tuple) else (entry,)


def pull_factors(g: Node | Masked, factors: tuple, arg: Node, node: Node) -> Node | Masked:
    """g times the factors, in the argument's type. Factors as small as the argument leave the sum over the
    axes along which it was broadcast."""
    if isinstance(g, Masked):
        value = times(g.value, factors, node.shape)
        if arg.shape == node.shape and arg.dtype == node.dtype:
            return Masked(value, g.mask, g.side)
        return fit(Masked(value, g.mask, g.side).applied(), arg)
    if arg.shape == node.shape:
        return fit(times(g, factors, node.shape), arg)
    small = tuple(f for f in factors if not isinstance(f, Node) or fits(f.shape, arg.shape))
    large = tuple(f for f in factors if f not in small)
    return fit(times(unbroadcast(times(g, large, node.shape), arg), small, arg.shape), arg)


def fits(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    """Whether an array of `shape` broadcasts to the shape `into`."""
    return len(shape) <= len(into) and all(n in (1, m) for n, m in zip(shape[::-1], into[::-1]))


def times(g: Node, factors: tuple, shape: tuple[int, ...]) -> Node:
    """The product, of the given shape. What is broadcast is multiplied before that, or by doing it."""
    for f in factors:
        if g.op != "broadcast":
            g = multiplied(g, f)
        elif not isinstance(f, Node) or fits(f.shape, g.args[0].shape):
            g = broadcast(multiplied(g.args[0], f), g.shape)
        else:
            g = multiplied(g.args[0] if f.shape == shape else g, f)
    return broadcast(g, shape)


def multiplied(g: Node, f: Node | float) -> Node:
    """g times one factor. Nothing is multiplied by 1, and -1 only changes the sign."""
    if is_number(f, 1.0):
        return g
    if is_number(f, -1.0):
        return -g
    if is_scalar_const(g) and is_number(g.value, 1.0) and isinstance(f, Node) and f.dtype == g.dtype:
        return f
    return g * f


def is_number(x: Any, value: float) -> bool:
    return isinstance(x, (int, float)) and x == value


def pull_where(node: Node, g: Node, needed: Sequence[bool]) -> list:
    condition, *branches = node.args
    grads: list = [None]
    for branch, side, need in zip(branches, (True, False), needed[1:]):
        masked = Masked(g, condition, side)
        same = branch.shape == node.shape and branch.dtype == node.dtype
        grads.append(None if not need else masked if same else fit(masked.applied(), branch))
    return grads


def fit(g: Node | None, x: Node) -> Node | None:
    """g in the type of x: real if x is, summed over the axes x was stretched along, cast to its dtype."""
    if g is None:
        return None
    if g.dtype.kind == "c" and x.dtype.kind != "c":
        g = real(g)
    return cast(unbroadcast(g, x), x.dtype)


def unbroadcast(g: Node, x: Node) -> Node:
    """g summed to the shape of x, which was broadcast to that of g."""
    if g.shape == x.shape:
        return g
    new = g.ndim - x.ndim
    stretched = [new + i for i, n in enumerate(x.shape) if n == 1 and g.shape[new + i] != 1]
    if not new:
        return sum_(g, stretched, keepdims=True)
    return reshape(sum_(g, (*range(new), *stretched)), x.shape)


def total(parts: list) -> Node | Masked:
    """The sum of gradients, in the order given.

    Masked by the same condition they stay masked, or become one `where` if they lie on both of its sides.
    Parts of slices become one assemble.
    """
    if len(parts) == 1:
        return parts[0]
    plain = [p for p in parts if not isinstance(p, Masked)]
    groups: dict[Node, dict[bool, list]] = {}
    for p in parts:
        if isinstance(p, Masked):
            groups.setdefault(p.mask, {}).setdefault(p.side, []).append(p.value)
    if len(groups) == 1 and not plain:
        ((mask, sides),) = groups.items()
        if len(sides) == 1:
            ((side, values),) = sides.items()
            return Masked(add_all(values), mask, side)
    for mask, sides in groups.items():
        values = {side: add_all(found) for side, found in sides.items()}
        plain.append(where(mask, values.get(True, 0.0), values.get(False, 0.0)))
    return add_all(plain)


def add_all(parts: Sequence[Node]) -> Node:
    """The sum of nodes of one shape and dtype."""
    slices = [p for p in parts if p.op == "assemble"]
    rest = [p for p in parts if p.op != "assemble"]
    return reduce(plus, [*rest, merge_assembles(slices)] if slices else rest)


def plus(g: Node, p: Node) -> Node:
    """g + p, where p may be of the form -x, and the addition broadcasts."""
    if p.op == "broadcast" and p.shape == g.shape and g.op != "broadcast":
        p = p.args[0]
    return g - p.args[0] if p.op == "negative" else g + p


def merge_assembles(parts: Sequence[Node]) -> Node:
    if len(parts) == 1:
        return parts[0]
    attrs = {**parts[0].attrs, "indices": sum((p.attrs["indices"] for p in parts), ())}
    return apply("assemble", *(a for p in parts for a in p.args), **attrs)


# --- forward --------------------------------------------------------------------------------------------


def push(node: Node, tangents: Sequence) -> Any:
    """The node's tangent, in its shape and dtype; for a tuple node a tuple of tangents, None or functions."""
    op = OPS[node.op]
    if op.jvp_rule is not None:
        return op.jvp_rule(tangents, node, *node.args, **node.attrs)
    if node.op == "item":
        return force(tangents[0][node.attrs["i"]])
    if op.kind == "elementwise":
        return push_elementwise(node, tangents)
    if op.jvp is not None:
        return op.jvp(tangents, node, *node.args, **node.attrs)
    if op.kind == "linear":
        moved = op.linear_in or range(len(node.args))
        args = [tangent_or_zeros(tangents[i], a) if i in moved else a for i, a in enumerate(node.args)]
        return apply(node.op, *args, **node.attrs)
    if op.kind == "multilinear":
        terms = (
            apply(node.op, *(t if i == j else a for j, a in enumerate(node.args)), **node.attrs)
            for i, t in enumerate(tangents)
            if t is not None
        )
        return add_all(list(terms))
    raise unsupported(f"np.{node.op}", node.loc)


def tangent_or_zeros(t: Node | None, x: Node) -> Node:
    return zeros(x.shape, x.dtype) if t is None else t


def push_elementwise(node: Node, tangents: Sequence) -> Node | None:
    terms = []
    for t, factors in zip(tangents, partials(node)):
        factors = None if t is None else factor_list(factors)
        if factors is None:
            continue
        shape = np.broadcast_shapes(t.shape, *(f.shape for f in factors if isinstance(f, Node)))
        term = times(t, factors, shape)
        terms.append(real(term) if term.dtype.kind == "c" and node.dtype.kind != "c" else term)
    # terms may be smaller than the result, and of different shapes: the addition broadcasts
    return cast(broadcast(reduce(plus, terms), node.shape), node.dtype) if terms else None
