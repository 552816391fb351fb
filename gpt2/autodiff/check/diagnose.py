"""The likely cause of a wrong hand-written gradient.

likely_cause(problem, got) compares the wrong gradient with the gradients that typical mistakes would give: a
sign, a factor, a forgotten sum over broadcast axes, the gradient of another input, a missing path through the
function. The paths are tried one by one: the derivative is taken again with each intermediate value held
fixed, and the one whose absence explains the result is named, with its line.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..derive.differentiate import active_nodes, vjp_graph
from ..graph import Graph, Node, rewrite
from ..ops import apply, const, input_node
from ..ops.interpret import evaluate_graph
from .axes import about_factor
from .wording import file_name, text_of

MOST_PATHS = 300  # intermediate values to try; small cases have fewer


@dataclass
class Problem:
    """A gradient to be explained: that of output 0 of `graph` with respect to input `index`."""

    graph: Graph
    values: list  # of the inputs, in double precision
    index: int
    cotangent: np.ndarray
    gradients: list  # the right gradient of each input, None for integers
    near: str | None = None  # a file: only its steps are suspected
    _paths: list | None = None

    @property
    def expected(self) -> np.ndarray:
        return self.gradients[self.index]

    def paths(self) -> list:
        """(intermediate value, the gradient without the paths through it, what they add) for each value
        through which some paths go and some do not. Values that the user named come first."""
        if self._paths is None:
            graph = self.graph
            between = [n for n in active_nodes(graph.outputs[:1], [graph.inputs[self.index]]) if n.args]
            between = [n for n in between if n not in graph.outputs and not isinstance(n.dtype, tuple)]
            between = [n for n in between if self.suspects(n)]
            self._paths = []
            for n in sorted(between[:MOST_PATHS], key=lambda n: (n.name is None, n.id)):
                without = self.gradient(held_fixed(graph, n, self.values), self.cotangent)
                through = self.expected - without
                scale = np.max(np.abs(self.expected), initial=0.0)
                if without.any() and np.max(np.abs(through), initial=0.0) > 1e-9 * scale:
                    self._paths.append((n, without, through))
        return self._paths

    def suspects(self, n: Node) -> bool:
        """Whether a step belongs to the suspected code."""
        return self.near is None or (n.loc is not None and n.loc[0] == self.near)

    def adjoint(self, node: Node) -> np.ndarray:
        """The gradient with respect to an intermediate value."""
        fresh = input_node(node.shape, node.dtype, node.name)
        graph = rewrite(self.graph, lambda n, args: fresh if n is node else None)
        graph = Graph([*graph.inputs, fresh], graph.outputs, graph.name)
        value = evaluate_graph(Graph(self.graph.inputs, [node]), self.values)[0]
        gradient_graph = vjp_graph(graph, [len(graph.inputs) - 1], [0])
        return evaluate_graph(gradient_graph, [*self.values, value, self.cotangent])[-1]

    def gradient(self, graph: Graph, cotangent: np.ndarray) -> np.ndarray:
        return evaluate_graph(vjp_graph(graph, [self.index], [0]), [*self.values, cotangent])[-1]


def likely_cause(
    problem: Problem, got: np.ndarray, tolerance: float, kinds: Sequence[Callable] = ()
) -> str | None:
    """One line on what the mistake could be, or None if none of the known mistakes explains it.

    kinds   kinds of causes to try, in this order; by default all
    """

    def same(a, b) -> bool:
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape:
            return False
        return bool(np.max(np.abs(a - b), initial=0.0) <= tolerance * np.max(np.abs(b), initial=0.0))

    if got.shape != problem.expected.shape:
        return _shape_cause(problem, got, same)
    for causes in kinds or (*AS_A_WHOLE, *OF_A_STEP, patterns):
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
    if got.ndim >= 2 and got.shape[-1] == got.shape[-2] and same(np.swapaxes(got, -1, -2), want):
        yield "it is transposed"


def _a_factor(problem: Problem, got, same) -> Iterator[str]:
    want = problem.expected
    factor = np.vdot(want, got).real / np.vdot(want, want).real if want.any() else 0.0
    if factor and same(got, factor * want):
        yield _factor_cause(factor, problem)


def _factor_cause(factor: float, problem: Problem) -> str:
    times, cause = about_factor(factor, problem.graph) or (f"{factor:.6g}", "")
    text = f"it is {times} times what it should be"
    if abs(factor - 0.5) < 1e-6:
        text += ": a value that is used twice counts twice, or a factor 2 is missing"
        return f"{text}; or {cause}" if cause else text
    if abs(factor - 2) < 1e-6:
        return f"{text}: something is added twice"
    return f"{text}: {cause}" if cause else text


def _other_gradient(problem: Problem, got, same) -> Iterator[str]:
    for i, g in enumerate(problem.gradients):
        if g is not None and i != problem.index and same(got, g):
            yield f"it is the gradient of {input_name(problem.graph, i)}: the results are in the wrong order"


def _cotangent_ignored(problem: Problem, got, same) -> Iterator[str]:
    if same(got, problem.gradient(problem.graph, np.ones_like(problem.cotangent))):
        yield "the output gradient is ignored: this is the gradient of the sum of the output"
    if same(got, problem.cotangent):
        yield "it is the output gradient itself: the derivative of the function is left out"


def paths(problem: Problem, got: np.ndarray, same: Callable) -> Iterator[str]:
    """The derivative with one intermediate value held fixed lacks the paths through it."""
    for n, without, _ in problem.paths():
        if same(got, without):
            yield f"the path through {describe(n)} is left out"
    for n, without, through in problem.paths():
        if same(got, without - through):
            yield f"the path through {describe(n)} has the wrong sign"


def _path_counts(problem: Problem, got, same) -> Iterator[str]:
    """A path counts, but not once; or the derivative of the value by the input is taken for 1."""
    for n, without, through in problem.paths():
        times = _times(without, through, got)
        if same(got, without + times * through):
            often = "twice" if same(times, 2.0) else f"{times:.6g} times"
            yield f"the path through {describe(n)} counts {often}"
        if n.shape == problem.expected.shape and same(got, without + problem.adjoint(n)):
            inp = input_name(problem.graph, problem.index)
            yield f"the derivative of {describe(n)} with respect to {inp} is left out: it is taken for 1"


def _times(without, through, got) -> float:
    return np.vdot(through, got - without).real / np.vdot(through, through).real


def as_in_textbooks(graph: Graph) -> Graph:
    """The graph with softmax(s) @ v for (exp(s) @ v) / sum(exp(s)): the form that people differentiate."""

    def softmax_first(n: Node, args: tuple) -> Node | None:
        if n.op != "divide" or args[0].op != "matmul" or args[1].op != "sum":
            return None
        exps, v = args[0].args
        if args[1].args[0] is not exps or exps.op != "exp" or not args[1].attrs.get("keepdims"):
            return None
        return apply("matmul", apply("divide", exps, args[1]), v)

    rewritten = rewrite(graph, softmax_first)
    return rewritten if rewritten.nodes != graph.nodes else graph


def held_fixed(graph: Graph, fixed: Node, values: Sequence[np.ndarray]) -> Graph:
    """The graph with one of its values replaced by a constant."""
    value = np.array(evaluate_graph(Graph(graph.inputs, [fixed]), values)[0], fixed.dtype)
    return rewrite(graph, lambda n, args: const(value) if n is fixed else None)


def describe(n: Node) -> str:
    if n.loc is None:
        return text_of(n)
    file, line = n.loc[:2]
    source = linecache.getline(file, line).strip()
    return f"{text_of(n)} ({file_name(file)}:{line}{': ' + source if source else ''})"


def input_name(graph: Graph, i: int) -> str:
    name = graph.inputs[i].name
    return f"input {i} ({name})" if name else f"input {i}"


def repeated(problem: Problem, got: np.ndarray, same: Callable) -> Iterator[str]:
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


def patterns(problem: Problem, got: np.ndarray, same: Callable) -> Iterator[str]:
    """Where in the array the difference lies, as text."""
    want = problem.expected
    difference = got - want
    scale = np.max(np.abs(difference), initial=0.0)
    wrong = np.abs(difference) > 1e-6 * scale
    for axis in range(want.ndim):
        others = tuple(a for a in range(want.ndim) if a != axis)
        rows, empty = np.flatnonzero(wrong.any(others)), np.flatnonzero(~got.any(others))
        if len(rows) and set(rows) <= set(empty):
            numbers = ", ".join(map(str, rows))
            yield (
                f"it is zero at {'index' if len(rows) == 1 else 'indices'} {numbers} of axis {axis}, and "
                "right elsewhere: nothing was added there"
            )
    for axis, n in enumerate(want.shape):
        if n < 2:
            continue
        if np.ptp(difference, axis=axis).max(initial=0.0) <= 1e-6 * scale:
            yield (
                f"the difference is the same all along axis {axis}: the derivative of a mean or a sum over "
                "that axis is left out, or counts too much"
            )
        rows = np.flatnonzero(wrong.any(tuple(a for a in range(want.ndim) if a != axis)))
        if len(rows) <= n // 3:
            numbers = ", ".join(map(str, rows))
            yield f"only {'index' if len(rows) == 1 else 'indices'} {numbers} of axis {axis} differ"


# Causes that concern the gradient as a whole, and those that name a step of the function
AS_A_WHOLE = (_cotangent_ignored, _simple_causes, _other_gradient)
OF_A_STEP = (_a_factor, paths, repeated, _path_counts)
