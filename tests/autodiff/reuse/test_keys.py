"""A program is found by the types and the static values of the arguments, and equal ones may differ."""

import dataclasses
import functools
import gc
import weakref

import numpy as np

from gpt2 import autodiff as ad
from gpt2.autodiff.programs.derived import derived_of
from gpt2.autodiff.transforms.vjp import Vjp
from tests.support.reuse import recordings

X = np.array([1.0, 2.0, 3.0])


def test_types_and_layouts_have_separate_programs():
    g = ad.grad(lambda x: np.sum(x.reshape(-1)[:2] ** 2))
    wide, tall = np.ones((2, 3)), np.ones((3, 2))
    for x in (wide, tall, wide.astype(np.float32), tall.T, wide):
        for _ in range(2):
            result = g(x)
            assert result.dtype == x.dtype and result.shape == x.shape
            np.testing.assert_array_equal(result.reshape(-1), [2, 2, 0, 0, 0, 0])


def test_the_cache_is_bounded():
    g = ad.grad(lambda x: np.sum(x**2))
    for n in range(1, 100):
        g(np.ones(n))
    assert len(g.__derived__.cache) <= g.__derived__.cache.size == 64
    np.testing.assert_array_equal(g(np.ones(1)), [2.0])


def test_functions_called_with_a_function_leave_nothing_behind():
    """ad.vjp(lambda: ...) in a loop must not keep the lambdas, nor what they close over."""

    class Big:
        k = 2.0

    watched = []
    for _ in range(5):
        big = Big()
        ad.vjp(lambda x, big=big: x * big.k, X)
        watched.append(weakref.ref(big))
    del big
    gc.collect()
    assert sum(w() is not None for w in watched) <= 1

    def f(x):
        return x * 2

    for _ in range(3):
        ad.vjp(f, X)
    assert len(f.__dict__) == 1

    @functools.wraps(f)
    def g(x):
        return f(x) * 3

    np.testing.assert_allclose(ad.vjp(g, X)[0], 6 * X)


def test_derived_of_methods_is_kept():
    class M:
        def f(self, x):
            return x * 2

    m = M()
    assert derived_of(m.f, Vjp()) is derived_of(m.f, Vjp())


def test_fast_entries_are_kept_for_each_shape():
    g = ad.grad(lambda x: np.sum(np.sin(x)))
    a, b = np.ones(3), np.ones(4)
    entries = []
    for x in (a, b, a, b):
        g(x)
        entries.append(g.__derived__.entry)
    assert entries[0] is entries[2] is not entries[1] and entries[1] is entries[3]


def test_the_order_of_keys_counts():
    """Also of keywords, beside `out` too."""

    def by_order(d):
        return sum((i + 1) * v for i, v in enumerate(d.values()))

    g, h = ad.grad(by_order), ad.compile(lambda **named: by_order(named))
    x, y, out = np.ones(2), np.full(2, 2.0), np.zeros(2)
    for _ in range(3):
        assert g({"a": 1.0, "b": 1.0}) == {"a": 1.0, "b": 2.0}
        assert g({"b": 1.0, "a": 1.0}) == {"b": 1.0, "a": 2.0}
        assert h(a=1.0, b=2.0) == 5.0
        assert h(b=2.0, a=1.0) == 4.0
        assert h(a=x, out=out, b=y)[0] == 5.0
        assert h(a=x, b=y, out=out)[0] == 5.0
        assert h(b=y, out=out, a=x)[0] == 4.0


@dataclasses.dataclass
class Scaled:
    name: str = "a"
    factor: float = dataclasses.field(default=1.0, compare=False)


def test_static_values_of_different_types_differ():
    """1 == True == 1.0, in sets and as keys too."""
    g = ad.grad(lambda x, c: x if all(type(v) is bool for v in c) else x * 2.0)
    h = ad.grad(lambda d: sum(v if type(k) is bool else 2.0 * v for k, v in d.items()))
    for _ in range(3):
        assert g(1.0, frozenset({True})) == 1.0
        assert g(1.0, frozenset({1})) == 2.0
        assert h({True: 1.0}) == {True: 1.0}
        assert h({1: 1.0}) == {1: 2.0}


def test_equal_settings_created_at_each_call_are_recognised():
    f, runs = recordings(lambda x, c: np.sum(x) * c.factor * len(c.name))
    g = ad.grad(f, pure=True)
    for factor in (2.0, 2.0, 3.0):  # a number in them is an argument like any other
        np.testing.assert_array_equal(g(X, Scaled("b", factor)), np.full(3, factor))
    assert runs() == 1
    np.testing.assert_array_equal(g(X, Scaled("bb", 3.0)), np.full(3, 6.0))
    assert runs() == 2
    for _ in range(2):
        np.testing.assert_array_equal(g(X, Scaled("b", 2)), np.full(3, 2.0))
    np.testing.assert_array_equal(g(X, Scaled("b", 3)), np.full(3, 3.0))
    assert runs() == 4


def test_a_function_that_compares_a_setting_by_identity_is_recorded_at_each_call():
    text, number, pair, dtype = "one of two", 10**9, ("a", 7), np.dtype(">f8")
    for asked, twin in (
        (text, " ".join(text.split())),
        (number, int(str(number))),
        (pair, tuple(list(pair))),
        (dtype, np.dtype(">f8")),
    ):
        assert asked == twin and asked is not twin
        g = ad.grad(lambda x, setting, asked=asked: x * 2.0 if setting is asked else x * 3.0)
        for _ in range(3):
            assert g(1.0, asked) == 2.0
            assert g(1.0, twin) == 3.0
            assert g(1.0, setting=asked) == 2.0
        assert "compares by `is`" in ad.why_recorded(g)


def test_settings_not_compared_by_identity_share_programs():
    g = ad.grad(lambda x, setting: x * len(setting))
    assert [g(1.0, s) for s in ("one two", " ".join(["one", "two"]), "one two")] == [7.0] * 3
    (entries, _), *others = g.__derived__.cache._entries._values.values()
    assert len(entries) == 1 and not others


def test_tuples_of_settings_reach_the_function_as_they_are():
    shape, kind = (2, 3), ("a", ("b", None))

    def f(x, where):
        assert where["shape"] is shape and where["kinds"][0] is kind and where["both"][1] is shape
        assert where["both"] is not both
        return np.sum(x) * where["both"][0]

    both = (2.0, shape)
    where = {"shape": shape, "kinds": [kind], "both": both}
    np.testing.assert_array_equal(ad.grad(f)(X, where), [2.0, 2.0, 2.0])
