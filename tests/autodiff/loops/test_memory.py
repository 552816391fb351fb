"""Ops whose result may be an argument: the result is copied, as programs reuse the memory of arguments."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from tests.support.trees import assert_close

X, Y = np.random.default_rng(0).normal(size=(2, 3, 3))
shared = np.empty((3, 3))


def no_step(z):
    return ad.while_loop(lambda c: np.sum(c) > 1e9, lambda c: c * 2.0, z)


def no_step_of_two(z):
    return ad.while_loop(lambda c: c[0] < 0.0, lambda c: (c[0] + 1.0, c[1] * 2.0), (np.zeros(()), z))[1]


# name -> (op, the same in NumPy)
OPS = {
    "while_loop": (no_step, lambda z: z),
    "while_loop of two": (no_step_of_two, lambda z: z),
    "checkpoint": (ad.checkpoint(lambda z: z), lambda z: z),
    "checkpoint of a view": (ad.checkpoint(lambda z: z.T), lambda z: z.T),
    "callback": (lambda z: ad.callback(lambda a: a, z, z), lambda z: z),
    "callback that returns a view": (lambda z: ad.callback(lambda a: a.T, z, z), lambda z: z.T),
    "callback that returns the same array": (
        lambda z: ad.callback(lambda a: np.multiply(a, 2.0, out=shared), z, z),
        lambda z: 2.0 * z,
    ),
}


def around(op):
    """f(x, y) that calls the op twice, and reads the first result after making other arrays."""

    def f(x, y):
        w = op(np.sin(x) * y)
        u = np.cos(x) + y
        return w * (u * u) + np.exp(u) * w + op(u), w

    return f


@pytest.mark.parametrize("name", OPS)
def test_values_and_gradients(name):
    f, plain = map(around, OPS[name])
    compiled = ad.compile(f)
    slopes, expected = (ad.grad(lambda x, y, g=g: np.sum(g(x, y)[0]), argnums=(0, 1)) for g in (f, plain))
    for _ in range(2):
        np.testing.assert_array_equal(compiled(X, Y), plain(X, Y))
        if "callback" not in name:
            np.testing.assert_allclose(slopes(X, Y), expected(X, Y), rtol=1e-12, atol=1e-12)


def test_first_gradient_that_is_the_cotangent_itself():
    """The backward of a sum returns its cotangent, here as the first gradient of the program."""
    add = ad.checkpoint(lambda x, y: x + y)
    gradient = ad.grad(lambda x, y: np.sum(np.exp(add(x, y))) + np.sum(np.cos(x) * y), argnums=(0, 1))
    both = np.exp(X + Y)
    for _ in range(2):
        assert_close(gradient(X, Y), (both - np.sin(X) * Y, both + np.cos(X)), rtol=1e-14)
