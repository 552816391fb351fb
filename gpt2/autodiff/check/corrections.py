"""Finds the line of a hand-written backward that is wrong: the one where a correction makes a gradient right.

Corrections are tried on one value after the other: an axis, a transpose, a sign, a factor, a term, another
operand. What they put in are values of the backward itself, of the forward, and of the chain rule. Two random
sums of the gradient say at once which corrections can work where all that follows is linear; the backward is
run again with those, and the gradient has to be right at every entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any

import numpy as np

from ..derive.differentiate import active_nodes, gradients, jvp_graph, vjp_graph
from ..graph import Graph, Node, is_scalar_const
from ..ops import evaluate, input_node
from ..ops.interpret import evaluate_graph
from ..ops.table import VIEWS
from .by_hand import ByHand
from .diagnose import Problem, about_factor, largest, text_of

MOST_RUNS = 1500  # of the backward with a correction
PRECISION = 1e-9  # relative: the backward is run in double precision
SUMS = "add", "subtract"
MOVES = {*VIEWS, "update", "scatter", "scatter_add"}  # ops that only move what others compute


@dataclass(frozen=True)
class Correction:
    """The line where a correction makes a gradient right, and what is wrong there.

    text      None if only the line is known
    simple    whether it concerns the backward alone: a sign, a number, an axis
    """

    line: int
    text: str | None = None
    simple: bool = False


@dataclass(frozen=True)
class Value:
    """A value that a correction may put in. plain: for an output gradient of ones."""

    text: str | None
    array: np.ndarray
    linear: bool = False
    plain: bool = False


def key(array: np.ndarray) -> tuple:
    """What tells an array from others: its shape and a random sum."""
    weights = np.random.default_rng(array.size).standard_normal(array.shape)
    return array.shape, f"{np.vdot(weights, array):.8e}"


def correction(by_hand: ByHand, problem: Problem) -> tuple[Correction | None, Correction] | None:
    """(the correction, if there is one; the line that computes the wrong gradient); None if the gradient is
    right in double precision."""
    if by_hand.outputs[problem.index] is None:
        return None
    search = Search(by_hand, problem)
    if problem.index in search.good:
        return None
    found = None
    if search.out.shape == problem.expected.shape:
        with suppress(Exception), np.errstate(all="ignore"):  # a diagnosis must not hide the mistake
            found = search.find()
    return found, Correction(search.last_line())


class Search:
    """The search for a correction that makes one gradient right, and leaves right what is right."""

    def __init__(self, by_hand: ByHand, problem: Problem):
        self.b, self.problem, self.runs = by_hand, problem, 0
        self.out: Any = by_hand.outputs[problem.index]
        self.probes = np.random.default_rng(0).standard_normal((2, *self.out.shape))
        self.good = [k for k in range(len(by_hand.outputs)) if self.is_right(k, by_hand.values)]
        steps = active_nodes([self.out], by_hand.graph.inputs)
        steps = [n for n in steps if n.args and not isinstance(n.dtype, tuple) and n.dtype.kind == "f"]
        self.steps = sorted((n for n in steps if by_hand.line(n)), key=lambda n: n.id)
        self.computed = [n for n in self.steps if n.op not in MOVES]

    def is_right(self, k: int, values: Mapping) -> bool:
        n, want = self.b.outputs[k], self.problem.gradients[k]
        if n is None or want is None:
            return n is want
        return _same(values.get(n, self.b.values[n]), want)

    def works(self, new: Mapping, operands: Mapping | None = None) -> bool:
        """Whether the gradient is right with these values (see ByHand.run)."""
        self.runs += 1
        if self.runs > MOST_RUNS:
            return False
        with suppress(ValueError, IndexError):  # shapes that do not fit
            values = self.b.run(new, operands or {})
            return all(self.is_right(k, values) for k in (self.problem.index, *self.good))
        return False

    @cached_property
    def targets(self) -> list[float]:
        """What a correction has to add to two random sums of the gradient."""
        wrong = self.problem.expected - self.b.values[self.out]
        return [float(np.vdot(p, wrong)) for p in self.probes]

    @cached_property
    def slopes(self) -> dict[Node, tuple[np.ndarray, np.ndarray]]:
        """Each value -> the derivatives of the two sums with respect to it."""
        probe = input_node(self.out.shape, self.out.dtype, None)
        slopes = gradients([(self.out, probe)], self.steps)
        graph = Graph([*self.b.graph.inputs, probe], slopes)
        pairs = zip(*(evaluate_graph(graph, [*self.b.operands, p]) for p in self.probes))
        return dict(zip(self.steps, pairs))

    def may_work(self, n: Node, array: np.ndarray) -> bool:
        """Whether the gradient can be right with another value of a node, if what follows is linear. Of the
        forward's values also those that are known may be."""
        if array.shape != n.shape or not np.isfinite(array).all():
            return False
        if n in self.b.forward and key(array) in self.known:
            return True
        change = array - self.b.values[n]
        sums = [float(np.vdot(slope, change)) for slope in self.slopes[n]]
        return all(abs(s - target) <= 1e-7 * abs(target) for s, target in zip(sums, self.targets))

    def find(self) -> Correction | None:
        """The simplest correction."""
        out, index = self.b.values[self.out], self.problem.index
        if any(k != index and g is not None and _same(out, g) for k, g in enumerate(self.problem.gradients)):
            return Correction(self.b.trace.line)  # of the return: the results are in the wrong order
        unnamed = None
        simple = self.structure, self.numbers, self.operators
        for kind in (*simple, self.factors, self.terms, self.operand_edits, self.variables, self.replaced):
            edits = list(kind())
            if edits:
                _, line, text = min(edits, key=lambda edit: edit[0])
                if text is not None:
                    return Correction(line, text, kind in simple)
                unnamed = Correction(line)  # the last kind places it best
        return unnamed

    def last_line(self) -> int:
        """The line where the gradient gets its value; of one that has a name already, its new name."""
        first = self.b.names.get(self.out)
        named = [line for line, name, x in self.b.trace.bound if x is self.out and name != first]
        return self.b.line(self.out) or (named or [self.b.trace.line])[-1]

    # ---- Kinds of corrections. Each yields (score, line, text): that with the lowest score is taken

    def _tried(self, n: Node, array: np.ndarray, text: str | None, first: float = 0.0) -> Iterator[tuple]:
        """The correction of a node's value, if it works: best where a wrong value becomes a known one, on an
        early line; of values that are right as they are, on a late one."""
        if self.may_work(n, array) and self.works({n: array}):
            yield self._edit(n, array, text, first)

    def _edit(self, n: Node, array: np.ndarray, text: str | None, first: float) -> tuple:
        line = self.b.line(n) or 0
        was, becomes = key(self.b.values[n]) in self.known, key(array) in self.known
        return (first, was, not becomes, -line if was else line, -n.id), line, text

    def structure(self) -> Iterator[tuple]:
        """Another axis, a transpose, another order, the sum in a softmax."""
        for n in self.steps:
            for kind in KINDS:
                for text, array in kind(self.b, n):
                    linear = n in self.b.linear and array.shape == n.shape
                    if (not linear or self.may_work(n, array)) and self.works({n: array}):
                        yield self._edit(n, array, text, 0.0)
        for n in self.computed:
            if n.ndim > 1 and n.shape[-1] == n.shape[-2]:
                text = f"{self.b.text(n)} is transposed"
                yield from self._tried(n, np.swapaxes(self.b.values[n], -1, -2), text, 1.0)

    def numbers(self) -> Iterator[tuple]:
        """A number times a value, or a use of it: a sign, a factor, a term that should not be there."""
        for n in self.computed:
            x = self.b.values[n]
            f = self._factor(n, x)
            if f is not None and abs(f) > 1e-6:
                explicit = n.op == "negative" if _near(f, -1) else n.op == "sum"
                yield from self._tried(n, f * x, self._number_text(n, f), 1.0 - explicit)
            f = self._factor(n, np.ones_like(x))
            if f is not None:
                text = f"in {self.b.whole(n)}, the term {f - 1.0:+.6g} is missing"
                yield from self._tried(n, x + (f - 1.0), text, 2.0)
            for k, a in enumerate(n.args):
                if n.op in SUMS or is_scalar_const(a) and n.op in ("multiply", "divide"):
                    part = x
                    if n.op in SUMS:
                        args = self.b.of(*n.args)
                        args[1 - k] = np.zeros_like(args[1 - k])
                        part = evaluate(n.op, args, n.attrs)
                    f = self._factor(n, part)
                    text = None if f is None else self._use_text(n, k, a, f)
                    if f is not None and text:
                        yield from self._tried(n, x + (f - 1.0) * part, text)

    def _factor(self, n: Node, part: np.ndarray) -> float | None:
        """f such that the gradient is right with f * part in place of a part of a value."""
        factors = []
        for slope, target in zip(self.slopes[n], self.targets):
            d, size = float(np.vdot(slope, part)), float(np.vdot(np.abs(slope), np.abs(part)))
            if abs(d) <= 1e-12 * size:
                return None
            factors.append(1.0 + target / d)
        one, other = factors
        return one if abs(one - other) <= 1e-7 * max(abs(one), 1e-2) else None

    def _number_text(self, n: Node, f: float) -> str:
        what, graph = self.b.text(n), self.problem.graph
        if _near(f, -1):
            return f"{what} has the wrong sign"
        numbers = {float(m.value) for m in graph.nodes if is_scalar_const(m) and m.dtype.kind in "fi"}
        cause = None if any(_near(f, c) for c in numbers) else about_factor(1.0 / f, graph)
        if cause:
            return f"{what} is {cause[0]} times what it should be: {cause[1]}"
        if _near(1.0 / f, round(1.0 / f)) and not any(_near(f, c) for c in numbers):
            return f"{what} has the factor {1.0 / f:.6g} too much"
        powers = [n.args for n in graph.nodes if n.op == "power" and is_scalar_const(n.args[1])]
        x = next((text_of(a, 0) for a, exponent in powers if _near(float(exponent.value), f)), "...")
        power = f": the derivative of {x}**{f:g} is {f:g} * {x}**{f - 1:g}" if x != "..." else ""
        return f"{what} lacks the factor {f:.6g}{power}"

    def _use_text(self, n: Node, k: int, a: Node, f: float) -> str | None:
        what, whole = self.b.text(a, inside=n), self.b.whole(n)
        if n.op in SUMS:
            wrong = "has the wrong sign" if _near(f, -1) else "should not be there" if abs(f) < 1e-6 else None
            return wrong and f"in {whole}, the term {what} {wrong}"
        c = float(a.value)
        if n.op == "multiply":
            return f"in {whole}, the factor {what} is too much" if _near(f * c, 1) else None
        if not k or not _near(f, c):
            return None
        if n.args[0].op == "sum" and self.b.source(n.args[0]) == self.b.source(n):
            return f"{whole} is a mean where the sum is meant"
        return f"in {whole}, the division by {what} is too much"

    def operators(self) -> Iterator[tuple]:
        """A factor that is too much, or a product where a quotient is meant."""
        for n in self.steps:
            if n.op not in ("multiply", "divide"):
                continue
            x, y = (np.broadcast_to(v, n.shape) for v in self.b.of(*n.args))
            first, second = (self.b.text(a, inside=n) for a in n.args)
            whole = self.b.whole(n)
            if n.op == "multiply":
                yield from self._tried(n, x, f"in {whole}, the factor {second} is too much")
                yield from self._tried(n, y, f"in {whole}, the factor {first} is too much")
                yield from self._tried(n, x / y, f"{whole} multiplies by {second} where it should divide")
                yield from self._tried(n, y / x, f"{whole} multiplies by {first} where it should divide")
            else:
                yield from self._tried(n, x, f"in {whole}, the division by {second} is too much")
                yield from self._tried(n, x * y, f"{whole} divides by {second} where it should multiply")

    @cached_property
    def known(self) -> dict[tuple, Value]:
        """By `key`: the values of the forward and of the chain rule; and of the chain rule backwards and
        forwards for an output gradient or a tangent of ones: the plain derivatives that people write."""
        p, known = self.problem, {}
        wrt = [k for k, g in enumerate(p.gradients) if g is not None]
        ones, tangent = np.ones_like(p.cotangent), np.ones_like(p.expected)
        forward, vjp = set(p.graph.nodes), vjp_graph(p.graph, wrt, [0])
        for derived, given in ((vjp, p.cotangent), (vjp, ones), (jvp_graph(p.graph, [p.index]), tangent)):
            arrays = evaluate_graph(Graph(derived.inputs, derived.nodes), [*p.values, given])
            for n, x in zip(derived.nodes, arrays):
                if not isinstance(n.dtype, tuple) and n.dtype.kind == "f":
                    own = n in forward
                    plain = not own and given is not p.cotangent
                    known.setdefault(key(x), Value(text_of(n) if own else None, x, not own, plain))
        return known

    @cached_property
    def candidates(self) -> list[Value]:
        """What may be put in: the backward's own values, variables first, then known ones."""
        values = {}
        for n in sorted(self.b.graph.nodes, key=lambda n: n not in self.b.names):
            if n.shape and not isinstance(n.dtype, tuple) and n.dtype.kind == "f":
                x = self.b.values[n]
                values.setdefault(key(x), Value(self.b.text(n), x, n in self.b.linear))
        for k, value in self.known.items():
            if value.array.shape and not value.plain:
                values.setdefault(k, value)
        return [*values.values()]

    def factors(self) -> Iterator[tuple]:
        """A factor that is missing, or there twice."""
        for n in self.computed:
            v, whole = self.b.values[n], self.b.whole(n)
            for c in self.candidates:
                if c.text and not (c.linear and n in self.b.linear) and _fits(c.array, n):
                    yield from self._tried(n, v * c.array, f"{whole} lacks the factor {c.text}")
                    yield from self._tried(n, v / c.array, f"{whole} lacks a division by {c.text}")

    def terms(self) -> Iterator[tuple]:
        """A term that is missing."""
        for n in self.computed:
            v = self.b.values[n]
            for c in self.candidates:
                if c.linear == (n in self.b.linear) and _fits(c.array, n):
                    for sign, array in (("+", v + c.array), ("-", v - c.array)):
                        text = c.text and f"in {self.b.whole(n)}, the term {sign} {c.text} is missing"
                        yield from self._tried(n, array, text, float(text is None))

    def operand_edits(self) -> Iterator[tuple]:
        """An operand that should be another value, or lacks a factor or a term."""
        for n in self.computed:
            for k, a in enumerate(n.args):
                if not a.shape or isinstance(a.dtype, tuple) or a.dtype.kind != "f":
                    continue
                args, what = self.b.of(*n.args), self.b.text(a, inside=n)
                x, whole = args[k], self.b.whole(n)
                for order, c in enumerate(self.candidates):
                    if c.text is None or not _fits(c.array, a):
                        continue
                    tries = [(c.array, f"{c.text} is meant where {what} stands")]
                    if len(self.b.users[a]) > 1:
                        tries += [
                            (x * c.array, f"{what} lacks the factor {c.text}"),
                            (x - c.array, f"{what} lacks the term - {c.text}"),
                            (x + c.array, f"{what} lacks the term + {c.text}"),
                        ]
                    for operand, text in tries:
                        if operand.shape == a.shape:
                            array = evaluate(n.op, [*args[:k], operand, *args[k + 1 :]], n.attrs)
                            yield from self._tried(n, array, f"in {whole}, {text}", float(order))

    def variables(self) -> Iterator[tuple]:
        """A variable bound to a plain number, or to a value that has another name already."""
        numbers = {float(m.value) for m in self.problem.graph.nodes if is_scalar_const(m)}
        for line, name, x in self.b.trace.bound:
            is_node = type(x) is Node
            if is_node and (self.b.line(x) == line or self.b.names[x] == name):
                continue
            uses = [
                (n, k)
                for n in self.b.graph.nodes
                for k, a in enumerate(n.args)
                if (a is x if is_node else is_scalar_const(a) and _near(float(a.value), float(x)))
                and re.search(rf"\b{name}\b", self.b.source(n) or "")
            ]
            tries = [(f"{name} is {x:g}, and should be {c:g}", np.asarray(c)) for c in numbers if not is_node]
            for c in self.candidates if is_node else ():
                if c.text and _fits(c.array, x):
                    tries.append((f"{name} should be {c.text}", np.broadcast_to(c.array, x.shape)))
                    tries.append((f"{name} lacks the factor {c.text}", self.b.values[x] * c.array))
            for text, array in tries if uses else ():
                if self.works({}, dict.fromkeys(uses, array)):
                    yield (0.0,), line, text

    def replaced(self) -> Iterator[tuple]:
        """A value in whose place one of the chain rule is right: only its line is known."""
        for n in self.steps:
            linear = n in self.b.linear
            for value in self.known.values():
                if value.array.shape == n.shape and not (value.plain and linear):
                    if (not linear or self.may_work(n, value.array)) and self.works({n: value.array}):
                        same_name = value.text is not None and value.text == self.b.names.get(n)
                        yield self._edit(n, value.array, None, float(not same_name) + (n.op in MOVES))
                        break


def _fits(array: np.ndarray, n: Node) -> bool:
    """Whether an array can be broadcast to a node's shape."""
    pairs = zip(array.shape[::-1], n.shape[::-1])
    return array.ndim <= n.ndim and all(size in (1, full) for size, full in pairs)


def _same(x: np.ndarray, y: np.ndarray) -> bool:
    return x.shape == y.shape and bool(largest(x - y) <= PRECISION * largest(y))


def _near(x: float, y: float) -> bool:
    return abs(x - y) <= 1e-6 * abs(y)


# ---- Corrections in structure. Each function takes a recorded backward and one of its values, and yields
# ---- what is wrong, and the array that the value would be without it


def products(b: ByHand, n: Node) -> Iterator[tuple[str, np.ndarray]]:
    """Products of matrices: one of them transposed, or the other order."""
    if n.op == "transpose" and n.args[0].shape == n.shape:
        yield _exchanged(b, n), b.values[n.args[0]]
    if n.op == "matmul" and len(n.args) == 2:
        (x, y), (first, second) = n.args, b.of(*n.args)
        text = f"in {b.text(x)} @ {b.text(y)}, "
        is_square = [v.ndim > 1 and v.shape[-1] == v.shape[-2] for v in (first, second)]
        if is_square[0]:
            yield text + _exchanged(b, x), np.swapaxes(first, -1, -2) @ second
        if is_square[1]:
            yield text + _exchanged(b, y), first @ np.swapaxes(second, -1, -2)
        if is_square[0] and first.shape == second.shape:
            yield text + "the operands are in the wrong order", second @ first


def _exchanged(b: ByHand, x: Node) -> str:
    while x.op == "transpose":
        x = x.args[0]
    return f"{b.text(x)} and its transpose are taken for each other"


def other_axes(b: ByHand, n: Node) -> Iterator[tuple[str, np.ndarray]]:
    """A sum, a mean or an extreme over another axis, where the shapes still broadcast."""
    axes = n.attrs.get("axes") or ()
    if n.op not in ("sum", "max", "min") or not n.attrs.get("keepdims"):
        return
    x = b.values[n.args[0]]
    count = np.prod([x.shape[k] for k in axes])
    for k in range(x.ndim):
        if axes != (k,):
            value = evaluate(n.op, [x], {**n.attrs, "axes": (k,)})
            wrong = f"{'axis' if len(axes) == 1 else 'axes'} {', '.join(map(str, axes))}"
            text = f"the {n.op} of {b.text(n.args[0])} is over {wrong} where axis {k} is meant"
            yield text, value
            if n.op == "sum":
                yield text.replace("sum", "mean", 1), value * (count / x.shape[k])


def first_of_axis(b: ByHand, n: Node) -> Iterator[tuple[str, np.ndarray]]:
    """The first entry along an axis where the sum is meant."""
    if n.op == "slice":
        x = n.args[0]
        for k, (start, stop, _) in enumerate(n.attrs["index"]):
            if (start, stop) == (0, 1) and x.shape[k] > 1 and x.size == n.size * x.shape[k]:
                text = f"the first of axis {k} of {b.text(x)} is taken where the sum is meant"
                yield text, b.values[x].sum(k, keepdims=True)


def softmaxes(b: ByHand, n: Node) -> Iterator[tuple[str, np.ndarray]]:
    """The gradient of a softmax without its sum."""
    if n.op == "multiply":
        for p in b.of(*n.args):
            for axis in range(p.ndim if p.shape == n.shape else 0):
                if np.allclose(p.sum(axis), 1.0):
                    text = (
                        "the softmax's sum term is missing: with p = softmax(s), "
                        "ds = p * (dp - sum(p * dp)), and only p * dp is there"
                    )
                    yield text, b.values[n] - p * b.values[n].sum(axis, keepdims=True)


def orders(b: ByHand, n: Node) -> Iterator[tuple[str, np.ndarray]]:
    """Concatenated parts in another order, or one left out; axes that are exchanged, or not."""
    if n.op == "assemble" and 1 < len(n.args) < 5:
        parts = b.of(*n.args)
        for order in permutations(range(len(parts))):
            fits = all(parts[i].shape == p.shape for i, p in zip(order, parts))
            if fits and order != tuple(range(len(parts))):
                value = evaluate(n.op, [parts[i] for i in order], n.attrs)
                yield f"the parts of {b.whole(n)} are in the wrong order", value
        for k in range(len(parts)):
            value = evaluate(n.op, [p * (i != k) for i, p in enumerate(parts)], n.attrs)
            yield f"a part of {b.whole(n)} should be zero", value
    if n.op == "reshape":
        x, name = b.values[n.args[0]], b.text(n.args[0])
        for k in range(n.ndim - 1):
            shape = [*n.shape[:k], n.shape[k + 1], n.shape[k], *n.shape[k + 2 :]]
            text = f"{name} is reshaped where it has to be reshaped and its axes exchanged"
            yield text, x.reshape(shape).swapaxes(k, k + 1)
        for k in range(x.ndim - 1):
            yield (
                f"{name} is reshaped without its axes being exchanged first",
                x.swapaxes(k, k + 1).reshape(n.shape),
            )
    if n.args and {n.op, n.args[0].op} == {"reshape", "transpose"}:
        start = n.args[0].args[0]
        yield f"the axes of {b.text(start)} should not be exchanged", b.values[start].reshape(n.shape)


KINDS = products, other_axes, first_of_axis, softmaxes, orders
