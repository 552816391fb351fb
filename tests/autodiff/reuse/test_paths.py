"""`if`, `while` and masks: a program holds for the path that it was recorded on."""

import math

import numpy as np
import pytest

from gpt2 import autodiff as ad

X = np.array([1.0, 2.0, 3.0])


def test_a_branch_on_a_sign_is_a_path():
    """Both branches have programs of their own; each is found again, with the answers of fresh runs."""

    def f(x):
        if x > 0:
            return x**3
        return -2 * x

    g = ad.grad(f)
    for _ in range(3):
        assert [g(2.0), g(-1.0), g(3.0), g(0.0)] == [12.0, -2.0, 27.0, -2.0]
    programs = []
    for x in (2.0, -1.0, 5.0):
        g(x)
        programs.append(g.__derived__.last[1])
    first, second, third = programs
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
    for index in ([0, 5], [-1, 0]):
        with pytest.raises(ValueError, match="index out of range"):
            g(table, np.array(index))


def test_masks_and_lengths_are_paths():
    def f(x, n):
        return np.sum(x[x > 0] ** 2) * len(range(int(n[0])))

    g = ad.grad(f)
    once, other, turned = np.array([1.0, -1, 2]), np.array([3.0, -3, 1]), np.array([-1.0, 1, 2])
    for x, n in ((once, 2), (once, 3), (other, 3), (turned, 3), (once, 2)):
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


def test_the_sign_of_a_rounded_sum_is_computed_by_numpy():
    """The program's sum may differ from NumPy's in the last bit, so NumPy computes its sign at each call."""
    g = ad.grad(lambda x: np.sum(x) if np.sum(x) > 0 else np.sum(2 * x))
    for sign in (1.0, -1.0, 1.0):
        np.testing.assert_allclose(g(sign * X), np.full(3, 1.5 - sign / 2))
    assert "arithmetic" in ad.why_recorded(g)


def test_a_different_path_each_time():
    g = ad.grad(lambda x: np.sum(x**2) + math.floor(x[0]))
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


@pytest.mark.parametrize(
    "f",
    [
        lambda x, n: len(range(n)) * np.sum(x * 2 if n else x),
        lambda x, n: np.sum(x * 2 if n else x) * len(range(n)),
    ],
    ids=["number first", "truth first"],
)
def test_one_value_that_is_read_as_a_number_and_as_a_truth_value(f):
    """Each of the two has to be the same."""
    g, fixed = ad.compile(f), ad.Fixed(lambda x, n: f(x, n[0]))
    for n in (3, 4, 0, 3, 5):
        expected = f(X, n)
        assert g(X, np.int64(n)) == expected == fixed(X, np.array([n]))


def test_one_value_that_is_read_as_a_float_and_as_an_int():
    g = ad.grad(lambda x, k: x * (10.0 if float(k) > 3.5 else 1.0) * len(range(int(k))))
    assert [g(2.0, k) for k in (3.2, 3.7, 4.1, 3.2)] == [3.0, 30.0, 40.0, 3.0]
