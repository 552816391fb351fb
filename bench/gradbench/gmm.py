"""gmm: the log posterior of a mixture of Gaussians under a Wishart prior (ADBench).

The inverse of a component's covariance is Q^T Q for a lower triangular Q with exp(q) on its diagonal and l,
column after column, below it.
"""

import math

import numpy as np

from bench.gradbench.function import Function, array
from gpt2 import autodiff as ad


def log_posterior(alpha, mu, q, l, x, gamma, m):
    """alpha (K,) logarithms of weights, mu (K, D), q (K, D), l (K, D (D - 1) / 2), x (N, D) -> a number.

    gamma, m   of the prior: the precision, and how many degrees of freedom there are beyond D + 1
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
    """Over the last axis."""
    largest = np.max(x, axis=-1, keepdims=True)
    return largest[..., 0] + np.log(np.sum(np.exp(x - largest), axis=-1))


def log_wishart_constant(D, gamma, m):
    """What does not depend on the matrix: a product of gamma functions, Wishart 1928."""
    n = D + m + 1
    log_gamma = 0.25 * D * (D - 1) * math.log(math.pi) + sum(math.lgamma(0.5 * (n - j)) for j in range(D))
    return n * D * (np.log(gamma) - 0.5 * math.log(2)) - log_gamma


def _read(data):
    K, D = int(data["k"]), int(data["d"])
    l = array(data["l"]).reshape(K, D * (D - 1) // 2)
    return (
        array(data["alpha"]),
        array(data["mu"]),
        array(data["q"]),
        l,
        array(data["x"]),
        float(data["gamma"]),
        int(data["m"]),
    )


def _write(gradients):
    return {name: g.tolist() for name, g in zip(("alpha", "mu", "q", "l"), gradients)}


FUNCTIONS = {
    "objective": Function(ad.compile(log_posterior, pure=True), _read),
    "jacobian": Function(ad.grad(log_posterior, argnums=(0, 1, 2, 3), pure=True), _read, _write),
}
