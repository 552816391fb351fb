"""Functions of Python floats: plain `math` code, with NumPy's answers where Python would raise."""

import itertools
import math
import warnings

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.emit import numexpr, scalar
from gpt2.autodiff.emit.scalar import ScalarProgram, is_scalar
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import OPS, apply, const, input_node
from gpt2.autodiff.ops.interpret import evaluate_graph


@pytest.mark.parametrize(
    "function, slope",
    [
        (lambda x: 5 * x**10, 25600.0),
        (lambda x: 3 * x**3 * (np.cos(x) - 10 * x), -996.8044243595134),
        (lambda x: np.exp((5 * x / 2) * np.sin(x) ** np.exp(x)), -105.63101149036945),
    ],
)
def test_derivatives_at_two(function, slope):
    d = ad.grad(function)
    for _ in range(3):
        assert d(2.0) == pytest.approx(slope, rel=1e-14)
        assert type(d(2.0)) is float
    value, same = ad.value_and_grad(function)(2.0)
    assert (value, same) == (pytest.approx(float(function(2.0)), rel=1e-14), pytest.approx(slope, rel=1e-14))
    assert type(value) is type(function(2.0)), "what NumPy gives, at each call"


def test_the_source_is_plain_python():
    source = ad.source(ad.grad(lambda x: 3 * x + np.sin(x) * x), 2.0, emitted=True)
    assert source == (
        "from math import cos, sin\n\n\ndef f_grad(x):\n    dx = sin(x) + x * cos(x) + 3.0\n    return dx\n"
    )
    space = {}
    exec(source, space)
    assert space["f_grad"](2.0) == pytest.approx(np.sin(2.0) + 2.0 * np.cos(2.0) + 3.0, rel=1e-14)


def test_what_decides_is_computed_as_numpy_does():
    """`exp` is the C library's, with another bit here and there; what is compared or returned is NumPy's."""
    f = lambda x: np.where(np.exp(x) > 1.0, np.sin(x), x)  # noqa: E731
    source = ad.source(ad.grad(f), 2.0, emitted=True)
    assert "float(np.exp(x))" in source and "cos(x)" in source
    assert "float(np.sin(x))" in ad.source(ad.compile(f), 2.0, emitted=True)
    with ad.options(math="fast"):
        assert "np." not in ad.source(ad.compile(f), 2.0, emitted=True)


def test_several_arguments_and_nested_ones():
    d = ad.grad(lambda p, y: p["a"] * np.tanh(p["b"] * y), argnums=(0, 1))
    for _ in range(3):
        grads, dy = d({"a": 2.0, "b": 0.5}, 3.0)
        t = math.tanh(1.5)
        assert grads == {"a": pytest.approx(t), "b": pytest.approx(2 * 3 * (1 - t * t))}
        assert dy == pytest.approx(2 * 0.5 * (1 - t * t))
        assert [type(v) for v in (*grads.values(), dy)] == [float] * 3


def test_statics_and_types_are_looked_at():
    d = ad.grad(lambda x, n: x**n)
    assert [d(2.0, 3), d(2.0, 4), d(2.0, 3)] == [12.0, 32.0, 12.0]
    d = ad.grad(lambda x: np.sum(x * x))
    assert d(3.0) == 6.0
    np.testing.assert_array_equal(d(np.array([1.0, 2.0])), [2.0, 4.0])
    assert type(d(np.float32(3.0))) is np.float32
    assert d(3.0) == 6.0
    with pytest.raises(ad.AutodiffError, match="pass 3.0"):
        d(3)


K = 2.0


def test_globals_are_looked_at(monkeypatch):
    d = ad.grad(lambda x: x * K)
    assert d(1.0) == d(1.0) == 2.0
    monkeypatch.setitem(globals(), "K", 3.0)
    assert d(1.0) == d(1.0) == 3.0


@pytest.mark.parametrize(
    "function, x, expected",
    [
        (lambda x: np.log(x), 0.0, np.inf),
        (lambda x: np.sqrt(x), 0.0, np.inf),
        (lambda x: np.exp(x), 1000.0, np.inf),
        (lambda x: 1.0 / x, 0.0, -np.inf),
        (lambda x: np.arcsin(x), 2.0, np.nan),
        (lambda x: x**0.5, -1.0, np.nan),
        (lambda x: np.sin(x), np.inf, np.nan),
        (lambda x: np.cosh(x), 1e4, np.inf),
        (lambda x: np.where(x > 0, np.log(x), 2 * x), -1.0, 2.0),
        (lambda x: np.where(x > 0, x * x, 2 * x), np.nan, 2.0),
        (lambda x: np.maximum(x, 0.0), -3.0, 0.0),
        (lambda x: np.absolute(x), -3.0, -1.0),
        (lambda x: np.floor(x) * x, -1.5, -2.0),
        (lambda x: x % 3.0, 7.0, 1.0),
        (lambda x: np.arctan2(x, 2.0), 0.0, 0.5),
        (lambda x: x ** np.sin(x), 1.0, math.sin(1.0)),
    ],
)
def test_inf_and_nan_as_numpy_has_them(function, x, expected):
    """Whether the program was made at this point, or at another."""
    for first in (x, 0.7):
        d = ad.grad(function)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            d(first)
            for _ in range(3):
                found = d(x)
                assert type(found) is float
                np.testing.assert_allclose(found, expected, rtol=1e-14)


UNARY = (
    "exp expm1 exp2 log log2 log10 log1p sqrt cbrt sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh "
    "arccosh arctanh absolute fabs negative positive square reciprocal sign floor ceil trunc deg2rad rad2deg "
    "degrees radians isnan isinf isfinite"
).split()
BINARY = (
    "add subtract multiply divide power arctan2 hypot maximum minimum fmax fmin remainder floor_divide fmod "
    "copysign heaviside less less_equal greater greater_equal equal not_equal"
).split()
VALUES = (0.0, -0.0, 0.3, -0.3, 1.0, -1.0, 2.0, -2.5, 3.0, 1e3, -1e3, 1e200, np.inf, -np.inf, np.nan)


@pytest.mark.parametrize("op", [*UNARY, *BINARY])
def test_ops_as_numpy_has_them(op):
    inputs = [input_node((), np.float64, name) for name in ("x" if op in UNARY else "xy")]
    check_op(Graph(inputs, [apply(op, *inputs)]), itertools.product(VALUES, repeat=len(inputs)))


@pytest.mark.parametrize("k", [0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5, -0.5, 1e3, np.inf])
def test_powers_as_numpy_has_them(k):
    x = input_node((), np.float64, "x")
    check_op(Graph([x], [apply("power", x, k)]), [(v,) for v in VALUES])


def check_op(graph, cases):
    assert is_scalar(graph)
    program = ScalarProgram(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases:
            (found,) = program(*case)
            (expected,) = evaluate_graph(graph, case)
            assert type(found) in (float, bool), program.source
            # math and NumPy's loops differ by a few units in the last place
            np.testing.assert_allclose(found, expected, rtol=4e-15, err_msg=f"{case}\n{program.source}")


def test_operators_bind_as_the_graph_says():
    """Every pair of infix ops, nested on the left and on the right."""
    x, y, z = (input_node((), np.float64, n) for n in "xyz")
    ops = ["add", "subtract", "multiply", "divide", "power", "maximum"]
    for a, b in itertools.product(ops, ops):
        for tree in (
            apply(a, apply(b, x, y), z),
            apply(a, x, apply(b, y, z)),
            apply(a, -apply(b, x, y), -z),
            apply(a, apply("where", apply("less", x, y), x, z), apply(b, z, const(-2.0))),
        ):
            check_op(Graph([x, y, z], [tree]), [(1.5, 2.25, 0.75), (2.0, 0.5, 3.0)])


def test_not_scalar():
    x, v, n = input_node((), np.float64), input_node((3,), np.float64), input_node((), np.float32)
    assert is_scalar(Graph([x], [x * 2.0]))
    assert not is_scalar(Graph([v], [v * 2.0]))
    assert not is_scalar(Graph([n], [n * 2.0]))
    assert not is_scalar(Graph([x], [apply("sum", v, axes=(0,), keepdims=False) * x]))


def test_every_spelled_op_exists():
    assert ad.stop_gradient(1.0) == 1.0  # its row comes with it
    assert not {*scalar._FORMS, *scalar._IMPORTS, *numexpr._FORMS, *numexpr._LOGIC} - OPS.keys()
    assert not set(numexpr.FUNCTIONS.split()) - OPS.keys()


def test_long_expressions_are_cut_into_lines():
    def f(x):
        for _ in range(40):
            x = np.sin(x) + x * np.cos(x)
        return x

    source = ad.source(ad.compile(f), 0.3, emitted=True)
    assert max(map(len, source.splitlines())) < 160
    assert ad.compile(f)(0.3) == pytest.approx(float(f(0.3)), rel=1e-9)
