"""Bodies of scan and parallel_map with side effects run at each step."""

import numpy as np

from gpt2 import autodiff as ad

X = np.array([1.0, 2.0, 3.0])


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
