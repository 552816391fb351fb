"""The studies of root finding and of the energy of an embedded-atom model: what they compute is right."""

import math
from functools import partial

import numpy as np
import pytest

from bench.studies import eam, roots, scalar
from bench.studies.measure import memory
from gpt2 import autodiff as ad


@pytest.mark.parametrize("name", scalar.CASES)
def test_scalar_derivatives_are_the_known_ones(name):
    case = scalar.CASES[name]
    f = case.formula(np)
    assert case.by_hand(2.0) == pytest.approx(case.derivative, rel=1e-13)
    assert ad.grad(f)(2.0) == pytest.approx(case.derivative, rel=1e-13)
    assert (f(2.0 + 1e-6) - f(2.0 - 1e-6)) / 2e-6 == pytest.approx(case.derivative, rel=1e-8)


@pytest.mark.parametrize("equation", roots.EQUATIONS, ids=lambda e: e.text)
def test_derivatives_up_to_the_third_agree_with_those_by_hand(equation):
    d, by_hand = roots.derived(equation.formula(np)), roots.by_hand(equation)
    for k in range(4):
        for x in (0.3, 1.1):
            assert len(d[k](x)) == k + 1
            assert d[k](x) == pytest.approx(by_hand[k](x), rel=1e-13)
    f, h = equation.formula(np), 1e-4
    slope = (by_hand[2](0.3 + h)[2] - by_hand[2](0.3 - h)[2]) / (2 * h)
    assert d[3](0.3)[3] == pytest.approx(slope, rel=1e-6)
    assert f(equation.root) == pytest.approx(0.0, abs=1e-14)


@pytest.mark.parametrize("equation", roots.EQUATIONS, ids=lambda e: e.text)
@pytest.mark.parametrize("name", roots.METHODS)
def test_measured_order_of_convergence(name, equation):
    method, d = roots.METHODS[name], roots.derived(equation.formula(np))
    root, iterations = roots.solve(method, d, equation.start)
    assert root == pytest.approx(equation.root, rel=1e-14)
    # From an error of about 0.5; each step multiplies the digits by the order, and a last one changes nothing
    assert iterations <= math.ceil(math.log(40, method.order)) + 3
    order = roots.observed_order(method, d, equation.root)
    # Errors before a step are at least 1e-11 ** (1 / order): terms of the next order still contribute
    assert order == pytest.approx(method.order, rel=0.1)


@pytest.mark.parametrize("n", eam.SIZES)
def test_energy_gradients_agree(n):
    x = np.random.default_rng(n).normal(size=n) / 3
    rho = sum(math.exp(-3 * (v + 1)) for v in x)
    assert eam.energy(x) == pytest.approx(rho**2 + rho**3 + rho**4 / 4, rel=1e-12)
    h = 1e-6 * np.eye(n)[7]
    slope = (eam.energy(x + h) - eam.energy(x - h)) / 2e-6
    for title, gradient in eam.gradients(n).items():
        for _ in range(2):  # twice: a reused buffer must not accumulate
            got = gradient(x)
        np.testing.assert_allclose(got, eam.manual(x), rtol=1e-12, err_msg=title)
        assert got[7] == pytest.approx(slope, rel=1e-6)


@pytest.mark.slow
def test_preallocated_gradients_allocate_no_arrays():
    x = np.random.default_rng(0).normal(size=100)
    arrays = {}
    for title, gradient in eam.gradients(100).items():
        gradient(x), gradient(x)  # compiled
        arrays[title] = memory(partial(gradient, x)).arrays
    for title in ("by hand, preallocated", "derived, into a buffer", "derived, preallocated shadow"):
        assert arrays[title] == 0, title
    assert arrays["gradient by hand"] >= 3
