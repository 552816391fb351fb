"""kmeans: squared distances of points to the nearest centre, and Newton's step for the centres.

Bottou and Bengio 1994, Convergence Properties of the K-Means Algorithms. The Hessian is diagonal, so its
product with a vector of ones is its diagonal: forward over reverse mode gives gradient and Hessian in one
program.
"""

import numpy as np

from bench.gradbench import Function, array
from bench.programs import formulas
from bench.programs.library import NUMPY
from gpt2 import autodiff as ad

BLOCK = 1 << 20  # distances at once; all for 100,000 points and 1000 centres would take 800 MB


def cost(points, centroids):
    """points (n, d), centroids (k, d) -> a number."""
    n, rows = len(points), max(1, BLOCK // len(centroids))
    if n <= rows:
        return formulas.kmeans(NUMPY, centroids, points)
    whole = n - n % rows
    blocks = points[:whole].reshape(-1, rows, points.shape[1])
    of_block = lambda total, block: (total + formulas.kmeans(NUMPY, centroids, block), None)  # noqa: E731
    total, _ = ad.scan(of_block, 0.0, blocks)
    return total + (formulas.kmeans(NUMPY, centroids, points[whole:]) if whole < n else 0.0)


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
