"""Small programs that are not layers, for studies of the compiler.

Each takes float64 arrays and returns a number. They are written plainly, with `**2` and repeated terms, so
that there is something to optimise.
"""

import numpy as np


def rosenbrock(x):
    """Rosenbrock 1960, in n dimensions. x (n,)"""
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def lennard_jones(x):
    """Energy of n particles, each pair counted once. x (n, 3)"""
    n = x.shape[0]
    offset = x[:, None, :] - x[None, :, :]  # (n, n, 3)
    squared = np.sum(offset**2, axis=-1) + np.eye(n)
    return 0.5 * np.sum(4.0 * (squared**-6 - squared**-3) * (1.0 - np.eye(n)))


def mixture(points, means, log_scales, logits):
    """Negative log likelihood of a mixture of round Gaussians. points (n, d), means (K, d), others (K,)"""
    d = points.shape[1]
    weights = logits - np.log(np.sum(np.exp(logits)))
    squared = np.sum((points[:, None, :] - means[None, :, :]) ** 2, axis=-1)  # (n, K)
    terms = weights - d * log_scales - 0.5 * squared * np.exp(-2.0 * log_scales)
    largest = np.max(terms, axis=1, keepdims=True)
    return -np.sum(np.log(np.sum(np.exp(terms - largest), axis=1)) + largest[:, 0])


def heat(u, target):
    """Ten explicit steps of the heat equation from u (n,), and how far the end is from the target (n,)."""
    for _ in range(10):
        u = u + 0.2 * (np.roll(u, 1) - 2.0 * u + np.roll(u, -1))
    return np.sum((u - target) ** 2)


def perceptron(x, y, w1, b1, w2, b2):
    """Squared error of a network with one hidden layer. x (n, d), y (n, o)"""
    hidden = np.tanh(x @ w1 + b1)
    return np.mean((hidden @ w2 + b2 - y) ** 2)


def programs(quick=False):
    """Name -> (function, arguments, which of them are differentiated)."""
    rng = np.random.default_rng(0)
    draw = rng.standard_normal
    n = 16 if quick else 512
    spread = np.stack(np.meshgrid(*[np.arange(3 if quick else 6)] * 3), -1).reshape(-1, 3) * 1.2
    return {
        "rosenbrock": (rosenbrock, (draw(20 * n),), (0,)),
        "lennard-jones": (lennard_jones, (spread + 0.05 * draw(spread.shape),), (0,)),
        "mixture": (mixture, (draw((4 * n, 5)), draw((8, 5)), 0.1 * draw(8), draw(8)), (1, 2, 3)),
        "heat": (heat, (draw(40 * n), draw(40 * n)), (0,)),
        "perceptron": (
            perceptron,
            (draw((n, 32)), draw((n, 8)), draw((32, 64)) / 8, draw(64), draw((64, 8)) / 8, draw(8)),
            (2, 3, 4, 5),
        ),
    }
