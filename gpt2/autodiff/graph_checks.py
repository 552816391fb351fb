"""Are the derivatives of a graph right? Three questions, each able to fail on its own:

    forward    is the tangent that of the function?      against central differences in a random direction
    reverse    is the gradient the transpose of it?      <cotangent, tangent> = <gradient, direction>
    order 2    the same two questions of the derivative programs themselves
"""

from __future__ import annotations

import numpy as np

from .diagnose import input_name
from .differentiate import jvp_graph, vjp_graph
from .graph import Graph, check
from .interpret import evaluate_graph

# f'(x) = sum of weight * f(x + step * h) / h, exact for polynomials of degree 6
STENCIL = ((1, 3 / 4), (2, -3 / 20), (3, 1 / 60), (-1, -3 / 4), (-2, 3 / 20), (-3, -1 / 60))
STEP = 1e-3  # truncation is about 1e-18 times the seventh derivative, rounding 1e-13 times the function


class GradientMismatch(AssertionError):
    """A derivative that is not that of the function."""


def check_graph(graph: Graph, values, order=2, modes=("fwd", "rev"), *, wrt=None, rtol=1e-7, seed=0, f=None):
    """Raise GradientMismatch unless the derivatives of `graph` at `values` are right, up to `order`.

    values   one array per input, in double precision where it is differentiated
    modes    "fwd", "rev": which programs to derive, and to derive again for the second order
    wrt      indices of the inputs to differentiate; None: all that are real or complex
    f        stands in for the graph in differences: (*values) -> outputs
    """
    unknown = set(modes) - {"fwd", "rev"}
    if unknown or not modes:
        raise ValueError(f'modes must be some of "fwd" and "rev", got {modes!r}')
    rng = np.random.default_rng(seed)
    f = f or (lambda *values: evaluate_graph(graph, values))
    wrt = [i for i, n in enumerate(graph.inputs) if n.dtype.kind in "fc"] if wrt is None else list(wrt)
    outs = [i for i, n in enumerate(graph.outputs) if n.dtype.kind in "fc"]
    primal = evaluate_graph(graph, values)
    direction = [random_like(values[i], rng) for i in wrt]
    cotangent = [random_like(primal[i], rng) for i in outs]
    derived: list[tuple[Graph, list]] = []

    tangent = difference = central_difference(f, values, wrt, direction, outs)
    if "fwd" in modes:
        forward = check(jvp_graph(graph, wrt))
        derived.append((forward, direction))
        found = evaluate_graph(forward, [*values, *direction])[len(graph.outputs) :]
        tangent = [found[i] for i in outs]
        for i, t, d in zip(outs, tangent, difference):
            noise = 1e-10 * np.max(np.abs(primal[i]), initial=0.0)
            compare(f"{graph.name}: forward mode, tangent of {output_name(graph, i)}", t, d, rtol, noise)
    if "rev" in modes:
        reverse = check(vjp_graph(graph, wrt, outs))
        derived.append((reverse, cotangent))
        gradient = evaluate_graph(reverse, [*values, *cotangent])[len(graph.outputs) :]
        for i, g in zip(wrt, gradient):
            x = graph.inputs[i]
            if (np.shape(g), np.asarray(g).dtype) != (x.shape, x.dtype):
                raise GradientMismatch(
                    f"{graph.name}: the gradient of {input_name(graph, i)} has shape {np.shape(g)} and dtype "
                    f"{np.asarray(g).dtype}, expected {x.shape} and {x.dtype}"
                )
        left, size = pairing(cotangent, tangent)
        right, more = pairing(gradient, direction)
        # two modes of one program agree to rounding; differences are coarser
        if not abs(left - right) <= (1e-11 if "fwd" in modes else rtol) * (size + more):
            raise GradientMismatch(
                f"{graph.name}: reverse mode: <cotangent, tangent> is {left:.12g}, "
                f"<gradient, direction> {right:.12g}"
                + blame(graph, values, wrt, direction, cotangent, outs, gradient, f)
            )
    if order > 1:
        for program, extra in derived:
            program = Graph(program.inputs, program.outputs[len(graph.outputs) :], program.name)
            more = range(len(graph.inputs), len(program.inputs))
            check_graph(
                program, [*values, *extra], order - 1, modes, wrt=[*wrt, *more], rtol=rtol * 10, seed=seed + 1
            )


def blame(graph, values, wrt, direction, cotangent, outs, gradient, f) -> str:
    """Which input's gradient is wrong: each is paired with its own direction."""
    wrong = []
    for i, d, g in zip(wrt, direction, gradient):
        difference = central_difference(f, values, [i], [d], outs)
        (left, size), (right, more) = pairing(cotangent, difference), pairing([g], [d])
        if not abs(left - right) <= 1e-6 * (size + more):
            wrong.append(input_name(graph, i))
    return f"; wrong with respect to {', '.join(wrong)}" if wrong else ""


def output_name(graph: Graph, i: int) -> str:
    name = graph.outputs[i].name
    return f"output {i} ({name})" if name else f"output {i}"


def random_like(x, rng) -> np.ndarray:
    d = rng.standard_normal(np.shape(x))
    return d + 1j * rng.standard_normal(np.shape(x)) if np.iscomplexobj(x) else d


def pairing(a, b) -> tuple[float, float]:
    """The sum of products, without conjugation, of complex values its real part; and that of their
    magnitudes."""
    products = [np.asarray(x) * y for x, y in zip(a, b)]
    return float(sum(np.sum(p).real for p in products)), float(sum(np.sum(np.abs(p)) for p in products))


def central_difference(f, values, wrt, direction, outs) -> list[np.ndarray]:
    """The derivative of the outputs in a direction."""
    total = [0.0 for _ in outs]
    for step, weight in STENCIL:
        moved = list(values)
        for i, d in zip(wrt, direction):
            moved[i] = values[i] + step * STEP * d
        found = f(*moved)
        total = [t + weight / STEP * np.asarray(found[i]) for t, i in zip(total, outs)]
    return total


def compare(what: str, got, expected, rtol: float, noise: float = 0.0) -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape:
        raise GradientMismatch(f"{what}: shape {got.shape}, expected {expected.shape}")
    apart = np.abs(got - expected)
    size = np.max(np.abs(got), initial=0.0) + np.max(np.abs(expected), initial=0.0)
    if not np.max(apart, initial=0.0) <= rtol * size + noise:
        at = np.unravel_index(np.argmax(np.where(np.isnan(apart), np.inf, apart)), apart.shape)
        place = f" at {list(map(int, at))}" if at else ""
        raise GradientMismatch(f"{what}: {got[at]:.8g}{place}, by central differences {expected[at]:.8g}")
