"""The likely cause of a wrong gradient that someone wrote by hand.

likely_cause(problem, got) compares the wrong gradient with the gradients that typical mistakes would give: a
sign, a factor, a sum over broadcast axes that was forgotten, the gradient of another input, a path through
the function that was left out. The paths are tried one by one: the derivative is taken again with each
intermediate value held fixed, and the one whose absence explains the result is named, with its line.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..derive.differentiate import active_nodes, vjp_graph
from ..graph import Graph, Node, rewrite
from ..ops import const
from ..ops.interpret import evaluate_graph

MOST_PATHS = 300  # intermediate values to try; small cases have fewer


@dataclass
class Problem:
    """A gradient to be explained: that of output 0 of `graph` with respect to input `index`."""

    graph: Graph
    values: list  # of the inputs, in double precision
    index: int
    cotangent: np.ndarray
    gradients: list  # the right gradient of each input, None for integers

    @property
    def expected(self) -> np.ndarray:
        return self.gradients[self.index]

    def gradient(self, graph: Graph, cotangent: np.ndarray) -> np.ndarray:
        return evaluate_graph(vjp_graph(graph, [self.index], [0]), [*self.values, cotangent])[-1]


def likely_cause(problem: Problem, got: np.ndarray, tolerance: float) -> str | None:
    """One line on what the mistake could be, or None if it is like none of those known here."""

    def same(a, b) -> bool:
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape:
            return False
        return bool(np.max(np.abs(a - b), initial=0.0) <= tolerance * np.max(np.abs(b), initial=0.0))

    if got.shape != problem.expected.shape:
        return _shape_cause(problem, got, same)
    for causes in (_simple_causes, _other_gradient, _cotangent_ignored, _paths, _repeated, _patterns):
        for cause in causes(problem, got, same):
            return cause
    return None


def _shape_cause(problem: Problem, got, same) -> str | None:
    want = problem.expected
    if got.ndim == want.ndim and same(got.T, want):
        return "it is transposed"
    if got.size == want.size and same(got.reshape(want.shape), want):
        return f"only the shape is wrong: reshape it to {want.shape}"
    lead = got.ndim - want.ndim
    if lead >= 0:
        axes = tuple(i for i, n in enumerate(got.shape) if i < lead or (want.shape[i - lead] == 1 and n != 1))
        summed = got.sum(axes, keepdims=True)
        if summed.size == want.size and same(summed.reshape(want.shape), want):
            return f"it was not summed over axes {axes}, along which the input was broadcast"
    return None


def _simple_causes(problem: Problem, got, same) -> Iterator[str]:
    want = problem.expected
    if not np.isfinite(got).all():
        yield f"it is nan or infinite at {np.count_nonzero(~np.isfinite(got))} of {got.size} entries"
    if not got.any():
        yield "it is zero everywhere: nothing was added to it"
    if same(got, -want):
        yield "the sign is wrong"
    factor = np.vdot(want, got).real / np.vdot(want, want).real if want.any() else 0.0
    if factor and same(got, factor * want):
        yield _factor_cause(factor, problem)
    if got.ndim >= 2 and got.shape[-1] == got.shape[-2] and same(np.swapaxes(got, -1, -2), want):
        yield "it is transposed"


def _factor_cause(factor: float, problem: Problem) -> str:
    text = f"it is {factor:.6g} times what it should be"
    hint = _axis_hint(factor, problem)
    if hint:
        return text + hint
    if abs(factor - 0.5) < 1e-6:
        return f"{text}: a value that is used twice counts twice, or a factor 2 is missing"
    if abs(factor - 2) < 1e-6:
        return f"{text}: something is added twice"
    return text


def _axis_hint(factor: float, problem: Problem) -> str:
    """The likely origin of a factor that is the length of an axis, or one over that; else nothing."""
    types = (*problem.graph.inputs, *problem.graph.outputs)
    for n in sorted({n for x in types for n in (*x.shape, x.size) if n > 1}):
        axis = f", and {n} is the length of an axis"
        if abs(factor * n - 1) < 1e-6:
            return f"{axis}: a mean in place of a sum, or a division too many"
        if abs(factor / n - 1) < 1e-6 and n > 2:
            return f"{axis}: a sum in place of a mean, or a division left out"
    return ""


def _other_gradient(problem: Problem, got, same) -> Iterator[str]:
    for i, g in enumerate(problem.gradients):
        if g is not None and i != problem.index and same(got, g):
            yield f"it is the gradient of {input_name(problem.graph, i)}: the results are in the wrong order"


def _cotangent_ignored(problem: Problem, got, same) -> Iterator[str]:
    if same(got, problem.gradient(problem.graph, np.ones_like(problem.cotangent))):
        yield "the output gradient is ignored: this is the gradient of the sum of the output"


def _paths(problem: Problem, got, same) -> Iterator[str]:
    """The derivative with one intermediate value held fixed lacks the paths through it."""
    want, graph = problem.expected, problem.graph
    between = [n for n in active_nodes(graph.outputs[:1], [graph.inputs[problem.index]]) if n.args]
    between = [n for n in between if n not in graph.outputs and not isinstance(n.dtype, tuple)]
    # of several values on one path the one that the user named says most
    for n in sorted(between[:MOST_PATHS], key=lambda n: (n.name is None, n.id)):
        without = problem.gradient(held_fixed(graph, n, problem.values), problem.cotangent)
        through = want - without
        if same(without, want) or not without.any():
            continue  # nothing goes through it, or everything does
        if same(got, without):
            yield f"the path through {describe(n)} is left out"
        if same(got, without - through):
            yield f"the path through {describe(n)} has the wrong sign"
        if same(got, without + 2 * through):
            yield f"the path through {describe(n)} counts twice"
        times = np.vdot(through, got - without).real / np.vdot(through, through).real
        if same(got, without + times * through):
            yield f"the path through {describe(n)} counts {times:.6g} times{_axis_hint(times, problem)}"


def held_fixed(graph: Graph, fixed: Node, values: Sequence[np.ndarray]) -> Graph:
    """The graph with one of its values replaced by the number that it has now."""
    value = np.array(evaluate_graph(Graph(graph.inputs, [fixed]), values)[0], fixed.dtype)
    return rewrite(graph, lambda n, args: const(value) if n is fixed else None)


def describe(n: Node) -> str:
    if n.loc is None:
        return n.name or n.op
    file, line = n.loc[:2]
    source = linecache.getline(file, line).strip()
    return f"{n.name or n.op} ({os.path.basename(file)}:{line}{': ' + source if source else ''})"


def input_name(graph: Graph, i: int) -> str:
    name = graph.inputs[i].name
    return f"input {i} ({name})" if name else f"input {i}"


def _repeated(problem: Problem, got, same) -> Iterator[str]:
    """Rows that an integer input names more than once get one contribution where they should get all."""
    want = problem.expected
    wrong = ~np.isclose(got, want, rtol=1e-6, atol=1e-9 * np.max(np.abs(want), initial=0.0))
    for i, x in enumerate(problem.values):
        x = np.asarray(x)
        if x.dtype.kind not in "iu" or not x.size or not want.ndim:
            continue
        for axis, n in enumerate(want.shape):
            if x.min() < 0 or x.max() >= n:
                continue
            twice = np.bincount(x.ravel(), minlength=n) > 1
            rows = wrong.any(tuple(a for a in range(want.ndim) if a != axis))
            if rows.any() and not (rows & ~twice).any():
                yield (
                    f"only entries that {input_name(problem.graph, i)} names more than once are wrong: "
                    "`d[index] += g` adds once for each of them, np.add.at(d, index, g) every time"
                )


def _patterns(problem: Problem, got, same) -> Iterator[str]:
    """The place in the array where the difference lies, as text."""
    want = problem.expected
    difference = got - want
    scale = np.max(np.abs(difference), initial=0.0)
    for axis, n in enumerate(want.shape):
        if n < 2:
            continue
        if np.ptp(difference, axis=axis).max(initial=0.0) <= 1e-6 * scale:
            yield (
                f"the difference is the same all along axis {axis}: the derivative of a mean or a sum over "
                "that axis is left out, or counts too much"
            )
        others = tuple(a for a in range(want.ndim) if a != axis)
        wrong = np.flatnonzero((np.abs(difference) > 1e-6 * scale).any(others))
        if len(wrong) <= n // 3:
            places = ", ".join(map(str, wrong))
            yield f"only {'index' if len(wrong) == 1 else 'indices'} {places} of axis {axis} differ"
