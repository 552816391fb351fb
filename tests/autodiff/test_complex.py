"""Gradients of real functions of complex arguments follow JAX's convention: the same numbers."""

import numpy as np
import pytest

from gpt2.autodiff.differentiate import gradient_graph
from gpt2.autodiff.interpret import evaluate_graph
from gpt2.autodiff.record import record

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


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_gradients_are_those_of_jax(name):
    jax = pytest.importorskip("jax", reason="the peer library is not installed")
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
