"""What f reads changes between two calls: the second answer is the current one.

Each world here once gave the answer of the day before. `stays_current` calls a derived function before and
after a change, and compares it with one that was never called before.
"""

import abc
import builtins
import collections
import contextlib
import dataclasses
import enum
import functools
import math
import types
import warnings

import numpy as np
import pytest

from gpt2 import autodiff as ad
from tests.support.worlds.asking import X, is_reused, outcome, stays_current

# --- attributes of objects of every kind


def test_a_namespace_at_any_depth():
    settings = types.SimpleNamespace(deep=types.SimpleNamespace(rate=2.0))
    stays_current(lambda x: np.sum(x * settings.deep.rate), lambda: setattr(settings.deep, "rate", 3.0))
    stays_current(
        lambda x: np.sum(x * settings.deep.rate),
        lambda: setattr(settings, "deep", types.SimpleNamespace(rate=5.0)),
    )


def test_a_namespace_as_an_argument():
    settings = types.SimpleNamespace(rate=2.0)
    g = ad.grad(lambda x, s: np.sum(x * s.rate))
    for rate in (2.0, 2.0, 3.0):
        settings.rate = rate
        np.testing.assert_array_equal(g(X, settings), np.full(3, rate))


def of_make_dataclass():
    return dataclasses.make_dataclass("Made", [("rate", float)])(2.0)


def of_new_class():
    made = types.new_class("Made", (), {}, lambda names: names.update(rate=2.0))()
    made.rate = 2.0
    return made


def of_a_dynamic_abc():
    made = abc.ABCMeta("Made", (), {"rate": 2.0})()
    made.rate = 2.0
    return made


@pytest.mark.parametrize("make", [of_make_dataclass, of_new_class, of_a_dynamic_abc])
def test_classes_made_at_run_time(make):
    thing = make()
    stays_current(lambda x: np.sum(x * thing.rate), lambda: setattr(thing, "rate", 3.0))


def test_attributes_of_classes_made_at_run_time():
    made = abc.ABCMeta("Made", (), {"rate": 2.0})
    thing = made()
    stays_current(lambda x: np.sum(x * thing.rate), lambda: setattr(made, "rate", 3.0))


def test_members_of_enumerations():
    class Mode(enum.Enum):
        FIRST = 1
        LIST = [1.0, 2.0]  # noqa: RUF012

    Mode.FIRST.rate = 2.0
    stays_current(lambda x: np.sum(x * Mode.FIRST.rate), lambda: setattr(Mode.FIRST, "rate", 3.0))
    stays_current(lambda x: np.sum(x * Mode.LIST.value[0]), lambda: Mode.LIST.value.__setitem__(0, 3.0))


def test_a_dict_of_attributes_that_is_replaced():
    class Thing:
        pass

    thing = Thing()
    thing.rate = 2.0
    stays_current(lambda x: np.sum(x * thing.rate), lambda: setattr(thing, "__dict__", {"rate": 3.0}))


def test_attributes_of_functions():
    def h(x):
        h.calls = getattr(h, "calls", 0) + 1
        return np.sum(x) * h.calls

    g = ad.grad(h)
    assert [g(X)[0] for _ in range(5)] == [1.0, 2.0, 3.0, 4.0, 5.0]

    def k(x):
        return np.sum(x) * getattr(k, "scale", 2.0)

    stays_current(k, lambda: setattr(k, "scale", 3.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ad.grad(np.sin),
        lambda: ad.custom_vjp(np.sin),
        lambda: ad.repeated(np.sin),
        lambda: type("Rate", (np.float64,), {})(2.0),
        lambda: staticmethod(len),
    ],
)
def test_attributes_of_what_is_not_looked_into(make):
    thing = make()
    thing.rate = 2.0
    stays_current(lambda x: np.sum(x * thing.rate), lambda: setattr(thing, "rate", 3.0))


def test_the_metadata_of_a_dtype():
    about = [2.0]
    dtype = np.dtype(float, metadata={"about": about})
    stays_current(lambda x: np.sum(x * dtype.metadata["about"][0]), lambda: about.__setitem__(0, 3.0))


def test_names_and_texts_of_functions():
    def helper(x: 1.0) -> None:
        """one"""

    for name, value in (("__doc__", "three"), ("__name__", "other"), ("__annotations__", {"x": 1})):
        stays_current(
            lambda x, name=name: np.sum(x) * float(len(getattr(helper, name))),
            lambda name=name, value=value: setattr(helper, name, value),
        )
    stays_current(lambda x: np.sum(x) * len(helper.__name__), lambda: setattr(helper, "__name__", "a"))
    stays_current(lambda x: np.sum(x) * len(helper.__doc__), lambda: setattr(helper, "__doc__", "a"))
    for text in (str, repr, lambda v: f"{v}", lambda v: str([v])):
        stays_current(
            lambda x, text=text: np.sum(x) * len(text(helper)),
            lambda: setattr(helper, "__qualname__", helper.__qualname__ + "s"),
        )


def test_a_class_and_a_base_are_replaced():
    class A:
        rate = 2.0

    class B:
        rate = 3.0

    class C(A):
        pass

    a, c = A(), C()
    stays_current(lambda x: np.sum(x) * a.rate, lambda: setattr(a, "__class__", B))
    stays_current(lambda x: np.sum(x) * c.rate, lambda: setattr(C, "__bases__", (B,)))


# --- containers


def test_the_default_of_a_defaultdict():
    table = collections.defaultdict(lambda: 2.0)
    stays_current(
        lambda x: np.sum(x) * table.default_factory(),
        lambda: setattr(table, "default_factory", lambda: 3.0),
    )


def test_the_defaults_of_a_named_tuple():
    rates = [2.0]
    Held = collections.namedtuple("Held", "rates", defaults=[rates])
    Plain = collections.namedtuple("Plain", "rate", defaults=[2.0])
    stays_current(lambda x: np.sum(x) * Held().rates[0], lambda: rates.__setitem__(0, 3.0))
    stays_current(lambda x: np.sum(x) * Plain().rate, lambda: setattr(Plain.__new__, "__defaults__", (3.0,)))


def test_named_tuples_without_defaults_are_reused():
    for defaults in (None, ()):
        Pair = collections.namedtuple("Pair", "a b", defaults=defaults)
        assert is_reused(lambda x, Pair=Pair: np.sum(x) * Pair(2.0, 1.0).a, X)


def with_init():
    class Made:
        def __init__(self, rate):
            self.rate = rate

    return Made, Made.__init__


def with_init_by_name():
    class Made:
        def __init__(self, *, rate):
            self.rate = rate

    return Made, Made.__init__


def with_new():
    class Made:
        def __new__(cls, rate):
            self = object.__new__(cls)
            self.rate = rate
            return self

    return Made, Made.__new__


def with_init_of_a_base():
    base, init = with_init()
    return type("Derived", (base,), {}), init


def with_metaclass():
    class Kind(type):
        def __call__(cls, rate):
            made = object.__new__(cls)
            made.rate = rate
            return made

    return Kind("Made", (), {}), Kind.__call__


def with_call():
    class Maker:
        def __call__(self, rate):
            self.rate = rate
            return self

    return Maker(), Maker.__call__


def named_tuple():
    Made = collections.namedtuple("Made", "rate", defaults=())
    return Made, Made.__new__


@pytest.mark.parametrize(
    "make",
    [with_init, with_init_by_name, with_new, with_init_of_a_base, with_metaclass, with_call, named_tuple],
    ids=lambda f: f.__name__,
)
def test_arguments_that_were_missing_get_a_default(make):
    """The call itself fails, so no code runs that could be watched."""
    Made, maker = make()

    def f(x):
        try:
            rate = Made().rate
        except TypeError:
            rate = 1.0
        return np.sum(x) * rate

    def change():
        if maker.__code__.co_kwonlyargcount:
            maker.__kwdefaults__ = {"rate": 3.0}
        else:
            maker.__defaults__ = (3.0,)

    assert is_reused(f, X)
    stays_current(f, change)


def test_default_dicts_and_deques_are_compared():
    table, queue = collections.defaultdict(float, a=2.0), collections.deque([2.0, 1.0], maxlen=3)

    def f(x):
        return np.sum(x) * (table["a"] + queue[0] + len(queue))

    for change, differs in (
        (lambda: table.update(a=3.0), True),
        (lambda: queue.append(5.0), True),
        (lambda: queue.rotate(1), True),
        (lambda: queue.append(7.0), True),  # the first one falls out
        (lambda: setattr(table, "default_factory", int), False),
        (lambda: table.update(b=1.0), False),
    ):
        stays_current(f, change, differs=differs)
    g = ad.grad(f)
    g(np.ones(2))
    assert ad.why_recorded(g) is None
    reading = ad.grad(lambda x: np.sum(x) * (1.0 + table["new"]))
    for _ in range(2):
        table.pop("new", None)
        np.testing.assert_array_equal(reading(np.ones(2)), np.ones(2))
        assert "new" in table  # each call puts it there again


def test_sets_of_equal_members_in_another_order():
    table = {"set": {8, 0}}

    def f(x):
        return np.sum(x) * sum((i + 1.0) * v for i, v in enumerate(table["set"]))

    other = {0, 8}
    stays_current(f, lambda: table.update(set=other), differs=list({8, 0}) != list(other))
    frozen = [frozenset([8, 0])]
    stays_current(
        lambda x: np.sum(x) * sum((i + 1.0) * v for i, v in enumerate(frozen[0])),
        lambda: frozen.__setitem__(0, frozenset([0, 8])),
        differs=list(frozenset([8, 0])) != list(frozenset([0, 8])),
    )


def test_a_range_with_another_stop():
    steps = [range(0, 5, 2)]
    stays_current(
        lambda x: np.sum(x) * steps[0].stop, lambda: steps.__setitem__(0, range(0, 6, 2)), differs=True
    )


# --- code that runs unseen

LABEL = "ab"


class Labelled:
    def __str__(self):
        return LABEL

    __repr__ = __str__

    def __format__(self, spec):
        return LABEL * 2


@pytest.mark.parametrize(
    "f",
    [
        lambda x, o: np.sum(x) * len(str(o)),
        lambda x, o: np.sum(x) * len(repr(o)),
        lambda x, o: np.sum(x) * len(f"{o}"),
        lambda x, o: np.sum(x) * len(f"{o!r}"),
        lambda x, o: np.sum(x) * len("%s" % (o,)),  # noqa: UP031
        lambda x, o: np.sum(x) * len("{}".format(o)),  # noqa: UP030,UP032
    ],
)
def test_texts_of_objects_that_read_a_global(f, monkeypatch):
    thing = Labelled()
    stays_current(lambda x: f(x, thing), lambda: monkeypatch.setitem(globals(), "LABEL", "abc"))


def test_a_cache_that_is_cleared_and_filled_again():
    rate = [2.0]

    @functools.lru_cache
    def mask(n):
        return np.full(n, rate[0])

    mask(3)

    def change():
        rate[0] = 3.0
        mask.cache_clear()
        mask(3)

    stays_current(lambda x: np.sum(x * mask(3)), change)


# --- modules


def test_names_of_numpy(monkeypatch):
    monkeypatch.setattr(np, "X", 2.0, raising=False)
    stays_current(lambda x: np.sum(x) * np.X, lambda: monkeypatch.setattr(np, "X", 3.0))
    with monkeypatch.context() as m:
        stays_current(lambda x: np.sum(np.sin(x)), lambda: m.setattr(np, "sin", np.cos))


def test_built_in_names(monkeypatch):
    with monkeypatch.context() as m:
        stays_current(
            lambda x: np.sum(x) * max(1.0, 2.0), lambda: m.setattr(builtins, "max", lambda *a, **k: 5.0)
        )


def test_the_handling_of_floating_point_errors():
    def f(x):
        return np.sum(x) * (2.0 if np.geterr()["over"] == "ignore" else 3.0)

    with np.errstate(over="warn"):
        stays_current(f, lambda: np.seterr(over="ignore"))


# --- control flow by exceptions


class Swallows:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return True


hidden = contextlib.suppress


def swallowed(x):
    y = np.sum(x) * 5.0
    with Swallows():
        y = np.sum(np.log(np.diag(np.linalg.cholesky(x))))
    return y


def suppressed(x):
    y = np.sum(x) * 5.0
    with hidden(np.linalg.LinAlgError):
        y = np.sum(np.log(np.diag(np.linalg.cholesky(x))))
    return y


def returns_finally(x):
    y = np.sum(x) * 5.0
    try:
        y = np.sum(np.log(np.diag(np.linalg.cholesky(x))))
    finally:
        return y  # noqa: B012


@pytest.mark.parametrize("f", [swallowed, suppressed, returns_finally])
def test_exceptions_that_end_unseen(f):
    g = ad.grad(f)
    for x in (np.eye(2), -np.eye(2), np.eye(2), -np.eye(2)):
        np.testing.assert_array_equal(g(x), ad.grad(f)(x))


def raises(x):
    with np.errstate(all="raise"):
        return np.sum(np.log(x))


def warned(x):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        y = np.sum(np.log(x))
    return y * 2.0 if found else y


@pytest.mark.parametrize("f", [raises, warned])
def test_floating_point_errors_as_control_flow(f):
    g = ad.grad(f)
    for x in (X, X, np.zeros(3), X, np.zeros(3)):
        with np.errstate(divide="warn"):
            np.testing.assert_array_equal(outcome(g, x), outcome(ad.grad(f), x))


def test_the_sign_of_a_zero_that_was_looked_at():
    g = ad.grad(lambda x: x * math.copysign(1.0, float(ad.stop_gradient(x))))
    for _ in range(3):
        assert g(0.0) == 1.0
        assert g(-0.0) == -1.0
