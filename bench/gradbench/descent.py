"""The gradient descent that `particle` and `saddle` prescribe, and gradients by either mode, on lists.

Steps grow after ten that went well and shrink after one that did not, from 1e-5 on. It ends where the
gradient or the next step is no longer than 1e-5.
"""

import math

from gpt2 import autodiff as ad

ENOUGH = 1e-5
LUCK = 10  # steps that went well, after which the step size is doubled


def descend(f, gradient, x):
    """Downhill from x, a list of floats: (where f is smallest, the step sizes that led there)."""
    value, slope = f(x), gradient(x)
    eta, good, etas = 1e-5, 0, []
    while math.hypot(*slope) > ENOUGH:
        if good == LUCK:
            eta, good = 2.0 * eta, 0
            continue
        next_x = [a - eta * d for a, d in zip(x, slope)]
        if math.dist(x, next_x) <= ENOUGH:
            break
        value_there = f(next_x)
        if value_there < value:
            x, value, slope, good = next_x, value_there, gradient(next_x), good + 1
            etas.append(eta)
        else:
            eta, good = 0.5 * eta, 0
    return x, etas


def ascend(f, gradient, x):
    """Uphill: (where f is largest, the step sizes)."""
    return descend(lambda x: -f(x), lambda x: [-d for d in gradient(x)], x)


# ---- Gradients of f(x, *others) with respect to x, a list --------------------------------------------------


def reverse(f):
    return ad.grad(f, pure=True)


def forward(f):
    """One tangent after the other."""

    def gradient(x, *others):
        still = [None] * len(others)
        units = [[float(i == j) for j in range(len(x))] for i in range(len(x))]
        return [ad.jvp(f, (x, *others), (unit, *still), pure=True)[1] for unit in units]

    return gradient


MODES = {"f": forward, "r": reverse}
VARIANTS = ("ff", "fr", "rf", "rr")  # the outer derivative's mode, then the inner one's
