"""llsq: the least-squares error of a polynomial that approximates the sign function (llsq_obj of cmpad)."""

import numpy as np

from bench.gradbench.function import Function, array
from gpt2 import autodiff as ad


def half_squared_distance(x, t):
    """x (m,) coefficients, the constant first; t (n,) sample points -> a number.

    The powers of t are computed here, as the definition prescribes.
    """
    powers = t[:, None] ** np.arange(len(x))  # (n, m)
    residual = np.sign(t) - powers @ x
    return 0.5 * np.sum(residual * residual)


def _read(data):
    n = int(data["n"])
    return array(data["x"]), -1.0 + 2.0 * np.arange(n) / (n - 1)


FUNCTIONS = {
    "primal": Function(ad.compile(half_squared_distance, pure=True), _read),
    "gradient": Function(ad.grad(half_squared_distance, pure=True), _read),
}
