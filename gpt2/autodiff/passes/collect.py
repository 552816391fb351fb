"""Takes sums of multiplied factors apart, and puts them together with less work.

The additions and multiplications that meet in one value, and whose results have no other reader, form a
`Formula`. Taken apart it is a sum of terms, each a number times factors:

    0.5 * d * w  +  0.5 * d * x * (1 - t*t) * q        ->  0.5 * (d * (w + x * (1 - t*t) * q))
    (x * row) * col_of_rows                            ->  x * (row * col_of_rows)
    1 + 3 * (c * x2)                                   ->  1 + (3 * c) * x2

Putting together tries what could be less work: like terms are added, factors that terms share leave the sum,
numbers meet numbers, and factors are multiplied from the smallest shape to the largest. The result replaces
the original only if it costs clearly less, counted in elements touched, so that applying this again and again
ends. At equal cost, a formula that reads `x` is preferred to one that reads `c * x`, if others read `c * x`
too: without a reader it goes.

What is never done: sums are not multiplied out (except by a number, for free), and differences are not
regrouped: x - row1 - row2 keeps its order, for (row1 + row2) may have lost what the differences would have
kept, and so does x + 1 - 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Node
from ..hidden import decided
from ..ops import apply, build, const
from .match import is_inexact, number

if TYPE_CHECKING:
    from .engine import Sweep

RING = frozenset(("add", "subtract", "multiply", "negative", "divide", "square"))
_WORTHWHILE = 0.5  # of an operation on the whole result: what must be saved to change the program's form
_MOST_TERMS = 12  # factors are searched for in sums up to here: the search grows with the square
_MOST_FACTORS = 12  # pairs are searched for among so many factors: the search grows with the cube
_DEEPEST = 4  # values made for a value made for ... by these rules: the next sweep looks at what is left
_MOST_DISSOLVED = 32  # taken apart at once: a loop that is written out can be one chain of thousands


def representable(c: complex, dtype: np.dtype) -> bool:
    """Whether computing with the number `c` does not overflow or lose digits in that dtype."""
    info = np.finfo(dtype)
    return c == 0 or float(info.tiny) <= abs(c) <= float(info.max)


class Term:
    """A term: coef * factors. A factor is (node, side): side 1 is multiplied with, side -1 divided by."""

    def __init__(self, coef: complex = 1.0, factors: Iterable[tuple[Node, int]] = ()):
        self.coef = coef
        self.factors = list(factors)

    def key(self) -> tuple:
        """The key of like terms: equal where they differ in their coefficient alone."""
        return tuple(sorted((f.id, side) for f, side in self.factors))

    def times(self, x: Node) -> Term:
        c = number(x) if x.shape == () else None
        return (
            Term(self.coef * c, self.factors) if c is not None else Term(self.coef, [*self.factors, (x, 1)])
        )

    def without(self, factor: tuple[Node, int]) -> Term:
        rest = list(self.factors)
        rest.remove(factor)
        return Term(self.coef, rest)

    def split(self, test: Callable[[Node], bool]) -> tuple[Term, Term] | None:
        """(the number and the factors that pass, the others); None if that takes nothing away."""
        passed = [f for f in self.factors if test(f[0])]
        if not passed and self.coef == 1:
            return None
        return Term(self.coef, passed), Term(1.0, [f for f in self.factors if f not in passed])

    def build(self, dtype: np.dtype, sweep: Sweep) -> Node:
        """The node, multiplying small shapes first."""
        return Builder(dtype, sweep).term(self)


class Builder:
    """Makes nodes for terms and sums of them, using those that exist."""

    def __init__(
        self, dtype: np.dtype, sweep: Sweep, dissolved: Container[int] = (), seen_through: Container[int] = ()
    ):
        self.dtype = dtype
        self.sweep = sweep
        self.seen_through = seen_through
        # May it be made in another way?
        self.is_free = lambda x: x.id in dissolved or not sweep.is_settled(x)

    def known(self, n: Node) -> Node:
        found = self.sweep.known(n)
        return n if found.id in self.seen_through else found

    def make(self, op: str, *args: Node | complex) -> Node:
        if op == "multiply" and args[0] is args[1]:
            op, args = "square", args[:1]
        return self.known(apply(op, *[self.number(a) if not isinstance(a, Node) else a for a in args]))

    def number(self, c: complex) -> Node:
        return self.known(const(_plain(c, self.dtype), self.dtype))

    def exists(self, op: str, *args: Node) -> Node | None:
        n = apply("square", args[0]) if op == "multiply" and args[0] is args[1] else apply(op, *args)
        found = self.known(n)
        return None if found is n else found

    def term(self, p: Term) -> Node:
        """The node for coef * over / under."""
        over = [f for f, side in p.factors if side > 0]
        under = [f for f, side in p.factors if side < 0]
        coef = p.coef
        if not under:
            return self.scaled(coef, self.combine(over)) if over else self.number(coef)
        below = self.combine(under)
        for f in over:  # a quotient that exists
            found = self.exists("divide", f, below)
            if found is not None:
                over.remove(f)
                return self.scaled(coef, self.combine([found, *over]))
        if not over:
            return self.make("divide", coef, below)
        return self.scaled(coef, self.make("divide", self.combine(over), below))

    def combine(self, factors: list[Node]) -> Node:
        """The node for factors multiplied, the pair with the smallest result first."""
        factors = list(factors)
        if len(factors) > _MOST_FACTORS:
            factors.sort(key=lambda f: f.size)
        while len(factors) > _MOST_FACTORS:
            factors[:2] = [self.make("multiply", *factors[:2])]
        while len(factors) > 1:
            i, j = self._cheapest_pair(factors)
            made = self.make("multiply", factors[i], factors[j])
            del factors[j]
            factors[i] = made
        return factors[0]

    def _cheapest_pair(self, factors):
        if len(factors) == 2:
            return 0, 1
        best = None
        for j in range(1, len(factors)):
            for i in range(j):
                size = _size_of((factors[i], factors[j]))
                made = 0 if self.exists("multiply", factors[i], factors[j]) is not None else 1
                if best is None or (size, made) < best[0]:
                    best = ((size, made), i, j)
        return best[1:]

    def scaled(self, coef: complex, x: Node) -> Node:
        """The node for coef * x; the number goes to a factor of x that is smaller than x, if any."""
        if coef == 1:
            return x
        if coef == -1:
            return self.make("negative", x)
        if x.op == "multiply" and self.is_free(x):
            a, b = x.args
            if a.size < x.size / 2:
                return self.make("multiply", self.scaled(coef, a), b)
            if b.size < x.size / 2:
                return self.make("multiply", a, self.scaled(coef, b))
        if x.op == "divide" and x.args[0].op == "const" and not x.args[0].shape and self.is_free(x):
            return self.make("divide", coef * number(x.args[0]), x.args[1])
        return self.make("multiply", x, coef)

    def sum(self, terms: list[Term]) -> Node:
        """The node for the sum of terms in order: a number last, and a positive term first if any."""
        terms = sorted(terms, key=lambda t: not t.factors)
        if all(_negative(t.coef) for t in terms):
            return self.make("negative", self.sum([Term(-t.coef, t.factors) for t in terms]))
        first = next(i for i, t in enumerate(terms) if not _negative(t.coef))
        total = self.term(terms[first])
        for i, t in enumerate(terms):
            if i == first:
                continue
            op = "subtract" if _negative(t.coef) else "add"
            piece = self.term(Term(-t.coef if op == "subtract" else t.coef, t.factors))
            total = self.make(op, total, piece)
        return total


class Formula:
    """The sums and terms that meet in the node `root`. With `see_through` values c * x and c * x + d that
    others use, too, are taken apart as well.
    """

    def __init__(self, root: Node, sweep: Sweep, see_through: bool = False):
        self.root = root
        self.sweep = sweep
        self.dtype = root.dtype
        self.see_through = see_through
        self.dissolved = {root.id: root}  # these go if the root is replaced
        self.scaled: set[int] = set()  # leaves that are numbers times a value, and have other users
        self.builder = Builder(root.dtype, sweep, self.dissolved, self.scaled if see_through else ())

    def dissolves(self, x: Node) -> bool:
        if x.id in self.dissolved:
            return True
        if x.op not in RING or x.dtype != self.dtype or not self.sweep.single(x):
            return False
        if len(self.dissolved) >= _MOST_DISSOLVED:
            return False
        self.dissolved[x.id] = x
        return True

    def term(self, x: Node) -> Term:
        """`x` as a number times factors."""
        if x.op == "const" and not x.shape:
            return Term(number(x))
        if x.op in ("multiply", "divide", "negative", "square") and self._opens(x):
            if x.op == "negative":
                p = self.term(x.args[0])
                return Term(-p.coef, p.factors)
            if x.op == "square":
                p = self.term(x.args[0])
                if len(p.factors) <= _MOST_FACTORS:  # squares of squares double them each time
                    return Term(p.coef * p.coef, p.factors * 2)
                return Term(1.0, [(x, 1)])
            a, b = map(self.term, x.args)
            if x.op == "multiply":
                return Term(a.coef * b.coef, a.factors + b.factors)
            if b.coef != 0:
                return Term(a.coef / b.coef, a.factors + [(f, -side) for f, side in b.factors])
        return Term(1.0, [(x, 1)])

    def _opens(self, x: Node) -> bool:
        if self.dissolves(x):
            return True
        if x.dtype == self.dtype and _scaled(x) is not None:
            return self._sees_through(x)
        return False

    def terms(self, x: Node, coef: complex = 1.0) -> list[Term]:
        """The terms of coef * x, in order."""
        if x.op in ("add", "subtract") and self._opens_sum(x):
            a, b = x.args
            return self.terms(a, coef) + self.terms(b, -coef if x.op == "subtract" else coef)
        p = self.term(x)
        p.coef *= coef
        if len(p.factors) == 1 and p.factors[0][1] > 0:
            (f, _) = p.factors[0]
            if f is not x and f.op in ("add", "subtract") and self._opens_sum(f):
                return self.terms(f, p.coef)
        return [p]

    def _opens_sum(self, x: Node) -> bool:
        if x.shape == self.root.shape and self.dissolves(x):
            return True
        if x.shape == self.root.shape and x.dtype == self.dtype and _affine(x):
            return self._sees_through(x)
        return False

    def _sees_through(self, x: Node) -> bool:
        if len(self.scaled) >= _MOST_DISSOLVED:
            return False
        self.scaled.add(x.id)
        return self.see_through

    # putting together
    def old_cost(self) -> float:
        """How many elements the formula touches as it stands."""
        mine = (n for n in self.dissolved.values() if n is self.root or self.sweep.is_settled(n))
        return sum(map(work, mine))

    def cost(self, n: Node, seen: set[int] | None = None) -> float:
        """How many elements computing `n` touches, beyond what the program computes anyway."""
        seen = set() if seen is None else seen
        if n.id in seen or n.op in ("const", "input"):
            return 0.0
        seen.add(n.id)
        if self.sweep.is_settled(n) and n.id not in self.dissolved:
            return 0.0
        return work(n) + sum(self.cost(a, seen) for a in n.args)

    def best_sum(self, terms: list[Term]) -> Node | None:
        """The cheapest way to add the terms.

        None where terms cancel, for inf - inf must stay nan, or where numbers meet: (x + 2**23) - 2**23 is a
        way to round.
        """
        merged: dict[tuple, Term] = {}
        for t in terms:
            key = t.key()
            if key in merged:
                if not key:
                    return None
                merged[key].coef += t.coef
            else:
                merged[key] = Term(t.coef, t.factors)
        terms = list(merged.values())
        if any(t.coef == 0 and t.factors for t in terms) or not self._all_representable(terms):
            return None
        terms = [t for t in terms if t.coef != 0] or [Term(0.0)]
        if len(terms) == 1:
            return self.best_term(terms[0])
        found = [self.builder.sum(terms)]
        if len(terms) <= _MOST_TERMS:
            factored = (self._factored(terms, f) for f in _shared(terms))
            found.extend(n for n in factored if n is not None)
        return min(found, key=self.cost)

    def _all_representable(self, terms) -> bool:
        return all(representable(t.coef, self.dtype) for t in terms)

    def _factored(self, terms, f) -> Node | None:
        """The sum with `f`, a factor or a coefficient, taken out of the terms that have it."""
        group = [t for t in terms if _has(t, f)]
        if isinstance(f, tuple):
            inner = self.best_sum([t.without(f) for t in group])
            outer = Term(1.0, [f])
        else:
            inner = self.best_sum(
                [Term(-1.0 if decided(_has_minus, t.coef) else 1.0, t.factors) for t in group]
            )
            outer = Term(f)
        if inner is None:
            return None
        p = outer.times(inner)
        if len(group) == len(terms):
            return self.best_term(p)
        first = terms.index(group[0])
        rest = [t for t in terms if not _has(t, f)]
        rest.insert(min(first, len(rest)), p)
        return self.best_sum(rest)

    def best_term(self, p: Term) -> Node | None:
        """The cheapest way to multiply: the number outside, or inside one of the factors that are sums."""
        if not representable(p.coef, self.dtype):
            return None
        found = [self.builder.term(p)]
        if p.coef == 1:
            return found[0]
        for k, (f, side) in enumerate(p.factors):
            if side > 0 and f.op in ("add", "subtract") and self._is_ours(f):
                inner = self._scaled_sum(f, p.coef)
                if inner is not None:
                    factors = [*p.factors[:k], (inner, 1), *p.factors[k + 1 :]]
                    found.append(self.builder.term(Term(1.0, factors)))
        return min(found, key=self.cost)

    def _is_ours(self, f: Node) -> bool:
        return f.dtype == self.dtype and (not self.sweep.is_settled(f) or self.dissolves(f))

    def _scaled_sum(self, f: Node, coef) -> Node | None:
        inner = Formula(f, self.sweep)
        terms = inner.terms(f, coef)
        self.dissolved.update(inner.dissolved)
        return self.builder.sum(terms) if self._all_representable(terms) else None


def improve(root: Node, sweep: Sweep) -> Node | None:
    """A cheaper node for `root`, or None."""
    if not is_inexact(root) or not root.size:
        return None
    if not any(a.op in RING for a in root.args) or sweep.depth > _DEEPEST:
        return None
    formula = Formula(root, sweep)
    terms = formula.terms(root)
    if len(formula.dissolved) < 2 and not formula.scaled:
        return None
    found = _rebuilt(formula, terms)
    if found is not None and formula.cost(found) <= formula.old_cost() - _WORTHWHILE * root.size:
        sweep.retire(formula.dissolved.values())
        return found
    if formula.scaled:
        through = Formula(root, sweep, see_through=True)
        found = _rebuilt(through, through.terms(root))
        if found is not None and through.cost(found) <= through.old_cost() * (1 + 1e-9):
            sweep.retire(through.dissolved.values())
            return found
    return None


def _rebuilt(formula: Formula, terms: list[Term]) -> Node | None:
    """The best node for the terms, in the shape of the root. None if a leaf has another dtype."""
    if any(f.dtype != formula.dtype for t in terms for f, _ in t.factors):
        return None
    if any(not isinstance(t.coef, (int, float, complex)) for t in terms):
        return None
    best = formula.best_sum(terms)
    if best is None or best.dtype != formula.dtype:
        return None
    return build.broadcast(best, formula.root.shape)


def work(n: Node) -> float:
    """How many elements an op touches. A division takes no longer than a sum: both wait for memory."""
    return float(n.size)


def _size_of(nodes) -> int:
    return math.prod(np.broadcast_shapes(*(n.shape for n in nodes)))


def _negative(c) -> bool:
    return not isinstance(c, complex) and c < 0


def _has_minus(c: float) -> bool:
    return math.copysign(1.0, c) < 0


def _plain(c, dtype):
    return c if dtype.kind == "c" or not isinstance(c, complex) else c.real


def _scaled(x: Node):
    """The y of a value c * y or -y; else None."""
    if x.op == "negative":
        return x.args[0]
    if x.op == "multiply":
        a, b = x.args
        if b.op == "const" and not b.shape:
            return a
        if a.op == "const" and not a.shape:
            return b
    return None


def _affine(x: Node) -> bool:
    """Whether x is c * y + d with numbers c and d."""
    a, b = x.args
    if a.op == "const" and not a.shape:
        a, b = b, a
    return b.op == "const" and not b.shape and _scaled(a) is not None


def _has(t: Term, f) -> bool:
    return f in t.factors if isinstance(f, tuple) else abs(t.coef) == f


def _shared(terms: list[Term]) -> list:
    """The factors, then the coefficients, that more than one term has, in order of appearance."""
    counts: dict = {}
    for t in terms:
        for f in dict.fromkeys(t.factors):
            counts[f] = counts.get(f, 0) + 1
    found = [f for f, k in counts.items() if k > 1]
    sizes = [abs(t.coef) for t in terms if t.factors and not isinstance(t.coef, complex) and abs(t.coef) != 1]
    first = [c for i, c in enumerate(sizes) if c not in sizes[:i]]
    return found + [c for c in first if sizes.count(c) > 1]
