"""The programs with this compiler: plain NumPy; GradBench's are those of bench/gradbench."""

from functools import partial

import numpy as np

from bench.gradbench import ba, descent, det, gmm, hello, ht, kmeans, lse, lstm, ode, particle, saddle
from bench.programs import formulas
from bench.programs.inputs import arguments
from bench.programs.library import Library, powers
from gpt2 import autodiff as ad
from gpt2.autodiff.scipy import linalg


def scan(body, carry, xs, *others, length=None):
    return ad.scan(lambda c, x: (body(NUMPY, c, x, *others), None), carry, xs, length=length)[0]


def logsumexp(x, axis):
    largest = np.max(x, axis=axis, keepdims=True)
    return np.squeeze(largest, axis) + np.log(np.sum(np.exp(x - largest), axis=axis))


NUMPY = Library(
    np=np,
    scan=scan,
    logsumexp=logsumexp,
    smallest=lambda x, axis: np.min(x, axis=axis),
    powers=lambda t, m: powers(np, t, m),
    whiten=lambda lower, y: linalg.solve_triangular(lower, y, lower=True),
)


def of_gradbench(function, argnums=0):
    return lambda *inputs: partial(ad.grad(function, argnums, pure=True), *inputs)


def make_ba(camera, point, weight, feature):
    rows = np.arange(len(weight))
    return partial(
        ad.compile(ba.blocks, pure=True), camera, point, weight, np.stack([rows, rows], 1), feature
    )


def make_ht(theta, points, places, base_relatives, inverse_absolutes, positions, weights, parents):
    model = parents, base_relatives, inverse_absolutes, positions, weights, False
    us = np.zeros((0, 2))
    return partial(ad.compile(ht.jacobian, pure=True), theta, us, points, places, model)


def make_saddle(x, start, etas):
    """On lists of numbers, which compile to scalar code."""
    maximum = partial(saddle.maximum, descent.reverse(saddle.f))
    gradient = descent.reverse(maximum)
    return partial(gradient, x.tolist(), start.tolist(), etas)


def make_particle(w, dt):
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
    "hello": of_gradbench(hello.square),
    "lse": of_gradbench(lse.log_sum_exp),
    "det": of_gradbench(det.determinant),
    "ode": of_gradbench(ode.last_component),
    "kmeans": lambda points, centroids: partial(ad.compile(kmeans.direction, pure=True), points, centroids),
    "lstm": of_gradbench(lstm.loss, (0, 1)),
    "gmm": of_gradbench(gmm.log_posterior, (0, 1, 2, 3)),
    "ba": make_ba,
    "ht": make_ht,
    "saddle": make_saddle,
    "particle": make_particle,
}


def program(name, variant, inputs):
    """A function without arguments that returns the derivatives."""
    if name in PROGRAMS:
        return PROGRAMS[name](*inputs)
    gradient = formulas.gradient_of(name, partial(ad.grad, pure=True), NUMPY)
    return partial(gradient, *arguments(name, inputs))
