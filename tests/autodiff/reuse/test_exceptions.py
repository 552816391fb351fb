"""Functions that catch what they raise."""

import contextlib
import functools
import sys

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


def log_det_further_in(k):
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


class Swallows:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return True


def log_det_swallowed(k):
    result = -3.0 * np.sum(k)
    with Swallows():
        result = 2.0 * np.sum(np.log(np.diag(np.linalg.cholesky(k))))
    return result


def log_det_finally(k):
    result = -3.0 * np.sum(k)
    try:
        result = 2.0 * np.sum(np.log(np.diag(np.linalg.cholesky(k))))
    finally:
        return result  # noqa: B012


CAUGHT = [log_det, log_det_further_in, log_det_suppressed, log_det_bare, log_det_swallowed, log_det_finally]


@pytest.mark.parametrize(("f", "pure"), [*((f, False) for f in CAUGHT), (log_det, True)])
def test_exceptions_that_are_caught(f, pure):
    """Also in spite of the promise that the function is pure."""
    g = ad.grad(f, pure=pure)
    for _ in range(3):
        np.testing.assert_allclose(g(np.eye(2)), np.eye(2), atol=1e-14)
        np.testing.assert_allclose(g(-np.eye(2)), np.full((2, 2), -3.0))
        assert pure or ad.why_recorded(g).startswith("it catches exceptions")


def negative(error, x):
    """x as it is, unless it begins with a negative number."""
    if x[0] < 0:
        raise error
    return x * 1.0


def by_callback(error, x):
    return ad.callback(functools.partial(negative, error), x, x)


def by_a_rule(error, x):
    @ad.custom_vjp
    def ruled(x):
        return negative(error, np.sort(memoryview(x)))

    ruled.defvjp(lambda dout, out, x: (dout,))
    return ruled(x)


@pytest.mark.parametrize("opaque", [by_callback, by_a_rule])
@pytest.mark.parametrize("error", [KeyError, StopIteration, TypeError, AttributeError, ZeroDivisionError])
@pytest.mark.parametrize("first", [1.0, -1.0])
def test_exceptions_out_of_what_is_not_watched(opaque, error, first):
    """Also exceptions that arithmetic never raises."""

    def f(x):
        try:
            return np.sum(opaque(error, x) * 3.0)
        except (KeyError, StopIteration, TypeError, AttributeError, ZeroDivisionError):
            return np.sum(x) * 7.0

    g = ad.compile(f)
    for sign in (first, first, -first, first, -first):
        np.testing.assert_array_equal(g(sign * X), 18.0 if sign > 0 else -42.0)
    assert ad.why_recorded(g).startswith("it catches exceptions")


def test_exceptions_of_arithmetic_of_every_kind_that_are_caught_at_a_distance():
    def inner(x, n):
        return x if n == 0 else inner(x, n - 1) + np.sum(np.linalg.inv(x))

    def f(x):
        try:
            return np.sum(inner(x, 2))
        except Exception:
            return 9.0 * np.sum(x)

    g = ad.compile(f)
    for x in (np.eye(2), np.ones((2, 2)), np.eye(2)):
        np.testing.assert_allclose(g(x), f(x))


def test_questions_about_types_that_raise_are_followed():
    def f(x):
        try:
            n = x.shape[3] + len(x)
        except IndexError:
            n = 2
        return np.sum(x) * n

    assert is_reused(f, X)


def test_a_module_that_may_come_later(tmp_path, monkeypatch):
    def f(x):
        try:
            import module_that_comes_later

            return np.sum(x) * module_that_comes_later.rate
        except ImportError:
            return np.sum(x)

    g = ad.grad(f)
    g(X), g(X)
    (tmp_path / "module_that_comes_later.py").write_text("rate = 2.0")
    monkeypatch.syspath_prepend(tmp_path)
    np.testing.assert_array_equal(g(X), np.full(3, 2.0))
    sys.modules.pop("module_that_comes_later")


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_division_by_zero_that_is_caught():
    def inverse(x):
        return 1.0 / x

    def inverse_or_7(x):
        try:
            return inverse(x)
        except ZeroDivisionError:
            return 7.0 * x

    f = ad.compile(inverse_or_7)
    for _ in range(3):
        assert f(2.0) == 0.5
        assert f(0.0) == 0.0
    assert ad.compile(inverse)(0.0) == np.inf, "without a handler NumPy's inf, no exception"


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
    table = {"a": 2.0, "number": "many"}

    def f(x):
        try:
            scale = table["b"]
        except (KeyError, TypeError):
            scale = 3.0
        try:
            scale = float(table["number"])
        except Exception:
            scale += 1.0
        try:
            with np.errstate(all="ignore"):
                return np.sum(x) * scale
        finally:
            scale = 0.0

    assert is_reused(f, X)
