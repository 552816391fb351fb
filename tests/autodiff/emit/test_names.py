"""User variables whose names clash with names in emitted code.

The random programs and graphs draw such names too; here they stand for each kind of program.
"""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.emit.scalar import ScalarProgram
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import apply, input_node

X = np.linspace(-1.0, 1.0, 200_000)  # enough for blocks of rows


# Functions that differ in names alone share a program, so each uses a different number


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
    if elementwise == "numexpr":
        pytest.importorskip("numexpr")
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
    source = ad.source(ad.compile(lambda p: p[name] * 2.0), {name: X}, emitted=True)
    compile(source, "source", "exec")


def logistic(x):
    exp = np.exp(-x)
    return 1 / (1 + exp) + exp * 0.1875


def named_like_functions(float):
    sqrt = np.sqrt(float) + np.floor(float * 3)
    pow = np.where(sqrt > 9.0, np.inf, sqrt**1.5)
    inf = pow + np.exp(sqrt**sqrt)
    return np.sqrt(inf) * 0.3125


@pytest.mark.parametrize("f", [logistic, named_like_functions])
def test_variables_called_like_functions_of_numbers(f):
    value, slope = ad.compile(f), ad.grad(f)
    difference = (f(0.5 + 1e-6) - f(0.5 - 1e-6)) / 2e-6
    for _ in range(2):
        assert value(0.5) == pytest.approx(f(0.5), rel=1e-14)
        assert slope(0.5) == pytest.approx(difference, rel=1e-8)


def test_functions_called_like_functions_of_numbers():
    x = input_node((), np.dtype(float), "x")
    program = ScalarProgram(Graph([x], [apply("exp", x)], "exp"))
    assert program.source.startswith("from math import exp\n\n\ndef exp_(x)")
    assert program(0.5) == (np.exp(0.5),)
