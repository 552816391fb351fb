"""Loops that are written out: chains of thousands of values compile, in time that grows with their length."""

import math

import numpy as np
import pytest

from gpt2 import autodiff as ad

N = 1500  # deeper than Python's recursion, and long enough for anything that grows with the cube to show


def sums(x):
    s = x
    for i in range(N):
        s = s + 0.1 * (i + 1) * x
    return s


def products(x):
    y = x
    for _ in range(N):
        y = y * x
    return y


def squares(x):
    for _ in range(40):
        x = x * x
    return x


def sines(x):
    y = x
    for i in range(N):
        y = y + np.sin(x * (i + 1))
    return y


def rotations(x):
    a, b = x, 1.0 - x
    for _ in range(N // 10):
        a, b = a + 0.01 * b, b - 0.01 * a
    return a * b


@pytest.mark.parametrize(
    "f, x, expected",
    [
        (sums, 1.01, 1.0 + 0.1 * N * (N + 1) / 2),
        (products, 1.001, (N + 1) * 1.001**N),
        (squares, 1.0, 2.0**40),
        (sines, 0.7, 1.0 + sum(i * math.cos(0.7 * i) for i in range(1, N + 1))),
    ],
)
def test_a_long_chain_of_numbers(f, x, expected):
    g = ad.grad(f)
    # Twice: the first call of a function like these may be interpreted, the second compiles
    for _ in range(2):
        assert g(x) == pytest.approx(expected, rel=1e-10)


def test_a_long_chain_of_arrays():
    x = np.linspace(0.5, 1.5, 6)
    got = ad.grad(lambda x: np.sum(rotations(x)))(x)
    h = 1e-6  # the function is a polynomial of degree 2: central differences are exact but for rounding
    np.testing.assert_allclose(got, (rotations(x + h) - rotations(x - h)) / (2 * h), rtol=1e-8)
