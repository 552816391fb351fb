"""Takes sums of multiplied factors apart, and puts them together with less work.

The additions and multiplications that meet in one value, and whose results have no other reader, form a
`Formula`. Taken apart it is a sum of terms, each a number times factors:

    0.5 * d * w  +  0.5 * d * x * (1 - t*t) * q        ->  0.5 * (d * (w + x * (1 - t*t) * q))
    (x * row) * col_of_rows                            ->  x * (row * col_of_rows)
    1 + 3 * (c * x2)                                   ->  1 + (3 * c) * x2

Putting together tries what could be less work: like terms are added, factors that terms share leave the sum,
numbers meet numbers, and factors are multiplied from the smallest shape to the largest. The result replaces
the original only if it costs clearly less, counted in elements touched, so that applying this again and again
ends.

What is never done: sums are not multiplied out (except by a number, for free), and differences are not
regrouped: x - row1 - row2 keeps its order, for (row1 + row2) may have lost what the differences would have
kept, and so does x + 1 - 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Node, is_scalar_const
from ..hidden import decided
from ..ops import apply, build, const
from .match import is_inexact, number

if TYPE_CHECKING:
    from .engine import Sweep

SUMS = frozenset(("add", "subtract"))
PRODUCTS = frozenset(("multiply", "negative", "divide", "square"))
RING = SUMS | PRODUCTS
_WORTHWHILE = 0.5  # of an operation on the whole result: what must be saved to change the program's form
_MOST_TERMS = 12  # factors are searched for in sums up to here: the search grows with the square
_MOST_FACTORS = 12  # pairs are searched for among so many factors
_DEEPEST = 4  # values made for a value made for ... by these rules: the next sweep looks at what is left
_MOST_DISSOLVED = 32  # taken apart at once: a loop that is written out can be one chain of thousands

Factor = tuple[Node, int]  # side 1 is multiplied with, side -1 divided by


def representable(c: complex, dtype: np.dtype) -> bool:
    """Whether computing with the number `c` does not overflow or lose digits in that dtype."""
    info = np.finfo(dtype)
    return c == 0 or float(info.tiny) <= abs(c) <= float(info.max)


@dataclass(eq=False, slots=True)
class Term:
    """A number times factors."""

    coef: complex
    factors: tuple[Factor, ...] = ()

    @classmethod
    def of(cls, x: Node) -> Term:
        return cls(number(x)) if is_scalar_const(x) else cls(1.0, ((x, 1),))

    def __neg__(self) -> Term:
        return Term(-self.coef, self.factors)

    def __mul__(self, other: Term) -> Term:
        return Term(self.coef * other.coef, self.factors + other.factors)

    def __truediv__(self, other: Term) -> Term:
        under = tuple([(f, -side) for f, side in other.factors])
        return Term(self.coef / other.coef, self.factors + under)

    def key(self) -> tuple:
        """The key of like terms: equal where they differ in their coefficient alone."""
        return tuple(sorted([(f.id, side) for f, side in self.factors]))

    def without(self, factor: Factor) -> Term:
        i = self.factors.index(factor)
        return Term(self.coef, self.factors[:i] + self.factors[i + 1 :])


class Formula:
    """The sums and products that meet in the node `root`: taken apart into terms, and put together again."""

    def __init__(self, root: Node, sweep: Sweep):
        self.root = root
        self.sweep = sweep
        self.dtype = root.dtype
        self.dissolved = {root.id: root}  # these go if the root is replaced

    # taking apart
    def as_product(self, x: Node) -> Term:
        """`x` as a number times factors."""
        if x.op in PRODUCTS and self._dissolves(x):
            a, *others = map(self.as_product, x.args)
            if x.op == "negative":
                return -a
            if x.op == "multiply":
                return a * others[0]
            if x.op == "square" and len(a.factors) <= _MOST_FACTORS:  # each square doubles them
                return a * a
            if x.op == "divide" and others[0].coef != 0:
                return a / others[0]
        return Term.of(x)

    def as_sum(self, x: Node, coef: complex = 1.0) -> list[Term]:
        """The terms of coef * x, in order."""
        if x.op in SUMS and self._opens_sum(x):
            a, b = x.args
            return self.as_sum(a, coef) + self.as_sum(b, -coef if x.op == "subtract" else coef)
        p = self.as_product(x) * Term(coef)
        if len(p.factors) == 1:
            ((f, side),) = p.factors
            if side > 0 and f is not x and f.op in SUMS and self._opens_sum(f):
                return self.as_sum(f, p.coef)
        return [p]

    def _opens_sum(self, x: Node) -> bool:
        return x.shape == self.root.shape and self._dissolves(x)

    def _dissolves(self, x: Node) -> bool:
        """Whether x is part of the formula: it has no other reader."""
        if x.id in self.dissolved:
            return True
        if x.op not in RING or x.dtype != self.dtype or not self.sweep.single(x):
            return False
        if len(self.dissolved) >= _MOST_DISSOLVED:
            return False
        self.dissolved[x.id] = x
        return True

    # making nodes, out of those that exist
    def make(self, op: str, *args: Node | complex) -> Node:
        if op == "multiply" and args[0] is args[1]:
            op, args = "square", args[:1]
        return self.sweep.known(apply(op, *[a if isinstance(a, Node) else self.number(a) for a in args]))

    def number(self, c: complex) -> Node:
        plain = c.real if isinstance(c, complex) and self.dtype.kind != "c" else c
        return self.sweep.known(const(plain, self.dtype))

    def _is_ours(self, x: Node) -> bool:
        """Whether x may be made in another way."""
        return x.id in self.dissolved or not self.sweep.is_settled(x)

    def product(self, p: Term) -> Node:
        """The node for coef * over / under."""
        over = [f for f, side in p.factors if side > 0]
        under = [f for f, side in p.factors if side < 0]
        if not under:
            return self._times(p.coef, self._multiplied(over)) if over else self.number(p.coef)
        below = self._multiplied(under)
        if not over:
            return self.make("divide", p.coef, below)
        return self._times(p.coef, self.make("divide", self._multiplied(over), below))

    def _multiplied(self, factors: Sequence[Node]) -> Node:
        """The product of factors: the smallest pair first, if possible one computed anyway."""
        factors = list(factors)

        def price(pair: tuple[int, int]) -> tuple[int, bool]:
            product = self.make("multiply", *[factors[k] for k in pair])
            return product.size, not self.sweep.is_settled(product)

        while len(factors) > 1:
            tried = min(len(factors), _MOST_FACTORS)
            pairs = [(i, j) for j in range(tried) for i in range(j)]
            i, j = pairs[0] if len(pairs) == 1 else min(pairs, key=price)
            factors[i] = self.make("multiply", factors[i], factors.pop(j))
        return factors[0]

    def _times(self, coef: complex, x: Node) -> Node:
        """The node for coef * x; the number goes to a factor of x that is smaller than x, if any."""
        if coef == 1:
            return x
        if coef == -1:
            return self.make("negative", x)
        if x.op == "multiply" and self._is_ours(x):
            for k, f in enumerate(x.args):
                if f.size < x.size / 2:
                    args = list(x.args)
                    args[k] = self._times(coef, f)
                    return self.make("multiply", *args)
        return self.make("multiply", x, coef)

    def sum(self, terms: Sequence[Term]) -> Node:
        """The node for the sum of terms in order: a number last, and a positive term first if any."""
        terms = sorted(terms, key=lambda t: not t.factors)
        first = next((t for t in terms if not _is_negative(t.coef)), None)
        if first is None:
            return self.make("negative", self.sum([-t for t in terms]))
        total = self.product(first)
        for t in terms:
            if t is not first and _is_negative(t.coef):
                total = self.make("subtract", total, self.product(-t))
            elif t is not first:
                total = self.make("add", total, self.product(t))
        return total

    # putting together
    def cost(self, n: Node) -> int:
        """How many elements computing `n` touches, beyond what the program computes anyway."""
        total, seen, todo = 0, set(), [n]
        while todo:
            x = todo.pop()
            if x.id not in seen and x.op not in ("const", "input") and self._is_ours(x):
                total += x.size
                todo.extend(x.args)
            seen.add(x.id)
        return total

    def best_sum(self, terms: Sequence[Term]) -> Node | None:
        """The cheapest way to add the terms. None where terms cancel, for inf - inf must stay nan, or where
        numbers meet: (x + 2**23) - 2**23 is a way to round.
        """
        merged: dict[tuple, Term] = {}
        for t in terms:
            key = t.key()
            if key in merged and not key:
                return None
            merged[key] = Term(merged[key].coef + t.coef, t.factors) if key in merged else t
        terms = list(merged.values())
        if any([t.coef == 0 and t.factors for t in terms]) or not self._all_representable(terms):
            return None
        terms = [t for t in terms if t.coef != 0] or [Term(0.0)]
        if len(terms) == 1:
            return self.best_product(terms[0])
        ways = [self.sum(terms)]
        if len(terms) <= _MOST_TERMS:
            ways += [n for f in _shared(terms) if (n := self._factored(terms, f)) is not None]
        return min(ways, key=self.cost)

    def _all_representable(self, terms: Sequence[Term]) -> bool:
        return all([representable(t.coef, self.dtype) for t in terms])

    def _factored(self, terms: Sequence[Term], f: Factor | float) -> Node | None:
        """The sum with `f`, a factor or a coefficient, taken out of the terms that have it."""
        if isinstance(f, tuple):
            group = [t for t in terms if f in t.factors]
            inside, outside = [t.without(f) for t in group], Term(1.0, (f,))
        else:
            group = [t for t in terms if abs(t.coef) == f]
            signs = [-1.0 if decided(_has_minus, t.coef) else 1.0 for t in group]
            inside, outside = [Term(s, t.factors) for s, t in zip(signs, group)], Term(f)
        inner = self.best_sum(inside)
        if inner is None:
            return None
        p = outside * Term.of(inner)
        if len(group) == len(terms):
            return self.best_product(p)
        rest = [t for t in terms if t not in group]
        rest.insert(terms.index(group[0]), p)
        return self.best_sum(rest)

    def best_product(self, p: Term) -> Node | None:
        """The cheapest way to multiply: the number outside, or inside one of the factors that are sums."""
        if not representable(p.coef, self.dtype):
            return None
        ways = [self.product(p)]
        if p.coef == 1:
            return ways[0]
        for k, (f, side) in enumerate(p.factors):
            if side < 0 or f.op not in SUMS or f.dtype != self.dtype:
                continue
            if self.sweep.is_settled(f) and not self._dissolves(f):
                continue
            inner = Formula(f, self.sweep)  # a sum of another shape than the root
            terms = inner.as_sum(f, p.coef)
            self.dissolved.update(inner.dissolved)
            if self._all_representable(terms):
                factors = (*p.factors[:k], (self.sum(terms), 1), *p.factors[k + 1 :])
                ways.append(self.product(Term(1.0, factors)))
        return min(ways, key=self.cost)

    def rebuilt(self, terms: Sequence[Term]) -> Node | None:
        """The best node for the terms, in the shape of the root. None if a factor has another dtype."""
        if any([f.dtype != self.dtype for t in terms for f, _ in t.factors]):
            return None
        best = self.best_sum(terms)
        if best is None or best.dtype != self.dtype:
            return None
        return build.broadcast(best, self.root.shape)


def improve(root: Node, sweep: Sweep) -> Node | None:
    """A cheaper node for `root`, or None."""
    if not is_inexact(root) or not root.size or sweep.depth > _DEEPEST:
        return None
    if not any([a.op in RING for a in root.args]):
        return None
    formula = Formula(root, sweep)
    terms = formula.as_sum(root)
    if len(formula.dissolved) < 2:
        return None
    better = formula.rebuilt(terms)
    now = sum([n.size for n in formula.dissolved.values() if n is root or sweep.is_settled(n)])
    if better is None or formula.cost(better) > now - _WORTHWHILE * root.size:
        return None
    sweep.retire(formula.dissolved.values())
    return better


def _is_negative(c: complex) -> bool:
    return not isinstance(c, complex) and c < 0


def _has_minus(c: float) -> bool:
    return math.copysign(1.0, c) < 0


def _shared(terms: Sequence[Term]) -> list[Factor | float]:
    """The factors, then the coefficients, that more than one term has, in order of appearance."""
    counts = Counter(chain.from_iterable(dict.fromkeys(t.factors) for t in terms))
    sizes = [abs(t.coef) for t in terms if t.factors and not isinstance(t.coef, complex) and abs(t.coef) != 1]
    first = [c for i, c in enumerate(sizes) if c not in sizes[:i]]  # not by hash: numbers may be hidden
    return [f for f, k in counts.items() if k > 1] + [c for c in first if sizes.count(c) > 1]
