"""The programs in HIPS autograd, which records NumPy anew at every call; loops are Python's."""

from functools import partial

import autograd
import autograd.numpy as anp
import numpy as np
from autograd.scipy.linalg import solve_triangular
from autograd.scipy.special import logsumexp

from bench.programs import formulas
from bench.programs.library import Library, places, powers, python_loop, python_while


def triangular(q, l):
    K, D = q.shape
    below = anp.concatenate([l, np.zeros((K, 1))], axis=1)[:, places(l, D)]
    return below + anp.exp(q)[:, :, None] * np.eye(D)


def slope(f):
    return autograd.grad(partial(f, AUTOGRAD))


AUTOGRAD = Library(
    np=anp,
    grad=autograd.grad,
    vjp=lambda f, *inputs: autograd.make_vjp(lambda inputs: f(*inputs))(inputs)[0],
    scan=lambda *inputs, **named: python_loop(AUTOGRAD, *inputs, **named),
    logsumexp=logsumexp,
    smallest=lambda x, axis: anp.min(x, axis=axis),
    powers=lambda t, m: powers(np, t, m),
    cross=anp.cross,
    triangular=triangular,
    whiten=lambda lower, y: solve_triangular(lower, y, lower=True),
    while_loop=lambda *inputs: python_while(AUTOGRAD, *inputs),
    slope=slope,
)


def direction(centroids, points):
    gradient = autograd.grad(partial(formulas.kmeans, AUTOGRAD))
    curvature = autograd.elementwise_grad(lambda c: gradient(c, points))  # the Hessian is diagonal
    return gradient(centroids, points) / curvature(centroids)


def ht(theta, *others):
    """In forward mode, as there are 26 columns and 300 rows."""
    pushforward = autograd.make_jvp(lambda theta: formulas.ht(AUTOGRAD, theta, *others))(theta)
    return np.stack([pushforward(unit)[1] for unit in np.eye(len(theta))], axis=-1)


OTHERS = {"kmeans": direction, "ba": partial(formulas.ba_blocks, AUTOGRAD), "ht": ht}


def program(name, variant, inputs):
    """A function without arguments that returns the derivatives."""
    f = OTHERS.get(name) or formulas.gradient_of(name, autograd.grad, AUTOGRAD)
    return lambda: f(*inputs)
