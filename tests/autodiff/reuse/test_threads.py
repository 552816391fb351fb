"""Derived functions in several threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gpt2 import autodiff as ad
from gpt2.autodiff.programs.derived import Derived


def test_eight_threads_on_one_derived_function():
    """Several shapes at once, changing all the time: every result right."""
    w = np.linspace(0.5, 1.5, 40)
    g = ad.value_and_grad(lambda x: np.sum(np.sin(x) * w[: x.shape[0]] * x))
    start = threading.Barrier(8, timeout=60)

    def work(seed):
        rng = np.random.default_rng(seed)
        start.wait()
        for _ in range(60):
            x = rng.normal(size=int(rng.integers(1, 5)) * 10)
            k = w[: len(x)]
            value, grad = g(x)
            np.testing.assert_allclose(value, np.sum(np.sin(x) * k * x), rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(grad, k * (np.cos(x) * x + np.sin(x)), rtol=1e-12, atol=1e-12)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))  # raises what a thread raised


def test_another_call_while_one_is_compiled(monkeypatch):
    """What it says of its own recording does not count for the first one, which must not be reused."""

    def f(x):
        if x.ndim == 2 and np.sum(x) > 0:  # the sign of a sum is looked at again at each call
            return np.sum(x) * 2.0
        return np.sum(x)

    g, built, others = ad.grad(f), Derived.built, [np.ones(3)]

    def interrupted(*args):
        result = built(*args)
        while others:
            g(others.pop())  # as another thread might
        return result

    monkeypatch.setattr(Derived, "built", interrupted)
    x = np.ones((2, 2))
    for _ in range(3):
        np.testing.assert_array_equal(g(x), 2.0 * x)
    assert not others
    np.testing.assert_array_equal(g(-x), x)


def test_a_rule_that_two_threads_record():
    """What it reads is noted in both."""
    factor = {"k": 2.0}
    inside, go_on, in_time = threading.Event(), threading.Event(), []

    @ad.custom_vjp
    def f(x):
        return x * x

    @f.defvjp
    def f_vjp(dout, out, x):
        if threading.current_thread().name == "slow":
            inside.set()
            in_time.append(go_on.wait(5))
        return (factor["k"] * x * dout,)

    first, second = ad.grad(lambda x: f(x) + 0.0), ad.grad(lambda x: f(x) + 1.0)
    thread = threading.Thread(target=first, args=(3.0,), name="slow")
    thread.start()
    assert inside.wait(60)
    try:
        assert second(3.0) == second(3.0) == 6.0
    finally:
        go_on.set()
        thread.join()
    assert in_time == [True], "one thread waits for the other"
    factor["k"] = 5.0
    assert second(3.0) == 15.0
