"""np.random.Generator in compiled functions: the numbers are plain NumPy's; derivatives of distributions."""

import copy
import gc
import math
import tracemalloc

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.random.sampling import digamma, gamma_slope, t_slope

rng = np.random.default_rng(0)
in_dict = {}
X = np.array([0.3, 1.0, 2.0])


def compared(f):
    """Compares four calls of f and of its program, from one state of the generator; returns the program."""
    global rng
    rng = in_dict["rng"] = np.random.default_rng(5)
    plain = [f(X) for _ in range(4)]
    end = rng.bit_generator.state
    rng = in_dict["rng"] = np.random.default_rng(5)
    compiled = ad.compile(f)
    for expected in plain:
        np.testing.assert_array_equal(compiled(X), expected)
    assert rng.bit_generator.state == end
    assert type(rng) is np.random.Generator
    return compiled


@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.sum(x * rng.normal(size=3)),
        lambda x: rng.normal(x, 0.5),
        lambda x: rng.normal(x[:, None], x),
        lambda x: rng.uniform(x, 4.0, size=(2, 3)) + rng.random() + rng.standard_normal(dtype=np.float32),
        lambda x: rng.exponential(x) + rng.standard_exponential(3),
        lambda x: rng.gamma(np.exp(x), 2.0) + rng.standard_gamma(x, size=(2, 3)) + rng.gamma(2.0, x),
        lambda x: rng.standard_t(np.exp(x)) + rng.standard_t(3.0),
        lambda x: rng.dirichlet(np.concatenate([x, x, x, x]), size=2),
        lambda x: x * rng.integers(5, size=3) + rng.permutation(3) + rng.choice(5) + rng.poisson(2.0),
        lambda x: x[rng.integers(3, size=4)] + rng.beta(2.0, 3.0) + rng.multivariate_normal([0.0], [[1.0]]),
        lambda x: ad.scan(lambda c, v: (c + v * rng.normal(), None), 0.0, x)[0],
        lambda x: ad.grad(lambda y: np.sum(y * y * rng.normal(size=3)))(x),
        lambda x: ad.checkpoint(lambda y: np.sin(y) * rng.normal(y))(x),
    ],
)
def test_draws_are_those_of_the_function_and_recorded_once(f):
    assert ad.why_recorded(compared(f)) is None


@ad.custom_vjp
def with_a_rule(x):
    return x * rng.normal()


with_a_rule.defvjp(lambda dout, out, x: (dout,))


def shuffled():
    p = np.arange(3)
    rng.shuffle(p)
    return p


@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.sum(x) if rng.random() < 0.5 else np.prod(x),
        lambda x: np.sum(x) * math.sin(rng.normal()),
        lambda x: x * np.histogram(rng.normal(size=9), bins=3)[0],
        lambda x: x + rng.standard_normal(3, out=np.empty(3)),
        lambda x: x * shuffled(),
        lambda x: x * np.random.Generator(rng.bit_generator).normal(),
        lambda x: x * in_dict["rng"].normal(),
        lambda x: with_a_rule(x),
    ],
)
def test_draws_that_decide_or_leave_the_graph_are_recorded_at_each_call(f):
    assert ad.why_recorded(compared(f)) is not None


def test_generator_as_an_argument():
    g = ad.grad(lambda x, r: np.sum(x * r.normal(size=3)))
    r, plain = np.random.default_rng(1), np.random.default_rng(1)
    for _ in range(3):
        np.testing.assert_array_equal(g(X, r), plain.normal(size=3))
    assert ad.why_recorded(g) is None and r.bit_generator.state == plain.bit_generator.state


def test_generator_of_an_object():
    class Layer:
        def __init__(self):
            self.rng = np.random.default_rng(2)

        def loss(self, x):
            return np.sum(x * self.rng.normal(size=3))

    layer, plain = Layer(), np.random.default_rng(2)
    g = ad.grad(layer.loss)
    for _ in range(3):
        np.testing.assert_array_equal(g(X), plain.normal(size=3))
    assert ad.why_recorded(g) is None and type(layer.rng) is np.random.Generator
    layer.rng = np.random.default_rng(7)
    np.testing.assert_array_equal(g(X), np.random.default_rng(7).normal(size=3))


def test_generator_after_an_exception_is_as_without_the_compiler():
    r = np.random.default_rng(1)

    def f(x):
        noise = r.normal(size=3)
        raise ValueError(noise.shape)

    with pytest.raises(ValueError, match=r"\(3,\)"):
        ad.grad(f)(X)
    plain = np.random.default_rng(1)
    plain.normal(size=3)
    assert r.bit_generator.state == plain.bit_generator.state and type(r) is np.random.Generator


def test_gradients_at_fixed_noise():
    """d/dmu of sum((mu + s z)**2) is 2 (mu + s z); a copy of the generator draws the same z."""
    r = np.random.default_rng(4)
    g = ad.grad(lambda mu, s: np.sum(r.normal(mu, s) ** 2), argnums=(0, 1))
    for _ in range(3):
        z = copy.deepcopy(r).standard_normal(3)
        dmu, ds = g(X, 0.7)
        np.testing.assert_allclose(dmu, 2 * (X + 0.7 * z), rtol=1e-12)
        assert ds == pytest.approx(np.sum(2 * (X + 0.7 * z) * z), rel=1e-12)
    g = ad.grad(lambda low, high, scale: r.uniform(low, high) * r.exponential(scale), argnums=(0, 1, 2))
    twin = copy.deepcopy(r)
    u, e = twin.random(), twin.standard_exponential()
    assert g(1.0, 3.0, 0.5) == pytest.approx(((1 - u) * 0.5 * e, u * 0.5 * e, (1 + 2 * u) * e), rel=1e-12)


def test_gradients_at_fixed_quantile():
    """Of gamma and t, against differences of SciPy's quantile function."""
    special = pytest.importorskip("scipy.special")
    r = np.random.default_rng(4)
    g = ad.grad(lambda a: np.sum(np.sin(r.gamma(a, 2.0))))
    for _ in range(2):
        z = copy.deepcopy(r).standard_gamma(X)
        chance = special.gammainc(X, z)
        eps = 1e-5
        slope = (special.gammaincinv(X + eps, chance) - special.gammaincinv(X - eps, chance)) / (2 * eps)
        np.testing.assert_allclose(g(X), 2.0 * slope * np.cos(2.0 * z), rtol=1e-6)
    df = np.array([0.7, 3.0, 40.0])
    chance = special.stdtr(df, copy.deepcopy(r).standard_t(df))
    eps = 1e-4 * df
    slope = (special.stdtrit(df + eps, chance) - special.stdtrit(df - eps, chance)) / (2 * eps)
    np.testing.assert_allclose(ad.grad(lambda df: np.sum(r.standard_t(df)))(df), slope, rtol=1e-4)


@pytest.mark.slow
def test_slopes_of_gamma_samples_agree_with_jax():
    jax = pytest.importorskip("jax")
    r = np.random.default_rng(0)
    a = np.repeat([0.02, 0.5, 1.0, 3.0, 40.0, 1e4], 6)
    z = r.standard_gamma(a)
    with jax.enable_x64(True):
        expected = jax.lax.random_gamma_grad(a, z)
    np.testing.assert_allclose(gamma_slope(a, z), expected, rtol=1e-10)
    assert t_slope(np.array([3.0]), np.array([0.0])) == 0.0
    assert digamma(np.array(1.0)) == pytest.approx(-np.euler_gamma, rel=1e-14)


def test_gradients_of_expectations():
    """E[z] = a for gamma, and E[x0] = a0 / sum(a) for dirichlet; by many draws in one call."""
    r = np.random.default_rng(4)
    slope = ad.grad(lambda a: np.mean(r.gamma(a, size=20_000)))(1.7)
    assert slope == pytest.approx(1.0, abs=0.03)
    a = np.array([0.5, 1.5, 2.0])
    slope = ad.grad(lambda a: np.mean(r.dirichlet(a, size=5_000)[:, 0]))(a)
    np.testing.assert_allclose(slope, [3.5 / 16, -0.5 / 16, -0.5 / 16], atol=0.01)


@pytest.mark.parametrize("derive, f, words", [
    (ad.grad, lambda a, r: r.beta(a, 2.0), r"test_draws.py:\d+: .*rng.beta of a recorded value"),
    (ad.grad, lambda a, r: np.sum(r.dirichlet(np.array([a, a]) * 0.01)), "test_draws.py:.*0.1 or more"),
    (ad.grad, lambda a, r: r.normal(0.0, -a), "scale < 0"),
    (ad.grad, lambda a, r: ad.grad(lambda b: r.gamma(b))(a), "test_draws.py:.*inside of another function"),
    (ad.hessian, lambda a, r: r.gamma(a), "test_draws.py:.*a second derivative by the shape"),
    (ad.grad, lambda a, r: ad.fixed_point(lambda x: a * x + r.normal(), 0.0), "it draws random numbers"),
])  # fmt: skip
def test_errors_name_the_line(derive, f, words):
    r = np.random.default_rng(4)
    with pytest.raises((ad.AutodiffError, ValueError), match=words):
        derive(lambda a: f(a, r))(1.5)


def test_while_loop_draws_at_each_step():
    r, plain = np.random.default_rng(4), np.random.default_rng(4)
    g = ad.grad(lambda a: ad.while_loop(lambda x: x < 3.0, lambda x: x + a + 0.01 * r.random(), 0.0 * a))
    assert g(1.0) == 3.0
    plain.random(3)
    assert plain.bit_generator.state == r.bit_generator.state


def into_shadow(f, v):
    shadow = np.zeros(3)
    ad.autodiff(f, ad.Duplicated(X, shadow))
    return shadow


@pytest.mark.parametrize("derived", [
    lambda f, v: ad.jvp(f, (X,), (v,)),
    lambda f, v: ad.hvp(f, X, v),
    lambda f, v: ad.vjp(f, X)[1](1.0)[0],
    into_shadow,
])  # fmt: skip
@pytest.mark.parametrize("draw", [lambda x: rng.normal(size=3), lambda x: rng.normal(x, 1.0)])
def test_calls_with_more_arguments_than_the_function_draw_anew(derived, draw):
    """Tangents and shadows beside the function's own."""
    global rng
    v = np.array([1.0, 2.0, -1.0])

    def f(x):
        return np.sum(x**3 * draw(x))

    rng = np.random.default_rng(5)
    expected = [derived(lambda x: f(x), v) for _ in range(4)]  # recorded at each call
    end = rng.bit_generator.state
    rng = np.random.default_rng(5)
    for result in expected:
        np.testing.assert_allclose(derived(f, v), result, rtol=1e-14)
    assert rng.bit_generator.state == end


def test_numbers_are_not_kept_after_the_call():
    """They may be as large as everything else together: the masks of a dropout."""
    g = ad.grad(lambda x: np.sum(x * rng.normal(size=(1000, 3))) * (1.0 if x[0] > 0 else 2.0))
    tracemalloc.start()
    try:
        for sign in (1.0, -1.0, 1.0):
            g(sign * X)
            gc.collect()
            held = [s for s in tracemalloc.take_snapshot().traces if s.size == 24_000]
            assert not held
    finally:
        tracemalloc.stop()
    assert ad.why_recorded(g) is None
