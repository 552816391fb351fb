"""The studies of scalar derivatives, of root finding and of the energy of an embedded-atom model."""

import functools
import math
import sys

import numpy as np
import pytest

from bench.studies import eam, load, roots, scalar
from bench.studies.study import Options, Result
from gpt2 import autodiff as ad

QUICK = Options(quick=True, threads=1, seconds=0.2)


@pytest.fixture
def without_peers(monkeypatch):
    """Imports of peers fail, which also makes the studies quicker."""
    for package in ("autograd", "jax", "torch"):
        monkeypatch.setitem(sys.modules, package, None)


@functools.cache
def result_of(name):
    """Of a study that was run without peers."""
    return load(name).run(QUICK)


def rows_of(result, text):
    """The rows, {column: cell}, of the table with this in its title."""
    (table,) = [t for t in result.tables if text in t.title]
    names = [c.name for c in table.columns]
    return [dict(zip(names, row)) for row in table.rows]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scalar", "roots", "eam"])
def test_study_without_peers_runs_and_names_them(name, without_peers):
    result = result_of(name)
    assert set(result.missing) == {"autograd", "jax", "torch"}
    assert result.tables and result.notes
    for t in result.tables:
        assert t.rows and all(len(row) == len(t.columns) for row in t.rows)


# ---- scalar ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", scalar.CASES)
def test_scalar_derivatives_are_the_known_ones(name):
    case = scalar.CASES[name]
    known = {"f": 25600.0, "g": -996.8044243595134, "h": -105.63101149036945}[name]
    assert case.derivative == known
    assert case.by_hand(2.0) == pytest.approx(known, rel=1e-13)
    f = case.formula(np)
    assert ad.grad(f)(2.0) == pytest.approx(known, rel=1e-13)
    assert (f(2.0 + 1e-6) - f(2.0 - 1e-6)) / 2e-6 == pytest.approx(known, rel=1e-8)


def test_peers_give_the_known_derivatives():
    for package in ("autograd", "jax", "torch"):
        pytest.importorskip(package)
    result = Result()
    makers = scalar.contenders(result)
    assert not result.missing and len(makers) == 5
    for case in scalar.CASES.values():
        scalar.first_calls(case, makers)  # raises if one is wrong


# ---- roots -------------------------------------------------------------------------------------------------


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


# ---- eam ---------------------------------------------------------------------------------------------------


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
def test_preallocated_gradients_allocate_no_arrays(without_peers):
    rows = {row["what"]: row for row in rows_of(result_of("eam"), "100 coordinates")}
    for title in ("by hand, preallocated", "derived, into a buffer", "derived, preallocated shadow"):
        assert rows[title]["arrays"] == 0, title
    assert rows["gradient by hand"]["arrays"] >= 3
