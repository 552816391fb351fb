"""Every number that leaves the record was asked for in the user's own code, or is an error with the line."""

import builtins
import functools
import math
import types

import numpy as np
import pytest

from gpt2 import autodiff as ad


def sum_of_a_map(x):
    return x * sum(map(math.sin, [x]))


def loop_over_a_map(x):
    for v in map(math.sin, [x]):
        x = x * v
    return x


def own_float(x):
    float = math.sin  # noqa: A001
    return x * float(x)


def of_a_local(x):
    there = types.SimpleNamespace(float=math.sin)
    return x * there.float(x)


def under_a_partial(x):
    return x * functools.partial(math.sin, x)()


def unpacked(x):
    (y,) = map(math.exp, [x])
    return x * y


@pytest.mark.parametrize(
    "f", [math.sin, sum_of_a_map, loop_over_a_map, own_float, of_a_local, under_a_partial, unpacked, float]
)
def test_a_number_that_escapes_is_an_error(f):
    with pytest.raises(ad.AutodiffError, match="derivative"):
        ad.grad(f)(1.0)


def test_no_escape_without_source():
    names = {"math": math, "np": np}
    exec("def f(x): return x * sum(map(math.sin, [x]))\ndef g(x): return x * float(x)", names)
    with pytest.raises(ad.AutodiffError, match="derivative"):
        ad.grad(names["f"])(1.0)
    assert ad.grad(names["g"])(2.0) == 2.0


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * float(x),
        lambda x: x * int(x),
        lambda x: x * float(np.sin(x)) if x > 0 else x,
        lambda x: x * builtins.float(x),
        lambda x: x * x.__float__(),
        lambda x: x * float(x if x > 0 else -x),
        lambda x: x * len(f"{x:.1f}"),
        lambda x: x * len("%.1f" % x),  # noqa: UP031
        lambda x: x * math.floor(x),
        lambda x: x * round(x),
        lambda x: x * math.isfinite(x),
    ],
)
def test_numbers_that_are_asked_for_leave(f):
    assert np.isfinite(ad.grad(f)(2.0))
