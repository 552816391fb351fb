"""Checks the derivatives of a graph, by three independent tests:

forward    is the tangent that of the function?      against central differences in a random direction
reverse    is the gradient the transpose of it?      <cotangent, tangent> = <gradient, direction>
order 2    the same two tests of the derivative programs themselves
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..derive.differentiate import jvp_graph, vjp_graph
from ..graph import Graph
from ..ops.interpret import check, evaluate_graph
from .diagnose import input_name

# f'(x) = sum of weight * (f(x + multiple * step) - f(x - multiple * step)) / step, exact for polynomials of
# degree 6, and exactly zero where f is constant nearby
STENCIL = ((1, 3 / 4), (2, -3 / 20), (3, 1 / 60))
# With the first, truncation is about 1e-18 times the seventh derivative, and rounding 1e-13 times the
# function. The second avoids kinks that lie near but not at the point. Its rounding is a hundred times as
# much; where that is more than this share of a derivative, the comparison says nothing.
STEPS = (1e-3, 1e-5)
SHARES = (np.inf, 1e-3)
# Numbers that cancel leave their rounding errors: the slope of sum((x - 1)**2) at 1 is zero, and its
# differences are 1e-20. Rounding is measured where a comparison fails: it is allowed TIMES what was seen in
# TRIALS trials, and at most the share MOST of the numbers themselves, so that a random function is not
# excused.
TRIALS, TIMES, MOST = 8, 20.0, 1e-12


class GradientMismatch(AssertionError):
    """A derivative differs from that of the function."""


def check_graph(
    graph: Graph,
    values: Sequence[np.ndarray],
    order: int = 2,
    modes: Sequence[str] = ("fwd", "rev"),
    *,
    wrt: Sequence[int] | None = None,
    rtol: float = 1e-7,
    seed: int = 0,
    f: Callable | None = None,
) -> None:
    """Raise GradientMismatch unless the derivatives of `graph` at `values` are right, up to `order`.

    values   one array per input, in double precision where it is differentiated
    modes    "fwd", "rev": which programs to derive, and to derive again for the second order
    wrt      indices of the inputs to differentiate; None: all that are real or complex
    f        stands in for the graph in differences: (*values) -> outputs
    """
    if not modes or set(modes) - {"fwd", "rev"}:
        raise ValueError(f'modes must be some of "fwd" and "rev", got {modes!r}')
    at = Point(graph, values, wrt, f or program_of(graph), seed)
    derived: list[tuple[Graph, list]] = []
    tangent = gradient = None
    if "fwd" in modes:
        forward, tangent = at.forward()
        derived.append((forward, at.direction))
    if "rev" in modes:
        reverse, gradient = at.reverse()
        derived.append((reverse, at.cotangent))
    at.compare_with_differences(tangent, gradient, rtol)
    if tangent is not None and gradient is not None:  # two modes of one program agree to rounding
        at.pair(tangent, gradient, 1e-11, lambda: at.rounding_of_modes(forward, reverse))
    for program, extra in derived if order > 1 else ():
        wrt = [*at.wrt, *range(len(graph.inputs), len(program.inputs))]
        check_graph(program, [*values, *extra], order - 1, modes, wrt=wrt, rtol=rtol * 10, seed=seed + 1)


class Point:
    """A point to check a graph at: inputs, a random direction in them, a random cotangent of the outputs."""

    def __init__(self, graph: Graph, values: Sequence, wrt: Sequence[int] | None, f: Callable, seed: int):
        rng = np.random.default_rng(seed)
        self.graph, self.values, self.f = graph, list(values), f
        floats = [i for i, n in enumerate(graph.inputs) if n.dtype.kind in "fc"]
        self.wrt = floats if wrt is None else list(wrt)
        self.outs = [i for i, n in enumerate(graph.outputs) if n.dtype.kind in "fc"]
        primal = evaluate_graph(graph, values)
        self.primal = [np.asarray(primal[i]) for i in self.outs]
        self.direction = [random_like(values[i], rng) for i in self.wrt]
        self.cotangent = [random_like(x, rng) for x in self.primal]

    def forward(self) -> tuple[Graph, list]:
        """The forward program without the primal outputs, and the tangents of those that have one."""
        program = check(jvp_graph(self.graph, self.wrt))
        program = Graph(program.inputs, program.outputs[len(self.graph.outputs) :], program.name)
        tangents = evaluate_graph(program, [*self.values, *self.direction])
        return program, [tangents[i] for i in self.outs]

    def reverse(self) -> tuple[Graph, list]:
        """The reverse program without the primal outputs, and the gradients."""
        program = check(vjp_graph(self.graph, self.wrt, self.outs))
        program = Graph(program.inputs, program.outputs[len(self.graph.outputs) :], program.name)
        gradients = evaluate_graph(program, [*self.values, *self.cotangent])
        for i, g in zip(self.wrt, gradients):
            x, g = self.graph.inputs[i], np.asarray(g)
            if (g.shape, g.dtype) != (x.shape, x.dtype):
                raise GradientMismatch(
                    f"{self.graph.name}: the gradient of {input_name(self.graph, i)} has shape {g.shape} and "
                    f"dtype {g.dtype}, expected {x.shape} and {x.dtype}"
                )
        return program, gradients

    def compare_with_differences(
        self, tangent: Sequence | None, gradient: Sequence | None, rtol: float
    ) -> None:
        first = None
        for step, share in zip(STEPS, SHARES):
            difference = central_difference(self.f, self.values, self.wrt, self.direction, self.outs, step)
            try:
                if tangent is not None:
                    for k, (i, t, d) in enumerate(zip(self.outs, tangent, difference)):
                        name = self.graph.outputs[i].name
                        what = f"output {i}{f' ({name})' if name else ''}"
                        what = f"{self.graph.name}: forward mode, tangent of {what}"
                        compare(what, t, d, rtol, lambda k=k, step=step: self.rounding[k] / step, share)
                    return None

                def rounding(step=step):
                    return _total(self.rounding, self.cotangent) / step

                return self.pair(difference, gradient, rtol, rounding, share)
            except GradientMismatch as e:
                first = first or e
        raise first

    @cached_property
    def rounding(self) -> list:
        """The largest rounding error of each result near the point, where differences are taken."""
        moved = list(self.values)
        for i, d in zip(self.wrt, self.direction):
            moved[i] = moved[i] + STEPS[0] * d
        errors = rounding_of(self.f, moved, self.wrt)
        return [errors[i] for i in self.outs]

    def rounding_of_modes(self, forward: Graph, reverse: Graph) -> float:
        """The largest rounding error of the difference of both sides of `pair`."""
        n = len(self.values)
        total = 0.0
        for program, extra, with_, chosen in (
            (forward, self.direction, self.cotangent, self.outs),
            (reverse, self.cotangent, self.direction, range(len(self.wrt))),
        ):
            moving = [*self.wrt, *range(n, n + len(extra))]
            errors = rounding_of(program_of(program), [*self.values, *extra], moving)
            total += _total([errors[i] for i in chosen], with_)
        return total

    def pair(
        self, tangent: Sequence, gradient: Sequence, rtol: float, rounding: Callable, share: float = np.inf
    ) -> None:
        """Check that both modes agree: <cotangent, tangent> = <gradient, direction>."""
        left, size = pairing(self.cotangent, tangent)
        right, more = pairing(gradient, self.direction)
        if not _agree(abs(left - right), size + more, rtol, rounding, share):
            raise GradientMismatch(
                f"{self.graph.name}: reverse mode: <cotangent, tangent> is {left:.12g}, "
                f"<gradient, direction> {right:.12g}{self.blame(gradient)}"
            )

    def blame(self, gradient: Sequence) -> str:
        """Name the input whose gradient is wrong: each is paired with its own direction."""
        wrong = []
        for i, d, g in zip(self.wrt, self.direction, gradient):
            difference = central_difference(self.f, self.values, [i], [d], self.outs, STEPS[0])
            (left, size), (right, more) = pairing(self.cotangent, difference), pairing([g], [d])
            if not abs(left - right) <= 1e-6 * (size + more):
                wrong.append(input_name(self.graph, i))
        return f"; wrong with respect to {', '.join(wrong)}" if wrong else ""


def program_of(graph: Graph) -> Callable:
    """(*values) -> the graph's outputs."""
    return lambda *values: evaluate_graph(graph, values)


def random_like(x: Any, rng: np.random.Generator) -> np.ndarray:
    d = rng.standard_normal(np.shape(x))
    return d + 1j * rng.standard_normal(np.shape(x)) if np.iscomplexobj(x) else d


def pairing(a: Sequence, b: Sequence) -> tuple[float, float]:
    """The sum of products (of complex values the real part, unconjugated), and that of their magnitudes."""
    products = [np.asarray(x) * y for x, y in zip(a, b)]
    return float(sum(np.sum(p).real for p in products)), float(sum(np.sum(np.abs(p)) for p in products))


def central_difference(
    f: Callable, values: Sequence, wrt: Sequence[int], direction: Sequence, outs: Sequence[int], step: float
) -> list[np.ndarray]:
    """The derivative of the outputs in a direction."""
    total = [0.0 for _ in outs]
    for multiple, weight in STENCIL:
        sides = []
        for far in (multiple * step, -multiple * step):
            moved = list(values)
            for i, d in zip(wrt, direction):
                moved[i] = values[i] + far * d
            results = f(*moved)
            sides.append([np.array(results[i]) for i in outs])
        total = [t + weight / step * (ahead - behind) for t, ahead, behind in zip(total, *sides)]
    return total


def rounding_of(f: Callable, values: Sequence, moving: Sequence[int]) -> list:
    """The largest rounding error of each result of f: how far it moves with the last digits of values."""
    rng = np.random.default_rng(0)
    results = [np.asarray(x) for x in f(*map(np.array, values))]  # of copies, as f may write to them
    most = [np.finfo(np.float64).eps * _size(y) for y in results]
    for _ in range(TRIALS):
        near = [np.array(x) for x in values]
        for i in moving:
            near[i] = near[i] * (1.0 + np.finfo(np.float64).eps * rng.uniform(-2.0, 2.0, np.shape(near[i])))
        most = [max(m, _size(np.asarray(x) - y)) for m, x, y in zip(most, f(*near), results)]
    inputs = max((_size(values[i]) for i in moving), default=0.0)
    return [min(TIMES * m, MOST * (inputs + _size(x))) for m, x in zip(most, results)]


def _size(x: Any) -> float:
    return float(np.max(np.abs(x), initial=0.0)) if np.asarray(x).dtype.kind in "fc" else 0.0


def _total(each: Sequence, factors: Sequence) -> float:
    """The largest error of a sum of products whose first factors have errors of these sizes."""
    return sum(e * float(np.sum(np.abs(x))) for e, x in zip(each, factors))


def _agree(apart: float, size: float, rtol: float, rounding: Callable, share: float) -> bool:
    """Whether two numbers that are so far apart agree up to rounding.

    share   of `size`: the largest rounding error that is accepted
    """
    return apart <= rtol * size or apart <= rounding() <= share * size


def compare(what: str, got: Any, expected: Any, rtol: float, rounding: Callable, share: float) -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape:
        raise GradientMismatch(f"{what}: shape {got.shape}, expected {expected.shape}")
    apart = np.abs(got - expected)
    size = np.max(np.abs(got), initial=0.0) + np.max(np.abs(expected), initial=0.0)
    if not _agree(np.max(apart, initial=0.0), size, rtol, rounding, share):
        at = np.unravel_index(np.argmax(np.where(np.isnan(apart), np.inf, apart)), apart.shape)
        where = f" at {list(map(int, at))}" if at else ""
        raise GradientMismatch(f"{what}: {got[at]:.8g}{where}, by central differences {expected[at]:.8g}")
