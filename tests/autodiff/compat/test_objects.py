"""User classes with autograd's Box.register and VSpace.register."""

import numpy
import pytest

import gpt2.autodiff.compat.autograd as autograd
import gpt2.autodiff.compat.autograd.numpy as np
from gpt2.autodiff.compat.autograd import grad, make_vjp, value_and_grad
from gpt2.autodiff.compat.autograd.core import vspace
from gpt2.autodiff.compat.autograd.extend import Box, VSpace, defvjp, primitive


class Polynomial:
    """Coefficients by power; any number of them."""

    def __init__(self, terms):
        self.terms = terms

    @primitive
    def at(self, x):
        return sum([a * x**n for n, a in self.terms.items()], 0.0)

    @primitive
    def twice(self):
        return Polynomial({n: 2 * a for n, a in self.terms.items()})

    def degree(self):
        return max(self.terms)


def of_polynomial(ans, p, x):
    return lambda g: Polynomial({n: float(numpy.sum(g * x**n)) for n in p.terms})


defvjp(Polynomial.at, of_polynomial, lambda ans, p, x: lambda g: g * 0.0)


class PolynomialBox(Box, Polynomial):
    @property
    def terms(self):
        return self._value.terms


class Polynomials(VSpace):
    def __init__(self, value):
        self.powers = tuple(value.terms)

    def zeros(self):
        return Polynomial(dict.fromkeys(self.powers, 0.0))

    def _add(self, p, q):
        return Polynomial({n: p.terms.get(n, 0.0) + q.terms.get(n, 0.0) for n in {**p.terms, **q.terms}})

    def _scalar_mul(self, p, a):
        return Polynomial({n: a * v for n, v in p.terms.items()})


PolynomialBox.register(Polynomial)
Polynomials.register(Polynomial)

P = Polynomial({0: 1.0, 3: 0.5})
X = numpy.array([1.0, 2.0])


def loss(p, x, target):
    return np.sum((p.at(x) - target) ** 2) * p.at(3.0) + p.degree()


def expected_slope(p, x, target):
    """Derivative of the loss, by hand."""
    error = p.at(x) - target
    return {n: numpy.sum(2 * error * x**n) * p.at(3.0) + numpy.sum(error**2) * 3.0**n for n in p.terms}


def test_gradients():
    for p in (P, Polynomial({1: 2.0}), P):
        value, slope = value_and_grad(loss)(p, X, 0.3)
        assert value == pytest.approx(loss(p, X, 0.3))
        assert type(slope) is Polynomial and slope.terms == pytest.approx(expected_slope(p, X, 0.3))
        assert grad(loss)(p, X, 0.3).terms == slope.terms
    vjp, values = make_vjp(lambda p: p.at(X) * 2.0)(P)
    numpy.testing.assert_allclose(values, 2.0 * P.at(X))
    assert vjp(numpy.array([1.0, 0.0])).terms == {0: 2.0, 3: 2.0}
    assert vjp(numpy.array([0.0, 1.0])).terms == {0: 2.0, 3: 16.0}
    assert grad(loss, 1)(P, X, 0.3).shape == (2,)


def test_box_is_an_instance_of_the_class():
    seen = []

    def f(p):
        seen.append((isinstance(p, Polynomial), isinstance(p, Box), isinstance(p, PolynomialBox), p.degree()))
        return p.at(1.0)

    grad(f)(P)
    assert set(seen) == {(True, True, True, 3)} and not isinstance(P, Box)
    assert vspace(P) == Polynomials(P) != vspace(1.0)
    assert vspace(P).scalar_mul(P, 2.0).terms[3] == 1.0
    with pytest.warns(UserWarning, match="independent"):
        assert grad(lambda p: 1.0)(P).terms == {0: 0.0, 3: 0.0}


@pytest.mark.parametrize("call, words", [
    (lambda: grad(lambda x: grad(loss)(P, x, 0.3).at(x[0]))(X), "differentiated as well"),
    (lambda: grad(lambda p: p.at(p.at(1.0)))(P), "a number that is differentiated as well"),
    (lambda: grad(lambda p: p.twice().at(1.0))(P), "gives a Polynomial of an object"),
    (lambda: autograd.jacobian(lambda p: p.at(X))(P), "grad, value_and_grad and make_vjp"),
    (lambda: autograd.hessian(lambda p: p.at(1.0))(P), "first order|grad, value_and_grad"),
    (lambda: grad(lambda p: grad(lambda q: q.at(1.0))(p).at(1.0))(P), "of first order"),
    (lambda: grad(lambda p, calls: p.at(float(calls.append(0) or len(calls))))(P, []), "other calls each"),
])  # fmt: skip
def test_unsupported_uses_are_refused(call, words):
    with pytest.raises(NotImplementedError, match=words):
        call()
