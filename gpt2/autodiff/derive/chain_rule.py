"""One step of the chain rule: a gradient pulled back through a node, a tangent pushed through it.

    push(node, tangents)    tangents of the arguments (None: zero) -> tangent of the node, or None
    total(parts)            the sum of the gradients that a node's readers gave it

Here is all that the rules leave out: zeros, broadcasting, dtypes, complex parts, masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from ..errors import AutodiffError, UnsupportedError, unsupported
from ..graph import Node, is_scalar_const
from ..hidden import decided
from ..ops import OPS, apply
from ..ops.build import broadcast, cast, fits, guarded, real, reshape, sum_, where
from ..ops.elementwise import squared_norm
from ..ops.subgraph import or_zeros
from ..ops.table import ALWAYS, SEVERAL


@dataclass(eq=False, slots=True)
class Masked:
    """A gradient that counts where `mask` is `side`, and is zero elsewhere, whatever `value` holds there.

    The branch that `where(c, a, b)` does not take may be infinite or nan, its partials too, and 0 * nan is
    nan. So the mask stays beside the gradient through elementwise ops and is applied at their end:
    where(c, g * partial, 0).

    Under several masks, of a `where` in another or of two that read one value, it counts only where `guard`
    is true as well. While `value` is zero outside the guard by itself, `raw` is the same gradient that need
    not be; a factor that may be infinite or nan goes to `raw`, which becomes the value (`raw` is None then),
    and the guard is applied with the mask. Without a mask the guard is all that limits it.
    """

    value: Node
    mask: Node | None
    side: bool = True
    guard: Node | None = None
    raw: Node | None = None

    def applied(self) -> Node:
        if self.guard is not None and self.raw is None:
            return where(self.support(), self.value, 0.0)
        if self.mask is None:
            return self.value
        return where(self.mask, self.value, 0.0) if self.side else where(self.mask, 0.0, self.value)

    def support(self) -> Node:
        """Where the gradient counts."""
        if self.mask is None:
            return self.guard
        here = self.mask if self.side else apply("logical_not", self.mask)
        return here if self.guard is None else apply("logical_and", self.guard, here)

    def unmasked(self) -> Node:
        """The gradient where it counts, and anything elsewhere."""
        return self.value if self.raw is None else self.raw

    def times(self, factors: tuple, shape: tuple[int, ...]) -> Masked:
        if self.guard is None or (self.raw is not None and all(map(_is_finite, factors))):
            raw = None if self.raw is None else times(self.raw, factors, shape)
            return Masked(times(self.value, factors, shape), self.mask, self.side, self.guard, raw)
        return Masked(times(self.unmasked(), factors, shape), self.mask, self.side, self.guard)

    def through(self, linear: Callable[[Node], Node], arg: Node) -> Node | Masked:
        """Pulled back to `arg` through an op that keeps zeros and the mask: a cast, a real part."""
        support, value = self.support(), linear(self.applied())
        if not fits(support.shape, arg.shape):
            return value
        return Masked(value, None, True, support, linear(self.unmasked()))

    def under(self, mask: Node, side: bool) -> Masked:
        """Pulled back through another `where`, to the branch that it takes where its mask is `side`."""
        if self.guard is None and self.mask is mask and self.side == side:
            return Masked(self.applied(), mask, side)
        return Masked(self.applied(), mask, side, self.support(), self.unmasked())


def _is_finite(factor: Node | float) -> bool:
    """Whether it is a finite number: zeros stay zeros when they are multiplied by it."""
    if isinstance(factor, Node):
        return is_scalar_const(factor) and decided(np.isfinite, factor.value)
    return decided(np.isfinite, factor)


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
    """The derivative of an entry. A rule may give a function, which is called only here."""
    return applied(entry()) if callable(entry) else entry


def arguments(node: Node) -> Sequence[Node]:
    """The values through which the node is differentiated."""
    return (squared_norm(node) or (node.args,))[0]


def pull_elementwise(node: Node, g: Node | Masked, needed: Sequence[bool]) -> list:
    grads = []
    for arg, factors, need in zip(arguments(node), partials(node), needed):
        factors = factor_list(factors) if need else None
        grads.append(None if factors is None else pull_factors(g, factors, arg, node))
    return grads


def partials(node: Node) -> tuple:
    rule = OPS[node.op].partials
    if rule is None:
        raise unsupported(f"np.{node.op}", node.loc)
    through = squared_norm(node)
    return rule(node, *node.args) if through is None else through[1]


def factor_list(entry: Any) -> tuple | None:
    """A partial derivative as a tuple of factors, or None for zero."""
    if callable(entry):
        entry = entry()
    return entry if entry is None or isinstance(entry, tuple) else (entry,)


def pull_factors(g: Node | Masked, factors: tuple, arg: Node, node: Node) -> Node | Masked:
    """g times the factors, in the argument's type. Factors as small as the argument leave the sum over the
    axes along which it was broadcast."""
    if OPS[node.op].singular == ALWAYS:
        factors = guarded_factors(g.unmasked() if isinstance(g, Masked) else g, factors)
    if isinstance(g, Masked):
        g = g.times(factors, node.shape)
        same = arg.shape == node.shape and arg.dtype == node.dtype
        return g if same else g.through(lambda v: fit(v, arg), arg)
    if arg.shape == node.shape:
        return fit(times(g, factors, node.shape), arg)
    small = tuple(f for f in factors if not isinstance(f, Node) or fits(f.shape, arg.shape))
    large = tuple(f for f in factors if f not in small)
    return fit(times(unbroadcast(times(g, large, node.shape), arg), small, arg.shape), arg)


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


def guarded_factors(g: Node, factors: tuple) -> tuple:
    """The factors of a product that is 0 where g is, even if they are infinite or nan."""
    return (guarded(math.prod(factors), g),) if any(isinstance(f, Node) for f in factors) else factors


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


def pull_where(node: Node, g: Node | Masked, needed: Sequence[bool]) -> list:
    condition, *branches = node.args
    grads: list = [None]
    for branch, side, need in zip(branches, (True, False), needed[1:]):
        masked = g.under(condition, side) if isinstance(g, Masked) else Masked(g, condition, side)
        same = branch.shape == node.shape and branch.dtype == node.dtype
        fitted = partial(fit, x=branch)
        grads.append(None if not need else masked if same else masked.through(fitted, branch))
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
    Masked by several it stays guarded by any of them. Parts of slices become one assemble.
    """
    if len(parts) > 1:
        parts = _with_guards_applied(parts)
    if len(parts) == 1:
        return parts[0]
    plain = [p for p in parts if not isinstance(p, Masked)]
    guarded = not plain  # whether something limits where the sum counts
    groups: dict[Node | None, dict[bool, list[Masked]]] = {}
    for p in parts:
        if isinstance(p, Masked):
            groups.setdefault(p.mask, {}).setdefault(p.side, []).append(p)
    guards: list[Node] = []
    for mask, sides in groups.items():
        sums = {side: _joined(found) for side, found in sides.items()}
        if len(groups) == len(sums) == 1 and not plain:
            return sums.popitem()[1]
        limits = {m.guard for m in sums.values()}
        if len(sums) == 1 or len(limits) == 2:
            guards += [m.support() for m in sums.values()]
        elif limits == {None}:
            guarded = False
        else:  # both sides of one mask under the same guard
            guards += limits
        values = {side: m.value for side, m in sums.items()}
        if mask is None:
            plain.append(values[True])
        else:
            plain.append(where(mask, values.get(True, 0.0), values.get(False, 0.0)))
    value = add_all(plain)
    return Masked(value, None, True, _any(guards), value) if guarded else value


def _with_guards_applied(parts: list) -> list:
    """The parts with those whose guard is due joined by guard and mask, and zero outside of it."""
    due: dict[tuple, dict[bool, list[Node]]] = {}
    rest = []
    for p in parts:
        if isinstance(p, Masked) and p.guard is not None and p.raw is None:
            due.setdefault((p.guard, p.mask), {}).setdefault(p.side, []).append(p.value)
        else:
            rest.append(p)
    joined = []
    for (guard, mask), sides in due.items():
        values = {side: add_all(found) for side, found in sides.items()}
        if len(values) == 2:
            joined.append(Masked(where(mask, values[True], values[False]), None, True, guard))
        else:
            joined += [Masked(value, mask, side, guard) for side, value in values.items()]
    if len(joined) + len(rest) > 1:
        joined = [Masked(p.applied(), None, True, p.support(), p.value) for p in joined]
    return rest + joined


def _joined(parts: Sequence[Masked]) -> Masked:
    """The sum of gradients under the same side of the same mask, or under none."""
    if len(parts) == 1:
        return parts[0]
    first, guards = parts[0], list(dict.fromkeys(p.guard for p in parts))
    value = add_all([p.value for p in parts])
    if None in guards:
        return Masked(value, first.mask, first.side)
    raw = value if len(guards) > 1 else add_all([p.unmasked() for p in parts])
    return Masked(value, first.mask, first.side, _any(guards), raw)


def _any(guards: Iterable[Node]) -> Node:
    return reduce(lambda a, b: apply("logical_or", a, b), dict.fromkeys(guards))


def add_all(parts: Sequence[Node]) -> Node:
    """The sum of nodes of one shape and dtype."""
    slices = [p for p in parts if p.op == "assemble"]
    rest = [p for p in parts if p.op != "assemble"]
    if len(slices) > 1:
        attrs = {**slices[0].attrs, "indices": sum((p.attrs["indices"] for p in slices), ())}
        slices = [apply("assemble", *(a for p in slices for a in p.args), **attrs)]
    return reduce(plus, [*rest, *slices])


def plus(g: Node, p: Node) -> Node:
    """g + p, where p may be of the form -x, and the addition broadcasts."""
    if p.op == "broadcast" and p.shape == g.shape and g.op != "broadcast":
        p = p.args[0]
    return g - p.args[0] if p.op == "negative" else g + p


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
        args = [or_zeros(tangents[i], a) if i in moved else a for i, a in enumerate(node.args)]
        return apply(node.op, *args, **node.attrs)
    if op.kind == "multilinear":
        terms = (
            apply(node.op, *(t if i == j else a for j, a in enumerate(node.args)), **node.attrs)
            for i, t in enumerate(tangents)
            if t is not None
        )
        return add_all(list(terms))
    raise unsupported(f"np.{node.op}", node.loc)


def push_elementwise(node: Node, tangents: Sequence) -> Node | None:
    terms = []
    singular, several = OPS[node.op].singular, sum(t is not None for t in tangents) > 1
    for t, factors in zip(tangents, partials(node)):
        factors = None if t is None else factor_list(factors)
        if factors is None:
            continue
        shape = np.broadcast_shapes(t.shape, *(f.shape for f in factors if isinstance(f, Node)))
        if singular == ALWAYS or singular == SEVERAL and several:
            factors = guarded_factors(t, factors)
        term = times(t, factors, shape)
        terms.append(real(term) if term.dtype.kind == "c" and node.dtype.kind != "c" else term)
    # terms may be smaller than the result, and of different shapes: the addition broadcasts
    return cast(broadcast(reduce(plus, terms), node.shape), node.dtype) if terms else None
