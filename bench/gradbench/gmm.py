"""gmm: the log posterior of a Gaussian mixture model with a Wishart prior (ADBench).

A component's precision matrix is Q^T Q, where Q is lower triangular with exp(q) on its diagonal and l, column
by column, below it.
"""

from functools import partial

from bench.gradbench.function import Function, array
from bench.programs import formulas
from bench.programs.library import NUMPY
from gpt2 import autodiff as ad

log_posterior = partial(formulas.gmm, NUMPY)


def _read(data):
    K, D = int(data["k"]), int(data["d"])
    alpha, mu, q, l, x = (array(data[name]) for name in ("alpha", "mu", "q", "l", "x"))
    return alpha, mu, q, l.reshape(K, D * (D - 1) // 2), x, float(data["gamma"]), int(data["m"])


def _write(gradients):
    return {name: g.tolist() for name, g in zip(("alpha", "mu", "q", "l"), gradients)}


FUNCTIONS = {
    "objective": Function(ad.compile(log_posterior, pure=True), _read),
    "jacobian": Function(ad.grad(log_posterior, argnums=(0, 1, 2, 3), pure=True), _read, _write),
}
