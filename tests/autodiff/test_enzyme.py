"""ad.autodiff: gradients added into the caller's shadows, and functions that fill preallocated arrays."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff import Active, Const, Duplicated
from tests.support.peaks import peak_of


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def layernorm(out, mean, rstd, inp, weight, bias):
    """llm.c's layernorm_forward: everything into arrays of the caller's."""
    for b in range(inp.shape[0]):
        x = inp[b]
        m = x.mean()
        v = ((x - m) ** 2).mean()
        s = 1.0 / np.sqrt(v + 1e-5)
        out[b] = (x - m) * s * weight + bias
        mean[b] = m
        rstd[b] = s


def layernorm_backward(dout, inp, weight):
    m = inp.mean(axis=-1, keepdims=True)
    s = 1 / np.sqrt(inp.var(axis=-1, keepdims=True) + 1e-5)
    norm = (inp - m) * s
    dnorm = dout * weight
    dinp = s * (
        dnorm - dnorm.mean(axis=-1, keepdims=True) - norm * (dnorm * norm).mean(axis=-1, keepdims=True)
    )
    return dinp, (dout * norm).sum(axis=0), dout.sum(axis=0)


def test_a_function_that_fills_arrays_as_llm_c_does(rng):
    B, C = 3, 8
    inp, weight, bias, seed = (
        rng.normal(size=(B, C)),
        rng.normal(size=C),
        rng.normal(size=C),
        rng.normal(size=(B, C)),
    )
    expected = layernorm_backward(seed, inp, weight)
    out, mean, rstd = np.zeros((B, C)), np.zeros(B), np.zeros(B)
    dinp, dweight, dbias = np.zeros((B, C)), np.ones(C), np.zeros(C)
    for times in (1, 2, 3):
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
        np.testing.assert_array_equal(dout, 0.0)  # used up, as out is overwritten
        np.testing.assert_allclose(dinp, times * expected[0], rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(dweight, 1 + times * expected[1], rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(dbias, times * expected[2], rtol=1e-11)


def test_shadows_of_several_outputs(rng):
    inp, dinp = rng.normal(size=(2, 4)), np.zeros((2, 4))
    outs = [np.zeros((2, 4)), np.zeros(2), np.zeros(2)]
    seeds = [rng.normal(size=o.shape) for o in outs]
    shadows = [s.copy() for s in seeds]
    ad.autodiff(
        layernorm,
        *map(Duplicated, outs, shadows),
        Duplicated(inp, dinp),
        Const(np.ones(4)),
        Const(np.zeros(4)),
    )

    def weighted(inp):
        m = inp.mean(axis=1)
        s = 1 / np.sqrt(inp.var(axis=1) + 1e-5)
        out = (inp - m[:, None]) * s[:, None]
        return np.sum(out * seeds[0]) + np.sum(m * seeds[1]) + np.sum(s * seeds[2])

    np.testing.assert_allclose(dinp, ad.grad(weighted)(inp), rtol=1e-11)
    for s in shadows:
        np.testing.assert_array_equal(s, 0.0)


def test_an_argument_that_is_read_and_written(rng):
    """The shadow holds the gradient of the final content on entry, of the initial content on return."""

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


def test_partly_overwritten(rng):
    def f(x, out):
        out[1:3] = x * 2.0

    out, dout, dx = np.zeros(4), rng.normal(size=4), np.zeros(2)
    before = dout.copy()
    ad.autodiff(f, Duplicated(np.ones(2), dx), Duplicated(out, dout))
    np.testing.assert_allclose(dx, 2 * before[1:3])
    np.testing.assert_array_equal(dout, [before[0], 0, 0, before[3]])


def test_a_chain_of_calls_runs_backwards_in_the_same_buffers(rng):
    """Two layers; the shadow between them is the seed of the first."""

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


def test_active_numbers_constants_and_the_value(rng):
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
    expected = ad.grad(loss)(params, x)
    for k in params:
        np.testing.assert_allclose(shadow[k], expected[k], rtol=1e-13)


def test_an_output_handed_back(rng):
    """`return out` in NumPy's manner does not ask for a second gradient."""

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


def test_nothing_is_allocated_once_it_runs(rng):
    """After the first calls, a gradient into the caller's shadow allocates no array."""
    x, dx = rng.normal(size=20_000), np.zeros(20_000)

    def f(x):
        rho = np.sum(np.exp(-3 * (x + 1)))
        return rho**2 + rho**3 + rho**4 / 4

    activity = Duplicated(x, dx)
    for _ in range(3):
        ad.autodiff(f, activity)
    assert peak_of(lambda: ad.autodiff(f, activity), times=5) < x.nbytes / 10


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: ad.autodiff(np.sum, np.ones(3)), "a is a ndarray, expected ad.Const"),
        (lambda: ad.autodiff(np.sin, Active(np.ones(3))), r"array of shape \(3,\).*Duplicated"),
        (lambda: ad.autodiff(lambda x: x, Active(2)), "x.* is 2, expected a floating-point number"),
        (lambda: ad.autodiff(np.sum, Duplicated(np.ones(3), np.ones(2))), r"shadow of a has shape \(2,\)"),
        (lambda: ad.autodiff(np.sum, Duplicated(np.ones(3), np.ones(3, np.float32))), "dtype float32"),
        (lambda: ad.autodiff(np.sum, Duplicated(np.arange(3), np.ones(3))), "dtype int64"),
        (lambda: ad.autodiff(np.sum, Duplicated({"a": np.ones(3)}, np.ones(3))), "should have its structure"),
        (
            lambda: ad.autodiff(lambda x: x * 2, Duplicated(np.ones(3), np.ones(3))),
            r"returns an array of shape \(3,\)",
        ),
        (
            lambda: ad.autodiff(lambda x: np.sum(x), Duplicated(np.ones(3), np.broadcast_to(0.0, 3))),
            "read-only",
        ),
    ],
)
def test_errors(call, words):
    with pytest.raises(ad.AutodiffError, match=words) as e:
        call()
    assert "\n" not in str(e.value)


def test_inside_of_a_recording(rng):
    """autodiff in a function that is differentiated: shadows made there are written to like any array."""

    def f(x):
        dx = np.zeros_like(x)
        ad.autodiff(lambda y: np.sum(y**3), Duplicated(x, dx))
        return np.sum(dx)  # 3 sum x**2

    x = rng.normal(size=3)
    np.testing.assert_allclose(ad.grad(f)(x), 6 * x, rtol=1e-12)
