"""Which lines of a function the lines of its backwards come from: of the derived one, and of one by hand.

The compiler notes the source line of each value. A backward by hand has no such notes, so its values are
compared with those of the chain rule, applied to the forward as it is written. A value that is the same, up
to a factor that depends on the forward alone, comes from the same line; one without a match comes from the
lines of its arguments.
"""

from __future__ import annotations

import inspect
import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import CodeType
from typing import Any

import numpy as np

from ..derive.differentiate import gradients
from ..graph import Graph, Node, is_scalar_const, next_id
from ..ops import input_node
from ..ops.interpret import evaluate_graph
from ..ops.table import VIEWS
from ..programs.fixed import Fixed, FixedPair
from ..switches import DEFAULT, Options
from .changes import NONE, Lines, Pair, Stage, changes, values
from .readable import constants, readable_lines

NEAR = 1e-9  # relative: float64, computed in another order
WRITES = "update", "scatter", "scatter_add"  # into their first argument, which is not what they compute


@dataclass
class _Recorded:
    """The graphs of a function at each stage. Values recorded in functions that it calls have the line of the
    call."""

    code: CodeType | None  # None where the function is not written in Python
    stages: dict[str, Any] = field(default_factory=dict)
    # (a number below those of the nodes that are made next, the line of the function that begins)
    starts: list[tuple[int, int]] = field(default_factory=list)
    # name of the gradient of a variable of the function -> the lines that assign the variable
    gradients: dict[str, Lines] = field(default_factory=dict)
    captured: list = field(default_factory=list)  # arrays that the function reads from outside

    def run(self, entries: Fixed | FixedPair, args: Sequence, static: dict) -> _Recorded:
        def inside(frame, event, arg):
            if event == "line":
                self.starts.append((next_id(), frame.f_lineno))
            return inside

        before = sys.gettrace()
        sys.settrace(lambda frame, event, arg: inside if frame.f_code is self.code else None)
        try:
            self.captured = entries.build(args, static, self.on_stage).captured
        finally:
            sys.settrace(before)
        return self

    def on_stage(self, title: str, output: Any, seconds: float) -> None:
        # lines of a recording are set before it is transformed
        if title == "recorded" and self.starts:
            for n in output.nodes:
                if self.lines(n) and n.name is not None:
                    name = f"d{n.name}"
                    self.gradients[name] = self.gradients.get(name, NONE) | self.lines(n)
                elif n.loc is not None and not self.lines(n):
                    k = max(0, bisect_right(self.starts, (n.id, 0)) - 1)
                    n.loc = (self.code.co_filename, self.starts[k][1], self.code.co_name)
        self.stages.setdefault(title, output)

    @property
    def graph(self) -> Graph:
        return self.stages["recorded"]

    def lines(self, n: Node) -> Lines:
        """The line of the function that a value comes from, if the compiler has noted one."""
        if n.loc is None or self.code is None:
            return NONE
        inside = (n.loc[0], n.loc[2]) == (self.code.co_filename, self.code.co_name)
        return frozenset((n.loc[1],)) if inside else NONE


@dataclass(frozen=True)
class Reference:
    """A value whose lines are known."""

    values: Pair
    lines: Lines
    is_input: bool = False


@dataclass(frozen=True)
class Derivation:
    """The lines of a derived function, each with those that it comes from, and the constants it reads."""

    lines: list[tuple[str, Lines]]
    constants: dict[str, np.ndarray]


class Origins:
    """The lines of a function that the lines of its backwards come from, found on one example.

    forward       forward(*args, **static) -> (out, saved); out is differentiated, an array of floats
    args, static  the example, in double precision

    derived(name) is the derived backward line by line, by_hand(backward) does the same for a hand-written
    one, and changes() is what each stage of the compiler changed.

        >>> def tanh(x):
        ...     y = np.tanh(x)
        ...     return y, (y,)
        >>> def tanh_backward(dy, saved):
        ...     (y,) = saved
        ...     return (dy * (1.0 - y * y),)
        >>> origins = ad.Origins(tanh, (np.array([0.1, 0.2]),), {})
        >>> forward, backward = origins.derived("tanh")
        >>> [(text.strip(), sorted(lines)) for text, lines in backward.lines if lines]
        [('dx = dy * (1.0 - y**2)', [2])]
        >>> origins.by_hand(tanh_backward)
        {3: frozenset({2})}
    """

    def __init__(self, forward: Callable, args: Sequence, static: dict, options: Options = DEFAULT):
        self.forward, self.args, self.static, self.options = forward, args, static, options
        self.arrays = [a for a in args if type(a) is np.ndarray]
        self.out, self.saved = forward(*args, **static)
        self.cotangents = [
            np.asarray(c) for c in np.random.default_rng(1).standard_normal((2, *np.shape(self.out)))
        ]
        line_by_line = FixedPair(forward, replace(options, before=False))
        self.recorded = _Recorded(_code(forward)).run(line_by_line, args, static)
        self.arrays += self.recorded.captured

    def of(self, n: Node) -> Lines:
        """The lines that the compiler notes for a value; of a sum of gradients those of its parts."""
        named = self.recorded.gradients.get(n.name, NONE) if n.derived else NONE
        if n.loc is not None:
            return named | self.recorded.lines(n)
        return named.union(*map(self.of, n.args))

    @cached_property
    def references(self) -> list[Reference]:
        """The values of the forward, and of the chain rule applied to it."""
        recorded, differentiated = self.recorded.graph, self.recorded.stages["differentiated"]
        graphs = (recorded, [self.arrays] * 2), (differentiated, [[*self.arrays, c] for c in self.cotangents])
        pairs = [item for graph, inputs in graphs for item in values(graph, inputs).items()]
        return [Reference(pair, self.of(n), n.op == "input") for n, pair in pairs if not is_scalar_const(n)]

    @cached_property
    def adjoints(self) -> list[Reference]:
        """The gradient of each value of the forward."""
        graph = self.recorded.graph
        nodes = [n for n in graph.nodes if n.args and not isinstance(n.dtype, tuple) and n.dtype.kind in "fc"]
        dout = input_node(graph.outputs[0].shape, graph.outputs[0].dtype, None)
        adjoints = Graph([*graph.inputs, dout], gradients([(graph.outputs[0], dout)], nodes))
        pairs = zip(*(evaluate_graph(adjoints, [*self.arrays, c]) for c in self.cotangents))
        return [Reference(pair, self.of(n)) for n, pair in zip(nodes, pairs)]

    # ---- the two backwards

    @cached_property
    def stages(self) -> dict[str, Any]:
        """The graph after each stage of the compiler on the way to the derived backward."""
        pair = FixedPair(self.forward, self.options)
        return _Recorded(_code(self.forward)).run(pair, self.args, self.static).stages

    def derived(self, name: str) -> tuple[Derivation, Derivation]:
        """The derived forward and backward, NAME_forward and NAME_backward, as readable source."""
        forward, backward = self.stages["forward"], self.stages["backward"]
        first = readable_lines(forward, f"{name}_forward")
        second = readable_lines(backward, f"{name}_backward")
        kept = evaluate_graph(forward, self.arrays)[1:]
        known = values(backward, [[*kept, c] for c in self.cotangents])
        lines = [NONE.union(*map(self.of, nodes)) for _, nodes in second]
        if backward.inputs[-1] in backward.outputs:
            lines[-2] |= self.of(self.recorded.graph.outputs[0])  # the line before the last, which is empty
        pairs = [[known[n] for n in nodes if n in known] for _, nodes in second]
        return (
            Derivation([(t, NONE.union(*map(self.of, nodes))) for t, nodes in first], constants(forward)),
            Derivation([*zip((t for t, _ in second), self._with_missing(lines, pairs))], constants(backward)),
        )

    def changes(self) -> list[Stage]:
        """What each stage of the compiler changed, from the recording to the two halves."""
        return changes(self.stages, self.of, self.arrays, self.cotangents[0])

    def by_hand(self, backward: Callable) -> dict[int, Lines]:
        """Each line of a backward(dout, saved, **static) that computes, and the lines that it comes from."""

        def flat(dout, *saved):
            return backward(dout, saved, **self.static)

        recorded = _Recorded(_code(backward)).run(Fixed(flat), (self.cotangents[0], *self.saved), {})
        kept = [a for a in self.saved if type(a) is np.ndarray] + recorded.captured
        known = values(recorded.graph, [[c, *kept] for c in self.cotangents])
        lines: dict[Node, Lines] = {}
        of_line: dict[int, list[Node]] = {}
        for n in recorded.graph.nodes:
            like = self.like(known[n], n.op == "input") if n in known else None
            read = n.args[1:] if n.op in WRITES else n.args
            lines[n] = NONE.union(*(lines[a] for a in read)) if like is None else like
            for line in recorded.lines(n):
                of_line.setdefault(line, []).append(n)
        origins = {}
        for line, nodes in of_line.items():
            computed = [n for n in nodes if n.op not in VIEWS]
            origins[line] = NONE.union(*(lines[n] for n in computed or nodes))
        if recorded.graph.inputs[0] in recorded.graph.outputs:  # dout is returned as it is
            origins[recorded.starts[-1][1]] = self.of(self.recorded.graph.outputs[0])
        pairs = [[known[n] for n in of_line.get(line, ()) if n in known] for line in origins]
        return dict(zip(origins, self._with_missing([*origins.values()], pairs)))

    def like(self, pair: Pair, is_input: bool = False) -> Lines | None:
        """The lines of the values that match this one; None if there are none."""
        if not any(x.any() for x in pair):
            return NONE
        for alike in LIKENESS:
            hits = [r for r in self.references if alike(pair, r.values)]
            if is_input and any(r.is_input for r in hits):
                return NONE
            hits = [r for r in hits if not r.is_input]
            if hits and not _depends(pair):
                return hits[0].lines  # the others read it
            if hits:
                return NONE.union(*(r.lines for r in hits))
        return None

    def _with_missing(self, lines: Sequence[Lines], pairs: Sequence[list[Pair]]) -> list[Lines]:
        """The lines of a backward, with lines of the forward without a match added where one computes the
        gradient of their value."""
        complete = list(lines)
        for r in self.adjoints:
            if r.lines <= NONE.union(*lines):
                continue
            for alike in LIKENESS:
                like = [any(alike(p, r.values) for p in of_line if _depends(p)) for of_line in pairs]
                if any(like):
                    complete = [old | r.lines if hit else old for old, hit in zip(complete, like)]
                    break
        return complete


# ---- whether two values are alike: each at two cotangents


def same(a: Pair, b: Pair) -> bool:
    """The same numbers, maybe in other places: views and transposes count as the same."""
    return all(x.size == y.size and _near(np.sort(x, None), np.sort(y, None)) for x, y in zip(a, b))


def same_but_for_a_number(a: Pair, b: Pair) -> bool:
    """The same times one number, which may be negative."""
    size = np.linalg.norm(b[0])
    if a[0].size != b[0].size or not size:
        return False
    factor = np.linalg.norm(a[0]) / size
    return any(same(a, (sign * factor * b[0], sign * factor * b[1])) for sign in (1.0, -1.0))


def same_but_for_the_forward(a: Pair, b: Pair) -> bool:
    """The same times factors that do not depend on the cotangent; of two values that do not depend on it
    either, times one factor a row."""
    (a1, a2), (b1, b2) = a, b
    if a1.shape != b1.shape or _depends(a) != _depends(b) or not np.array_equal(a1 == 0, b1 == 0):
        return False
    if _depends(a):
        return _near(a1 * b2, a2 * b1)
    return a1.ndim > 0 and a1.shape[-1] > 1 and _near(a1 * b1[..., :1], b1 * a1[..., :1])


LIKENESS = same, same_but_for_a_number, same_but_for_the_forward


def _depends(pair: Pair) -> bool:
    return not np.array_equal(*pair)


def _near(x: np.ndarray, y: np.ndarray) -> bool:
    # Not relative to the largest: beside a mask's -1e30 all other numbers would be alike
    typical = np.quantile(np.abs(y[y != 0]).astype(float), 0.25) if np.any(y) else 0.0
    return np.allclose(x, y, rtol=NEAR, atol=NEAR * float(typical))


def _code(f: Callable) -> CodeType | None:
    return getattr(inspect.unwrap(f), "__code__", None)
