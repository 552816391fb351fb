"""Gradients of real functions of complex arguments follow JAX's convention: the same numbers."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.derive.differentiate import gradient_graph
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.record.record import record
from tests.support.slow import rest_slow

FUNCTIONS = {
    "absolute": lambda np, z, x: np.sum(np.abs(z * z + x)),
    "real and imag": lambda np, z, x: np.sum(np.real(np.exp(z) * x) + np.imag(z @ z)),
    "angle": lambda np, z, x: np.sum(np.angle(z) * x),
    "conjugate": lambda np, z, x: np.sum(np.real(np.conj(z) * z * z * x)),
    "fft": lambda np, z, x: np.sum(np.abs(np.fft.fft(z * x, axis=0)) ** 2 * x),
    "rfft": lambda np, z, x: np.sum(np.abs(np.fft.rfft(x, n=5) * z[0, :]) ** 2),
    "irfft": lambda np, z, x: np.sum(np.fft.irfft(z * x, n=4) ** 3),
    "solve": lambda np, z, x: np.sum(np.abs(np.linalg.solve(z, x + 0j))),
    "slogdet": lambda np, z, x: np.linalg.slogdet(z)[1] * np.sum(x),
    "eigvalsh": lambda np, z, x: np.sum(np.linalg.eigvalsh(z @ np.conj(z.T)) * x[0]),
    "svd": lambda np, z, x: np.sum(np.linalg.svd(z, compute_uv=False) * x[0]),
    "powers": lambda np, z, x: np.sum(np.real(z**3 + z**2.5 + np.log(z) * np.sqrt(z) * np.tanh(z)) * x),
}


@pytest.mark.parametrize("name", rest_slow(FUNCTIONS, keep=3))
def test_gradients_are_those_of_jax(name):
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    z = rng.standard_normal((3, 3)) + 1j * rng.standard_normal((3, 3))
    x = rng.standard_normal((3, 3))
    f = FUNCTIONS[name]
    graph = gradient_graph(record(lambda z, x: f(np, z, x), (z, x)).graph, [0, 1])
    ours = evaluate_graph(graph, [z, x])[1:]
    with jax.experimental.enable_x64() if hasattr(jax.experimental, "enable_x64") else jax.enable_x64(True):
        theirs = jax.grad(lambda z, x: f(jax.numpy, z, x), argnums=(0, 1))(z, x)
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a, np.asarray(b), rtol=1e-12, atol=1e-12)


C4 = np.array([1 + 2j, 0.3 - 1j, 2j, 0.7 + 0.1j])
SECOND = {
    "product": lambda x: np.sum(np.real(np.exp(x * C4) * x)),
    "absolute": lambda x: np.sum(np.abs(x * C4) ** 3),
    "phase": lambda x: np.sum(np.abs(np.exp(x * 1j) * x) ** 2),
    "imag": lambda x: np.sum(np.imag((x * C4) ** 3)),
    "fft": lambda x: np.sum(np.abs(np.fft.fft(x) + C4) ** 3 * np.arange(4)),
    "einsum": lambda x: np.sum(np.real(np.einsum("ij->ji", np.outer(x, C4 * x)) * np.outer(C4, np.exp(x)))),
}


@pytest.mark.parametrize("name", list(SECOND))
def test_second_derivatives_of_programs(name):
    """In every nesting of modes. Parts of complex arrays are views, of memory that is used again."""
    f, x, h = SECOND[name], np.array([1.0, 2.0, 3.0, 0.5]), 1e-5
    g = ad.grad(f)
    want = np.array([(g(x + h * e) - g(x - h * e)) / (2 * h) for e in np.eye(4)])
    close = {"rtol": 1e-7, "atol": 1e-7 * np.abs(want).max()}
    np.testing.assert_allclose(ad.hessian(f)(x), want, **close)
    np.testing.assert_allclose(ad.jacobian(g)(x), want, **close)
    np.testing.assert_allclose([ad.hvp(f, x, e) for e in np.eye(4)], want, **close)
    np.testing.assert_allclose([ad.vjp(g, x)[1](e)[0] for e in np.eye(4)], want, **close)


def test_complex_results_of_real_arguments():
    """The gradient of a real argument is real, so that of a complex number would be half of it."""
    x = np.array([1.0, 2.0])
    np.testing.assert_allclose(ad.jacobian(lambda x: x**2 * 1j)(x), np.diag(2j * x))
    np.testing.assert_allclose(ad.jvp(lambda x: x**2 * 1j, (x,), (x,))[1], 2j * x**2)
    for derived in (ad.grad, ad.value_and_grad, ad.hessian, lambda f: lambda x: ad.hvp(f, x, x)):
        with pytest.raises(ad.AutodiffError, match="returns complex128, and x is real"):
            derived(lambda x: np.sum(x**3) * 1j)(x)
    np.testing.assert_allclose(ad.grad(lambda z: np.sum(z**3))(x * 1j), -3 * x**2)


@pytest.mark.parametrize("real, imag", [
    (0.0, 1.0), (-0.0, -1.0), (0.0, -1.0), (-0.0, 1.0), (2.0, -0.0), (-2.0, -3.0),
    (np.nan, 0.0), (1.0, np.nan), (np.inf, -np.inf), (-0.0, -np.inf),
])  # fmt: skip
def test_constants_are_the_same_in_emitted_code(real, imag):
    """To the signs of zeros, which say on which side of a branch cut a result is."""
    number = complex(real, imag)
    z = np.array([0.5 + 1j, -2j, complex(-0.0, 2), 3 + 0j])
    for f in (lambda z: np.where(z.real > 0, z * 0.75, number), lambda z: z * number):
        program = ad.compile(f)
        with np.errstate(invalid="ignore"):
            for _ in range(2):
                assert [repr(x) for x in program(z).tolist()] == [repr(x) for x in f(z).tolist()]
            space = {}
            exec(ad.source(program, z, emitted=True), space)


def test_medians_of_complex_numbers():
    z = np.array([3 + 1j, 1 + 0j, 2 - 1j, 5 + 2j])
    f = ad.compile(np.median)
    assert f(z) == f(z) == np.median(z)
