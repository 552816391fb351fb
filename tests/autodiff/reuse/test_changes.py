"""What f reads changes between two calls, by ordinary means: the answer is that of a fresh run."""

import collections
import dataclasses
import enum
import functools
import math
import pickle

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff import same
from tests.support.reuse import is_reused, recordings

SCALE = 2.0
TABLE = {"factor": 3.0, "list": [1.0, 2.0]}
X = np.array([1.0, 2.0, 3.0])


def by_scale(x):
    return np.sum(x * SCALE)


def helper(x):
    return np.tanh(x) * SCALE


@dataclasses.dataclass
class Settings:
    rate: float = 0.5
    sizes: tuple = (1, 2)

    def apply(self, x):
        return x * self.rate


@dataclasses.dataclass(slots=True)
class Slotted:
    k: float


class Colour(enum.Enum):
    RED = 1


def test_ordinary_functions_are_reused():
    settings, slotted = Settings(), Slotted(2.0)
    pair, array = collections.namedtuple("Pair", "a b")(1.0, [2.0]), np.array([1.0, 2.0, 3.0])

    def nested(x):
        def inner(y):
            return y * pair.b[0]

        return np.sum(np.stack([inner(v) for v in x])) * sum(c * 0.5 for c in (1, 2, 3))

    functions = [
        by_scale,
        nested,
        lambda x: np.sum(x * TABLE["factor"]) * len(TABLE["list"]),
        lambda x: np.sum(helper(x)),
        lambda x: np.sum(settings.apply(x)) * slotted.k,
        lambda x: np.sum(x * array) + math.sqrt(2.0),
        lambda x: np.sum(x) if Colour.RED is Colour.RED else 0.0,
        lambda x: np.sum(np.linalg.norm(x) * functools.partial(np.multiply, 2.0)(x)),
        lambda x: functools.reduce(lambda a, b: a + b, [x[0], x[1]]),
        lambda x: np.sum(ad.grad(lambda y: np.sum(y**3))(x)),
    ]
    for f in functions:
        assert is_reused(f, X), f


def test_a_reused_function_does_not_run_again():
    f, runs = recordings(lambda x: np.sum(np.sin(x)))
    g = ad.grad(f)
    for _ in range(3):
        g(X)
    assert runs() == 3, "a function that counts its runs has to run"
    g = ad.grad(f, pure=True)
    for _ in range(3):
        g(X)
    assert runs() == 4, "a promise keeps it from running"


def changes(monkeypatch, g, change, before, after):
    """Call twice before the change, to use the fast entry, twice after it, and after undoing it."""
    for _ in range(3):
        np.testing.assert_allclose(g(X), before)
    with monkeypatch.context() as m:
        change(m)
        for _ in range(3):
            np.testing.assert_allclose(g(X), after)
    for _ in range(3):
        np.testing.assert_allclose(g(X), before)


def test_globals_of_equal_value_are_the_same(monkeypatch):
    g = ad.grad(by_scale)
    g(X), g(X)
    before = g.__derived__.last
    monkeypatch.setitem(globals(), "SCALE", float("2.0"))
    g.__derived__.slow((X,), {})
    assert g.__derived__.last[1] is before[1]


@pytest.mark.parametrize("a, b", [(1, True), (1, 1.0), (0.0, -0.0), (np.float32(1), 1.0)])
def test_equal_values_that_are_not_the_same(a, b):
    assert not same.same(a, b) and not same.same((a,), (b,))
    assert same.same(a, a) and same.same(float("nan"), float("nan")) and same.same((1, "a"), (1, "a"))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "complex128", "bool", "U3"])
@pytest.mark.parametrize("size", [3, 3000, 200_000])
def test_arrays_are_compared_to_the_last_bit(dtype, size):
    a = np.ones(size).astype(dtype)
    for view in (a, a[::2], a.reshape(-1, 1).T):
        then = view.copy(order="K")
        assert same.same_array(view, then)
        kept = view.flat[-1]
        view.flat[-1] = view.dtype.type(0) if dtype != "U3" else "abc"
        assert not same.same_array(view, then)
        view.flat[-1] = kept
    assert not same.same_array(np.zeros(3), -np.zeros(3))
    assert same.same_array(np.full(3, np.nan), np.full(3, np.nan))
    assert not same.same_array(np.ones(4), np.ones((2, 2)))


def test_a_name_that_appears_later(monkeypatch):
    """A global that shadows a built-in function, or that was not there."""

    def f(x):
        return np.sum(x) * len([1, 2])

    shadow = lambda m: m.setitem(globals(), "len", lambda x: 5.0)  # noqa: E731
    changes(monkeypatch, ad.grad(f), shadow, np.full(3, 2.0), np.full(3, 5.0))

    def g(x):
        try:
            return np.sum(x) * NOT_YET  # noqa: F821
        except NameError:
            return np.sum(x)

    appear = lambda m: m.setitem(globals(), "NOT_YET", 4.0)  # noqa: E731
    changes(monkeypatch, ad.grad(g), appear, np.ones(3), np.full(3, 4.0))


MODE = "square"


def test_names_as_values(monkeypatch, recwarn):
    """A global that holds a string which could be a name."""
    g = ad.grad(lambda x: np.sum(x**2 if MODE == "square" else x**3))
    changes(monkeypatch, g, lambda m: m.setitem(globals(), "MODE", "cube"), 2 * X, 3 * X**2)
    assert not [w for w in recwarn if issubclass(w.category, SyntaxWarning)]


@dataclasses.dataclass
class Sizes:
    width: float


def test_a_class_that_was_pickled_is_as_it_was():
    """Pickle stores an attribute in the class."""

    def by_sizes(x, sizes):
        return x * sizes.width

    sizes = Sizes(2.0)
    _, world = ad.watch(functools.partial(by_sizes, X, sizes), by_sizes, sizes)
    guard = world.guard()
    pickle.dumps(sizes)
    assert "__slotnames__" in vars(Sizes) and guard.trouble is None and guard.holds()
    Sizes.factor = 3.0
    assert not guard.holds()


NESTED = {"factor": 2.0}
times_factor = ad.compile(lambda v: v * NESTED["factor"])


@pytest.mark.parametrize("called", [0, 1, 3])
def test_what_an_inner_derived_function_reads(called, monkeypatch):
    """Also where it has a program for its plain argument already, and does not run itself."""
    constant = np.array([1.0, 2.0])
    for _ in range(called):
        times_factor(constant)
    g = ad.grad(lambda x: np.sum(x * times_factor(constant)))
    for factor in (2.0, 2.0, 5.0, 3.0):
        monkeypatch.setitem(NESTED, "factor", factor)
        np.testing.assert_array_equal(g(np.ones(2)), constant * factor)


def test_a_watched_call_of_a_derived_function(monkeypatch):
    constant = np.array([1.0, 2.0])
    for _ in range(3):
        times_factor(constant)
    _, world = ad.watch(functools.partial(times_factor, constant), times_factor)
    guard = world.guard()
    assert guard.trouble is None and guard.holds()
    monkeypatch.setitem(NESTED, "factor", 7.0)
    assert not guard.holds()


def test_names_of_one_code_in_two_namespaces():
    code, first, second = compile("def f(): return SCALE", "<f>", "exec"), {"SCALE": 2.0}, {"SCALE": 3.0}
    exec(code, first)
    exec(code, second)
    f, g = first["f"], second["f"]
    compiled = ad.compile(lambda x: x * f() + x * 10.0 * g())
    assert [compiled(1.0) for _ in range(3)] == [32.0] * 3
    second["SCALE"] = 5.0
    assert compiled(1.0) == 52.0
    first["SCALE"] = 4.0
    assert compiled(1.0) == 54.0
