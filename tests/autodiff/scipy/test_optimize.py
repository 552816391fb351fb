"""gpt2.autodiff.scipy.optimize: roots and their derivatives, and minimize with trees."""

import numpy as np
import pytest

from gpt2 import autodiff as ad

pytest.importorskip("scipy")
import scipy.optimize

from gpt2.autodiff.scipy import optimize

A = np.array([[2.0, 0.3], [-0.4, 1.5]])
B = np.array([0.7, -0.2])


def cubic(x, a, b):
    return a @ x + x**3 - b


def test_root_and_its_derivatives():
    def f(a, b):
        return np.sum(optimize.root(cubic, np.zeros(2), args=(a, b), tol=1e-13).x ** 2)

    plain = scipy.optimize.root(cubic, np.zeros(2), args=(A, B), tol=1e-13)
    assert ad.compile(f)(A, B) == pytest.approx(np.sum(plain.x**2), rel=1e-10)
    assert f(A, B) == np.sum(plain.x**2) and optimize.root(cubic, np.zeros(2), args=(A, B)).success
    ad.check_grads(f, (A, B), order=2)


def test_minimum_as_root_of_the_gradient():
    def energy(x, b):
        return np.sum(np.cosh(A @ x)) - b @ x

    def minimum(b):
        return energy(ad.root(ad.grad(energy), np.zeros(2), b), b)

    x = scipy.optimize.minimize(energy, np.zeros(2), args=(B,), tol=1e-12).x
    np.testing.assert_allclose(ad.grad(minimum)(B), -x, atol=1e-6)  # the envelope theorem
    ad.check_grads(minimum, (B,), order=2)


def test_unsupported_calls_and_missing_roots_are_errors():
    with pytest.raises(
        ad.ConvergenceError, match=r"test_optimize.py:\d+: scipy.optimize.root: .* \|f\(x\)\| is"
    ):
        ad.grad(lambda a: optimize.root(lambda x, a: x * x + a, np.ones(1), args=(a,)).x[0])(1.0)
    with pytest.raises(NotImplementedError, match="with jac= or callback="):
        ad.grad(lambda a: optimize.root(cubic, np.zeros(2), args=(a, B), jac=cubic).x[0])(A)
    with pytest.raises(NotImplementedError, match="scipy.optimize.brentq has no derivative rule"):
        ad.grad(lambda a: optimize.brentq(lambda x, a: x - a, 0.0, 2.0, args=(a,)))(1.0)


def banana(p, k):
    return (p["x"] - 1.0) ** 2 + k * np.sum((p["y"][0] - p["x"] ** 2) ** 2)


def test_minimize_accepts_trees():
    start = {"x": 0.0, "y": [np.zeros(2)]}
    result = optimize.minimize(banana, start, (100.0,), tol=1e-10)
    assert result.success and result.x["x"] == pytest.approx(1.0) and result.jac.keys() == result.x.keys()
    np.testing.assert_allclose(result.x["y"][0], 1.0, rtol=1e-6)
    assert optimize.minimize(banana, start, (1.0,), "CG", options={"maxiter": 1}).nit == 1


def test_minimize_rejects_jac_and_plain_functions_pass_through():
    with pytest.raises(TypeError, match="derived here"):
        optimize.minimize(banana, {"x": 0.0}, jac=True)
    assert optimize.brentq(lambda x: x - 1, 0, 3) == pytest.approx(1.0)
