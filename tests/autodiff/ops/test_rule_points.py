"""Rules of the op table at special points: constant operands, ties, zeros, infinities, one argument alone.

The samples of test_rules.py are random and never hit these points. Expected gradients are written by hand.
"""

import math

import numpy as np
import pytest

from gpt2.autodiff.check.numeric import check_graph
from gpt2.autodiff.derive.differentiate import vjp_graph
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import apply, const, input_node
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.record.record import record
from tests.autodiff.ops.test_rules import cases, instance
from tests.support.calls.op_samples import sample, samples_of


def gradients(f, *args):
    """Gradient of sum(weights * f) with respect to each argument; weights 1, 2, 3, ..."""
    rec = record(f, args)
    out = rec.graph.outputs[0]
    weights = np.arange(1.0, out.size + 1).reshape(out.shape)
    captured = [a for _, a in rec.captures]
    joint = vjp_graph(rec.graph, range(len(args)), [0])
    return evaluate_graph(joint, [*args, *captured, weights])[len(rec.graph.outputs) :]


def sinc_slope(x):
    """Derivative of sin(pi x) / (pi x), by its power series."""
    return sum(
        (-1) ** k * math.pi ** (2 * k) * 2 * k * x ** (2 * k - 1) / math.factorial(2 * k + 1)
        for k in range(1, 12)
    )


inf = math.inf
A = np.array
LEFT, RIGHT = [0.5, 0.0, 3.0], [0.5, 2.0, 0.0]  # gradients of a maximum, the first entry a tie

# op -> list of (function, arguments, its gradient with respect to each); the weights are 1, 2, 3, ...
POINTS = {
    "divide": [
        (lambda x: x / 4.0, [A([1.0, 2.0])], [[0.25, 0.5]]),
        (lambda x: x / A(4.0), [A([1.0, 2.0])], [[0.25, 0.5]]),
        (lambda x: 3.0 / x, [A([1.0, 2.0])], [[-3.0, -1.5]]),
    ],
    "power": [
        (lambda x: np.power(x, 0.0), [A([1.5, 0.0])], [[0.0, 0.0]]),
        (lambda x: np.power(x, 1.0), [A([1.5, 0.0])], [[1.0, 2.0]]),
        (lambda x: np.power(x, 2.0), [A([1.5, -2.0])], [[3.0, -8.0]]),
        (lambda x: x**2.0, [A([1.5, -2.0])], [[3.0, -8.0]]),
        (lambda x: x**1.5, [A([0.0, 4.0])], [[0.0, 6.0]]),
        (lambda x: x**0.5, [A([0.0, 4.0])], [[inf, 0.5]]),
        (lambda x: np.power(x, 3.0), [A([1.5, -2.0])], [[6.75, 24.0]]),
        (lambda x: x**-1.0, [A([0.5, 2.0])], [[-4.0, -0.5]]),
        (lambda x: x ** A(3.0), [A([1.5, -2.0])], [[6.75, 24.0]]),
        (lambda x: 2.0**x, [A([0.0, 3.0])], [[math.log(2), 16 * math.log(2)]]),
        # an array of exponents, at bases 0 and below
        (np.power, [A([0.0, 0.0, 0.0, -2.0]), A([0.0, 1.0, 2.0, 3.0])], [[0.0, 2.0, 0.0, 48.0], None]),
        # the gradient of the exponent is finite at base 0
        (np.power, [A([0.0, 0.0, 2.0]), A([1.0, 2.0, 3.0])], [None, [0.0, 0.0, 24 * math.log(2)]]),
    ],
    "float_power": [(lambda x: np.float_power(x, 3.0), [A([1.5, -2.0])], [[6.75, 24.0]])],
    "sinc": [(
        np.sinc,
        [A([0.0, 0.01, -0.049, 0.051])],
        [[0.0, 2 * sinc_slope(0.01), -3 * sinc_slope(0.049), 4 * sinc_slope(0.051)]],
    )],
    "absolute": [
        (np.abs, [A([1.5, 0.0, -2.0])], [[1.0, 0.0, -3.0]]),
        (np.abs, [A([3 + 4j, 0.0])], [[0.6 - 0.8j, 0.0]]),
    ],
    "prod": [
        (np.prod, [A([2.0, 0.0, 3.0])], [[0.0, 6.0, 0.0]]),
        (np.prod, [A([0.0, 0.0, 3.0])], [[0, 0, 0]]),
    ],
    "cumprod": [(np.cumprod, [A([2.0, 0.0, 3.0])], [[1.0, 2 * 2.0 + 3 * 6.0, 0.0]])],
    **{
        name: [(
            getattr(np, name),
            [A([-inf, -inf, 1.0, 0.0]), A([-inf, 1.0, -inf, 0.0])],
            [[0.0, 0.0, 3.0, 2.0], [0.0, 2.0, 0.0, 2.0]],
        )]
        for name in ("logaddexp", "logaddexp2")
    },
    **{name: [(getattr(np, name), [A([1.5, -2.0])], [[0.0, 0.0]])] for name in ("angle", "imag", "sign")},
    **{
        name: [(
            lambda x, name=name: getattr(x, name)(axis=1),
            [sign * A([[3.0, 1.0, 3.0], [2.0, 2.0, 2.0]])],
            [[[0.5, 0, 0.5], [2 / 3, 2 / 3, 2 / 3]]],
        )]
        for name, sign in (("max", 1), ("min", -1))
    },
    **{
        name: [(getattr(np, name), [A([1.0, 2.0, 5.0]), A([1.0, 3.0, 4.0])], slopes)]
        for names, slopes in (
            (("maximum", "fmax"), [LEFT, RIGHT]), (("minimum", "fmin"), [RIGHT, LEFT])
        )
        for name in names
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "name, f, args, expected", [(name, *point) for name, points in POINTS.items() for point in points]
)
def test_points(name, f, args, expected):
    # NumPy itself warns of powers of negative numbers and of infinities; no other gradient may even overflow
    with np.errstate(all="ignore" if name in ("power", "logaddexp", "logaddexp2") else "raise"):
        actual = gradients(f, *args)
    for a, b in zip(actual, expected, strict=True):
        if b is not None:
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-15)


@cases()
def test_one_argument_alone(name, sample, dtype):
    """With the other arguments constant: rules have shortcuts for that."""
    graph, values = instance(name, sample, dtype)
    if len(graph.inputs) > 1:
        for i in range(len(graph.inputs)):
            check_graph(graph, values, order=1, wrt=[i])


SHAPES = {(2, 3, 4): "float64", (2, 4, 3): "float64", (2, 5, 3): "complex128", (2, 3, 5): "complex128"}


@pytest.mark.parametrize("shape, dtype", SHAPES.items())
def test_singular_vectors_of_a_stack(shape, dtype):
    of = samples_of("svd")[-1].of if dtype == "complex128" else None
    graph, values = instance("svd", sample(shape, full_matrices=False, of=of), dtype)
    check_graph(graph, values, order=1)


def test_scatter_of_no_values():
    x, v = input_node((4, 3), np.dtype(float)), input_node((0, 3), np.dtype(float))
    out = apply("scatter", x, v, const(np.zeros(0, int)), spec=(("array", 0), (0, 3, 1)))
    joint = vjp_graph(Graph((x, v), (out,)), (0, 1), (0,))
    dout = np.arange(12.0).reshape(4, 3)
    _, dx, dv = evaluate_graph(joint, [np.ones((4, 3)), np.ones((0, 3)), dout])
    assert np.array_equal(dx, dout) and dv.shape == (0, 3)


def checks_of(name):
    """(test, arguments) of every check of an op in this file."""
    for point in POINTS.get(name, ()):
        yield test_points, (name, *point)
    for s in samples_of(name):
        for dtype in s.dtypes:
            yield test_one_argument_alone.case, (name, s, dtype)
    if name == "svd":
        for shape in ((2, 3, 4), (2, 5, 3)):
            yield test_singular_vectors_of_a_stack, (shape, SHAPES[shape])
    if name == "scatter":
        yield test_scatter_of_no_values, ()


@pytest.mark.parametrize("function, sign", [(np.remainder, 1.0), (np.fmod, 1.0), (np.fmod, -1.0)])
def test_remainders_of_a_quotient_that_rounds_up(function, sign):
    """1.0 / 0.1 rounds to 10, and 0.1, a little more than a tenth, goes into 1 nine times."""
    a, b = np.array([sign, 7.5 * sign]), np.array([0.1, 2.0])
    by_a, by_b = gradients(function, a, b)
    np.testing.assert_array_equal(by_a, [1.0, 2.0])
    np.testing.assert_array_equal(by_b, [-9.0 * sign, -6.0 * sign])
