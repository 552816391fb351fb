"""autograd.misc: trees as vectors, optimizers, fixed points. Its parts are this module under further names.

The optimizers take parameters in any nesting of tuples, lists and dicts. grad(x, i) gives the gradient at
step i; callback(x, i, gradient) is called at each. They are written in NumPy, so a gradient can be taken
through them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import tree
from .builtins import type as type_of
from .core import defvjp, make_vjp, vspace
from .tracer import primitive, refusing

for _name in ("flatten", "optimizers", "fixed_points", "tracers"):
    sys.modules[f"{__name__}.{_name}"] = globals()[_name] = sys.modules[__name__]


# ---- Trees as vectors ------------------------------------------------------------------------------------


def flatten(value: Any) -> tuple[Any, Callable]:
    """(vector, unflatten): all entries in one array, a dict's by sorted keys, and the way back."""
    vector, unravel = tree.ravel(_ordered(value, value, sorted))
    return vector, lambda vector: _ordered(unravel(vector), value, list)


def _ordered(x: Any, like: Any, keys: Callable) -> Any:
    """x with dicts in the order keys(dict) of those of `like`, and with arrays for integers."""
    t = type_of(like)
    if t in (list, tuple):
        return t(_ordered(a, b, keys) for a, b in zip(x, like))
    if t is dict:
        return {key: _ordered(x[key], like[key], keys) for key in keys(like)}
    return np.asarray(x) if type_of(x) in (bool, int) else x


def flatten_func(func: Callable, example: Any) -> tuple[Callable, Callable, Any]:
    """A function of a tree as one of a vector: (function, unflatten, the example's vector)."""
    vector, unflatten = flatten(example)

    def of_vector(x, *args):
        return flatten(func(unflatten(x), *args))[0]

    return of_vector, unflatten, vector


# ---- Optimizers ------------------------------------------------------------------------------------------


def unflatten_optimizer(optimize: Callable) -> Callable:
    """Extends an optimizer of a vector to any tree."""

    @functools.wraps(optimize)
    def of_tree(grad, x0, callback=None, *args, **kwargs):
        vector, unflatten = flatten(x0)

        def of_vector(x, i):
            return flatten(grad(unflatten(x), i))[0]

        def callback_of_tree(x, i, g):
            callback(unflatten(x), i, unflatten(g))

        return unflatten(optimize(of_vector, vector, callback_of_tree if callback else None, *args, **kwargs))

    return of_tree


def _gradients(grad: Callable, callback: Callable | None) -> Callable:
    """grad(x, i), of which the callback is told."""

    def gradient(x, i):
        g = grad(x, i)
        if callback:
            callback(x, i, g)
        return g

    return gradient


@unflatten_optimizer
def sgd(grad, x, callback=None, num_iters=200, step_size=0.1, mass=0.9) -> Any:
    """Gradient descent with momentum."""
    gradient, velocity = _gradients(grad, callback), np.zeros(len(x))
    for i in range(num_iters):
        velocity = mass * velocity - (1.0 - mass) * gradient(x, i)
        x = x + step_size * velocity
    return x


@unflatten_optimizer
def rmsprop(grad, x, callback=None, num_iters=100, step_size=0.1, gamma=0.9, eps=10**-8) -> Any:
    """Steps divided by the root of a running mean of squares. Tieleman and Hinton 2012."""
    gradient, mean_square = _gradients(grad, callback), np.ones(len(x))
    for i in range(num_iters):
        g = gradient(x, i)
        mean_square = mean_square * gamma + g**2 * (1 - gamma)
        x = x - step_size * g / (np.sqrt(mean_square) + eps)
    return x


@unflatten_optimizer
def adam(grad, x, callback=None, num_iters=100, step_size=0.001, b1=0.9, b2=0.999, eps=10**-8) -> Any:
    """Running means of gradients and their squares, both without their bias to zero. Kingma and Ba 2015."""
    gradient, m, v = _gradients(grad, callback), np.zeros(len(x)), np.zeros(len(x))
    for i in range(num_iters):
        g = gradient(x, i)
        m = (1 - b1) * g + b1 * m
        v = (1 - b2) * (g**2) + b2 * v
        m_hat = m / (1 - b1 ** (i + 1))
        v_hat = v / (1 - b2 ** (i + 1))
        x = x - step_size * m_hat / (np.sqrt(v_hat) + eps)
    return x


@primitive
def fixed_point(f: Callable, a: Any, x0: Any, distance: Callable, tol: float) -> Any:
    """The x with f(a)(x) = x, iterated from x0 until the distance between two iterates is at most tol."""
    step = f(a)
    x, before = step(x0), x0
    while distance(x, before) > tol:
        x, before = step(x), x
    return x


def _fixed_point_vjp(ans: Any, f: Callable, a: Any, x0: Any, distance: Callable, tol: float) -> Callable:
    """The adjoint u = g + (df/dx)^T u is a fixed point too, and the gradient (df/da)^T u."""
    pull_a, _ = make_vjp(lambda a: f(a)(ans), a)

    def adjoint_step(values):
        a, x, g = values
        pull_x, _ = make_vjp(f(a), x)
        return lambda u: vspace(x).add(pull_x(u), g)

    return lambda g: pull_a(fixed_point(adjoint_step, (a, ans, g), vspace(x0).zeros(), distance, tol))


defvjp(fixed_point, None, _fixed_point_vjp, None)


const_graph = functools.partial
full_graph = refusing(
    "misc.tracers.full_graph: ad.stages(f, *args) shows the graph that this compiler records"
)
