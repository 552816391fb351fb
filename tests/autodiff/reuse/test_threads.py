"""Derived functions in several threads."""

import threading

import numpy as np

from gpt2 import autodiff as ad


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
