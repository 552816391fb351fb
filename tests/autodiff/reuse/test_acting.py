"""Functions that count, draw, print or read the clock run at each call, and at each step of a loop."""

import time
import types

import numpy as np

from gpt2 import autodiff as ad
from tests.support.reuse import is_reused

SCALE = 2.0
X = np.array([1.0, 2.0, 3.0])


def by_scale(x):
    return np.sum(x * SCALE)


def test_random_numbers_behind_a_name_that_hides_them():
    g = ad.grad(lambda x: np.sum(x * getattr(np, "ran" + "dom").standard_normal(3)))
    assert len({tuple(g(X)) for _ in range(4)}) == 4
    assert "RandomState" in ad.why_recorded(g)


MARK = 0.0


def test_assignments_are_made_at_each_call(monkeypatch):
    """Also those to names that the function never reads."""
    here = 0.0

    def leaves_a_mark(x):
        global MARK
        MARK = 1.0
        return np.sum(x)

    def leaves_one_in_a_closure(x):
        nonlocal here
        here = 1.0
        return np.sum(x)

    for f in (leaves_a_mark, leaves_one_in_a_closure):
        g = ad.grad(f)
        for _ in range(3):
            monkeypatch.setitem(globals(), "MARK", 0.0)
            here = 0.0
            g(X)
            assert MARK == 1.0 or here == 1.0


def test_other_sources_of_change(tmp_path, capsys):
    path = tmp_path / "k.npy"
    np.save(path, np.array(2.0))
    counter = iter(range(1, 10))
    for f in (
        lambda x: np.sum(x) * np.load(path),
        lambda x: np.sum(x) * time.perf_counter(),
        lambda x: np.sum(x) * next(counter),
        lambda x: np.sum(x) * eval("2.0"),
        lambda x: np.sum(x) * globals()["SCALE"],
        lambda x: np.sum(x) * types.FunctionType.__globals__.__get__(by_scale)["SCALE"],
    ):
        assert not is_reused(f, X), f
    g = ad.grad(lambda x: (print("here"), np.sum(x))[1])
    g(X), g(X)
    assert capsys.readouterr().out == "here\nhere\n"


def test_graphs_recorded_again_are_not_compiled_again():
    rng = [np.random.default_rng(0)]
    g = ad.grad(lambda x: np.sum(np.arctan(x) * rng[0].normal(size=3)))
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


def test_a_body_that_appends_runs_for_each_step():
    seen = []

    def body(carry, x):
        seen.append(1)
        return carry + x * len(seen), None

    def f(x):
        return ad.scan(body, 0.0, x)[0]

    g = ad.grad(f)
    np.testing.assert_array_equal(g(X), [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(g(X), [4.0, 5.0, 6.0])
    assert len(seen) == 6
    seen.clear()

    def mapped(v):
        seen.append(1)
        return v * len(seen)

    np.testing.assert_array_equal(ad.parallel_map(mapped, X), [1.0, 4.0, 9.0])
    assert len(seen) == 3


def test_a_body_that_draws_draws_for_each_step():
    rng = np.random.default_rng(0)
    drawn = ad.grad(lambda x: ad.scan(lambda c, v: (c + v * rng.normal(), None), 0.0, x)[0])(X)
    np.testing.assert_array_equal(drawn, np.random.default_rng(0).normal(size=3))
