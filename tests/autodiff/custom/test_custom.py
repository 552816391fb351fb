"""custom_vjp, custom_jvp, checkpoint, stop_gradient and callback."""

import math

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.errors import UnsupportedError
from gpt2.autodiff.record.record import record


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def erf_slope(x):
    return 2 / math.sqrt(math.pi) * np.exp(-x * x)


@ad.custom_vjp
def erf(x):
    """It cannot be recorded: math.erf takes numbers."""
    return np.asarray([math.erf(v) for v in np.asarray(x, float)])


@erf.defvjp
def erf_vjp(dout, out, x):
    return (dout * erf_slope(x),)


def test_function_that_cannot_be_recorded(rng):
    x, t = rng.normal(size=4), rng.normal(size=4)
    np.testing.assert_allclose(erf(x), [math.erf(v) for v in x])
    g = ad.grad(lambda x: np.sum(erf(x) * x))
    for v in (x, x, x, 2 * x):
        np.testing.assert_allclose(g(v), erf_slope(v) * v + erf(v), rtol=1e-13)
    np.testing.assert_allclose(ad.jvp(erf, (x,), (t,))[1], erf_slope(x) * t, rtol=1e-13)
    np.testing.assert_allclose(ad.hvp(lambda x: np.sum(erf(x)), x, t), -2 * x * erf_slope(x) * t, rtol=1e-12)
    np.testing.assert_allclose(ad.jacobian(erf)(x), np.diag(erf_slope(x)), rtol=1e-13)


def test_rule_that_cannot_be_recorded_has_no_derivative():
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


def test_rule_replaces_the_derivative():
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

    @g.defjvp
    def g_jvp(primals, tangents):
        (x, y), (dx, dy) = primals, tangents
        return g(x, y), np.cos(x) * y * dx + np.sin(x) * dy

    s, c, d = math.sin(0.4), math.cos(0.4), ad.grad
    for h in (f, g):
        for derivative, expected in (
            (d(h), 2 * c),
            (d(h, argnums=1), s),
            (d(d(h)), -2 * s),
            (d(d(h), argnums=1), c),
            (d(d(d(h))), -2 * c),
            (lambda x, y, h=h: ad.jvp(d(h), (x, y), (1.0, 1.0))[1], -2 * s + c),
        ):
            assert derivative(0.4, 2.0) == pytest.approx(expected, rel=1e-14)


def test_iterative_solver_runs_as_one_op():
    """Newton's square root branches on values, yet programs that call it are reused."""

    @ad.custom_vjp
    def root(a):
        y = a
        while abs(y * y - a) > 1e-13 * a:
            y = 0.5 * (y + a / y)
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


def test_dtype_and_shape_of_gradients_are_checked(rng):
    @ad.custom_vjp
    def f(x, y):
        return x * y

    f.defvjp(lambda dout, out, x, y: (dout * y, dout * x))
    x = rng.normal(size=3).astype(np.float32)
    assert ad.grad(lambda x: np.sum(f(x, x)))(x).dtype == np.float32
    with pytest.raises(ad.AutodiffError, match=r"gradient of shape \(2, 3\) for .*argument 0.*\(3,\)"):
        ad.grad(lambda x: np.sum(f(x, np.ones((2, 3)))))(x.astype(float))


def product(x, y):
    return x * y


@pytest.mark.parametrize("rule, error, words", [
    ((), ad.AutodiffError, "product is a custom_vjp without a rule"),
    ((lambda dout, out, x, y: (dout,),), ad.AutodiffError, "1 gradients for 2 arguments"),
    ((lambda dout, out, x, y: ([dout], dout),), ad.AutodiffError, "a list for floating-point argument 0"),
    ((lambda dout, x, y: (dout, dout),), ad.AutodiffError, r"takes \(dout, x, y\).*\(dout, out, \*args\)"),
    ((lambda x, y: (x * y, ()), lambda dout: (dout, dout)), ad.AutodiffError,
     r"product: its rule takes \(dout\).*\(residuals, dout\)"),
    # an error within the rule is passed on
    ((lambda dout, out, x, y: (np.sin(1, 2, 3, 4), dout),), TypeError, "sin"),
])  # fmt: skip
def test_errors_of_vjp_rules(rule, error, words):
    f = ad.custom_vjp(product)
    if rule:
        f.defvjp(*rule)
    with pytest.raises(error, match=words):
        ad.grad(f)(1.0, 2.0)


def test_errors_of_jvp_rules():
    f = ad.custom_jvp(product)
    f.defjvp(lambda tangents, out, x, y: x * tangents[1])
    with pytest.raises(ad.AutodiffError, match=r"product: its rule takes .*\(primals, tangents\)"):
        ad.grad(f)(1.0, 2.0)


def test_captured_value_that_depends_on_the_argument_is_an_error():
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

    x, v = rng.normal(size=(2, 3, 4))
    checkpointed, plain = loss(ad.checkpoint(block)), loss(block)
    gradient = ad.grad(checkpointed)
    for _ in range(2):
        np.testing.assert_allclose(gradient(x), ad.grad(plain)(x), rtol=1e-12)
    np.testing.assert_allclose(ad.hvp(checkpointed, x, v), ad.hvp(plain, x, v), rtol=1e-11)
    np.testing.assert_allclose(*(ad.jvp(f, (x,), (v,))[1] for f in (checkpointed, plain)), rtol=1e-12)
    _, pullback = ad.vjp(ad.checkpoint(block), x)
    assert [a.shape for a in pullback._saved] == [x.shape, w.shape], "not the five values between"
    assert ad.checkpoint(block).__name__ == "block"


def test_checkpoint_reads_and_writes_arrays_of_the_outer_function(rng):
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


# ---- Keyword-only arguments ------------------------------------------------------------------------------


def scaled(x, *, scale=1.0, power=1):
    return np.sum(x**power) * scale


def slope_of_scaled(x, *, scale, power):
    return scale * power * x ** (power - 1)


def forward(x, **settings):
    assert set(settings) == {"scale", "power"}
    return scaled(x, **settings), (x, settings)


with_backward, with_both, with_jvp = ad.custom_vjp(scaled), ad.custom_vjp(scaled), ad.custom_jvp(scaled)
with_backward.defvjp(
    lambda dout, out, x, *, scale=1.0, power=1: (dout * slope_of_scaled(x, scale=scale, power=power),)
)
with_both.defvjp(forward, lambda kept, dout: (dout * slope_of_scaled(kept[0], **kept[1]),))


@with_jvp.defjvp
def with_jvp_rule(primals, tangents, scale, power):
    slope = slope_of_scaled(*primals, scale=scale, power=power)
    return scaled(*primals, scale=scale, power=power), np.sum(slope * tangents[0])


@pytest.mark.parametrize("f", [with_backward, with_both, with_jvp], ids=["backward", "both", "jvp"])
def test_keyword_only_arguments_reach_the_rule(f, rng):
    x, dx = rng.uniform(0.5, 2.0, 3), rng.normal(size=3)
    np.testing.assert_allclose(ad.grad(f)(x), np.ones(3), rtol=1e-14)
    g = ad.grad(lambda x: f(x, scale=3.0, power=2))
    np.testing.assert_allclose(g(x), 6.0 * x, rtol=1e-14)
    out, dout = ad.jvp(lambda x: f(x, power=3), (x,), (dx,))
    np.testing.assert_allclose(dout, 3.0 * np.sum(x**2 * dx), rtol=1e-13)


def test_keyword_that_the_rule_does_not_take_is_an_error(rng):
    f, x = ad.custom_vjp(scaled), rng.normal(size=3)
    f.defvjp(lambda dout, out, x: (dout * np.ones_like(x),))
    np.testing.assert_allclose(ad.grad(f)(x), np.ones(3))
    with pytest.raises(ad.AutodiffError, match=r"scaled: its rule does not take scale=2\.0, an argument of"):
        ad.grad(lambda x: f(x, scale=2.0))(x)
    with pytest.raises(ad.AutodiffError, match="keyword-only argument scale is a recorded value"):
        ad.grad(lambda x: f(x, scale=x[0]))(x)


def test_bool_argument_is_not_static():
    """x < 1.0 of a Python number is a Python bool, and depends on an argument."""

    def either(condition, x):
        return np.where(condition, x, 2 * x)

    reverse, forward = ad.custom_vjp(either), ad.custom_jvp(either)
    reverse.defvjp(lambda dout, out, condition, x: (None, either(condition, dout)))
    forward.defjvp(lambda primals, tangents: (either(*primals), either(primals[0], tangents[1])))
    for rule in (reverse, forward):
        f = lambda x, rule=rule: rule(x < 1.0, x)  # noqa: E731
        g = ad.grad(f)
        assert [g(0.5), g(2.0), g(0.5)] == [1.0, 2.0, 1.0]
        assert ad.jvp(f, (2.0,), (1.0,)) == (4.0, 2.0)
        assert list(ad.vmap(g)(np.array([0.5, 2.0]))) == [1.0, 2.0]


def test_what_the_rule_of_the_other_mode_reads():
    """A change of it is seen, as one of what the backward reads is."""
    forward_factor, backward_factor = {"k": 2.0}, {"k": 2.0}

    @ad.custom_vjp
    def f(x):
        return x * x

    @f.defvjp
    def f_vjp(dout, out, x):
        return (backward_factor["k"] * x * dout,)

    @f.defjvp
    def f_jvp(primals, tangents):
        (x,), (dx,) = primals, tangents
        return x * x, forward_factor["k"] * x * dx

    forward, backward = ad.jacfwd(lambda x: f(x) + 0.0), ad.grad(lambda x: f(x) + 0.0)
    for a, b in ((2.0, 2.0), (5.0, 2.0), (5.0, 7.0)):
        forward_factor["k"], backward_factor["k"] = a, b
        assert (forward(3.0), backward(3.0)) == (3.0 * a, 3.0 * b)


def test_no_tangent_of_an_infinite_result():
    @ad.custom_jvp
    def f(x):
        return x - np.inf, x * 2.0

    @f.defjvp
    def f_jvp(primals, tangents):
        return (primals[0] - np.inf, primals[0] * 2.0), (None, tangents[0] * 2.0)

    _, tangents = ad.jvp(f, (np.ones(2),), (np.ones(2),))
    np.testing.assert_array_equal(tangents, ([0.0, 0.0], [2.0, 2.0]))


# ---- Plain Python within a program, called at each run and not recorded ----------------------------------


def test_called_at_each_run_with_current_values():
    calls = []

    def log(x, y):
        calls.append((x.copy(), y.copy()))
        return {"sum": x + y, "count": np.array(len(calls))}

    example = {"sum": np.zeros(3), "count": np.array(0)}

    def f(x, y):
        result = ad.callback(log, example, 2.0 * x, y - 1.0)
        return result["sum"] ** 2, result["count"] * 1.0

    fixed = ad.Fixed(f)
    x, y = np.arange(3.0), np.ones(3)
    fixed(x, y)
    calls.clear()
    for k in range(1, 4):
        squares, count = fixed(k * x, y)
        assert count == k
        np.testing.assert_array_equal(squares, (2.0 * k * x) ** 2)
        np.testing.assert_array_equal(calls[-1], (2.0 * k * x, np.zeros(3)))
    assert len(calls) == 3


def test_equal_calls_are_not_merged():
    count = iter(range(100))

    def step(x):
        return np.full_like(x, next(count))

    fixed = ad.Fixed(lambda x: ad.callback(step, x, x) - ad.callback(step, x, x))
    assert abs(fixed(np.ones(2))) == pytest.approx([1.0, 1.0])


def test_outside_of_a_recording_the_function_is_called():
    assert ad.callback(lambda x: [x], None, 3) == [3]


@pytest.mark.parametrize("wrong, text", [
    (lambda x: x[:1], r"float64 \(1,\)"),
    (lambda x: x.astype("f4"), r"float32 \(2,\)"),
    (lambda x: (x, x), r"float64 \(2,\), float64 \(2,\)"),
    (lambda x: 1.0, r"float \(\)"),
])  # fmt: skip
def test_result_unlike_the_example_is_refused(wrong, text):
    with pytest.raises(ad.AutodiffError, match=f"callback: <lambda> gives {text}, expected float64"):
        ad.Fixed(lambda x: ad.callback(wrong, x, x))(np.ones(2))


def test_derivative_needs_a_custom_rule():
    with pytest.raises(UnsupportedError, match="sin runs as plain Python"):
        ad.grad(lambda x: np.sum(ad.callback(np.sin, x, x * x)))(np.ones(2))

    @ad.custom_vjp
    def sine(x):
        return ad.callback(np.sin, x, x)

    sine.defvjp(lambda dout, out, x: (dout * np.cos(x),))
    x = np.linspace(0.0, 1.0, 4)
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(sine(x)))(x), np.cos(x), rtol=1e-15)


def test_vmap_calls_once_for_each_example():
    doubled = ad.vmap(lambda x: ad.callback(lambda v: v * 2.0, x, x))(np.arange(6.0).reshape(3, 2))
    np.testing.assert_array_equal(doubled, 2.0 * np.arange(6.0).reshape(3, 2))


@pytest.mark.parametrize("compiled", [ad.Fixed, lambda f: ad.compile(f, pure=True)])
def test_arguments_are_read_only(compiled):
    """Another value of the program may be in the same array: here x * 2, computed once."""

    def doubled_in_place(v):
        v *= 2.0
        return v.copy()

    def f(x):
        y, z = x * 2.0, x * 2.0
        return ad.callback(doubled_in_place, x, y) + z

    with pytest.raises(ValueError, match="read-only"):
        compiled(f)(np.ones(2))


def test_it_sees_real_values_of_large_arrays():
    """Though a first run for a Fixed does not compute them."""
    seen = []

    def note(x):
        seen.append(float(x))
        return x

    fixed = ad.Fixed(lambda x: ad.callback(note, np.zeros(()), np.sum(x * x)) + 0.0)
    for _ in range(2):
        fixed(np.full(100_000, 2.0))
    assert seen and set(seen) == {400_000.0}


@pytest.mark.parametrize("like", [None, ()])
def test_without_a_result_it_is_refused(like):
    with pytest.raises(ad.AutodiffError, match=r"test_custom.py:\d+: callback: like has no array"):
        ad.compile(lambda x: (ad.callback(print, like, x), x)[1])(np.ones(2))
