"""autograd.misc.optimizers: sgd, rmsprop and adam for parameters in any nesting of tuples, lists and dicts.

grad(x, i) gives the gradient at step i; callback(x, i, gradient) is called at each. They are written in
NumPy, so a gradient can be taken through them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .flatten import flatten


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


def _steps(grad: Callable, x: Any, callback: Callable | None, num_iters: int, move: Callable) -> Any:
    """x after so many steps x = move(x, i, gradient)."""
    for i in range(num_iters):
        g = grad(x, i)
        if callback:
            callback(x, i, g)
        x = move(x, i, g)
    return x


@unflatten_optimizer
def sgd(
    grad: Callable,
    x: Any,
    callback: Callable | None = None,
    num_iters: int = 200,
    step_size: float = 0.1,
    mass: float = 0.9,
) -> Any:
    """Gradient descent with momentum."""
    velocity = np.zeros(len(x))

    def move(x, i, g):
        nonlocal velocity
        velocity = mass * velocity - (1.0 - mass) * g
        return x + step_size * velocity

    return _steps(grad, x, callback, num_iters, move)


@unflatten_optimizer
def rmsprop(
    grad: Callable,
    x: Any,
    callback: Callable | None = None,
    num_iters: int = 100,
    step_size: float = 0.1,
    gamma: float = 0.9,
    eps: float = 10**-8,
) -> Any:
    """Steps divided by the root of a running mean of squares. Tieleman and Hinton 2012."""
    mean_square = np.ones(len(x))

    def move(x, i, g):
        nonlocal mean_square
        mean_square = mean_square * gamma + g**2 * (1 - gamma)
        return x - step_size * g / (np.sqrt(mean_square) + eps)

    return _steps(grad, x, callback, num_iters, move)


@unflatten_optimizer
def adam(
    grad: Callable,
    x: Any,
    callback: Callable | None = None,
    num_iters: int = 100,
    step_size: float = 0.001,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 10**-8,
) -> Any:
    """Running means of gradients and their squares, both without their bias to zero. Kingma and Ba 2015."""
    m, v = np.zeros(len(x)), np.zeros(len(x))

    def move(x, i, g):
        nonlocal m, v
        m = (1 - b1) * g + b1 * m
        v = (1 - b2) * (g**2) + b2 * v
        m_hat = m / (1 - b1 ** (i + 1))
        v_hat = v / (1 - b2 ** (i + 1))
        return x - step_size * m_hat / (np.sqrt(v_hat) + eps)

    return _steps(grad, x, callback, num_iters, move)
