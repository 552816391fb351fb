"""The likely cause of a wrong hand-written gradient.

likely_cause(problem, got) compares the wrong gradient with the gradients that typical mistakes would give: a
sign, a factor, a forgotten sum over broadcast axes, the gradient of another input, a missing path through the
function. The paths are tried one by one: the one whose absence explains the result is named, with its line.
"""

from __future__ import annotations

import linecache
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ..derive.differentiate import active_nodes, gradients
from ..graph import Graph, Node
from ..ops import input_node
from ..ops.interpret import evaluate_graph

MOST_PATHS = 300  # intermediate values to try; small cases have fewer
SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "matmul": "@"}


class Contribution(NamedTuple):
    """An intermediate value, with the gradient of the input without the paths through it, what these add, and
    the gradient of the value."""

    node: Node
    without: np.ndarray
    through: np.ndarray
    adjoint: np.ndarray


@dataclass
class Problem:
    """A gradient to be explained: that of output 0 of `graph` with respect to input `index`."""

    graph: Graph
    values: list  # of the inputs, in double precision
    index: int
    cotangent: np.ndarray
    gradients: list  # the right gradient of each input, None for integers
    part: Node | None = None  # a slice of the input: the gradient is that of this part alone
    near: str | None = None  # a file: only its steps are suspected

    @property
    def expected(self) -> np.ndarray:
        return self.gradients[self.index]

    @property
    def wrt(self) -> Node:
        return self.graph.inputs[self.index] if self.part is None else self.part

    @cached_property
    def paths(self) -> list[Contribution]:
        """The values through which some paths go and some do not. Those that the user named come first."""
        out, x = self.graph.outputs[0], self.wrt
        between = [
            n
            for n in active_nodes([out], [x])
            if n.args
            and n not in self.graph.outputs
            and not isinstance(n.dtype, tuple)
            and (self.near is None or (n.loc is not None and n.loc[0] == self.near))
        ]
        between = sorted(between[:MOST_PATHS], key=lambda n: (n.name is None, n.id))
        cotangent = input_node(out.shape, out.dtype, None)
        adjoints = gradients([(out, cotangent)], between)
        through = [gradients([pair], [x])[0] for pair in zip(between, adjoints)]
        graph = Graph([*self.graph.inputs, cotangent], [*adjoints, *through])
        arrays = evaluate_graph(graph, [*self.values, self.cotangent])
        least = 1e-9 * np.max(np.abs(self.expected), initial=0.0)
        every = [
            Contribution(n, self.expected - part, part, adjoint)
            for n, adjoint, part in zip(between, arrays, arrays[len(between) :])
        ]
        return [p for p in every if largest(p.without) > least and largest(p.through) > least]


def largest(x: np.ndarray) -> float:
    return np.max(np.abs(x), initial=0.0)


def likely_cause(
    problem: Problem, got: np.ndarray, tolerance: float, kinds: Sequence[Callable] = ()
) -> str | None:
    """One line on what the mistake could be, or None if none of the known mistakes explains it.

    kinds   kinds of causes to try, in this order; by default all
    """

    def same(a, b) -> bool:
        a, b = np.asarray(a), np.asarray(b)
        return a.shape == b.shape and bool(largest(a - b) <= tolerance * largest(b))

    if got.shape != problem.expected.shape:
        kinds = (_of_another_shape,)
    return next((cause for kind in kinds or ALL for cause in kind(problem, got, same)), None)


def _of_another_shape(problem: Problem, got, same) -> Iterator[str]:
    want = problem.expected
    if got.ndim == want.ndim and same(got.T, want):
        yield "it is transposed"
    if got.size == want.size and same(got.reshape(want.shape), want):
        yield f"only the shape is wrong: reshape it to {want.shape}"
    lead = got.ndim - want.ndim
    if lead >= 0:
        axes = tuple(i for i, n in enumerate(got.shape) if i < lead or (want.shape[i - lead] == 1 and n != 1))
        summed = got.sum(axes, keepdims=True)
        if summed.size == want.size and same(summed.reshape(want.shape), want):
            yield f"it was not summed over axes {axes}, along which the input was broadcast"


def as_a_whole(problem: Problem, got: np.ndarray, same: Callable) -> Iterator[str]:
    """Causes that concern all of the gradient."""
    want, out = problem.expected, problem.graph.outputs[0]
    cotangent = input_node(out.shape, out.dtype, None)
    graph = Graph([*problem.graph.inputs, cotangent], gradients([(out, cotangent)], [problem.wrt]))
    if same(got, evaluate_graph(graph, [*problem.values, np.ones_like(problem.cotangent)])[0]):
        yield "the output gradient is ignored: this is the gradient of the sum of the output"
    if same(got, problem.cotangent):
        yield "it is the output gradient itself: the derivative of the function is left out"
    if not np.isfinite(got).all():
        yield f"it is nan or infinite at {np.count_nonzero(~np.isfinite(got))} of {got.size} entries"
    if not got.any():
        yield "it is zero everywhere: nothing was added to it"
    if same(got, -want):
        yield "the sign is wrong"
    if got.ndim >= 2 and got.shape[-1] == got.shape[-2] and same(np.swapaxes(got, -1, -2), want):
        yield "it is transposed"
    for i, g in enumerate(problem.gradients):
        if g is not None and i != problem.index and same(got, g):
            yield f"it is the gradient of {input_name(problem.graph, i)}: the results are in the wrong order"


def _a_factor(problem: Problem, got, same) -> Iterator[str]:
    want = problem.expected
    factor = np.vdot(want, got).real / np.vdot(want, want).real if want.any() else 0.0
    if not factor or not same(got, factor * want):
        return
    times, cause = about_factor(factor, problem.graph) or (f"{factor:.6g}", "")
    if abs(factor - 0.5) < 1e-6:
        twice = "a value that is used twice counts twice, or a factor 2 is missing"
        cause = f"{twice}; or {cause}" if cause else twice
    if abs(factor - 2) < 1e-6:
        cause = "something is added twice"
    yield f"it is {times} times what it should be{cause and ': '}{cause}"


def paths(problem: Problem, got: np.ndarray, same: Callable) -> Iterator[str]:
    """The derivative with one intermediate value held fixed lacks the paths through it."""
    for p in problem.paths:
        if same(got, p.without):
            yield f"the path through {_described(p.node)} is left out"
    for p in problem.paths:
        if same(got, p.without - p.through):
            yield f"the path through {_described(p.node)} has the wrong sign"


def _path_counts(problem: Problem, got, same) -> Iterator[str]:
    """A path counts, but not once; or the derivative of the value by the input is taken for 1."""
    for node, without, through, adjoint in problem.paths:
        times = np.vdot(through, got - without).real / np.vdot(through, through).real
        if same(got, without + times * through):
            often = "twice" if same(times, 2.0) else f"{times:.6g} times"
            yield f"the path through {_described(node)} counts {often}"
        if node.shape == problem.expected.shape and same(got, without + adjoint):
            inp = input_name(problem.graph, problem.index)
            yield f"the derivative of {_described(node)} with respect to {inp} is left out: it is taken for 1"


def repeated(problem: Problem, got: np.ndarray, same: Callable) -> Iterator[str]:
    """Rows that an integer input names more than once get one contribution where they should get all."""
    want = problem.expected
    wrong = ~np.isclose(got, want, rtol=1e-6, atol=1e-9 * largest(want))
    for i, x in enumerate(map(np.asarray, problem.values)):
        if x.dtype.kind not in "iu" or not x.size:
            continue
        for axis, n in enumerate(want.shape):
            rows = _any_along(wrong, axis)
            if x.min() < 0 or x.max() >= n or not rows.any():
                continue
            twice = np.bincount(x.ravel(), minlength=n) > 1
            if not (rows & ~twice).any():
                yield (
                    f"only entries that {input_name(problem.graph, i)} names more than once are wrong: "
                    "`d[index] += g` adds once for each of them, np.add.at(d, index, g) every time"
                )


def patterns(problem: Problem, got: np.ndarray, same: Callable) -> Iterator[str]:
    """Where in the array the difference lies, as text."""
    difference = got - problem.expected
    scale = 1e-6 * largest(difference)
    wrong = np.abs(difference) > scale
    rows = [np.flatnonzero(_any_along(wrong, axis)) for axis in range(got.ndim)]
    named = [
        f"{'index' if len(r) == 1 else 'indices'} {', '.join(map(str, r))} of axis {axis}"
        for axis, r in enumerate(rows)
    ]
    for axis, r in enumerate(rows):
        if len(r) and not _any_along(got, axis)[r].any():
            yield f"it is zero at {named[axis]}, and right elsewhere: nothing was added there"
    for axis, n in enumerate(got.shape):
        if n < 2:
            continue
        if np.ptp(difference, axis=axis).max(initial=0.0) <= scale:
            yield (
                f"the difference is the same all along axis {axis}: the derivative of a mean or a sum over "
                "that axis is left out, or counts too much"
            )
        if len(rows[axis]) <= n // 3:
            yield f"only {named[axis]} differ"


def _any_along(x: np.ndarray, axis: int) -> np.ndarray:
    """For each index of an axis whether anything there is not zero."""
    return x.any(tuple(a for a in range(x.ndim) if a != axis))


OF_A_STEP = _a_factor, paths, repeated, _path_counts  # causes that name a step of the function
ALL = as_a_whole, *OF_A_STEP, patterns


# ---- Factors, values and files as text -------------------------------------------------------------------


def about_factor(factor: float, graph: Graph) -> tuple[str, str] | None:
    """A factor as a product of axis lengths or its root, and its likely cause; None if no axis explains it:
    of 1 / 10 "1/10", "a mean over axes 0 and 1 of inp (2 x 5) where ..."."""

    def near(x: float) -> bool:
        return abs(x - 1) < 1e-6

    for array, axes in _choices(graph):
        n = math.prod(array.shape[k] for k in axes)
        if n < 2:
            continue
        lengths = " x ".join(str(array.shape[k]) for k in axes)
        *most, last = map(str, axes)
        listed = f"axes {', '.join(most)} and {last}" if most else f"axis {last}"
        where = f"{listed} of {array.name or 'a ' + array.op} ({lengths})"
        if near(factor * n):
            return f"1/{n}", f"a mean over {where} where the sum is meant, or a division too many"
        if n > 2 and near(factor / n):
            return f"{n}", f"a sum over {where} where the mean is meant, or a division left out"
        if n == 3 or n > 4:  # the roots of 2 and 4 are more likely something else
            if near(factor * math.sqrt(n)):
                return f"1/sqrt({n})", f"{n} is the length of {where}, and it is scaled once too often"
            if near(factor / math.sqrt(n)):
                return f"sqrt({n})", f"{n} is the length of {where}, and a scaling is left out"
    return None


def _choices(graph: Graph) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """Arrays with some of their axes, the likeliest first; of intermediate values single axes."""
    for count in range(1, 5):
        for x in (*graph.inputs, *graph.outputs):
            for axes in combinations(range(x.ndim), count):
                yield x, axes
    for x in graph.nodes:
        if x.args and not isinstance(x.dtype, tuple):
            yield from ((x, (k,)) for k in range(x.ndim))


def _described(n: Node) -> str:
    if n.loc is None:
        return text_of(n)
    file, line = n.loc[:2]
    source = linecache.getline(file, line).strip()
    return f"{text_of(n)} ({file_name(file)}:{line}{': ' + source if source else ''})"


def input_name(graph: Graph, i: int) -> str:
    name = graph.inputs[i].name
    return f"input {i} ({name})" if name else f"input {i}"


def text_of(n: Node, depth: int = 2) -> str:
    """A value as text: its name in the source, or a short formula."""
    if n.name:
        return n.name
    if n.op == "const":
        return f"{n.value:g}" if not n.shape and np.isrealobj(n.value) else "a constant"
    if depth == 0 or not n.args:
        return "..."
    parts = [text_of(a, depth - 1) for a in n.args]
    if n.op in ("broadcast", "reshape"):
        return parts[0]
    if n.op in SIGNS and len(parts) == 2:
        return f"({parts[0]} {SIGNS[n.op]} {parts[1]})"
    return f"{n.op}({', '.join(parts)})"


def file_name(path: str) -> str:
    """A source file without its folder. A notebook's cell runs from a file of ipykernel named by a number."""
    folder, name = os.path.split(path)
    return "notebook cell" if os.path.basename(folder).startswith("ipykernel_") else name
