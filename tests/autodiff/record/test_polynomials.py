"""np.polynomial's functions in six bases, its classes, and np.poly1d run as they are on recorded values."""

import numpy as np
import numpy.polynomial as series
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.check.check_grads import check_grads

BASES = {
    "poly": series.polynomial, "cheb": series.chebyshev, "leg": series.legendre, "herm": series.hermite,
    "herme": series.hermite_e, "lag": series.laguerre,
}  # fmt: skip
C, D, X = np.array([0.4, -0.7, 0.2, 0.9]), np.array([1.1, 0.3, -0.5]), np.array([-0.8, 0.1, 0.35, 0.6, 0.7])
C2, C3 = np.arange(1.0, 13).reshape(3, 4) / 7, np.arange(1.0, 13).reshape(2, 3, 2) / 7

FUNCTIONS = {
    "val": [(lambda f, x, c: f(x, c), X, C), (lambda f, x, c: f(x, c), X, C2), (lambda f, c: f(0.3, c), C),
            (lambda f, x: f([x[0], x[1]], [1.0, 2.0, 3.0]), X), (lambda f, c: f(X, [c[0], c[1]]), C)],
    "val2d": [(lambda f, x, c: f(x, x * 0.5, c), X, C2)],
    "val3d": [(lambda f, x, c: f(x, x * 0.5, x * x, c), X, C3)],
    "grid2d": [(lambda f, x, c: f(x, x[:3], c), X, C2)],
    "grid3d": [(lambda f, x, c: f(x, x[:2], x[:3], c), X, C3)],
    "add": [(lambda f, a, b: f(a, b), C, D), (lambda f, a: f([1.0, 2.0, 3.0, 4.0, 5.0], a), C)],
    "sub": [(lambda f, a, b: f(a, b), D, C)],
    "mul": [(lambda f, a, b: f(a, b), C, D)],
    "mulx": [(lambda f, a: f(a), C)],
    "div": [(lambda f, a, b: f(a, b), C, D), (lambda f, a, b: f(b, a), C, D)],
    "pow": [(lambda f, a: f(a, 3), D)],
    "der": [(lambda f, a: f(a), C), (lambda f, a: f(a, 2, axis=1), C2)],
    "int": [(lambda f, a, k: f(a, 2, k=[k[0], k[1]], lbnd=0.3), C, D), (lambda f, a: f(a, axis=1), C2)],
    "vander": [(lambda f, x: f(x, 3), X)],
    "vander2d": [(lambda f, x: f(x, x * 0.5, [2, 1]), X)],
    "fromroots": [(lambda f, r: f(r), D)],
    "roots": [(lambda f, a: np.abs(f(a) - 2.5j), C)],
    "fit": [(lambda f, x, y: f(x, y, 2), X, X**3), (lambda f, y: f(X, y, [0, 2], w=X + 2), X**3)],
    "line": [(lambda f, a: f(a[0], a[1]), C)],
    "trim": [(lambda f, a: f(a), C)],
}  # fmt: skip

METHODS = {
    "call": lambda kind, c, x: kind(c)(x),
    "of a list": lambda kind, c, x: kind([c[0], c[1], 2.0])(x),
    "of constants": lambda kind, c, x: kind([1.0, 2.0, 3.0])(x) * c[0],
    "add": lambda kind, c, x: (kind(c) + kind(x) - 1.0).coef,
    "mul": lambda kind, c, x: (kind(c) * kind(x) * c[0]).coef,
    "div": lambda kind, c, x: (kind(x) // kind(c)).coef,
    "mod": lambda kind, c, x: (kind(x) % kind(c)).coef,
    "pow": lambda kind, c, x: (-(kind(c) ** 2)).coef,
    "deriv": lambda kind, c, x: kind(c).deriv()(x),
    "integ": lambda kind, c, x: kind(c).integ(lbnd=0.1)(x),
    "domain": lambda kind, c, x: kind(c, domain=[0, 2])(x),
    "linspace": lambda kind, c, x: kind(c).linspace(5)[1],
    "fit": lambda kind, c, x: kind.fit(x, x**3, 2).coef,
    "roots": lambda kind, c, x: np.abs(kind(c).roots() - 2.5j),
    "fromroots": lambda kind, c, x: kind.fromroots(c).coef,
    "convert": lambda kind, c, x: kind(c).convert(kind=series.Polynomial).coef,
    "compose": lambda kind, c, x: kind(c)(kind(x[:2])).coef,
    "trim": lambda kind, c, x: kind(c).trim().truncate(3).coef,
}


def check(f, args):
    found, expected = ad.compile(f)(*args), f(*args)
    for a, b in zip(found, expected) if type(expected) is tuple else [(found, expected)]:
        np.testing.assert_allclose(a, b, rtol=1e-12)
    check_grads(f, args, order=1)


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES)
def test_functions(base):
    for name, calls in FUNCTIONS.items():
        function = getattr(BASES[base], base + name)
        for call, *args in calls:
            check(lambda *args, call=call, function=function: call(function, *args), args)


@pytest.mark.parametrize("kind", [
    series.Polynomial, series.Chebyshev, series.Legendre, series.Hermite, series.HermiteE, series.Laguerre
])  # fmt: skip
def test_classes(kind):
    for call in METHODS.values():
        check(lambda c, x, call=call: call(kind, c, x), (D, X))


def test_poly1d():
    for call in (lambda c, x: np.poly1d(c)(x), lambda c, x: (np.poly1d(c) * np.poly1d(x)).coeffs,
                 lambda c, x: np.poly1d(c).deriv()(x), lambda c, x: np.poly1d(c).integ()(x)):  # fmt: skip
        check(call, (D, X))


def test_functions_are_no_reason_to_record_again():
    g = ad.grad(lambda x, c: series.chebyshev.chebval(x, c).sum())
    g(X, C)
    assert ad.why_recorded(g) is None


def test_a_replaced_function_is_noticed(monkeypatch):
    g = ad.grad(lambda c: np.polynomial.legendre.legval(0.5, c))
    g(C)
    monkeypatch.setattr(np.polynomial.legendre, "legval", lambda x, c: np.sum(c) * 2)
    np.testing.assert_array_equal(g(C), np.full(4, 2.0))
