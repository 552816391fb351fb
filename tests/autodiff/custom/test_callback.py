"""ad.callback: plain Python within a program, called at each run and not recorded."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.errors import UnsupportedError


def test_called_at_each_run_with_current_values():
    calls = []

    def log(x, y):
        calls.append((x.copy(), y.copy()))
        return {"sum": x + y, "count": np.array(len(calls))}

    example = {"sum": np.zeros(3), "count": np.array(0)}

    def f(x, y):
        result = ad.callback(log, example, 2.0 * x, y - 1.0)
        return result["sum"] ** 2, result["count"] * 1.0

    fixed = ad.Fixed(f)
    x, y = np.arange(3.0), np.ones(3)
    fixed(x, y)
    calls.clear()
    for k in range(1, 4):
        squares, count = fixed(k * x, y)
        assert count == k
        np.testing.assert_array_equal(squares, (2.0 * k * x) ** 2)
        np.testing.assert_array_equal(calls[-1], (2.0 * k * x, np.zeros(3)))
    assert len(calls) == 3


def test_equal_calls_are_not_merged():
    count = iter(range(100))

    def step(x):
        return np.full_like(x, next(count))

    fixed = ad.Fixed(lambda x: ad.callback(step, x, x) - ad.callback(step, x, x))
    assert abs(fixed(np.ones(2))) == pytest.approx([1.0, 1.0])


def test_outside_of_a_recording_the_function_is_called():
    assert ad.callback(lambda x: [x], None, 3) == [3]


@pytest.mark.parametrize(
    "wrong, text",
    [
        (lambda x: x[:1], r"float64 \(1,\)"),
        (lambda x: x.astype("f4"), r"float32 \(2,\)"),
        (lambda x: (x, x), r"float64 \(2,\), float64 \(2,\)"),
        (lambda x: 1.0, r"float \(\)"),
    ],
)
def test_result_unlike_the_example_is_refused(wrong, text):
    with pytest.raises(ad.AutodiffError, match=f"callback: <lambda> gives {text}, expected float64"):
        ad.Fixed(lambda x: ad.callback(wrong, x, x))(np.ones(2))


def test_derivative_needs_a_custom_rule():
    with pytest.raises(UnsupportedError, match="sin runs as plain Python"):
        ad.grad(lambda x: np.sum(ad.callback(np.sin, x, x * x)))(np.ones(2))

    @ad.custom_vjp
    def sine(x):
        return ad.callback(np.sin, x, x)

    sine.defvjp(lambda dout, out, x: (dout * np.cos(x),))
    x = np.linspace(0.0, 1.0, 4)
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(sine(x)))(x), np.cos(x), rtol=1e-15)


def test_vmap_calls_once_for_each_example():
    doubled = ad.vmap(lambda x: ad.callback(lambda v: v * 2.0, x, x))(np.arange(6.0).reshape(3, 2))
    np.testing.assert_array_equal(doubled, 2.0 * np.arange(6.0).reshape(3, 2))


@pytest.mark.parametrize("compiled", [ad.Fixed, lambda f: ad.compile(f, pure=True)])
def test_arguments_are_read_only(compiled):
    """Another value of the program may be in the same array: here x * 2, computed once."""

    def doubled_in_place(v):
        v *= 2.0
        return v.copy()

    def f(x):
        y, z = x * 2.0, x * 2.0
        return ad.callback(doubled_in_place, x, y) + z

    with pytest.raises(ValueError, match="read-only"):
        compiled(f)(np.ones(2))


def test_it_sees_real_values_of_large_arrays():
    """Though a first run for a Fixed does not compute them."""
    seen = []

    def note(x):
        seen.append(float(x))
        return x

    fixed = ad.Fixed(lambda x: ad.callback(note, np.zeros(()), np.sum(x * x)) + 0.0)
    for _ in range(2):
        fixed(np.full(100_000, 2.0))
    assert seen and set(seen) == {400_000.0}


@pytest.mark.parametrize("like", [None, ()])
def test_without_a_result_it_is_refused(like):
    with pytest.raises(ad.AutodiffError, match=r"test_callback.py:\d+: callback: like has no array"):
        ad.compile(lambda x: (ad.callback(print, like, x), x)[1])(np.ones(2))
