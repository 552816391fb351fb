"""One sweep of local rules over a graph: the machine that all rewriting passes share.

A rule looks at one node whose arguments are final and gives a better node for it, or None. It is a pattern
(patterns.py), or a function that writes its result as mathematics (`x * (a * b)`). The nodes that it makes
are simplified in turn before any other rule sees them, so rules need not know of one another. A pass is a
`Family` of rules; a sweep runs any number of families at once, shares equal values as it goes
(hash-consing), and costs time linear in the graph. `simplify` sweeps until no rule applies.

A rule says what it keeps of the numbers, in one place, where it is registered:

    keeps=BITS     all of it: the same bits, for every argument that there is
    keeps=DIGITS   infinities, nans and zeros, and the others to some units in the last place (docs/values.md)
    nothing        it reassociates, and may overflow or cancel where the program did not

In strict mode a rule that says nothing is left out, and one that keeps digits is tried only on values of
which no more is asked (ops/exactness.py). With math="fast" all rules are tried everywhere.

Some rules pay only where an argument has no other user: then it disappears. `sweep.single(x)` answers
that. Its count may be too high while a sweep is under way, never too low by more than the sweep's own
additions; the next sweep counts anew.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from ..graph import Graph, GraphError, Node, const_value, with_args
from ..hidden import active, is_hidden, text_of
from ..ops.exactness import decided
from ..ops.table import EXACTLY, NEARLY, VIEWS, apply, facts, is_elementwise, root, views_of
from ..switches import FAST, STRICT
from .match import calls_back, number

Rule = Callable[[Node, "Sweep"], "Node | None"]

BITS, DIGITS = "bits", "digits"  # what a rule keeps of the numbers

ELEMENTWISE = "*elementwise"  # a rule for every op that works element by element
ANY = "*"  # a rule for every op
READS: dict[Rule, frozenset[str]] = {}  # ops of which one argument is wherever the rule applies
_chosen: dict[tuple, dict] = {}  # families and settings -> kind of node -> the rules that are tried on such
_DEEPEST = 200  # times that one value is rewritten in a sweep, at most: no rule is tried after that
_MOST = 20  # sweeps


class Family:
    """The rules of one pass, by op."""

    def __init__(self, name: str):
        self.name = name
        self.rules: dict[str, list[tuple[Rule, str | None, str]]] = {}

    def rule(
        self, *ops: str, keeps: str | None = None, kinds: str = "", reads: Iterable[str] = ()
    ) -> Callable[[Rule], Rule]:
        """Decorator: the rule is tried on nodes of these ops, in the order in which rules stand.

        keeps   BITS or DIGITS, where that is known to hold for any node that the rule applies to
        kinds   of nodes of these dtypes alone, by their letters in NumPy: "fiu"
        reads   ops of which one argument at least is wherever the rule applies: elsewhere it is not tried,
                which saves most of the calls

        A rule may be entered several times: it keeps more for some ops, or types, than for others.
        """

        def add(function: Rule) -> Rule:
            for op in ops:
                self.rules.setdefault(op, []).append((function, keeps, kinds))
            if reads:
                READS[function] = frozenset(reads)
            _chosen.clear()
            return function

        return add

    def of(self, op: str, kind: str, kept: tuple) -> list[Rule]:
        """The rules for an op with a result of this kind that keep one of these."""
        entries = self.rules.get(ANY, []) + self.rules.get(op, [])
        if is_elementwise(op):
            entries = entries + self.rules.get(ELEMENTWISE, [])
        return [r for r, keeps, kinds in entries if keeps in kept and (not kinds or kind in kinds)]


class Sweep:
    """One pass over a graph. Afterwards `changed` says whether any rule applied or values were shared."""

    def __init__(
        self, graph: Graph, families: tuple, share: bool = True, order: list | None = None, math: str = STRICT
    ):
        self.graph = graph
        self.fast = math == FAST
        self.tape = active()  # of the hidden numbers among the constants
        self.families = families
        self.share = share
        self.old_order = graph.nodes if order is None else order
        # The new graph's nodes: those that a rule made stand in the place of the old one
        self.order: list[Node] = []
        self.changed = False
        self._exact = frozenset() if self.fast else decided(graph, self.old_order)
        self._exactly = False  # whether the node being looked at keeps every bit
        self._rules = _chosen.setdefault((families, self.fast), {})
        self._known: dict[tuple, Node] = {}
        self._known_exactly: dict[tuple, Node] = {}  # those that were made by rules that keep every bit
        self._settled: set[int] = {n.id for n in graph.inputs}
        self._uses: dict[int, int] = {}
        self._retired: set[int] = set()
        self.depth = 0  # how many rules wait for what they made to be simplified
        self.user: Node | None = None  # the only user, in the old graph, of the node being looked at
        self.written_over = False  # whether an `update` of the old graph changes the node being looked at
        self.inverted = False  # whether that is a quotient, and the old graph has 1 / its divisor as well

    def run(self) -> Graph:
        graph, decided, strict = self.graph, self._exact, not self.fast
        uses, users, written_over, inverted = _read(graph, self.old_order)
        image = {n.id: n for n in graph.inputs}
        for n in graph.inputs:
            self._uses[n.id] = uses.get(n.id, 0)
        for n in self.old_order:
            if n.op == "input":
                continue
            key = n.id
            args = tuple([image[a.id] for a in n.args])
            m = n
            for a, b in zip(args, n.args):
                if a is not b:
                    m = with_args(n, args)
                    break
            self.user = users[key] if uses.get(key) == 1 and key in users else None
            self._exactly = strict and (not n.derived or key in decided)
            if self._exactly and n.op == "matmul" and m is not n:
                m = self._kept_apart(m, n)
            self.written_over = key in written_over
            self.inverted = n.op == "divide" and n.args[1].id in inverted
            final = self._reduce(m, n)
            image[key] = final
            self._uses[final.id] = self._uses.get(final.id, 0) + uses.get(key, 0)
        return Graph(graph.inputs, [image[o.id] for o in graph.outputs], graph.name)

    # what rules may ask
    def single(self, n: Node) -> bool:
        """Whether `n` has one user at most."""
        return self._uses.get(n.id, 0) <= 1

    def is_settled(self, n: Node) -> bool:
        """Whether `n` is part of the new graph already, and not something that a rule is just making."""
        return n.id in self._settled

    def known(self, n: Node) -> Node:
        """The node of the new graph that computes the same as `n`, or `n`. Its arguments must be settled."""
        if not self.share:
            return n
        same = self._found(self._key(n))
        return n if same is None or same.id in self._retired else same

    def retire(self, nodes: Iterable[Node]) -> None:
        """Note that these nodes are about to lose their only user: `known` no longer returns them."""
        self._retired.update(n.id for n in nodes)

    # the machine
    def _reduce(self, n: Node, origin: Node) -> Node:
        """The final node for `n`, whose arguments are final."""
        key = None
        if self.share and (n.op == "item" or not (facts(n).kind == "structural" and calls_back(n))):
            key = self._key(n)
            same = self._found(key)
            if same is not None:
                self.changed |= same is not n
                self._retired.discard(same.id)
                return same
        for rule in self._rules_for(n) if self.depth < _DEEPEST else ():
            new = rule(n, self)
            if new is not None and new is not n and not (self._exactly and lies_otherwise(new, n)):
                new = self._adopt(n, new, origin, rule)
                break
        else:
            new = n
            self._settled.add(n.id)
            self.order.append(n)
        if key is not None:
            (self._known_exactly if self._exactly else self._known)[key] = new
        return new

    def _kept_apart(self, m: Node, n: Node) -> Node:
        """The product m, which stands for n, of two arrays if n was: BLAS adds a @ a.T up otherwise."""
        a, b = map(root, m.args)
        if a is not b or root(n.args[0]) is root(n.args[1]):
            return m
        other: Node = apply("copy", b)
        for view in views_of(m.args[1]):
            other = with_args(view, (other,))
        return with_args(m, (m.args[0], self._settle(other, n)))

    def _key(self, n: Node) -> tuple:
        """Nodes with equal keys compute equal values."""
        commutes = facts(n).commutes
        exactly = commutes == EXACTLY and (self.fast or n.dtype.kind != "c")
        if exactly or commutes == NEARLY and not self._exactly:
            a, b = n.args
            return (n.op, a.id, b.id, n.dtype) if a.id < b.id else (n.op, b.id, a.id, n.dtype)
        if n.op == "const":
            if self.tape is not None and not is_hidden(n.value):
                self.tape.literals.add(text_of(n.value if n.shape else const_value(n)))
            if n.shape:
                return _array_key(n)
        return n._key or n.key()

    def _found(self, key: tuple) -> Node | None:
        """The value that is known under a key, made by rules that the node being looked at allows."""
        same = self._known_exactly.get(key)
        return self._known.get(key) if same is None and not self._exactly else same

    def _rules_for(self, n: Node) -> tuple[Rule, ...]:
        """The rules to try: found once for nodes of this op and type with arguments of these ops."""
        ops = tuple([a.op for a in n.args])
        if len(ops) > 2:
            ops = tuple(sorted({*ops}))
        key = n.op, n.dtype, self._exactly, ops
        rules = self._rules.get(key)
        if rules is None:
            rules = self._rules[key] = self._choose(n, ops)
        return rules

    def _choose(self, n: Node, ops: tuple[str, ...]) -> tuple[Rule, ...]:
        kind = "" if isinstance(n.dtype, tuple) else n.dtype.kind
        kept = (BITS, DIGITS, None) if self.fast else (BITS,) if self._exactly else (BITS, DIGITS)
        rules = dict.fromkeys(r for f in self.families for r in f.of(n.op, kind, kept))
        return tuple(r for r in rules if r not in READS or not READS[r].isdisjoint(ops))

    def _adopt(self, n: Node, new: Node, origin: Node, rule: Rule) -> Node:
        """Simplify what a rule gave for `n`; the new node takes the name and the place of the old one."""
        self.changed = True
        self.depth += 1
        if self.depth == _DEEPEST:
            warnings.warn(f"rules undo each other: {rule.__name__} on {n!r} = {n.op}", stacklevel=2)
        if (new.dtype, new.shape) != (n.dtype, n.shape):
            raise GraphError(f"rule {rule.__name__} turned {n!r} = {n.op} into {new!r} = {new.op}")
        user, self.user = self.user, None
        self.inverted = False
        fresh = new.id not in self._settled
        new = self._settle(new, origin)
        if fresh and new.name is None:
            new.name = origin.name
        self.user = user
        self.depth -= 1
        return new

    def _settle(self, n: Node, origin: Node) -> Node:
        """The final node for an expression that a rule made."""
        if n.id in self._settled:
            return n
        args = tuple([self._settle(a, origin) for a in n.args])
        if any(a is not b for a, b in zip(args, n.args)):
            n = with_args(n, args)
        if n.loc is None:
            n.loc = origin.loc
        n.derived = origin.derived
        final = self._reduce(n, n)
        if final is n:
            for a in args:
                self._uses[a.id] = self._uses.get(a.id, 0) + 1
                self._retired.discard(a.id)
        return final


def lies_otherwise(new: Node, n: Node) -> bool:
    """Whether the new node lies otherwise in memory, where sums are rounded differently."""
    if n.op in VIEWS:
        return n.op == "slice" and new.op == "assemble" and any(step < 0 for *_, step in n.attrs["index"])
    while new.op in VIEWS:
        if new.op in ("slice", "transpose") or (new.op == "broadcast" and number(new) is None):
            return True
        new = new.args[0]
    return False


def _read(graph: Graph, order) -> tuple[dict[int, int], dict[int, Node], set[int], set[int]]:
    """By id: how often a node is read, and by which; which are written over by `update`, or inverted."""
    uses = Counter([a.id for n in order for a in n.args])
    uses.update([o.id for o in graph.outputs])
    users = {a.id: n for n in order for a in n.args}
    written_over = {n.args[0].id for n in order if n.op == "update"}
    inverted = {n.args[1].id for n in order if n.op == "divide" and number(n.args[0]) == 1}
    return uses, users, written_over, inverted


_HASHED = 1 << 22  # bytes; larger constant arrays are equal only if they are the same array


def _array_key(n: Node) -> tuple:
    v = n.value
    if is_hidden(v):
        return ("const", repr(v), n.dtype, n.shape)
    if v.nbytes > _HASHED or v.dtype.hasobject:
        return ("const", id(v), n.dtype, n.shape)
    if n._key is None or n._key[0] != "array":
        n._key = ("array", n.dtype, n.shape, hashlib.blake2b(np.ascontiguousarray(v)).digest())
    return n._key


def sweep_to_end(graph: Graph, families: tuple[Family, ...], share: bool = True, math: str = STRICT) -> Graph:
    """Sweep until no rule applies, or _MOST times. The graph itself if none does."""
    order = None
    for _ in range(_MOST):
        sweep = Sweep(graph, families, share, order, math)
        new = sweep.run()
        if not sweep.changed:
            break
        graph, order = new, _alive(new, sweep.order)
    return graph if order is None else renumber(graph, order)


def _alive(graph: Graph, order: list[Node]) -> list[Node]:
    """The nodes of `order` that the graph's outputs need."""
    needed = {o.id for o in graph.outputs}
    for n in reversed(order):
        if n.id in needed:
            needed.update([a.id for a in n.args])
    return [n for n in order if n.id in needed]


def renumber(graph: Graph, order: list[Node]) -> Graph:
    """The same graph made of fresh nodes, whose order of age is `order`.

    Rules leave the nodes they make at the end of the numbering. The order in which a sweep met them is the
    better one to run a program in: values stand where the program they came from had them.
    """
    new = {n.id: n for n in graph.inputs}
    for n in order:
        if n.op == "const" and n.shape:
            new[n.id] = n  # it reads nothing, and knows the hash of its contents
        elif n.op != "input":
            new[n.id] = with_args(n, tuple([new[a.id] for a in n.args]))
    return Graph(graph.inputs, [new[o.id] for o in graph.outputs], graph.name)
