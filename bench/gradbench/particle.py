"""particle: steer a charged particle so that it lands at the origin (Pearlmutter and Siskind 2008).

The force is the derivative of a potential that depends on a control w, so the derivative of the landing point
with respect to w is a second derivative. The number of steps is found on plain numbers first; a loop of that
many steps is then differentiated.
"""

from functools import cache, partial

import numpy as np

from bench.gradbench import Function
from bench.gradbench.descent import MODES, VARIANTS, descend
from gpt2 import autodiff as ad

DT = 0.1
START = ([0.0, 8.0], [0.75, 0.0])  # position, velocity


def potential(x, w):
    """The potential at x of two charges, at (10, 10 - w) and (10, 0)."""
    return sum(1.0 / np.sqrt((x[0] - 10.0) ** 2 + (x[1] - y) ** 2) for y in (10.0 - w[0], 0.0))


def moved(x, v, t):
    return [a + t * b for a, b in zip(x, v)]


def euler_step(force, x, v, w):
    """New position and velocity by the explicit Euler method."""
    return moved(x, v, DT), moved(v, force(x, w), -DT)


def steps_above(force, w):
    """The number of Euler steps for which the particle stays above the ground."""
    (x, v), steps = START, 0
    while True:
        x, v = euler_step(force, x, v, w)
        if x[1] <= 0.0:
            return steps
        steps += 1


def squared_miss(force, w, steps):
    """The squared distance of the landing point from the origin."""
    (x, v), _ = ad.scan(lambda state, _: (euler_step(force, *state, w), None), START, length=steps)
    x = moved(x, v, DT)
    landed = moved(x, v, -x[1] / v[1])  # along the last step's velocity
    return landed[0] ** 2


@cache
def programs(outer, inner):
    """(force, squared_miss, its gradient), cached with their compiled programs."""
    force = MODES[inner](potential)
    miss = partial(squared_miss, force)
    return force, ad.compile(miss, pure=True), MODES[outer](miss)


def control(outer, inner, w):
    """The w with which the particle lands at the origin, from a first guess w."""
    force, value, gradient = programs(outer, inner)

    def steps(w):
        return steps_above(force, w)

    w, _ = descend(lambda w: value(w, steps(w)), lambda w: gradient(w, steps(w)), [w])
    return w[0]


FUNCTIONS = {
    variant: Function(partial(control, *variant), lambda data: (float(data["w"]),)) for variant in VARIANTS
}
