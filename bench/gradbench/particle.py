"""particle: steer a charged particle so that it lands at the origin (Pearlmutter and Siskind 2008).

The force is the derivative of a potential that depends on a control w; the gradient of where the particle
lands, with respect to w, differentiates through it. The number of steps has no derivative: it is counted on
plain numbers, and a flight of that many steps is differentiated as a loop.
"""

from functools import cache, partial

import numpy as np

from bench.gradbench.descent import MODES, VARIANTS, descend
from bench.gradbench.function import Function
from gpt2 import autodiff as ad

DT = 0.1
START = ([0.0, 8.0], [0.75, 0.0])  # position, velocity


def potential(x, w):
    """Potential of two charges, at (10, 10 - w) and (10, 0)."""
    return sum(1.0 / np.sqrt((x[0] - 10.0) ** 2 + (x[1] - y) ** 2) for y in (10.0 - w[0], 0.0))


def moved(x, v, t):
    return [a + t * b for a, b in zip(x, v)]


def euler_step(force, x, v, w):
    """Position and velocity at once: the force is that at the old position."""
    return moved(x, v, DT), moved(v, force(x, w), -DT)


def steps_above(force, w):
    """How many steps of Euler's method the particle stays above the ground."""
    (x, v), steps = START, 0
    while True:
        x, v = euler_step(force, x, v, w)
        if x[1] <= 0.0:
            return steps
        steps += 1


def missed_by(force, w, steps):
    """The square of the distance between the origin and where the particle lands."""
    (x, v), _ = ad.scan(lambda state, _: (euler_step(force, *state, w), None), START, length=steps)
    x = moved(x, v, DT)
    landed = moved(x, v, -x[1] / v[1])  # on the line of the last step
    return landed[0] ** 2


@cache
def programs(outer, inner):
    """(force, missed_by, its gradient), cached with their compiled programs."""
    force = MODES[inner](potential)
    flight = partial(missed_by, force)
    return force, ad.compile(flight, pure=True), MODES[outer](flight)


def control(outer, inner, w):
    """The w that lets the particle land at the origin, from a first guess w."""
    force, value, gradient = programs(outer, inner)

    def steps(w):
        return steps_above(force, w)

    w, _ = descend(lambda w: value(w, steps(w)), lambda w: gradient(w, steps(w)), [w])
    return w[0]


FUNCTIONS = {
    variant: Function(partial(control, *variant), lambda data: (float(data["w"]),)) for variant in VARIANTS
}
