"""ad.autodiff: gradients are added into shadow arrays, also of functions that fill preallocated arrays."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff import Active, Const, Duplicated
from gpt2.layers.layernorm import layernorm_backward, layernorm_forward
from tests.support.peaks import peak_of
from tests.support.trees import assert_close


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def layernorm(out, mean, rstd, inp, weight, bias):
    """llm.c's layernorm_forward, into preallocated arrays."""
    for b in range(inp.shape[0]):
        x = inp[b]
        m = x.mean()
        v = ((x - m) ** 2).mean()
        s = 1.0 / np.sqrt(v + 1e-5)
        out[b] = (x - m) * s * weight + bias
        mean[b] = m
        rstd[b] = s


def test_function_that_fills_preallocated_arrays(rng):
    B, C = 3, 8
    (inp, seed), (weight, bias) = rng.normal(size=(2, B, C)), rng.normal(size=(2, C))
    _, saved = layernorm_forward(inp, weight, bias)
    expected = layernorm_backward(seed, saved)
    out, mean, rstd = np.zeros((B, C)), np.zeros(B), np.zeros(B)
    dinp, dweight, dbias = np.zeros((B, C)), np.ones(C), np.zeros(C)
    for calls in (1, 2, 3):
        dout = seed.copy()
        result = ad.autodiff(
            layernorm,
            Duplicated(out, dout),
            Const(mean),
            Const(rstd),
            Duplicated(inp, dinp),
            Duplicated(weight, dweight),
            Duplicated(bias, dbias),
        )
        assert result == (None,) * 6
        np.testing.assert_allclose(mean, inp.mean(axis=1), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(rstd, 1 / np.sqrt(inp.var(axis=1) + 1e-5), rtol=1e-13)
        np.testing.assert_allclose(out, (inp - mean[:, None]) * rstd[:, None] * weight + bias, rtol=1e-12)
        np.testing.assert_array_equal(dout, 0.0)  # since out is overwritten
        np.testing.assert_allclose(dinp, calls * expected[0], rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(dweight, 1 + calls * expected[1], rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(dbias, calls * expected[2], rtol=1e-11)


def test_shadows_of_several_outputs(rng):
    inp, dinp = rng.normal(size=(2, 4)), np.zeros((2, 4))
    outs = [np.zeros((2, 4)), np.zeros(2), np.zeros(2)]
    seeds = [rng.normal(size=o.shape) for o in outs]
    shadows = [s.copy() for s in seeds]
    weight, bias = Const(np.ones(4)), Const(np.zeros(4))
    ad.autodiff(layernorm, *map(Duplicated, outs, shadows), Duplicated(inp, dinp), weight, bias)

    def weighted(inp):
        m = inp.mean(axis=1)
        s = 1 / np.sqrt(inp.var(axis=1) + 1e-5)
        out = (inp - m[:, None]) * s[:, None]
        return np.sum(out * seeds[0]) + np.sum(m * seeds[1]) + np.sum(s * seeds[2])

    np.testing.assert_allclose(dinp, ad.grad(weighted)(inp), rtol=1e-11)
    for s in shadows:
        np.testing.assert_array_equal(s, 0.0)


def test_argument_that_is_read_and_written(rng):
    """The shadow has the gradient of the final content on entry, of the initial content on return."""

    def f(x, y):
        y += x * x
        x *= 3.0

    x, y, dx, dy = (rng.normal(size=4) for _ in range(4))
    x0, y0, dx0, dy0 = x.copy(), y.copy(), dx.copy(), dy.copy()
    ad.autodiff(f, Duplicated(x, dx), Duplicated(y, dy))
    np.testing.assert_allclose(x, 3 * x0, rtol=1e-14)
    np.testing.assert_allclose(y, y0 + x0 * x0, rtol=1e-14)
    np.testing.assert_allclose(dx, 3 * dx0 + 2 * x0 * dy0, rtol=1e-13)
    np.testing.assert_allclose(dy, dy0, rtol=1e-14)


def test_partly_overwritten_output(rng):
    def f(x, out):
        out[1:3] = x * 2.0

    out, dout, dx = np.zeros(4), rng.normal(size=4), np.zeros(2)
    before = dout.copy()
    ad.autodiff(f, Duplicated(np.ones(2), dx), Duplicated(out, dout))
    np.testing.assert_allclose(dx, 2 * before[1:3])
    np.testing.assert_array_equal(dout, [before[0], 0, 0, before[3]])


def test_backward_of_two_layers_with_a_shadow_between_them(rng):
    def square(out, inp):
        out[...] = inp * inp

    def sine(out, inp):
        out[...] = np.sin(inp)

    x, h, y = rng.normal(size=5), np.zeros(5), np.zeros(5)
    dx, dh, dy = np.zeros(5), np.zeros(5), rng.normal(size=5)
    seed = dy.copy()
    square(h, x), sine(y, h)
    ad.autodiff(sine, Duplicated(y, dy), Duplicated(h, dh))
    ad.autodiff(square, Duplicated(h, dh), Duplicated(x, dx))
    np.testing.assert_allclose(dx, seed * np.cos(x * x) * 2 * x, rtol=1e-12)
    np.testing.assert_array_equal(dh, 0.0)


def test_active_numbers_constants_and_value(rng):
    x, dx = rng.normal(size=3), np.ones(3)

    def f(a, x, n):
        return a**n * np.sum(x)

    for _ in range(3):
        dx[:] = 1.0
        grads, value = ad.autodiff(f, Active(2.0), Duplicated(x, dx), Const(3), value=True)
        assert grads == (pytest.approx(12 * np.sum(x)), None, None) and type(grads[0]) is float
        assert value == pytest.approx(8 * np.sum(x))
        np.testing.assert_allclose(dx, 9.0)
    assert ad.autodiff(lambda a, b: a * b, Active(2.0), Active(5.0)) == (5.0, 2.0)


def test_trees_of_arrays(rng):
    params = {"w": rng.normal(size=(3, 2)), "b": rng.normal(size=2)}
    shadow = {k: np.zeros_like(v) for k, v in params.items()}
    x = rng.normal(size=(4, 3))

    def loss(p, x):
        return np.sum((x @ p["w"] + p["b"]) ** 2)

    ad.autodiff(loss, Duplicated(params, shadow), Const(x))
    assert_close(shadow, ad.grad(loss)(params, x), rtol=1e-13)


def test_returned_output_is_counted_once(rng):
    """`return out`, as NumPy's functions do, adds no second gradient."""

    def f(x, out):
        np.multiply(x, 3.0, out=out)
        return out

    out, dout, dx = np.zeros(3), rng.normal(size=3), np.zeros(3)
    seed = dout.copy()
    ad.autodiff(f, Duplicated(np.ones(3), dx), Duplicated(out, dout))
    np.testing.assert_allclose(dx, 3 * seed)
    np.testing.assert_array_equal(out, 3.0)


def test_branches_on_values(rng):
    def f(x, out):
        for i in range(3):
            out[i] = x[i] ** 2 if x[i] > 0 else -x[i]

    for x in (np.array([1.0, -2.0, 3.0]), np.array([-1.0, 2.0, 3.0]), np.array([1.0, -2.0, 3.0])):
        out, dx = np.zeros(3), np.zeros(3)
        ad.autodiff(f, Duplicated(x, dx), Duplicated(out, np.ones(3)))
        np.testing.assert_allclose(out, np.where(x > 0, x * x, -x))
        np.testing.assert_allclose(dx, np.where(x > 0, 2 * x, -1.0))


def test_float32_and_shadows_that_are_views(rng):
    x = rng.normal(size=(4, 3)).astype(np.float32)
    grads = np.zeros((4, 6), np.float32)
    for _ in range(3):
        ad.autodiff(lambda x: np.sum(x * x), Duplicated(x, grads[:, ::2]))
    np.testing.assert_allclose(grads[:, ::2], 6 * x, rtol=1e-6)
    np.testing.assert_array_equal(grads[:, 1::2], 0.0)


def test_shadows_that_share_memory(rng):
    (x, y), grads = rng.normal(size=(2, 4)), np.zeros((4, 2))
    for _ in range(2):  # columns of one array, and one shadow for two arguments
        ad.autodiff(lambda x, y: np.sum(x * x * y), *map(Duplicated, (x, y), grads.T))
    np.testing.assert_allclose(grads, 2 * np.array([2 * x * y, x * x]).T, rtol=1e-13)
    shadow = np.zeros(4)
    ad.autodiff(lambda x, y: np.sum(x * x * y), Duplicated(x, shadow), Duplicated(x, shadow))
    np.testing.assert_allclose(shadow, 3 * x * x, rtol=1e-13)


def test_repeated_call_allocates_no_array(rng):
    x, dx = rng.normal(size=20_000), np.zeros(20_000)

    def f(x):
        rho = np.sum(np.exp(-3 * (x + 1)))
        return rho**2 + rho**3 + rho**4 / 4

    activity = Duplicated(x, dx)
    for _ in range(3):
        ad.autodiff(f, activity)
    assert peak_of(lambda: ad.autodiff(f, activity), times=5) < x.nbytes / 10


@pytest.mark.parametrize("f, activity, words", [
    (np.sum, np.ones(3), "a is a ndarray, expected ad.Const"),
    (np.sin, Active(np.ones(3)), r"array of shape \(3,\).*Duplicated"),
    (lambda x: x, Active(2), "x.* is 2, expected a floating-point number"),
    (np.sum, Duplicated(np.ones(3), np.ones(2)), r"shadow of a has shape \(2,\)"),
    (np.sum, Duplicated(np.ones(3), np.ones(3, np.float32)), "dtype float32"),
    (np.sum, Duplicated(np.arange(3), np.ones(3)), "dtype int64"),
    (np.sum, Duplicated({"a": np.ones(3)}, np.ones(3)), "should have its structure"),
    (lambda x: x * 2, Duplicated(np.ones(3), np.ones(3)), r"returns an array of shape \(3,\)"),
    (lambda x: np.sum(x), Duplicated(np.ones(3), np.broadcast_to(0.0, 3)), "read-only"),
])  # fmt: skip
def test_errors(f, activity, words):
    with pytest.raises(ad.AutodiffError, match=words) as e:
        ad.autodiff(f, activity)
    assert "\n" not in str(e.value)


def test_autodiff_in_a_differentiated_function(rng):
    """Shadows that the function makes are written to like any array."""

    def f(x):
        dx = np.zeros_like(x)
        ad.autodiff(lambda y: np.sum(y**3), Duplicated(x, dx))
        return np.sum(dx)  # 3 sum x**2

    x = rng.normal(size=3)
    np.testing.assert_allclose(ad.grad(f)(x), 6 * x, rtol=1e-12)
