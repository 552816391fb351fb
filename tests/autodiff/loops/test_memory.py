"""An op's result has separate memory: a program overwrites its arguments once they were read."""

import numpy as np
import pytest

from gpt2 import autodiff as ad

X, Y = np.random.default_rng(0).normal(size=(2, 3, 3))
kept = np.empty((3, 3))


def into_kept(z):
    return np.multiply(z, 2.0, out=kept)


def no_step(z):
    return ad.while_loop(lambda c: np.sum(c) > 1e9, lambda c: c * 2.0, z)


def no_step_of_two(z):
    return ad.while_loop(lambda c: c[0] < 0.0, lambda c: (c[0] + 1.0, c[1] * 2.0), (np.zeros(()), z))[1]


SAME = {
    "while_loop": (no_step, lambda z: z),
    "while_loop of two": (no_step_of_two, lambda z: z),
    "checkpoint": (ad.checkpoint(lambda z: z), lambda z: z),
    "checkpoint of a view": (ad.checkpoint(lambda z: z.T), lambda z: z.T),
    "callback": (lambda z: ad.callback(lambda a: a, z, z), lambda z: z),
    "callback that gives a view": (lambda z: ad.callback(lambda a: a.T, z, z), lambda z: z.T),
    "callback that gives one array": (lambda z: ad.callback(into_kept, z, z), lambda z: 2.0 * z),
}


def around(step):
    """f(x, y) that reads what the step gave after it has made other arrays, and a second step."""

    def f(x, y):
        w = step(np.sin(x) * y)
        u = np.cos(x) + y
        return w * (u * u) + np.exp(u) * w + step(u), w

    return f


@pytest.mark.parametrize("name", SAME)
def test_results_that_may_be_an_argument(name):
    step, plain = SAME[name]
    compiled = ad.compile(around(step))
    for _ in range(2):
        for got, want in zip(compiled(X, Y), around(plain)(X, Y), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", [k for k in SAME if "callback" not in k])
def test_gradients_through_them(name):
    step, plain = SAME[name]
    gradient = ad.grad(lambda x, y: np.sum(around(step)(x, y)[0]), argnums=(0, 1))
    wanted = ad.grad(lambda x, y: np.sum(around(plain)(x, y)[0]), argnums=(0, 1))(X, Y)
    for _ in range(2):
        for got, want in zip(gradient(X, Y), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_a_first_gradient_that_is_its_cotangent():
    """A sum's backward, which runs for the first time in the program, hands on what it is given."""
    add = ad.checkpoint(lambda x, y: x + y)

    def f(x, y):
        return np.sum(np.exp(add(x, y))) + np.sum(np.cos(x) * y)

    gradient = ad.grad(f, argnums=(0, 1))
    both = np.exp(X + Y)
    for _ in range(2):
        dx, dy = gradient(X, Y)
        np.testing.assert_allclose(dx, both - np.sin(X) * Y, rtol=1e-14)
        np.testing.assert_allclose(dy, both + np.cos(X), rtol=1e-14)
