"""Functions that one piece of code makes again and again share a recording where they do the same, and only
there.
"""

import gc
import weakref

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.compat.autograd import grad, jacobian
from gpt2.autodiff.reuse import same_code
from tests.support.slow import rest_slow
from tests.support.worlds.random_worlds import ACTING, KINDS, STEPS, check_acting, check_twins

RATE = 1.0


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Sharing is tried for every second function, however often it failed."""
    monkeypatch.setattr(same_code, "LONGEST", 1)
    same_code.shared_recordings.__init__()


def made_by_code(g) -> bool:
    """Did a derived function that was called once use the recording of another one?"""
    state = g.__derived__
    return state.last is not None and state.why is None and not len(state.cache)


def scaled(c):
    return lambda x: c * x * x * RATE


def test_what_is_shared():
    def first_calls(c):
        found = []
        for _ in range(4):
            g = ad.grad(scaled(c))
            assert g(3.0) == 6.0 * c
            found.append(made_by_code(g))
        return found

    assert first_calls(2.0) == [False, False, True, True]
    assert first_calls(5.0)[-1] and first_calls(2.0) == [True] * 4
    g = ad.grad(scaled(2.0))
    assert [g(3.0), g(4.0), g(5.0)] == [12.0, 16.0, 20.0] and ad.why_recorded(g) is None


def test_branches_and_types():
    for x in (1.0, -1.0, 1.0, -1.0, np.ones(2), np.ones(3), 1.0, -1.0):
        g = ad.grad(lambda x: np.sum(x) if np.sum(x) > 0 else 3.0 * np.sum(x))
        np.testing.assert_array_equal(g(x), np.ones_like(x) if np.sum(x) > 0 else 3.0 * np.ones_like(x))


def test_nested_in_what_is_recorded(monkeypatch):
    """The outer recording has to see what the inner function reads."""
    for _ in range(4):
        ad.grad(scaled(2.0))(3.0)  # the inner one could be shared now

        def outer(x):
            return x * ad.grad(scaled(2.0))(3.0)

        monkeypatch.setitem(globals(), "RATE", 1.0)
        g = ad.grad(outer)
        assert [g(1.0) for _ in range(3)] == [12.0] * 3
        monkeypatch.setitem(globals(), "RATE", 4.0)
        assert g(1.0) == 48.0
        monkeypatch.setitem(globals(), "RATE", 1.0)


def test_under_the_names_of_autograd():
    data = np.array([1.0, 2.0])
    for k in range(6):
        assert grad(lambda w, x, k: np.sum(w * x) * k)(3.0, data, 2.0) == 6.0
        np.testing.assert_array_equal(grad(lambda w, x: w * np.sum(x), 1)(3.0, data), [3.0, 3.0])
        other = data + k
        np.testing.assert_array_equal(grad(lambda w, x: w * np.sum(x), 0)(3.0, other), np.sum(other))
        np.testing.assert_array_equal(jacobian(lambda w: w * data)(1.0), data)
        assert grad(lambda w, scale=1.0: w * scale)(1.0, scale=float(k)) == k


def test_nothing_large_is_kept():
    class Large:
        pass

    gone = []
    for _ in range(6):
        held, array, view = Large(), np.ones(1 << 18), np.ones(1 << 18)[:1]
        gone += [weakref.ref(held), weakref.ref(array), weakref.ref(view)]
        ad.grad(lambda x: x * (1.0 if held else 2.0))(1.0)  # noqa: B023
        ad.grad(lambda x: x * array[0])(1.0)  # noqa: B023
        ad.grad(lambda x: x * view[0])(1.0)  # noqa: B023
    held = array = view = None
    gc.collect()
    assert not any(ref() is not None for ref in gone)


@pytest.mark.filterwarnings("ignore")
def test_random_worlds():
    # A world shares some 40 of its 63 calls, or none, where it reads what is never shared. Of these, and of
    # the next 14, more than two do: 108 and 118 calls in all.
    assert sum(map(check_twins, range(14))) > 3 * STEPS, "the test is for recordings that are shared"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", rest_slow(sorted(KINDS), keep=15))
def test_things_of_one_kind(name):
    check_twins(0, [name])


@pytest.mark.parametrize("name", sorted(ACTING))
def test_functions_that_act_run_at_each_call(name):
    check_acting(name, calls=8, anew=True)
