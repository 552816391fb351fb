"""The programs with this compiler. Derivatives that are no plain gradients are those of bench/gradbench."""

from functools import partial

import numpy as np

from bench.gradbench import descent, ht, kmeans, particle, saddle
from bench.programs import formulas
from bench.programs.library import NUMPY
from gpt2 import autodiff as ad


def make_ht(theta, points, places, *model):
    return partial(ad.compile(ht.jacobian, pure=True), theta, np.zeros((0, 2)), points, places, model)


def make_saddle(x, start, etas):
    """On lists of numbers, which compile to scalar code."""
    maximum = partial(saddle.maximum, descent.reverse(saddle.f))
    gradient = descent.reverse(maximum)
    return partial(gradient, x.tolist(), start.tolist(), etas)


def make_particle(w, start, dt):
    force = descent.reverse(particle.potential)

    def squared_miss(w):
        def above_ground(state):
            x, v = state
            return x[1] + dt * v[1] > 0.0

        def step(state):
            (x, v), pushed = state, force(state[0], w)
            return particle.moved(x, v, dt), particle.moved(v, pushed, -dt)

        x, v = ad.while_loop(above_ground, step, particle.START)
        x = particle.moved(x, v, dt)
        return particle.moved(x, v, -x[1] / v[1])[0] ** 2

    gradient = descent.forward(squared_miss)
    return partial(gradient, w.tolist())


PROGRAMS = {
    "kmeans": lambda centroids, points: partial(ad.compile(kmeans.direction, pure=True), points, centroids),
    "ba": lambda *inputs: partial(ad.compile(partial(formulas.ba_blocks, NUMPY), pure=True), *inputs),
    "ht": make_ht,
    "saddle": make_saddle,
    "particle": make_particle,
}


def program(name, variant, inputs):
    """A function without arguments that returns the derivatives."""
    if name in PROGRAMS:
        return PROGRAMS[name](*inputs)
    gradient = formulas.gradient_of(name, partial(ad.grad, pure=True), NUMPY)
    return partial(gradient, *inputs)
