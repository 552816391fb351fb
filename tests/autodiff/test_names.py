"""Variables of the user's that are called what emitted code calls something of its own.

The random programs and graphs draw such names too; here they stand for each kind of program.
"""

import numpy as np
import pytest

from gpt2 import autodiff as ad

X = np.linspace(-1.0, 1.0, 200_000)  # enough for blocks of rows


# Functions that differ in names alone share a program: each has a number of its own


def scratch(x):
    s2 = np.tanh(x)
    s1 = s2 * s2 + x
    return np.sin(s1) * s2 + s1 * 0.8125


def fused(x):
    text = np.sqrt(x * x + 0.5)
    number_0 = text * 0.25 + x
    sin_ = np.tanh(number_0)
    sin = np.tanh(text)
    return sin * sin_ + number_0 * 0.75 - sin * text


def functions_of_the_runtime(take_rows, add_rows):
    blocks1 = np.tanh(take_rows[add_rows])
    scratch1 = np.sum(np.sin(take_rows), axis=-1)
    return np.sum(blocks1) + scratch1 * 2.0


def sums(ones_64_float64):
    slice = np.sin(ones_64_float64)
    return np.sum(slice, axis=-1) * 0.6875


@pytest.mark.parametrize("elementwise", ["numpy", "numexpr"])
@pytest.mark.parametrize("f", [scratch, fused])
def test_names_of_scratch_and_of_expressions(f, elementwise):
    with ad.options(elementwise=elementwise):
        program = ad.compile(f)
        for _ in range(2):
            np.testing.assert_allclose(program(X), f(X), rtol=1e-14, atol=1e-14)


def test_names_of_the_runtime():
    rng = np.random.default_rng(0)
    table, rows = rng.standard_normal((500, 64)), rng.integers(0, 500, 90)
    for f, args in [(functions_of_the_runtime, (table, rows)), (sums, (table,))]:
        program = ad.compile(f)
        for _ in range(2):
            np.testing.assert_allclose(program(*args), f(*args), rtol=1e-12, atol=1e-12)
    slope = ad.grad(lambda take_rows, add_rows: np.sum(np.sin(take_rows[add_rows]) * 0.4375))(table, rows)
    wanted = np.bincount(rows, minlength=500)[:, None] * np.cos(table) * 0.4375
    np.testing.assert_allclose(slope, wanted, rtol=1e-12)


@pytest.mark.parametrize("name", ["class", "1a", "a b", "None", "memory", "np", "s1", "setup"])
def test_arguments_may_have_any_name(name):
    number = float(np.frombuffer(name.encode(), np.uint8) @ np.arange(1, len(name) + 1)) / 1024
    f = ad.compile(lambda **given: np.sin(given[name]) * number)
    for _ in range(2):
        np.testing.assert_array_equal(f(**{name: X}), np.sin(X) * number)
    source = ad.source(ad.compile(lambda p: p[name] * 2.0), {name: X})
    compile(source, "source", "exec")
