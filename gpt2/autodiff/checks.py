"""Are these derivatives right? Three questions, each able to fail on its own:

    forward    is the tangent that of the function?      against central differences in a random direction
    reverse    is the gradient the transpose of it?      <cotangent, tangent> = <gradient, direction>
    order 2    the same two questions of the derivative programs themselves

check_grads(f, args) asks them of a function; check_graph of a graph.
"""

from __future__ import annotations

import numpy as np

from .differentiate import jvp_graph, vjp_graph
from .graph import Graph, check
from .interpret import evaluate_graph

# f'(x) = sum of weight * f(x + step * h) / h, exact for polynomials of degree 6
STENCIL = ((1, 3 / 4), (2, -3 / 20), (3, 1 / 60), (-1, -3 / 4), (-2, 3 / 20), (-3, -1 / 60))
STEP = 1e-3  # truncation is about 1e-18 times the seventh derivative, rounding 1e-13 times the function


class GradientMismatch(AssertionError):
    """A derivative that is not that of the function."""


def check_graph(graph: Graph, values, order=2, modes=("fwd", "rev"), *, rtol=1e-7, seed=0, f=None) -> None:
    """Raise GradientMismatch unless the derivatives of `graph` at `values` are right, up to `order`.

    values   one array per input, in double precision where it is differentiated
    modes    "fwd", "rev": which programs to derive, and to derive again for the second order
    f        stands in for the graph in differences: (*values) -> outputs
    """
    rng = np.random.default_rng(seed)
    f = f or (lambda *values: evaluate_graph(graph, values))
    wrt = [i for i, n in enumerate(graph.inputs) if n.dtype.kind in "fc"]
    outs = [i for i, n in enumerate(graph.outputs) if n.dtype.kind in "fc"]
    direction = [random_like(values[i], rng) for i in wrt]
    cotangent = [random_like(np.asarray(o), rng) for o in evaluate_graph(graph, values)]
    cotangent = [cotangent[i] for i in outs]
    where = f"order {order} left, {graph.name}"

    difference = central_difference(f, values, wrt, direction, outs)
    tangent = difference
    if "fwd" in modes:
        forward = check(jvp_graph(graph, wrt))
        tangent = evaluate_graph(forward, [*values, *direction])[len(graph.outputs) :]
        tangent = [tangent[i] for i in outs]
        scale = [np.max(np.abs(o), initial=0.0) for o in f(*values)]
        for i, t, d in zip(outs, tangent, difference):
            noise = 1e-10 * scale[i]
            compare(f"{where}: forward mode of output {i} against central differences", t, d, rtol, noise)
    if "rev" in modes:
        reverse = check(vjp_graph(graph, wrt, outs))
        gradient = evaluate_graph(reverse, [*values, *cotangent])[len(graph.outputs) :]
        for i, g in zip(wrt, gradient):
            if np.shape(g) != graph.inputs[i].shape or np.asarray(g).dtype != graph.inputs[i].dtype:
                raise GradientMismatch(f"{where}: the gradient of input {i} has the wrong type")
        left, right = pairing(cotangent, tangent), pairing(gradient, direction)
        size = sum(np.sum(np.abs(np.asarray(a) * b)) for a, b in zip(cotangent, tangent))
        size += sum(np.sum(np.abs(np.asarray(a) * b)) for a, b in zip(gradient, direction))
        if not abs(left - right) <= (1e-11 if "fwd" in modes else rtol) * size + 1e-300:
            raise GradientMismatch(f"{where}: <cotangent, tangent> = {left}, <gradient, direction> = {right}")
    if order > 1:
        n = len(graph.outputs)
        derivatives = [(forward, direction)] * ("fwd" in modes) + [(reverse, cotangent)] * ("rev" in modes)
        for derived, extra in derivatives:
            derived = Graph(derived.inputs, derived.outputs[n:], derived.name)
            check_graph(derived, [*values, *extra], order - 1, modes, rtol=rtol * 10, seed=seed + 1)


def random_like(x, rng) -> np.ndarray:
    d = rng.standard_normal(np.shape(x))
    if np.iscomplexobj(x):
        d = d + 1j * rng.standard_normal(np.shape(x))
    return d


def pairing(a, b) -> float:
    """The sum of products, without conjugation; of complex values its real part."""
    return float(sum(np.sum(np.asarray(x) * y).real for x, y in zip(a, b)))


def central_difference(f, values, wrt, direction, outs) -> list[np.ndarray]:
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
    error = np.max(np.abs(got - expected), initial=0.0)
    size = np.max(np.abs(got), initial=0.0) + np.max(np.abs(expected), initial=0.0)
    if not error <= rtol * size + noise:
        raise GradientMismatch(f"{what}: they differ by {error:.3g}, where the largest are {size / 2:.3g}")
