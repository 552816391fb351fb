"""np.random.Generator in a differentiated function: the numbers are those of the function itself, fresh at
each call, without another recording; and gradients by the parameters of distributions.
"""

import copy
import math

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.random.sampling import digamma, gamma_slope, t_slope

rng = np.random.default_rng(0)
X = np.array([0.3, 1.0, 2.0])


def compared(f, *args, calls=4):
    """f itself and its program, called in turn on generators in one state; gives the compiled function."""
    global rng
    rng = np.random.default_rng(5)
    plain = [f(*args) for _ in range(calls)]
    end = rng.bit_generator.state
    rng = np.random.default_rng(5)
    compiled = ad.compile(f)
    for expected in plain:
        np.testing.assert_array_equal(compiled(*args), expected)
    assert rng.bit_generator.state == end
    assert type(rng) is np.random.Generator
    return compiled


def noisy(mu, s):
    return np.sum(rng.normal(mu, s, size=(2, 3)) ** 2) + rng.uniform(mu[0], 2.0) + rng.exponential(s) * mu[1]


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
def test_numbers_are_those_of_the_function_and_nothing_is_recorded_again(f):
    assert ad.why_recorded(compared(f, X)) is None


@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.sum(x) if rng.random() < 0.5 else np.prod(x),
        lambda x: np.sum(x) * math.sin(rng.normal()),
        lambda x: x * np.histogram(rng.normal(size=9), bins=3)[0],
        lambda x: x + rng.standard_normal(3, out=np.empty(3)),
        lambda x: x * shuffled(),
        lambda x: x * np.random.Generator(rng.bit_generator).normal(),
        lambda x: x * held["rng"].normal(),
        lambda x: with_a_rule(x),
    ],
)
def test_draws_that_cannot_be_followed_are_recorded_again(f):
    held["rng"] = None
    rng_before = rng
    try:
        held["rng"] = np.random.default_rng(5)
        g = compared(lambda x: f(x), X) if "held" not in f.__code__.co_names else ad.compile(f)
        if "held" in f.__code__.co_names:
            plain = np.random.default_rng(5)
            for _ in range(3):
                np.testing.assert_array_equal(g(X), X * plain.normal())
        assert ad.why_recorded(g) is not None
    finally:
        globals()["rng"] = rng_before


held = {}


@ad.custom_vjp
def with_a_rule(x):
    return x * rng.normal()


with_a_rule.defvjp(lambda dout, out, x: (dout,))


def shuffled():
    p = np.arange(3)
    rng.shuffle(p)
    return p


def test_a_generator_among_the_arguments_and_in_an_object():
    def f(x, r):
        return np.sum(x * r.normal(size=3))

    g, mine, plain = ad.grad(f), np.random.default_rng(1), np.random.default_rng(1)
    for _ in range(3):
        np.testing.assert_array_equal(g(X, mine), plain.normal(size=3))
    assert ad.why_recorded(g) is None and mine.bit_generator.state == plain.bit_generator.state

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
    layer.rng = np.random.default_rng(7)  # another generator is another world
    np.testing.assert_array_equal(g(X), np.random.default_rng(7).normal(size=3))


def test_a_function_that_fails_leaves_its_generator_as_plain_python_would():
    r = np.random.default_rng(1)

    def f(x):
        noise = r.normal(size=3)
        raise ValueError(noise.shape)

    with pytest.raises(ValueError, match=r"\(3,\)"):
        ad.grad(f)(X)
    plain = np.random.default_rng(1)
    plain.normal(size=3)
    assert r.bit_generator.state == plain.bit_generator.state and type(r) is np.random.Generator


def test_gradients_through_noise_are_those_at_fixed_noise():
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


def test_implicit_gradients_are_those_at_fixed_chance():
    """With SciPy: the sample as the quantile of its own probability, by differences of the parameter."""
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
    t = copy.deepcopy(r).standard_t(df)
    found = ad.grad(lambda df: np.sum(r.standard_t(df)))(df)
    slope = [
        (special.stdtrit(n + eps * n, p) - special.stdtrit(n - eps * n, p)) / (2 * eps * n)
        for n, p in zip(df, special.stdtr(df, t))
        for eps in [1e-4]
    ]
    np.testing.assert_allclose(found, slope, rtol=1e-4)


def test_slopes_of_gamma_are_those_of_jax():
    jax = pytest.importorskip("jax")
    r = np.random.default_rng(0)
    a = np.repeat([0.02, 0.5, 1.0, 3.0, 40.0, 1e4], 6)
    z = r.standard_gamma(a)
    with jax.enable_x64(True):
        expected = jax.lax.random_gamma_grad(a, z)
    np.testing.assert_allclose(gamma_slope(a, z), expected, rtol=1e-10)
    assert t_slope(np.array([3.0]), np.array([0.0])) == 0.0
    assert digamma(np.array(1.0)) == pytest.approx(-np.euler_gamma, rel=1e-14)


def test_expectations_of_gradients():
    """d/da of E[z] = a for gamma, and of E[x0] = a0 / sum(a) for dirichlet, by many draws in one call."""
    r = np.random.default_rng(4)
    found = ad.grad(lambda a: np.mean(r.gamma(a, size=20_000)))(1.7)
    assert found == pytest.approx(1.0, abs=0.03)
    a = np.array([0.5, 1.5, 2.0])
    found = ad.grad(lambda a: np.mean(r.dirichlet(a, size=5_000)[:, 0]))(a)
    np.testing.assert_allclose(found, [3.5 / 16, -0.5 / 16, -0.5 / 16], atol=0.01)


def test_errors_name_the_line():
    r = np.random.default_rng(4)
    cases = {
        "rng.beta of a recorded value": lambda a: r.beta(a, 2.0),
        "an entry is 0.1 or more": lambda a: np.sum(r.dirichlet(np.array([a, a]) * 0.01)),
        "scale < 0": lambda a: r.normal(0.0, -a),
        "inside of another function": lambda a: ad.grad(lambda b: r.gamma(b))(a),
        "a second derivative by the shape": lambda a: r.gamma(a),
    }
    for words, f in cases.items():
        derived = ad.hessian if words.startswith("a second") else ad.grad
        with pytest.raises(Exception) as error:
            derived(f)(1.5)
        assert words in str(error.value)
        assert "test_draws.py:" in str(error.value) or words == "scale < 0"


def test_loops_and_solvers_do_not_freeze_what_is_drawn():
    r = np.random.default_rng(4)
    with pytest.raises(ad.AutodiffError, match="it draws random numbers"):
        ad.grad(lambda a: ad.fixed_point(lambda x: 0.5 * x + a * r.normal(), 0.0))(1.0)
    twin = copy.deepcopy(r)
    found = ad.grad(lambda a: ad.while_loop(lambda x: x < 3.0, lambda x: x + a + 0.01 * r.random(), 0.0 * a))(
        1.0
    )
    assert found == 3.0
    assert [twin.random() for _ in range(3)] and twin.bit_generator.state == r.bit_generator.state
