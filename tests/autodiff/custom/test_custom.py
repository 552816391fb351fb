"""Rules of the user's own, checkpoint and stop_gradient."""

import math

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.record.record import record


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@ad.custom_vjp
def table(x):
    """Nothing that can be recorded: plain NumPy through a C function of another kind."""
    return np.asarray([math.erf(v) for v in np.asarray(x, float)])


@table.defvjp
def table_vjp(dout, out, x):
    return (dout * 2 / math.sqrt(math.pi) * np.exp(-x * x),)


def test_a_function_that_cannot_be_recorded(rng):
    x, t = rng.normal(size=4), rng.normal(size=4)
    slope = 2 / math.sqrt(math.pi) * np.exp(-x * x)
    np.testing.assert_allclose(table(x), [math.erf(v) for v in x])
    g = ad.grad(lambda x: np.sum(table(x) * x))
    for _ in range(3):
        np.testing.assert_allclose(g(x), slope * x + table(x), rtol=1e-13)
    np.testing.assert_allclose(
        g(2 * x), 2 / math.sqrt(math.pi) * np.exp(-4 * x * x) * 2 * x + table(2 * x), rtol=1e-13
    )
    np.testing.assert_allclose(ad.jvp(table, (x,), (t,))[1], slope * t, rtol=1e-13)
    np.testing.assert_allclose(ad.hvp(lambda x: np.sum(table(x)), x, t), -2 * x * slope * t, rtol=1e-12)
    np.testing.assert_allclose(ad.jacobian(table)(x), np.diag(slope), rtol=1e-13)


def test_a_rule_that_cannot_be_recorded_has_no_derivative():
    @ad.custom_vjp
    def f(x):
        return x * math.erf(float(x))

    f.defvjp(lambda dout, out, x: (dout * math.exp(float(x)),))
    assert ad.grad(f)(1.0) == pytest.approx(math.e)
    with pytest.raises(ad.AutodiffError, match="f_backward runs as plain Python"):
        ad.grad(ad.grad(f))(1.0)


def test_forward_and_backward_with_residuals(rng):
    runs = []

    @ad.custom_vjp
    def f(x, p, n):
        return np.sin(x) * p["a"] * n, x * 2

    def forward(x, p, n):
        runs.append("forward")
        return f(x, p, n), (np.cos(x), np.sin(x), p["a"], n)

    def backward(kept, dout):
        runs.append("backward")
        c, s, a, n = kept
        return dout[0] * c * a * n + 2 * dout[1], {"a": np.sum(dout[0] * s) * n}, None

    f.defvjp(forward, backward)
    x = rng.normal(size=3)

    def loss(x, p):
        a, b = f(x, p, 3)
        return np.sum(a**2) + np.sum(b)

    dx, dp = ad.grad(loss, argnums=(0, 1))(x, {"a": 1.5})
    np.testing.assert_allclose(dx, 2 * (4.5 * np.sin(x)) * 4.5 * np.cos(x) + 2, rtol=1e-13)
    assert dp["a"] == pytest.approx(np.sum(2 * 4.5 * np.sin(x) * 3 * np.sin(x)))
    assert "forward" in runs and "backward" in runs


def test_the_rule_is_used_and_not_the_function():
    @ad.custom_vjp
    def f(x):
        return x * x

    @f.defvjp
    def rule(dout, out, x):
        return 100.0 * dout

    assert ad.grad(f)(3.0) == 100.0
    assert ad.jvp(f, (3.0,), (2.0,))[1] == 200.0
    assert f(3.0) == 9.0 and ad.compile(f)(3.0) == 9.0


def test_second_derivatives_through_rules():
    @ad.custom_vjp
    def f(x, y):
        return np.sin(x) * y

    f.defvjp(lambda dout, out, x, y: (dout * np.cos(x) * y, dout * np.sin(x)))

    @ad.custom_jvp
    def g(x, y):
        return np.sin(x) * y

    g.defjvp(
        lambda primals, tangents: (
            g(*primals),
            np.cos(primals[0]) * primals[1] * tangents[0] + np.sin(primals[0]) * tangents[1],
        )
    )
    for h in (f, g):
        d = ad.grad
        assert d(h)(0.4, 2.0) == pytest.approx(2 * math.cos(0.4), rel=1e-14)
        assert d(h, argnums=1)(0.4, 2.0) == pytest.approx(math.sin(0.4), rel=1e-14)
        assert d(d(h))(0.4, 2.0) == pytest.approx(-2 * math.sin(0.4), rel=1e-14)
        assert d(d(h), argnums=1)(0.4, 2.0) == pytest.approx(math.cos(0.4), rel=1e-14)
        assert d(d(d(h)))(0.4, 2.0) == pytest.approx(-2 * math.cos(0.4), rel=1e-14)
        assert ad.jvp(d(h), (0.4, 2.0), (1.0, 1.0))[1] == pytest.approx(
            -2 * math.sin(0.4) + math.cos(0.4), rel=1e-14
        )


def test_a_solver_that_iterates_until_it_is_done():
    """The square root by Newton's method, its derivative by the implicit function theorem. The loop looks at
    values, yet what uses it is reused: the solver runs as one op.
    """
    steps = []

    @ad.custom_vjp
    def root(a):
        y = a
        while abs(y * y - a) > 1e-13 * a:
            y = 0.5 * (y + a / y)
            steps.append(1)
        return y

    root.defvjp(lambda dout, y, a: (dout / (2 * y),))
    g = ad.grad(lambda a: root(a) * 3.0)
    g(2.0)
    for a in (2.0, 9.0, 1e6):
        assert g(a) == pytest.approx(1.5 / math.sqrt(a), rel=1e-12)
    h = ad.grad(lambda x: np.sum(x) * root(np.sum(x * x)))
    x = np.array([1.0, 2.0])
    for _ in range(3):
        np.testing.assert_allclose(h(x), np.sqrt(5) + 3 * x / np.sqrt(5), rtol=1e-12)


def test_float32_and_broadcast_gradients_are_checked(rng):
    @ad.custom_vjp
    def f(x, y):
        return x * y

    f.defvjp(lambda dout, out, x, y: (dout * y, dout * x))
    x = rng.normal(size=3).astype(np.float32)
    assert ad.grad(lambda x: np.sum(f(x, x)))(x).dtype == np.float32
    with pytest.raises(ad.AutodiffError, match=r"gradient of shape \(2, 3\) for .*argument 0.*\(3,\)"):
        ad.grad(lambda x: np.sum(f(x, np.ones((2, 3)))))(x.astype(float))


def test_errors_of_rules():
    @ad.custom_vjp
    def f(x, y):
        return x * y

    with pytest.raises(ad.AutodiffError, match="f is a custom_vjp without a rule"):
        ad.grad(f)(1.0, 2.0)
    f.defvjp(lambda dout, out, x, y: (dout,))
    with pytest.raises(ad.AutodiffError, match="1 gradients for 2 arguments"):
        ad.grad(f)(1.0, 2.0)
    f.defvjp(lambda dout, x, y: (dout, dout))
    with pytest.raises(ad.AutodiffError, match=r"f: its rule takes \(dout, x, y\).*\(dout, out, \*args\)"):
        ad.grad(f)(1.0, 2.0)
    f.defvjp(lambda x, y: (x * y, ()), lambda dout: (dout, dout))
    with pytest.raises(ad.AutodiffError, match=r"f: its rule takes \(dout\).*\(residuals, dout\)"):
        ad.grad(f)(1.0, 2.0)
    f.defvjp(lambda dout, out, x, y: (np.sin(1, 2, 3, 4), dout))
    with pytest.raises(TypeError, match="sin"):  # a mistake within the rule stays what it is
        ad.grad(f)(1.0, 2.0)

    @ad.custom_jvp
    def g(x):
        return x * x

    g.defjvp(lambda tangents, out, x: 2.0 * x * tangents[0])
    with pytest.raises(ad.AutodiffError, match=r"g: its rule takes .*\(primals, tangents\)"):
        ad.grad(g)(1.0)

    def closes_over(z):
        h = ad.custom_vjp(lambda x: x * z)
        h.defvjp(lambda dout, out, x: (dout,))
        return h(2.0 * z)

    with pytest.raises(ad.AutodiffError, match="not one of its arguments"):
        ad.grad(closes_over)(3.0)


def test_methods_and_keywords(rng):
    class Layer:
        def __init__(self, k):
            self.k = k

        @ad.custom_vjp
        def apply(self, x, power=2):
            return self.k * x**power

        @apply.defvjp
        def apply_vjp(dout, out, self, x, power):  # noqa: N805
            return None, dout * self.k * power * x ** (power - 1), None

    layer, x = Layer(2.0), rng.normal(size=3)
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(layer.apply(x)))(x), 4 * x, rtol=1e-14)
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(layer.apply(x, power=3)))(x), 6 * x**2, rtol=1e-14)


def test_checkpoint_keeps_the_arguments_only(rng):
    w = rng.normal(size=(4, 4))

    def block(x):
        for _ in range(5):
            x = np.tanh(x @ w)
        return x

    def loss(f):
        return lambda x: np.sum(f(f(x)) ** 2)

    x = rng.normal(size=(3, 4))
    kept, plain = ad.grad(loss(ad.checkpoint(block))), ad.grad(loss(block))
    for _ in range(2):
        np.testing.assert_allclose(kept(x), plain(x), rtol=1e-12)
    v = rng.normal(size=x.shape)
    np.testing.assert_allclose(
        ad.hvp(loss(ad.checkpoint(block)), x, v), ad.hvp(loss(block), x, v), rtol=1e-11
    )
    assert ad.jvp(loss(ad.checkpoint(block)), (x,), (v,))[1] == pytest.approx(
        ad.jvp(loss(block), (x,), (v,))[1], rel=1e-12
    )
    _, pullback = ad.vjp(ad.checkpoint(block), x)
    shapes = [a.shape for a in pullback._saved]
    assert shapes == [(3, 4), (4, 4)], "x and w, none of the five values between"
    assert ad.checkpoint(block).__name__ == "block"


def test_checkpoint_reads_and_writes_what_is_around_it(rng):
    x = rng.normal(size=3)

    def f(x):
        k = np.sum(x)
        buffer = np.zeros_like(x)

        @ad.checkpoint
        def inside(y, out):
            out[...] = y * k
            return np.sum(y) * k

        return inside(x, buffer) + np.sum(buffer)

    np.testing.assert_allclose(ad.grad(f)(x), np.full(3, 4 * np.sum(x)), rtol=1e-13)


def test_checkpoint_with_branches():
    @ad.checkpoint
    def f(x):
        return x * x if x > 0 else -x

    g = ad.grad(lambda x: f(x) * 2.0)
    assert [g(3.0), g(-3.0), g(3.0)] == [12.0, -2.0, 12.0]


def test_stop_gradient(rng):
    x = rng.normal(size=3)
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(x * ad.stop_gradient(x)))(x), x)
    np.testing.assert_allclose(ad.jvp(lambda x: x * ad.stop_gradient(x), (x,), (np.ones(3),))[1], x)
    np.testing.assert_allclose(ad.grad(ad.grad(lambda x: x * ad.stop_gradient(x)))(2.0), 0.0)
    tree = ad.grad(lambda x: np.sum(ad.stop_gradient({"a": [x * 2], "n": 3})["a"][0] * x))(x)
    np.testing.assert_allclose(tree, 2 * x)
    assert ad.stop_gradient(x) is x
    graph = record(lambda x: ad.stop_gradient(x) * 2, (x,)).graph
    assert [n.op for n in graph.nodes] == ["input", "stop_gradient", "const", "multiply"]


# --- keyword-only arguments
# -----------------------------------------------------------------------------------------


def scaled(x, *, scale=1.0, power=1):
    return np.sum(x**power) * scale


def scaled_whole():
    f = ad.custom_vjp(scaled)

    @f.defvjp
    def rule(dout, out, x, *, scale=1.0, power=1):
        return (dout * scale * power * x ** (power - 1),)

    return f


def scaled_in_two():
    f = ad.custom_vjp(scaled)

    def forward(x, **settings):
        assert set(settings) == {"scale", "power"}
        return scaled(x, **settings), (x, settings)

    def backward(kept, dout):
        x, settings = kept
        return (dout * settings["scale"] * settings["power"] * x ** (settings["power"] - 1),)

    f.defvjp(forward, backward)
    return f


def scaled_forward_mode():
    f = ad.custom_jvp(scaled)

    @f.defjvp
    def rule(primals, tangents, scale, power):
        (x,), (dx,) = primals, tangents
        return scaled(x, scale=scale, power=power), scale * power * np.sum(x ** (power - 1) * dx)

    return f


@pytest.mark.parametrize("make", [scaled_whole, scaled_in_two, scaled_forward_mode])
def test_keyword_only_arguments_reach_the_rule(make, rng):
    f, x, dx = make(), rng.uniform(0.5, 2.0, 3), rng.normal(size=3)
    np.testing.assert_allclose(ad.grad(f)(x), np.ones(3), rtol=1e-14)
    g = ad.grad(lambda x: f(x, scale=3.0, power=2))
    np.testing.assert_allclose(g(x), 6.0 * x, rtol=1e-14)
    out, dout = ad.jvp(lambda x: f(x, power=3), (x,), (dx,))
    np.testing.assert_allclose(dout, 3.0 * np.sum(x**2 * dx), rtol=1e-13)


def test_a_keyword_that_a_rule_does_not_take_is_an_error(rng):
    f, x = ad.custom_vjp(scaled), rng.normal(size=3)
    f.defvjp(lambda dout, out, x: (dout * np.ones_like(x),))
    np.testing.assert_allclose(ad.grad(f)(x), np.ones(3))
    with pytest.raises(ad.AutodiffError, match=r"scaled: its rule does not take scale=2\.0, an argument of"):
        ad.grad(lambda x: f(x, scale=2.0))(x)
    with pytest.raises(ad.AutodiffError, match="keyword-only argument scale is a recorded value"):
        ad.grad(lambda x: f(x, scale=x[0]))(x)


def test_a_condition_as_an_argument():
    """x < 1.0 of a Python number is one of Python's bools, and an argument that is no setting."""

    @ad.custom_vjp
    def back(condition, x):
        return np.where(condition, x, 2 * x)

    @back.defvjp
    def back_vjp(dout, out, condition, x):
        return None, np.where(condition, dout, 2 * dout)

    @ad.custom_jvp
    def along(condition, x):
        return np.where(condition, x, 2 * x)

    @along.defjvp
    def along_jvp(primals, tangents):
        return along(*primals), np.where(primals[0], tangents[1], 2 * tangents[1])

    for f in (lambda x: back(x < 1.0, x), lambda x: along(x < 1.0, x)):
        g = ad.grad(f)
        assert [g(0.5), g(2.0), g(0.5)] == [1.0, 2.0, 1.0]
        assert ad.jvp(f, (2.0,), (1.0,)) == (4.0, 2.0)
        assert list(ad.vmap(g)(np.array([0.5, 2.0]))) == [1.0, 2.0]
