"""A number taken out of a recorded value may only decide a branch; else the error names the line."""

import builtins
import functools
import gc
import json
import math
import pickle
import statistics
import types

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.errors import ConversionError


def loop_over_a_map(x):
    for v in map(math.sin, [x]):
        x = x * v
    return x


def own_float(x):
    float = math.sin  # noqa: A001
    return x * float(x)


def unpacked(x):
    (y,) = map(math.exp, [x])
    return x * y


ESCAPES = [
    lambda x: x * sum(map(math.sin, [x])),
    lambda x: x * types.SimpleNamespace(float=math.sin).float(x),
    lambda x: x * functools.partial(math.sin, x)(),
    *(math.sin, loop_over_a_map, own_float, unpacked, float),
]


@pytest.mark.parametrize("f", ESCAPES)
def test_a_number_that_escapes_is_an_error(f):
    with pytest.raises(ad.AutodiffError, match="derivative"):
        ad.grad(f)(1.0)


def test_no_escape_without_source():
    names = {"math": math, "np": np}
    exec(
        "def f(x): return x * sum(map(math.sin, [x]))\n"
        "def g(x): return x * float(x)\n"
        "def h(x): return x * 3.0 if float(x) > 1 else x",
        names,
    )
    for name in "fg":
        with pytest.raises(ad.AutodiffError, match="derivative"):
            ad.grad(names[name])(1.0)
    assert ad.grad(names["h"])(2.0) == 3.0


# --- numbers that do more than decide; test_random_escapes.py combines more ways in random functions


def in_one_branch(x):
    n = 1.0
    if x > 0:
        n = float(x)
    return n * x


def round_a_loop(x):
    y = 0.0
    for _ in range(3):
        x = x + y
        y = float(x)
    return x


def in_an_attribute(x):
    there = types.SimpleNamespace()
    there.n = float(x)
    return there.n * x


def number_of(v):
    return float(v)


def from_a_helper_of_another_name(x):
    helper = number_of
    n = 0.0
    for v in map(helper, [x]):
        n = v
    return n * x


def extended_by_a_map(x):
    kept = []
    kept.extend(map(number_of, [x]))
    return kept[0] * x


def as_a_global(x):
    global kept_number
    kept_number = float(x)
    return kept_number * x


LOST = [
    lambda x: float(x) * 2,
    lambda x: x * float(x),
    lambda x: x * int(x),
    lambda x: x * float(np.sin(x)) if x > 0 else x,
    lambda x: x * builtins.float(x),
    lambda x: x * x.__float__(),
    lambda x: x * float(x if x > 0 else -x),
    lambda x: abs(complex(x, 2.0)),
    lambda x: np.abs(complex(2.0, x) * x),
    lambda x: x + abs(float(x)),
    lambda x: x + min(int(x), 3),
    lambda x: (x, float(x))[1],
    lambda x: float(x),
    lambda x: x * [1.0, 2.0, float(x)][0],
    lambda x: x ** int(x),
    lambda x: x * -float(x),
    lambda x: x * (2.0 if x < 0 else float(x)),
    lambda x: math.sin(float(x)) * x,
    lambda x: np.sin(float(x)) * x,
    in_one_branch,
    round_a_loop,
    lambda x: float(str(x)) * x,
    lambda x: float(f"{x:.6f}") * x,
    lambda x: np.sum(np.arange(0.0, float(x), 0.5)) * x,
    in_an_attribute,
    from_a_helper_of_another_name,
    extended_by_a_map,
    as_a_global,
]


@pytest.mark.parametrize("f", LOST)
@pytest.mark.parametrize("derived", [ad.grad, ad.compile, ad.value_and_grad])
def test_a_number_that_does_more_than_decide_is_an_error(f, derived):
    for _ in range(2):
        with pytest.raises(ad.AutodiffError, match=r"test_escapes.py:\d+: .*derivative would be lost"):
            derived(f)(2.5)


@pytest.mark.parametrize(
    ("f", "instead"),
    [
        (
            lambda x: float(x) * 2,
            r"x itself keeps it, and x.item\(\) of an array; float\(ad.stop_gradient\(x\)\) is a",
        ),
        (lambda x: int(x) * x, r"math.trunc\(x\) is the same number, and has the derivative zero; int\(ad"),
        (
            lambda x: abs(complex(x, 2.0)),
            r"a \+ 1j \* b keeps it; complex\(ad.stop_gradient\(x\)\) is a const",
        ),
    ],
)
def test_the_error_says_what_to_write(f, instead):
    with pytest.raises(ConversionError, match=instead) as caught:
        ad.grad(f)(2.5)
    assert "\n" not in str(caught.value)


def test_what_the_error_says_to_write():
    assert ad.grad(lambda x: x.item() * x)(np.float64(2.5)) == 5.0
    assert ad.grad(lambda x: float(ad.stop_gradient(x)) * x)(2.5) == 2.5
    assert ad.grad(lambda x: int(ad.stop_gradient(x)) * x)(2.5) == 2.0
    assert ad.grad(lambda x: math.trunc(x) * x)(2.5) == 2.0
    np.testing.assert_allclose(ad.grad(lambda x: np.abs(x + 1j * 2.0))(1.5), 0.6)


# --- numbers that decide


def in_a_condition(x):
    n = float(x)
    while n > 1 and not 7 < n < 8:
        if n == 2.5 or n in (3.5, 4.5):
            return x * 3
        return x
    return x * 2


def of_steps(x):
    y, n = x, int(x)
    for i in range(n):
        y = y * (i + 1)
    for i in range(int(x) + 1, 2 * n, max(1, n // 2)):
        y = y * i
    return y * len(range(n))


def as_an_index(x):
    i, table, row = int(x), [1.0, 2.0, 3.0, 4.0], np.arange(12.0).reshape(3, 4)
    return x * table[i] * sum(table[i:]) * row[i - 1, int(x)] * {2: 5.0}[i] * {2.5: 2.0}[float(x)]


def as_an_index_to_write_to(x):
    a = np.zeros_like(x, shape=(4,))
    a[int(x)] = x * x
    a[: int(x)] = x
    return np.sum(a)


def as_a_text(x):
    n = float(x)
    text = f"{n:.1f} {n!r}" + "%.1f" % n + f"{float(x)}" + format(n, ".2f") + str(int(x))  # noqa: UP031
    assert n > 0, f"{n} is not positive"
    print(n, int(x))
    return x * len(text) * len("{} {:.2f}".format(1, float(x)))  # noqa: UP032


def by_a_helper(x):
    def is_large(v):
        return float(v) > 1

    def steps(v):
        return int(v)

    return x * 2 if is_large(x) and range(steps(x)) else x


def by_a_key(x):
    values = sorted([x, -x, 2 * x], key=lambda v: float(v))
    values.sort(key=lambda v: -float(v))
    return values[0] * 3 + max(values, key=lambda v: float(v))


def in_a_function_inside(x):
    n = int(x)
    return x * sum([k for k in range(5) if k < n]) * len([0 for _ in range(n)])


def only_where_it_decides(x):
    n = float(x)
    if n > 1:
        n = 3.0
    else:
        n = 2.0
    return n * x


@pytest.mark.parametrize(
    ("f", "slope"),
    [
        (lambda x: x if float(x) > 0 else 2 * x, 1.0),
        (lambda x: x * len(f"{x:.1f}"), 3.0),
        (lambda x: x * len("%.1f" % x), 3.0),  # noqa: UP031
        (lambda x: x * math.floor(x), 2.0),
        (lambda x: x * math.ceil(x), 3.0),
        (lambda x: x * math.trunc(x), 2.0),
        (lambda x: x * round(x), 2.0),
        (lambda x: x * sum(map(math.floor, [x, x])), 4.0),
        (lambda x: x * math.isfinite(x), 1.0),
        (lambda x: x * int(np.floor(x)), 2.0),
        (lambda x: x * float(x > 1), 1.0),
        (lambda x: x * float(ad.stop_gradient(x * x)), 6.25),
        (lambda x: x * math.cos(ad.stop_gradient(x)), math.cos(2.5)),
        (lambda x: x * bool(float(x)), 1.0),
        (lambda x: x if abs(float(x) - int(x)) < 0.6 else 2 * x, 1.0),
        (in_a_condition, 3.0),
        (of_steps, 2.0 * 3.0 * 2.0),
        (as_an_index, 3.0 * 7.0 * 6.0 * 5.0 * 2.0),
        (as_an_index_to_write_to, 5.0 + 2.0),
        (lambda x: x * np.sum(np.ones(int(x))) * np.zeros((int(x), 3)).size * len(np.arange(int(x))), 24.0),
        (lambda x: np.sum(np.broadcast_to(x, (4,)).reshape(int(x), -1)[0]), 2.0),
        (as_a_text, 18.0 * 6.0),
        (by_a_helper, 2.0),
        (by_a_key, 3.0 * 2.0 + 2.0),
        (in_a_function_inside, 2.0),
        (only_where_it_decides, 3.0),
    ],
)
def test_numbers_that_decide_leave(f, slope):
    g = ad.grad(f)
    for x in (2.5, 2.5, 1.5, 2.5):
        assert x == 1.5 or g(x) == slope
        assert x == 1.5 or f is as_an_index_to_write_to or ad.compile(f)(x) == f(x)


@pytest.mark.parametrize("x", [2.5, -2.5, 0.5, 1e18, -0.0])
@pytest.mark.parametrize("f", [math.floor, math.ceil, math.trunc, round])
def test_step_functions(f, x):
    """They give Python's integer; another integer takes another recording."""
    for kind in (float, np.float64, np.array):
        if kind is np.array and f in (math.trunc, round):
            continue  # NumPy's arrays have no such methods
        got = ad.compile(lambda x: (x * 1.0, f(x)))
        for value in (x, 7.25, x, -7.25, x):
            assert got(kind(value))[1] == f(kind(value)) and type(got(kind(value))[1]) is int
    for bad in (math.inf, math.nan):
        with pytest.raises((OverflowError, ValueError)):
            ad.compile(lambda x: x * f(x))(bad)


def test_a_constant_may_leave_from_inside():
    """A constant of an inner function need not be one of the outer function."""

    def f(x):
        return ad.grad(lambda y: y * float(ad.stop_gradient(x)))(2.0)

    def g(x):
        return ad.grad(lambda y: y * float(x))(2.0)

    def h(x):
        return ad.grad(lambda y: y * float(x))(ad.stop_gradient(x))

    assert ad.grad(lambda x: x * f(x))(3.0) == 3.0
    for function in (g, h):
        with pytest.raises(ad.AutodiffError, match="derivative would be lost"):
            ad.grad(lambda x, function=function: x * function(x))(3.0)


def test_arrays_from_outside_and_draws_have_no_derivative():
    w, rng = np.array([2.0, 3.0]), np.random.default_rng(0)

    def f(x):
        here = np.zeros_like(x) + w
        return x[0] * float(here[1]) if float(rng.normal()) * 0 == 0 else x[0]

    for _ in range(3):
        np.testing.assert_array_equal(ad.grad(f)(np.ones(2)), [3.0, 0.0])


# --- what Python cannot do with a recorded value


@functools.lru_cache
def remembered(x):
    return x * x


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda x: {x: 1}[x] * x, "unhashable type: a recorded value is no key of a dict"),
        (lambda x: len({x}) * x, "unhashable type"),
        (lambda x: remembered(x), "unhashable type"),
        (lambda x: statistics.mean([x, x]), "statistics.mean: .*Write np.mean$"),
        (lambda x: statistics.fmean([x, x]), r"statistics.fmean\(\) .*Use np.mean instead"),
        (lambda x: statistics.variance([x, 2 * x]), r"Write np.var\(x, ddof=1\)$"),
        (lambda x: statistics.harmonic_mean([x, 2 * x]), "statistics.harmonic_mean: .*needs a rule"),
        (lambda x: x + "text", r"unsupported .* for \+: 'Recorded' and 'str'. A Recorded stands"),
    ],
)
def test_type_errors_have_the_line(f, words):
    with pytest.raises(TypeError, match=rf"test_escapes.py:\d+: .*{words}") as caught:
        ad.grad(f)(2.5)
    assert isinstance(caught.value, ad.AutodiffError) and "\n" not in str(caught.value)


def test_errors_of_the_user_s_own_pass():
    def f(x):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="^mine$") as caught:
        ad.grad(f)(1.0)
    assert type(caught.value) is TypeError


def test_a_text_is_text_that_keeps_nothing():
    kept = []

    def noted(x):
        kept.extend([str(x), f"{x:.3f}"])
        return x * x if float(str(x)) > 1 else x

    assert ad.grad(noted)(2.5) == 5.0 and kept[0] == "2.5" and float(kept[1]) == 2.5
    gc.collect()
    assert [text.run() for text in kept] == [None, None]  # the recordings have been freed
    assert pickle.loads(pickle.dumps(kept)) == json.loads(json.dumps(kept)) == ["2.5", "2.500"]
