"""gpt2.autodiff.scipy.integrate: values against SciPy's, derivatives against finite differences."""

import numpy as np
import pytest

from gpt2 import autodiff as ad

pytest.importorskip("scipy")
import scipy.integrate as scipy_integrate

from gpt2.autodiff.scipy import integrate
from tests.autodiff.scipy.test_modules import check_value_and_grads

pytestmark = pytest.mark.numeric

Y0 = np.array([1.0, 0.5])
TIMES = np.array([0.0, 0.4, 1.1])
ACCURATE = {"rtol": 1e-12, "atol": 1e-13}
FIXED_STEP = {"first_step": 0.1, "max_step": 0.1, "rtol": 0.1}  # finite differences see the same steps


def lotka_volterra(t, y, a, b):
    return [a * y[0] - b * y[0] * y[1], -y[1] + 0.5 * y[0] * y[1]]


def solution(module, y0, a, span=(0.0, 1.5), method="RK45", times=TIMES, **options):
    return module.solve_ivp(lotka_volterra, span, y0, method, times, args=(a, 0.7), **options).y


@pytest.mark.slow
@pytest.mark.parametrize("method", ["RK45", "RK23"])
def test_solve_ivp_takes_scipys_steps(method):
    """So results agree to the last digits."""
    for span, times in (((0.0, 9.0), np.linspace(0.0, 9.0, 4)), ((1.0, -2.0), [0.7, -1.5])):
        ours, theirs = (
            lambda y, a, m=m: solution(m, y, a, span, method, times)  # noqa: B023
            for m in (integrate, scipy_integrate)
        )
        np.testing.assert_allclose(ad.compile(ours)(Y0, 3.2), theirs(Y0, 3.2), rtol=1e-9)
    check_value_and_grads(lambda y, a: solution(integrate, y, a, method=method, **FIXED_STEP), (Y0, 1.2))


@pytest.mark.slow
def test_solve_ivp_second_derivative_reuse_and_vmap():
    def f(a):
        return integrate.solve_ivp(lambda t, y: -a * y * y, (0.0, 0.2), [1.0], "RK23", [0.2], **FIXED_STEP).y

    ad.check_grads(f, (1.2,), order=2)
    g = ad.grad(lambda a: np.sum(f(a)))
    assert g(1.2) == g(1.2) and ad.why_recorded(g) is None
    result = ad.vmap(lambda a: f(a)[0, 0])(np.array([1.0, 1.2]))
    np.testing.assert_allclose(result, [f(1.0)[0, 0], f(1.2)[0, 0]], rtol=1e-9)


def test_too_short_steps_raise_convergence_error():
    blow_up = lambda a: integrate.solve_ivp(lambda t, y: a * y * y, (0.0, 9.0), [1.0], t_eval=[9.0]).y[0, 0]  # noqa: E731
    with pytest.raises(
        ad.ConvergenceError, match=r"test_integrate.py:\d+: .*no step that is short enough .* before t = 9"
    ):
        with np.errstate(all="ignore"):
            ad.compile(blow_up)(1.2)


def test_adjoint_derivative_of_lsoda():
    f = lambda y, a: solution(integrate, y, a, method="LSODA", derivative="adjoint", **ACCURATE)  # noqa: E731
    np.testing.assert_allclose(
        ad.compile(f)(Y0, 1.2), solution(scipy_integrate, Y0, 1.2, method="LSODA", **ACCURATE)
    )
    ad.check_grads(f, (Y0, 1.2), order=1)


def test_adjoint_derivative_by_times():
    f = lambda t: solution(integrate, Y0, 1.2, method="DOP853", times=t, derivative="adjoint", **ACCURATE)  # noqa: E731
    ad.check_grads(f, (TIMES[1:],), order=1)


def test_odeint_values_derivatives_and_reuse():
    def slope(y, t, a):
        return lotka_volterra(t, y, a, 0.7 * np.cos(t))

    f = lambda m, y0, t, a: m.odeint(slope, y0, t, (a,), **ACCURATE)  # noqa: E731
    args = Y0, TIMES + 0.2, 1.2
    np.testing.assert_allclose(
        ad.compile(lambda *v: f(integrate, *v))(*args), f(scipy_integrate, *args), rtol=1e-9
    )
    ad.check_grads(lambda *v: f(integrate, *v), args, order=1)
    g = ad.grad(lambda a: np.sum(f(integrate, Y0, TIMES, a)))
    assert g(1.2) == g(1.2) and ad.why_recorded(g) is None


def test_odeint_second_derivative_and_vmap():
    f = lambda a: integrate.odeint(lambda t, y: -a * y * y, [1.0], [0.0, 0.3], tfirst=True, **ACCURATE)[1, 0]  # noqa: E731
    exact = lambda a: 1.0 / (1.0 + 0.3 * a)  # noqa: E731
    assert ad.grad(ad.grad(f))(1.2) == pytest.approx(ad.grad(ad.grad(exact))(1.2), rel=1e-8)
    np.testing.assert_allclose(ad.vmap(f)(np.array([1.0, 2.0])), exact(np.array([1.0, 2.0])), rtol=1e-9)


def test_trapezoid():
    x, y = np.array([0.0, 0.3, 1.0, 1.2]), np.arange(12.0).reshape(3, 4) ** 1.5
    check_value_and_grads(lambda y, x: integrate.trapezoid(y, x), (y, x))
    check_value_and_grads(lambda y: integrate.cumulative_trapezoid(y, dx=0.5, axis=0, initial=0), (y,))
    check_value_and_grads(lambda y, x: integrate.cumulative_trapezoid(y, x), (y, x))


def test_plain_arguments_go_to_scipy():
    result = integrate.solve_ivp(lotka_volterra, (0.0, 1.0), Y0, args=(1.2, 0.7), dense_output=True)
    assert result.success and result.sol is not None
    assert integrate.odeint(lambda y, t: -y, Y0, TIMES).shape == (3, 2)
    g = ad.grad(lambda x: x * integrate.odeint(lambda y, t: -y, [1.0], TIMES)[1, 0])
    assert g(2.0) == pytest.approx(np.exp(-0.4))


@pytest.mark.parametrize("call, message", [
    (lambda a: solution(integrate, Y0, a, times=None), r"test_integrate.py:\d+: .*solve_ivp without t_eval="),
    (lambda a: solution(integrate, Y0, a, events=[lotka_volterra]), "with events="),
    (lambda a: solution(integrate, Y0, a, span=(0.0, a)), "by t_span"),
    (lambda a: solution(integrate, Y0, a, method="Radau", derivative="discrete"), "method='Radau' and"),
    (lambda a: solution(integrate, Y0, a, derivative="exact"), "expected 'discrete' or 'adjoint'"),
    (lambda a: solution(integrate, Y0, a, times=[0.4, 0.1]), "t_eval is not sorted"),
    (lambda a: solution(integrate, Y0, a, times=[0.4, 8.0]), "t_eval lies not within"),
    (lambda a: solution(integrate, Y0, a, rtol=1e-3 * a), "by rtol=, which is a recorded value"),
    (lambda a: solution(integrate, Y0, a, jac=lotka_volterra), "with jac="),
    (lambda a: integrate.odeint(lambda y, t: a * y if y[0] > 0 else y, Y0, TIMES), "it branches on values"),
    (lambda a: integrate.odeint(lambda y, t: a * y[0], Y0, TIMES), r"values of shape \(\)"),
    (lambda a: integrate.odeint(lambda y, t: a * y, Y0, TIMES, full_output=True), "with full_output="),
    (lambda a: integrate.quad(np.cos, 0.0, a)[0], "scipy.integrate.quad has no derivative rule"),
    (lambda a: scipy_integrate.odeint(lambda y, t: -a * y, Y0, TIMES), r"test_integrate.py:\d+: .*odeint"),
])  # fmt: skip
def test_unsupported_calls_are_errors(call, message):
    with pytest.raises(Exception, match=message):
        ad.grad(lambda a: np.sum(call(a)))(1.2)
