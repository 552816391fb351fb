"""kmeans: squared distances of points to the nearest centre, and Newton's step for the centres.

Bottou and Bengio 1994, Convergence Properties of the K-Means Algorithms. The Hessian is diagonal, so its
product with a vector of ones is its diagonal: forward over reverse mode gives gradient and Hessian in one
program.
"""

import numpy as np

from bench.gradbench.function import Function, array
from gpt2 import autodiff as ad

BLOCK = 1 << 20  # distances at once; all for 100,000 points and 1000 centres would take 800 MB


def cost(points, centroids):
    """points (n, d), centroids (k, d) -> a number."""
    n, rows = len(points), max(1, BLOCK // len(centroids))
    if n <= rows:
        return _cost_of(points, centroids)
    whole = n - n % rows
    blocks = points[:whole].reshape(-1, rows, points.shape[1])
    total, _ = ad.scan(lambda total, block: (total + _cost_of(block, centroids), None), 0.0, blocks)
    return total + (_cost_of(points[whole:], centroids) if whole < n else 0.0)


def _cost_of(points, centroids):
    """By |p - c|**2 = |p|**2 + |c|**2 - 2 p c, with one matrix product."""
    nearest = np.min(np.sum(centroids**2, axis=1) - 2.0 * points @ centroids.T, axis=1)
    return np.sum(points**2) + np.sum(nearest)


def direction(points, centroids):
    """The gradient divided by the diagonal of the Hessian, (k, d)."""
    gradient = ad.grad(lambda c: cost(points, c))
    first, second = ad.jvp(gradient, (centroids,), (np.ones_like(centroids),))
    return first / second


def _read(data):
    return array(data["points"]), array(data["centroids"])


FUNCTIONS = {
    "cost": Function(ad.compile(cost, pure=True), _read),
    "dir": Function(ad.compile(direction, pure=True), _read),
}
