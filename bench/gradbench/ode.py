"""ode: a chain of linear equations, solved by the classical Runge-Kutta method (an_ode of cmpad).

y[0]' = x[0]        y[i]' = x[i] y[i - 1]        y(0) = 0        up to time 2
"""

import numpy as np

from bench.gradbench.function import Function, array
from gpt2 import autodiff as ad

END = 2.0


def slope(x, y):
    return x * np.concatenate([np.ones(1), y[:-1]])


def solution(x, steps):
    """x (n,), number of steps -> y (n,) at time END."""
    h = END / steps

    def step(y, _):
        k1 = slope(x, y)
        k2 = slope(x, y + h / 2 * k1)
        k3 = slope(x, y + h / 2 * k2)
        k4 = slope(x, y + h * k3)
        return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return ad.scan(step, np.zeros_like(x), length=steps)[0]


def last_component(x, steps):
    return solution(x, steps)[-1]


def _read(data):
    return array(data["x"]), int(data["s"])


FUNCTIONS = {
    "primal": Function(ad.compile(solution, pure=True), _read),
    "gradient": Function(ad.grad(last_component, pure=True), _read),
}
