"""The gradient descent that `particle` and `saddle` prescribe, and gradients by forward and reverse mode.

The step size starts at 1e-5, doubles after ten successful steps and halves after a failed one. The descent
ends when the gradient or the next step is no longer than 1e-5.
"""

import math

from gpt2 import autodiff as ad

TOLERANCE = 1e-5
PATIENCE = 10  # successful steps, after which the step size is doubled


def descend(f, gradient, x):
    """Minimise f from x, a list of floats: (minimum, step sizes taken)."""
    value, slope = f(x), gradient(x)
    eta, successes, etas = 1e-5, 0, []
    while math.hypot(*slope) > TOLERANCE:
        if successes == PATIENCE:
            eta, successes = 2.0 * eta, 0
            continue
        next_x = [a - eta * d for a, d in zip(x, slope)]
        if math.dist(x, next_x) <= TOLERANCE:
            break
        next_value = f(next_x)
        if next_value < value:
            x, value, slope, successes = next_x, next_value, gradient(next_x), successes + 1
            etas.append(eta)
        else:
            eta, successes = 0.5 * eta, 0
    return x, etas


def ascend(f, gradient, x):
    """Maximise f from x: (maximum, step sizes taken)."""
    return descend(lambda x: -f(x), lambda x: [-d for d in gradient(x)], x)


def reverse(f):
    return ad.grad(f, pure=True)


def forward(f):
    """The gradient by forward mode, one direction after the other."""

    def gradient(x, *others):
        constant = [None] * len(others)
        units = [[float(i == j) for j in range(len(x))] for i in range(len(x))]
        return [ad.jvp(f, (x, *others), (unit, *constant), pure=True)[1] for unit in units]

    return gradient


MODES = {"f": forward, "r": reverse}
VARIANTS = ("ff", "fr", "rf", "rr")  # the outer derivative's mode, then the inner one's
