"""What runs unwatched while a function is recorded: the compiler's own code, and nothing of the user's."""

import sys
import types

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.record import unwatched
from gpt2.autodiff.reuse import watch
from gpt2.autodiff.reuse.world import World


def calls_watched(f, *args):
    """How many calls and returns the hook sees while f is recorded."""
    count = 0

    def counting(frame, event, arg):
        nonlocal count
        count += 1
        return observe(frame, event, arg)

    observe = watch._observe
    watch._observe = unwatched._hook = counting
    try:
        ad.grad(f)(*args)
    finally:
        watch._observe = unwatched._hook = observe
    return count


OPERATIONS = {
    "a product": lambda x, out: x * 2.0,
    "a ufunc": lambda x, out: np.sin(x),
    "a sign": lambda x, out: -x,
    "an item": lambda x, out: x[1],
    "a slice": lambda x, out: x[1:, None],
    "a gather": lambda x, out: x[[0, 2]],
    "a write": lambda x, out: out.__setitem__(1, 0.5),
    "in place": lambda x, out: out.__iadd__(x),
    "a sum": lambda x, out: np.sum(x),
    "a transpose": lambda x, out: out.T,
}


@pytest.mark.skipif(not unwatched.PAYS, reason="the hook stays in this Python")
@pytest.mark.parametrize("name", OPERATIONS)
def test_few_calls_are_watched_in_an_operation(name):
    """Some tens, where the compiler makes hundreds. A sum has most, 104: NumPy's own Python calls getattr,
    which is answered here as for any function's."""

    def f(x, times):
        out = np.zeros_like(x)
        for _ in range(times):
            OPERATIONS[name](x, out)
        return out.sum() + x.sum()

    x = np.linspace(0.0, 1.0, 3)
    ad.grad(lambda x: f(x, 2))(x)  # work done once, such as collecting the names in this file
    some, more = calls_watched(lambda x: f(x, 10), x), calls_watched(lambda x: f(x, 30), x)
    assert (more - some) / 20 < 110


class Operand:
    """An object that NumPy converts to an array, to another one at each call."""

    calls = 0

    def __array__(self, dtype=None, copy=None):
        Operand.calls += 1
        return np.full(3, float(Operand.calls))


class Index:
    calls = 0

    def __index__(self):
        Index.calls += 1
        return Index.calls % 3


@pytest.mark.parametrize(
    "what",
    [
        lambda x: x * Operand(),
        lambda x: x[Index()],
        lambda x: x[: Index()],
        lambda x: np.add(x, Operand()),
        lambda x: np.concatenate([x, Operand()]),
    ],
)
def test_the_users_objects_are_watched(what):
    """Otherwise all later calls would reuse what they returned at the first."""
    Operand.calls = Index.calls = 2
    g = ad.grad(lambda x: np.sum(what(x)))
    results = [g(np.arange(3.0)) for _ in range(3)]
    Operand.calls = Index.calls = 2
    again = [ad.grad(lambda x: np.sum(what(x)))(np.arange(3.0)) for _ in range(3)]
    np.testing.assert_array_equal(results, again)


def test_what_runs_after_an_error_is_watched():
    """The hook comes back where an operation fails."""
    settings = {"scale": 2.0}

    def scale():
        return settings["scale"]

    def f(x):
        try:
            x[10]
        except IndexError:
            pass
        return np.sum(x) * scale()

    g = ad.grad(f)
    assert g(np.ones(3))[0] == 2.0
    settings["scale"] = 3.0
    assert g(np.ones(3))[0] == 3.0
    assert sys.getprofile() is None


def test_an_error_handler_of_numpy_is_watched(monkeypatch):
    """NumPy may call it, so such operations stay watched."""
    ran = []
    monkeypatch.setattr(World, "runs", lambda self, frame: ran.append(frame.f_code.co_name))

    def handler(kind, flag):
        pass

    with np.errstate(all="call", call=handler):
        ad.grad(lambda x: np.sum(x / 0.0))(np.ones(3))
    assert "handler" in ran


def test_the_hook_of_others_is_left_alone():
    seen = []

    def profiler(frame, event, arg):
        seen.append(frame.f_code.co_name)

    @unwatched.unwatched
    def quiet():
        return loud()

    def loud():
        return 1

    sys.setprofile(profiler)
    try:
        assert quiet() == 1
    finally:
        sys.setprofile(None)
    assert "loud" in seen


AXIS = {0: 0}


class Axis:
    """An index whose value follows AXIS."""

    def __init__(self, other=0):
        self.other = other

    def __index__(self):
        return abs(AXIS[0] - self.other)


def test_objects_in_an_array_that_are_asked_for_an_axis_are_watched(monkeypatch):
    def f(x):
        axes = np.array([Axis(), Axis(1)], object)
        return np.sum(np.transpose(np.outer(x, [1.0, 3.0]), axes) * np.array([[1.0, 2.0], [3.0, 4.0]]))

    g, x = ad.compile(f), np.array([1.0, 2.0])
    for _ in range(3):
        assert g(x) == 37.0
    monkeypatch.setitem(AXIS, 0, 1)
    assert g(x) == f(x) == 38.0


def test_a_module_with_a_name_of_the_standard_librarys_is_watched():
    module = types.ModuleType("settings")
    exec(
        "_tuple_new = tuple.__new__\nk = 2.0\nclass P:\n    def __float__(self): return k\n", module.__dict__
    )
    g = ad.compile(lambda x: x * np.float64(module.P()))
    for _ in range(4):
        assert g(1.0) == 2.0
    module.k = 3.0
    assert g(1.0) == 3.0
