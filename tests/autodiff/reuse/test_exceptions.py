"""Functions that catch what they raise."""

import contextlib

import numpy as np
import pytest

from gpt2 import autodiff as ad
from tests.support.reuse import is_reused

X = np.array([1.0, 2.0, 3.0])


def log_det(k):
    """Of a matrix that may not be positive definite."""
    try:
        chol = np.linalg.cholesky(k)
    except np.linalg.LinAlgError:
        return -3.0 * np.sum(k)
    return 2.0 * np.sum(np.log(np.diag(chol)))


def log_det_at_a_distance(k):
    return log_det(k) * 1.0


def log_det_suppressed(k):
    result = -3.0 * np.sum(k)
    with contextlib.suppress(np.linalg.LinAlgError):
        result = 2.0 * np.sum(np.log(np.diag(np.linalg.cholesky(k))))
    return result


def log_det_bare(k):
    try:
        return 2.0 * np.sum(np.log(np.diag(np.linalg.cholesky(k))))
    except:  # noqa: E722
        return -3.0 * np.sum(k)


@pytest.mark.parametrize("f", [log_det, log_det_at_a_distance, log_det_suppressed, log_det_bare])
def test_exceptions_that_are_caught(f):
    g = ad.grad(f)
    for _ in range(3):
        np.testing.assert_allclose(g(np.eye(2)), np.eye(2), atol=1e-14)
        np.testing.assert_allclose(g(-np.eye(2)), np.full((2, 2), -3.0))
        assert ad.why_recorded(g).startswith("it catches exceptions")


def test_exceptions_that_are_caught_in_spite_of_a_promise():
    g = ad.grad(log_det, pure=True)
    for _ in range(3):
        np.testing.assert_allclose(g(np.eye(2)), np.eye(2), atol=1e-14)
        np.testing.assert_allclose(g(-np.eye(2)), np.full((2, 2), -3.0))


def inverse(x):
    return 1.0 / x


def inverse_or_7(x):
    try:
        return inverse(x)
    except ZeroDivisionError:
        return 7.0 * x


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_division_by_zero_that_is_caught():
    f = ad.compile(inverse_or_7)
    for _ in range(3):
        assert f(2.0) == 0.5
        assert f(0.0) == 0.0
    assert ad.compile(inverse)(0.0) == np.inf, "what Python would raise is NumPy's inf where nobody waits"


def test_floating_point_errors_that_are_caught():
    def f(x):
        with np.errstate(all="raise"):
            try:
                return np.sum(np.log(x))
            except FloatingPointError:
                return np.sum(x) * 5.0

    g = ad.grad(f)
    for _ in range(3):
        np.testing.assert_array_equal(g(np.full(3, 2.0)), np.full(3, 0.5))
        np.testing.assert_array_equal(g(np.zeros(3)), np.full(3, 5.0))


def test_exceptions_that_no_value_raises_are_followed():
    table = {"a": 2.0}

    def f(x):
        try:
            scale = table["b"]
        except (KeyError, TypeError):
            scale = 3.0
        try:
            with np.errstate(all="ignore"):
                return np.sum(x) * scale
        finally:
            scale = 0.0

    assert is_reused(f, X)
