"""gmm: the log posterior of a Gaussian mixture model with a Wishart prior (ADBench).

A component's precision matrix is Q^T Q, where Q is lower triangular with exp(q) on its diagonal and l, column
by column, below it.
"""

import math

import numpy as np

from bench.gradbench.function import Function, array
from gpt2 import autodiff as ad


def log_posterior(alpha, mu, q, l, x, gamma, m):
    """alpha (K,) log weights, mu (K, D), q (K, D), l (K, D (D - 1) / 2), x (N, D) -> a number.

    gamma, m   of the prior: precision, and degrees of freedom beyond D + 1
    """
    (K, D), N = mu.shape, len(x)
    factors = np.zeros((K, D, D), like=l)
    columns, rows = np.triu_indices(D, 1)
    factors[:, rows, columns] = l
    factors[:, np.arange(D), np.arange(D)] = np.exp(q)
    # Q (x - mu) for all points and components: one product of matrices
    projected = (x @ factors.reshape(K * D, D).T).reshape(N, K, D)
    centred = projected - (factors @ mu[:, :, None])[:, :, 0]
    log_weights = alpha + np.sum(q, axis=1)
    likelihood = np.sum(log_sum_exp(log_weights - 0.5 * np.sum(centred**2, axis=2)))
    normaliser = N * (log_sum_exp(alpha) + 0.5 * D * math.log(2 * math.pi))
    prior = m * np.sum(q) - 0.5 * gamma**2 * np.sum(factors**2)
    return likelihood - normaliser + prior + K * log_wishart_constant(D, gamma, m)


def log_sum_exp(x):
    """log(sum(exp(x))) over the last axis."""
    largest = np.max(x, axis=-1, keepdims=True)
    return largest[..., 0] + np.log(np.sum(np.exp(x - largest), axis=-1))


def log_wishart_constant(D, gamma, m):
    """The log of the Wishart density's normalising constant (Wishart 1928)."""
    n = D + m + 1
    log_gamma = 0.25 * D * (D - 1) * math.log(math.pi) + sum(math.lgamma(0.5 * (n - j)) for j in range(D))
    return n * D * (np.log(gamma) - 0.5 * math.log(2)) - log_gamma


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
