"""Reuse is invisible: a derived function gives what recording its function anew would give."""

import collections
import contextlib
import dataclasses
import enum
import functools
import math
import random
import threading
import types

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff import same
from gpt2.autodiff.api.derived import derived_of
from gpt2.autodiff.record.bytecode import reads
from gpt2.autodiff.reuse import guard

SCALE = 2.0
TABLE = {"factor": 3.0, "list": [1.0, 2.0]}
ARRAY = np.array([1.0, 2.0, 3.0])
X = np.array([1.0, 2.0, 3.0])


def recordings(f):
    """f, and how many times it was run."""
    count = [0]

    @functools.wraps(f)
    def counted(*args, **kwargs):
        count.append(1)
        return f(*args, **kwargs)

    return counted, lambda: len(count) - 1


def is_reused(f, *args):
    """Is the second call of the gradient served from the first recording?"""
    g = ad.grad(f)
    g(*args)
    return ad.why_recorded(g) is None


# --- what is reused
# -------------------------------------------------------------------------------------------------


def by_scale(x):
    return np.sum(x * SCALE)


def by_table(x):
    return np.sum(x * TABLE["factor"]) * len(TABLE["list"])


def helper(x):
    return np.tanh(x) * SCALE


def by_helper(x):
    return np.sum(helper(x))


@dataclasses.dataclass
class Settings:
    rate: float = 0.5
    sizes: tuple = (1, 2)

    def apply(self, x):
        return x * self.rate


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


class Colour(enum.Enum):
    RED = 1


Pair = collections.namedtuple("Pair", "a b")


def test_ordinary_functions_are_reused():
    settings, slotted, pair = Settings(), Slotted(2.0), Pair(1.0, [2.0])

    def nested(x):
        def inner(y):
            return y * pair.b[0]

        return np.sum(np.stack([inner(v) for v in x])) * sum(c * 0.5 for c in (1, 2, 3))

    functions = [
        by_scale,
        by_table,
        by_helper,
        nested,
        lambda x: np.sum(settings.apply(x)) * slotted.k,
        lambda x: np.sum(x * ARRAY) + math.sqrt(2.0),
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


# --- what changes
# -------------------------------------------------------------------------------------------------


def changes(monkeypatch, g, change, before, after):
    """Twice before, so that the fast entry is in use; twice after; and back again."""
    for _ in range(3):
        np.testing.assert_allclose(g(X), before)
    with monkeypatch.context() as m:
        change(m)
        for _ in range(3):
            np.testing.assert_allclose(g(X), after)
    for _ in range(3):
        np.testing.assert_allclose(g(X), before)


def test_globals(monkeypatch):
    changes(
        monkeypatch,
        ad.grad(by_scale),
        lambda m: m.setitem(globals(), "SCALE", 5.0),
        np.full(3, 2.0),
        np.full(3, 5.0),
    )


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


def test_functions_called(monkeypatch):
    g = ad.grad(by_helper)
    slope = 1 - np.tanh(X) ** 2
    changes(monkeypatch, g, lambda m: m.setitem(globals(), "SCALE", 1.0), 2 * slope, slope)
    changes(
        monkeypatch, g, lambda m: m.setitem(globals(), "helper", lambda x: 7 * x), 2 * slope, np.full(3, 7.0)
    )
    changes(
        monkeypatch,
        g,
        lambda m: m.setattr(helper, "__code__", (lambda x: x * SCALE).__code__),
        2 * slope,
        np.full(3, 2.0),
    )


def test_dicts_and_lists(monkeypatch):
    g = ad.grad(by_table)
    changes(monkeypatch, g, lambda m: m.setitem(TABLE, "factor", 1.0), np.full(3, 6.0), np.full(3, 2.0))
    changes(monkeypatch, g, lambda m: m.setitem(TABLE, "list", [1.0]), np.full(3, 6.0), np.full(3, 3.0))
    TABLE["list"].append(9.0)
    try:
        np.testing.assert_allclose(g(X), np.full(3, 9.0))
    finally:
        TABLE["list"].pop()


def test_closures():
    k = 2.0

    def f(x):
        return np.sum(x * k)

    g = ad.grad(f)
    for k in (2.0, 3.0, 2.0, 4.0, 4.0):
        np.testing.assert_allclose(g(X), np.full(3, k))


def test_closures_of_functions_inside():
    k = [1.0]

    def f(x):
        def inner(y):
            return y * k[0]

        return np.sum(inner(x))

    g = ad.grad(f)
    for value in (1.0, 5.0, 1.0):
        k[0] = value
        np.testing.assert_allclose(g(X), np.full(3, value))


def test_captured_arrays_edited_in_place():
    """As an operand, and through arithmetic that the recorder does not see."""
    w = np.array([1.0, 2.0, 3.0])
    operand, unseen = ad.grad(lambda x: np.sum(x * w)), ad.grad(lambda x: np.sum(x) * float(w.sum()))
    frozen = ad.grad(lambda x: np.sum(x * (w * 2.0)))
    for value in (5.0, 6.0, 5.0):
        w[1] = value
        for _ in range(2):
            np.testing.assert_allclose(operand(X), w)
            np.testing.assert_allclose(unseen(X), np.full(3, w.sum()))
            np.testing.assert_allclose(frozen(X), 2 * w)


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


def test_views_of_edited_arrays():
    base = np.ones(6)
    view = base[::2]
    g = ad.grad(lambda x: np.sum(x * view))
    np.testing.assert_allclose(g(X), [1, 1, 1])
    base[2] = 4.0
    np.testing.assert_allclose(g(X), [1, 4, 1])


def test_objects_and_their_classes(monkeypatch):
    s = Settings(0.5)
    g = ad.grad(lambda x: np.sum(s.apply(x)))
    changes(monkeypatch, g, lambda m: m.setattr(s, "rate", 2.0), np.full(3, 0.5), np.full(3, 2.0))
    changes(
        monkeypatch,
        g,
        lambda m: m.setattr(Settings, "apply", lambda self, x: 7 * x),
        np.full(3, 0.5),
        np.full(3, 7.0),
    )
    o = Slotted(2.0)
    changes(
        monkeypatch,
        ad.grad(lambda x: np.sum(x * o.k)),
        lambda m: m.setattr(o, "k", 3.0),
        np.full(3, 2.0),
        np.full(3, 3.0),
    )


def test_methods(monkeypatch):
    class Model:
        def __init__(self):
            self.w = np.array([1.0, 2.0, 3.0])
            self.parts = [Settings(2.0)]

        def loss(self, x):
            return np.sum(self.parts[0].apply(x) * self.w)

    m = Model()
    g = ad.grad(m.loss)
    np.testing.assert_allclose(g(X), 2 * m.w)
    m.w = m.w + 1
    np.testing.assert_allclose(g(X), 2 * m.w)
    m.w *= 2
    np.testing.assert_allclose(g(X), 2 * m.w)
    m.parts[0].rate = 5.0
    np.testing.assert_allclose(g(X), 5 * m.w)
    m.parts[0] = Settings(1.0)
    np.testing.assert_allclose(g(X), m.w)


def test_defaults_and_keyword_defaults():
    def f(x, k=2.0, *, m=[1.0]):  # noqa: B006
        return np.sum(x * k * m[0])

    g = ad.grad(f)
    np.testing.assert_allclose(g(X), np.full(3, 2.0))
    f.__defaults__ = (3.0,)
    np.testing.assert_allclose(g(X), np.full(3, 3.0))
    f.__kwdefaults__["m"][0] = 2.0
    np.testing.assert_allclose(g(X), np.full(3, 6.0))
    f.__kwdefaults__ = {"m": [5.0]}
    np.testing.assert_allclose(g(X), np.full(3, 15.0))


def test_attributes_of_modules(monkeypatch):
    module = types.ModuleType("settings")
    module.k, module.deep = 2.0, types.ModuleType("settings.deep")
    module.deep.m = 3.0
    g = ad.grad(lambda x: np.sum(x * module.k * module.deep.m))
    assert ad.why_recorded(g) is None
    changes(monkeypatch, g, lambda m: m.setattr(module, "k", 1.0), np.full(3, 6.0), np.full(3, 3.0))
    changes(monkeypatch, g, lambda m: m.setattr(module.deep, "m", 1.0), np.full(3, 6.0), np.full(3, 2.0))


def test_a_name_that_appears_later(monkeypatch):
    """A global that shadows a built-in function, or that was not there."""

    def f(x):
        return np.sum(x) * len([1, 2])

    changes(
        monkeypatch,
        ad.grad(f),
        lambda m: m.setitem(globals(), "len", lambda x: 5.0),
        np.full(3, 2.0),
        np.full(3, 5.0),
    )

    def g(x):
        try:
            return np.sum(x) * NOT_YET  # noqa: F821
        except NameError:
            return np.sum(x)

    changes(
        monkeypatch, ad.grad(g), lambda m: m.setitem(globals(), "NOT_YET", 4.0), np.ones(3), np.full(3, 4.0)
    )


def test_functions_under_lru_cache():
    @functools.lru_cache
    def mask(n):
        return np.arange(n) * 1.0

    @functools.cache
    def unbounded(n):
        return np.ones(n)

    g = ad.grad(lambda x: np.sum(x * (mask(3) * unbounded(3))))
    for _ in range(3):
        np.testing.assert_allclose(g(X), [0, 1, 2])
    assert ad.why_recorded(g) is None, "from the second call on its store stays as it is"
    mask(3)[0] = 7.0
    np.testing.assert_allclose(g(X), [7, 1, 2])
    unbounded(3)[2] = 0.0
    np.testing.assert_allclose(g(X), [7, 1, 0])


def test_static_arguments_that_are_functions_and_objects():
    k = [2.0]
    s = Settings(0.5)

    def times(x):
        return x * k[0]

    g = ad.grad(lambda x, act, obj: np.sum(act(x)) * obj.rate)
    for k[0], s.rate in ((2.0, 0.5), (3.0, 0.5), (3.0, 1.0)):
        for _ in range(2):
            np.testing.assert_allclose(g(X, times, s), np.full(3, k[0] * s.rate))
    np.testing.assert_allclose(g(X, np.sin, s), np.cos(X) * s.rate)


# --- what cannot be followed
# --------------------------------------------------------------------------------------

TOTAL = 0.0
CALLS = []


def counts_globally(x):
    global TOTAL
    TOTAL += 1.0
    return np.sum(x) * TOTAL


def counts_in_a_list(x):
    CALLS.append(1.0)
    return np.sum(x) * len(CALLS)


@pytest.mark.parametrize("f", [counts_globally, counts_in_a_list])
def test_functions_that_count_their_calls(f, monkeypatch):
    monkeypatch.setitem(globals(), "TOTAL", 0.0)
    CALLS.clear()
    g = ad.grad(f)
    assert [g(X)[0] for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]
    assert ad.why_recorded(g)


def test_functions_that_count_in_a_closure_or_an_attribute():
    n = 0

    def f(x):
        nonlocal n
        n += 1
        return np.sum(x) * n

    g = ad.grad(f)
    assert [g(X)[0] for _ in range(3)] == [1.0, 2.0, 3.0]

    def h(x):
        h.calls += 1
        return np.sum(x) * h.calls

    h.calls = 0
    g = ad.grad(h)
    assert [g(X)[0] for _ in range(3)] == [1.0, 2.0, 3.0]


def draws_numpy(x):
    return np.sum(x * np.random.standard_normal(3))


def draws_python(x):
    return np.sum(x) * random.random()


def test_random_numbers_are_drawn_at_each_call():
    rng = np.random.default_rng(0)
    for f in (draws_numpy, draws_python, lambda x: np.sum(x * rng.normal(size=3))):
        g = ad.grad(f)
        seen = {tuple(g(X)) for _ in range(5)}
        assert len(seen) == 5
        assert ad.why_recorded(g)
    np.random.seed(3)
    expected = np.random.standard_normal(3)
    np.random.seed(3)
    np.testing.assert_array_equal(ad.grad(draws_numpy)(X), expected)


def test_random_numbers_behind_a_name_that_hides_them():
    """Found by the state of the generators, not by reading code."""
    g = ad.grad(lambda x: np.sum(x * getattr(np, "ran" + "dom").standard_normal(3)))
    assert len({tuple(g(X)) for _ in range(4)}) == 4
    assert ad.why_recorded(g) == "it draws random numbers"


SEEN = 0.0


def leaves_a_mark(x):
    global SEEN
    SEEN = 1.0
    return np.sum(x)


def test_assignments_are_made_at_each_call(monkeypatch):
    """Also those that the function itself never reads."""
    here = 0.0

    def leaves_one_in_a_closure(x):
        nonlocal here
        here = 1.0
        return np.sum(x)

    for f in (leaves_a_mark, leaves_one_in_a_closure):
        g = ad.grad(f)
        for _ in range(3):
            monkeypatch.setitem(globals(), "SEEN", 0.0)
            here = 0.0
            g(X)
            assert SEEN == 1.0 or here == 1.0


def test_other_sources_of_change(tmp_path, capsys):
    import os
    import time

    path = tmp_path / "k.npy"
    np.save(path, np.array(2.0))
    counter = iter(range(1, 10))
    for f in (
        lambda x: np.sum(x) * np.load(path),
        lambda x: np.sum(x) * time.perf_counter(),
        lambda x: np.sum(x) * len(os.environ),
        lambda x: np.sum(x) * next(counter),
        lambda x: np.sum(x) * eval("2.0"),
        lambda x: np.sum(x) * globals()["SCALE"],
        lambda x: np.sum(x) * types.FunctionType.__globals__.__get__(by_scale)["SCALE"],
    ):
        assert not is_reused(f, X), f
    g = ad.grad(lambda x: (print("here"), np.sum(x))[1])
    g(X), g(X)
    assert capsys.readouterr().out == "here\nhere\n"


def test_a_value_looked_at():
    def f(x):
        return np.sum(x**2) if np.sum(x) > 0 else np.sum(-x)

    g = ad.grad(f)
    for sign in (1.0, -1.0, 1.0, -1.0):
        np.testing.assert_allclose(g(sign * X), 2 * X if sign > 0 else -np.ones(3))

    def newton(a):
        y = a
        while abs(y * y - a) > 1e-12:
            y = 0.5 * (y + a / y)
        return y

    d = ad.grad(newton)
    for a in (2.0, 9.0, 100.0, 2.0):
        assert d(a) == pytest.approx(0.5 / math.sqrt(a), rel=1e-9)


def test_graphs_recorded_again_are_not_compiled_again():
    rng = np.random.default_rng(0)
    g = ad.grad(lambda x: np.sum(np.arctan(x) * rng.normal(size=3)))
    programs = []
    for _ in range(4):
        g(X)
        programs.append(g.__derived__.last[1])
    assert programs[0] is None, "what may never come again is not compiled"
    assert programs[2] is not None and programs[2] is programs[3]


def test_new_lambdas_of_the_same_code_share_a_program():
    programs = []
    for k in (np.ones(3), np.full(3, 2.0), np.full(3, 3.0)):
        g = ad.grad(lambda x, k=k: np.sum(np.cosh(x) * k) * 0.125)
        np.testing.assert_allclose(g(X), np.sinh(X) * k * 0.125)
        programs.append(g.__derived__.last[1])
    assert programs[1] is programs[2]


# --- keys
# ---------------------------------------------------------------------------------------------------------


def test_types_and_layouts_have_programs_of_their_own():
    g = ad.grad(lambda x: np.sum(x.reshape(-1)[:2] ** 2))
    for x in (
        np.ones((2, 3)),
        np.ones((3, 2)),
        np.ones((2, 3), np.float32),
        np.ones((3, 2)).T,
        np.ones((2, 3)),
    ):
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
    import gc
    import weakref

    class Big:
        pass

    watched = []
    for _ in range(5):
        big = Big()
        big.k = 2.0
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
    from gpt2.autodiff.api.vjp import Vjp

    assert derived_of(m.f, Vjp()) is derived_of(m.f, Vjp())


# --- threads
# ------------------------------------------------------------------------------------------------------


def test_eight_threads_on_one_derived_function():
    """Several shapes at once, changing all the time: every result right."""
    w = np.linspace(0.5, 1.5, 40)
    g = ad.value_and_grad(lambda x: np.sum(np.sin(x) * w[: x.shape[0]] * x))
    errors = []
    start = threading.Barrier(8)

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            start.wait()
            for _ in range(60):
                x = rng.normal(size=int(rng.integers(1, 5)) * 10)
                k = w[: len(x)]
                value, grad = g(x)
                np.testing.assert_allclose(value, np.sum(np.sin(x) * k * x), rtol=1e-12, atol=1e-12)
                np.testing.assert_allclose(grad, k * (np.cos(x) * x + np.sin(x)), rtol=1e-12, atol=1e-12)
        except BaseException as e:  # noqa: BLE001
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[0]


def test_options_belong_to_their_thread():
    g = ad.grad(lambda x: np.sum(np.sin(x) + np.sin(x)))
    sources = {}

    def other():
        sources["other"] = ad.source(g, X)

    with ad.options(off={"cse", "algebra"}):
        t = threading.Thread(target=other)
        t.start()
        t.join()
        here = ad.source(g, X)
    assert here != sources["other"] == ad.source(g, X)


# --- reading code
# -------------------------------------------------------------------------------------------------


def test_reads():
    def outer():
        k, m = 1, 2

        def f(x, y=0):
            z = np.linalg.norm(x) + SCALE + k

            def inner(a):
                nonlocal z
                z = z + a + m + helper(a)
                return z

            return inner(x) + sum(v for v in y)

        return f

    found = reads(outer().__code__)
    assert found.globals == {"np": {("linalg", "norm")}, "SCALE": {()}, "helper": {()}, "sum": {()}}
    assert found.free == {"k": {()}, "m": {()}}
    assert not found.troubles, "assigning a variable of its own is no trouble"


def test_guards_of_plain_functions_are_short():
    """What is asked at every call: the code of the function, and whether np is still np."""
    found = guard.watch(lambda x: np.sum(np.exp(x)))
    assert found.watched == 2 and found.holds()


def test_names_as_values(monkeypatch, recwarn):
    """A global that holds a string which could be a name."""
    changes(monkeypatch, ad.grad(by_mode), lambda m: m.setitem(globals(), "MODE", "cube"), 2 * X, 3 * X**2)
    assert not [w for w in recwarn if issubclass(w.category, SyntaxWarning)]


MODE = "square"


def by_mode(x):
    return np.sum(x**2 if MODE == "square" else x**3)


# --- paths ------------------------------------------------------------------------------------------------


def programs_of(g, *calls):
    found = []
    for args in calls:
        g(*args)
        found.append(g.__derived__.last[1])
    return found


def test_a_branch_on_a_sign_is_a_path():
    """Both branches have programs of their own; each is found again, with the answers of fresh runs."""

    def f(x):
        if x > 0:
            return x**3
        return -2 * x

    g = ad.grad(f)
    for _ in range(3):
        assert [g(2.0), g(-1.0), g(3.0), g(0.0)] == [12.0, -2.0, 27.0, -2.0]
    first, second, third = programs_of(g, (2.0,), (-1.0,), (5.0,))
    assert first is third is not second and None not in (first, second)
    assert ad.why_recorded(g) is None
    assert g(float("nan")) == -2.0


def test_checks_of_indices_do_not_cost_a_recording():
    def lookup(table, index):
        if index.min() < 0 or index.max() >= len(table):
            raise ValueError("index out of range")
        return np.sum(table[index] ** 2)

    table = np.arange(5.0)
    g = ad.grad(lookup)
    for index in ([0, 1], [4, 2], [3, 3]):
        expected = np.zeros(5)
        np.add.at(expected, index, 2 * table[index])
        np.testing.assert_allclose(g(table, np.array(index)), expected)
    assert ad.why_recorded(g) is None
    with pytest.raises(ValueError, match="index out of range"):
        g(table, np.array([0, 5]))
    with pytest.raises(ValueError, match="index out of range"):
        g(table, np.array([-1, 0]))


def test_masks_and_lengths_are_paths():
    def f(x, n):
        return np.sum(x[x > 0] ** 2) * len(range(int(n[0])))

    g = ad.grad(f)
    for x, n in (
        ([1.0, -1, 2], 2),
        ([1.0, -1, 2], 3),
        ([3.0, -3, 1], 3),
        ([-1.0, 1, 2], 3),
        ([1.0, -1, 2], 2),
    ):
        x = np.array(x)
        np.testing.assert_allclose(g(x, np.array([n])), np.where(x > 0, 2 * x * n, 0.0))


def test_what_is_looked_at_on_one_path_may_not_exist_on_another():
    def f(x, k):
        if k[0] > 2:
            return np.sum(x) * (2.0 if x[k[0]] > 0 else 3.0)
        return np.sum(x)

    g = ad.grad(f)
    x = np.array([1.0, 1.0, 1.0, -1.0, 1.0])
    for k, slope in ((3, 3.0), (4, 2.0), (0, 1.0), (3, 3.0), (-9, 1.0)):
        np.testing.assert_allclose(g(x, np.array([k])), np.full(5, slope))


def test_a_rounded_number_is_no_path():
    """The program's sum may differ from NumPy's in the last bit, so its sign is asked of NumPy each time."""
    g = ad.grad(lambda x: np.sum(x) if np.sum(x) > 0 else np.sum(2 * x))
    for sign in (1.0, -1.0, 1.0):
        np.testing.assert_allclose(g(sign * X), np.full(3, 1.5 - sign / 2))
    assert "arithmetic" in ad.why_recorded(g)


def test_a_different_path_each_time():
    g = ad.grad(lambda x: np.sum(x**2) + float(x[0]))
    for k in range(40):
        np.testing.assert_allclose(g(np.array([float(k), 1.0])), [2.0 * k, 2.0])
    assert "at almost every call" in ad.why_recorded(g)


def test_paths_of_functions_inside():
    def f(x):
        h = ad.grad(lambda y: y**2 if y > 1 else y**3)
        return h(x) * (1.0 if x < 5 else 2.0)

    g = ad.grad(f)
    for x, slope in ((2.0, 2.0), (0.5, 3.0), (7.0, 4.0), (3.0, 2.0)):
        assert g(x) == slope


def test_fast_entries_are_kept_for_each_shape():
    g = ad.grad(lambda x: np.sum(np.sin(x)))
    a, b = np.ones(3), np.ones(4)
    entries = []
    for x in (a, b, a, b):
        g(x)
        entries.append(g.__derived__.entry)
    assert entries[0] is entries[2] is not entries[1] and entries[1] is entries[3]


def test_a_world_that_changes_at_random():
    """A function that reads a variable, a list, a dict, an object, an array and a function; something
    changes, or nothing, between one call and the next. The answer is always that of the world as it is.
    """
    rng = np.random.default_rng(2)
    k, items, table, thing, array = 1.0, [1.0, 2.0], {"a": 1.0}, Settings(0.5), np.ones(3)

    def twice(x):
        return 2 * x

    def thrice(x):
        return 3 * x

    act = twice

    def f(x):
        return np.sum(act(x) * array) * k * sum(items) * table["a"] * thing.apply(1.0)

    def change(what):
        nonlocal k, act, array
        value = float(rng.integers(1, 4))
        if what == 0:
            k = value
        elif what == 1:
            items[int(rng.integers(len(items)))] = value
        elif what == 2:
            items.append(value) if len(items) < 4 else items.pop()
        elif what == 3:
            table["a"] = value
        elif what == 4:
            thing.rate = value
        elif what == 5:
            array[int(rng.integers(3))] = value
        elif what == 6:
            act = thrice if act is twice else twice
        elif what == 7:
            array = array.copy()

    g = ad.grad(f)
    for _ in range(300):
        change(int(rng.integers(16)))
        slope = 2.0 if act is twice else 3.0
        expected = slope * array * k * sum(items) * table["a"] * thing.rate
        np.testing.assert_allclose(g(X), expected, rtol=1e-12)


# --- arguments that are equal and not the same
# ------------------------------------------------------------------------------------------------


def by_order(d):
    return sum((i + 1) * v for i, v in enumerate(d.values()))


def test_the_order_of_keys_counts():
    g, h = ad.grad(by_order), ad.compile(lambda **named: by_order(named))
    for _ in range(3):
        assert g({"a": 1.0, "b": 1.0}) == {"a": 1.0, "b": 2.0}
        assert g({"b": 1.0, "a": 1.0}) == {"b": 1.0, "a": 2.0}
        assert h(a=1.0, b=2.0) == 5.0
        assert h(b=2.0, a=1.0) == 4.0


def test_the_order_of_keywords_counts_beside_out():
    h, out = ad.compile(lambda **named: by_order(named)), np.zeros(2)
    x, y = np.ones(2), np.full(2, 2.0)
    for _ in range(3):
        assert h(a=x, out=out, b=y)[0] == 5.0
        assert h(a=x, b=y, out=out)[0] == 5.0
        assert h(b=y, out=out, a=x)[0] == 4.0


@dataclasses.dataclass
class Scaled:
    name: str = "a"
    factor: float = dataclasses.field(default=1.0, compare=False)


class Sly:
    """Equal to all others of its kind, whatever it holds."""

    def __init__(self, factor):
        self.factor = factor

    def __eq__(self, other):
        return isinstance(other, Sly)

    def __hash__(self):
        return 1


def test_equal_static_arguments_may_differ():
    g = ad.grad(lambda x, c: x * c.factor)
    for _ in range(3):
        for kind in (Scaled(factor=2.0), Scaled(factor=3.0), Sly(4.0), Sly(5.0)):
            assert g(1.0, kind) == kind.factor


def test_static_values_of_different_types_differ():
    """1 == True == 1.0, in sets and as keys too."""
    g = ad.grad(lambda x, c: x if all(type(v) is bool for v in c) else x * 2.0)
    h = ad.grad(lambda d: sum(v if type(k) is bool else 2.0 * v for k, v in d.items()))
    for _ in range(3):
        assert g(1.0, frozenset({True})) == 1.0
        assert g(1.0, frozenset({1})) == 2.0
        assert h({True: 1.0}) == {True: 1.0}
        assert h({1: 1.0}) == {1: 2.0}


def test_settings_made_anew_at_each_call_are_recognised():
    f, runs = recordings(lambda x, c: np.sum(x) * c.factor)
    g = ad.grad(f, pure=True)
    for _ in range(3):
        np.testing.assert_array_equal(g(X, Scaled("b", 2.0)), np.full(3, 2.0))
    assert runs() == 1
    np.testing.assert_array_equal(g(X, Scaled("b", 3.0)), np.full(3, 3.0))
    assert runs() == 2


# --- arrays that are not plain ones
# ------------------------------------------------------------------------------------------------


def on_disk(path, dtype):
    x = np.memmap(path, dtype, mode="w+", shape=3)
    x[:] = 1 / np.arange(1.0, 4.0)
    return x


def test_the_dtype_of_a_memory_map_counts(tmp_path):
    g = ad.compile(lambda x: x * 2)
    for _ in range(2):
        for dtype in (np.float32, np.float64):
            x = on_disk(tmp_path / np.dtype(dtype).name, dtype)
            found = g(x)
            assert found.dtype == dtype and type(found) is np.ndarray
            np.testing.assert_array_equal(found, 2 * np.asarray(x))


def test_a_memory_map_is_written_to(tmp_path):
    def double(x):
        x *= 2.0

    g, x = ad.compile(double), on_disk(tmp_path / "x", float)
    for n in range(3):
        g(x)
        np.testing.assert_allclose(x, 2.0 ** (n + 1) / np.arange(1.0, 4.0))


class Metres(np.ndarray):
    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return "metres"


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("kind", [np.matrix, lambda x: np.array(x).view(Metres)])
def test_arrays_with_an_arithmetic_of_their_own_are_refused(kind):
    x = kind([[1.0, 2.0], [3.0, 4.0]])
    g = ad.compile(lambda x: x * x)
    g(np.asarray(x))
    name = type(x).__name__
    with pytest.raises(ad.AutodiffError, match=f"argument x is a {name}, which computes in a way of its own"):
        g(x)
    with pytest.raises(ad.AutodiffError, match=f"a {name} met a recorded value, which computes"):
        ad.compile(lambda y: y * x)(np.ones((2, 2)))


def test_arguments_in_another_byte_order():
    x, other = np.arange(1.0, 4.0), np.arange(1.0, 4.0).astype(">f8")
    f = lambda x: np.stack([x.astype(">f4"), np.tanh(x)]) + np.zeros_like(x)  # noqa: E731
    g = ad.compile(f)
    for given in (x, other, x, other, other):
        found = g(given)
        np.testing.assert_array_equal(found, f(x).astype(float))
        assert found.dtype.isnative
    (d,) = (ad.grad(lambda x: np.sum(x**3))(other),)
    np.testing.assert_allclose(d, 3 * x**2, rtol=1e-14)
    assert d.dtype.isnative

    def double(x):
        x *= 2.0

    g = ad.compile(double)
    for _ in range(2):
        with pytest.raises(ad.AutodiffError, match="writes to an array in a byte order"):
            g(other)
        g(x)
    with pytest.raises(ad.AutodiffError, match="dtype >f8 met a recorded value"):
        ad.compile(lambda x: x * other)(x)


# --- exceptions
# ------------------------------------------------------------------------------------------------


def log_det(k):
    """Of a matrix that may not be positive definite."""
    try:
        chol = np.linalg.cholesky(k)
    except np.linalg.LinAlgError:
        return -3.0 * np.sum(k)
    return 2.0 * np.sum(np.log(np.diag(chol)))


def log_det_at_a_distance(k):
    return log_det(k) * 1.0


def log_det_suppressed(k):
    result = -3.0 * np.sum(k)
    with contextlib.suppress(np.linalg.LinAlgError):
        result = 2.0 * np.sum(np.log(np.diag(np.linalg.cholesky(k))))
    return result


def log_det_bare(k):
    try:
        return 2.0 * np.sum(np.log(np.diag(np.linalg.cholesky(k))))
    except:  # noqa: E722
        return -3.0 * np.sum(k)


@pytest.mark.parametrize("f", [log_det, log_det_at_a_distance, log_det_suppressed, log_det_bare])
def test_exceptions_that_are_caught(f):
    g = ad.grad(f)
    for _ in range(3):
        np.testing.assert_allclose(g(np.eye(2)), np.eye(2), atol=1e-14)
        np.testing.assert_allclose(g(-np.eye(2)), np.full((2, 2), -3.0))
        assert ad.why_recorded(g).startswith("it catches exceptions")


def test_exceptions_that_are_caught_in_spite_of_a_promise():
    g = ad.grad(log_det, pure=True)
    for _ in range(3):
        np.testing.assert_allclose(g(np.eye(2)), np.eye(2), atol=1e-14)
        np.testing.assert_allclose(g(-np.eye(2)), np.full((2, 2), -3.0))


def inverse(x):
    return 1.0 / x


def inverse_or_7(x):
    try:
        return inverse(x)
    except ZeroDivisionError:
        return 7.0 * x


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_division_by_zero_that_is_caught():
    f = ad.compile(inverse_or_7)
    for _ in range(3):
        assert f(2.0) == 0.5
        assert f(0.0) == 0.0
    assert ad.compile(inverse)(0.0) == np.inf, "what Python would raise is NumPy's inf where nobody waits"


def test_floating_point_errors_that_are_caught():
    def f(x):
        with np.errstate(all="raise"):
            try:
                return np.sum(np.log(x))
            except FloatingPointError:
                return np.sum(x) * 5.0

    g = ad.grad(f)
    for _ in range(3):
        np.testing.assert_array_equal(g(np.full(3, 2.0)), np.full(3, 0.5))
        np.testing.assert_array_equal(g(np.zeros(3)), np.full(3, 5.0))


def test_exceptions_that_no_value_raises_are_followed():
    table = {"a": 2.0}

    def f(x):
        try:
            scale = table["b"]
        except (KeyError, TypeError):
            scale = 3.0
        try:
            with np.errstate(all="ignore"):
                return np.sum(x) * scale
        finally:
            scale = 0.0

    assert is_reused(f, X)
