"""What f reads changes between two calls: the second answer is the current one.

Each world here once gave the answer of the day before, and is of a kind that test_random_worlds.py does not
draw. `stays_current` calls a derived function before and after a change, and compares it with one that was
never called before.
"""

import collections
import math
import warnings

import numpy as np
import pytest

from gpt2 import autodiff as ad
from tests.support.reuse import X, is_reused, outcome, stays_current

# --- containers


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


def makers():
    """Name -> something that is called with a rate, and the function that the call runs."""

    def init(self, rate):
        self.rate = rate

    def init_by_name(self, *, rate):
        self.rate = rate

    def new(cls, rate):
        made = object.__new__(cls)
        made.rate = rate
        return made

    def call(self, rate):
        self.rate = rate
        return self

    with_init = type("Made", (), {"__init__": init})
    named_tuple = collections.namedtuple("Made", "rate", defaults=())
    return {
        "__init__": (with_init, init),
        "__init__ by name": (type("Made", (), {"__init__": init_by_name}), init_by_name),
        "__new__": (type("Made", (), {"__new__": new}), new),
        "__init__ of a base": (type("Derived", (with_init,), {}), init),
        "metaclass": (type("Kind", (type,), {"__call__": new})("Made", (), {}), new),
        "__call__": (type("Maker", (), {"__call__": call})(), call),
        "named tuple": (named_tuple, named_tuple.__new__),
    }


@pytest.mark.parametrize("name", makers())
def test_arguments_that_were_missing_get_a_default(name):
    """The call itself fails, so no code runs that could be watched."""
    Made, maker = makers()[name]

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


# --- control flow by exceptions


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


def test_settings_of_the_text_of_an_array():
    held = np.array([1 / 3, 2.0])
    with np.printoptions(precision=8):
        stays_current(
            lambda x: np.sum(x) * len(str(held)), lambda: np.set_printoptions(precision=3, suppress=True)
        )
