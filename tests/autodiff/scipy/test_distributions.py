"""Distributions at edges of their support and in their tails, against mpmath; and single cases."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("mpmath")
import scipy.stats

from gpt2 import autodiff as ad
from gpt2.autodiff.scipy import stats
from gpt2.autodiff.scipy.rules import distributions
from tests.support.exact import distributions as exact

pytestmark = [pytest.mark.numeric, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
ALL = [(name, method) for name in (*exact.LAWS, *exact.COUNTS) for method in exact.methods_of(name)]
QUICK = [("norm", "logsf"), ("gamma", "pdf"), ("pareto", "logcdf"), ("uniform", "cdf"), ("binom", "pmf")]


def compare(name, method, n, seed=0):
    with exact.mp.workdps(exact.DIGITS):
        return exact.compare(name, method, exact.cases(name, n, np.random.default_rng(seed)))


@pytest.mark.parametrize("name, method", QUICK)
def test_edges_and_tails_of_some_distributions(name, method):
    wrong, tried, lines = compare(name, method, 40)
    assert tried > 150 and not wrong, "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("name, method", ALL)
def test_edges_and_tails_of_all_distributions(name, method):
    wrong, tried, lines = compare(name, method, 60, seed=1)
    assert tried > 150 and not wrong, "\n".join(lines)


def test_comparison_detects_a_relative_error_of_1e_9(monkeypatch):
    law = distributions.LAWS["gumbel_r"]
    worse = dataclasses.replace(law, by_scale=lambda z, plain=law.by_scale: plain(z) * (1.0 + 1e-9))
    monkeypatch.setitem(distributions.LAWS, "gumbel_r", worse)
    wrong, _, lines = compare("gumbel_r", "logpdf", 20)
    assert wrong and all(line.startswith("d/dscale") for line in lines)


def test_log_survival_function_in_far_tails():
    for name, method, x, value in (
        ("rayleigh", "logsf", 15.0, -112.5),
        ("norm", "logsf", 40.0, -804.6084420137538),
        ("laplace", "logsf", 1e3, -1e3 - np.log(2.0)),
        ("gumbel_r", "logsf", 1e3, -1e3),
    ):
        assert ad.compile(getattr(getattr(stats, name), method))(x) == pytest.approx(value, rel=1e-12)
    assert ad.grad(stats.laplace.logsf)(40.0) == -1.0


@pytest.mark.parametrize("call, value, slope", [
    (lambda v: stats.expon.pdf(v), 1.0, -1.0),
    (lambda v: stats.poisson.pmf(0, v - 1.0), np.nan, np.nan),
    (lambda v: stats.poisson.pmf(2.5, v + 2.0), 0.0, 0.0),
    (lambda v: stats.norm.pdf(v, 0.0, -1.0), np.nan, np.nan),
    (lambda v: stats.gamma.cdf(v + np.nan, 2.0), np.nan, np.nan),
    (lambda v: stats.gamma.logpdf(1.0, v - 2.0), np.nan, np.nan),
])  # fmt: skip
def test_value_and_derivative_at_boundaries(call, value, slope):
    np.testing.assert_array_equal(ad.compile(call)(0.0), value)
    np.testing.assert_array_equal(ad.grad(call)(0.0), slope)
    np.testing.assert_array_equal(ad.jvp(call, (0.0,), (1.0,))[1], slope)


def test_second_derivatives_and_vmap():
    x = np.array([-3.0, 0.2, 6.0])
    for name, shapes in (("norm", ()), ("t", (3.4,)), ("gamma", (2.3,)), ("lognorm", (0.7,))):
        d, points = getattr(stats, name), x if not shapes or name == "t" else np.abs(x)
        for method in ("logcdf", "logsf"):
            f = lambda x, s: getattr(d, method)(x, *shapes, scale=s)  # noqa: B023, E731
            ad.check_grads(f, (points, 1.3), order=2)
            both = ad.vmap(f)(np.stack([points, 2 * points]), np.array([1.3, 0.8]))
            np.testing.assert_allclose(both[1], f(2 * points, 0.8), rtol=1e-12)


def test_arguments_follow_scipys_signature():
    f = ad.compile(lambda x: stats.norm.logpdf(scale=2.0, x=x, loc=[0.0, 1.0]))
    np.testing.assert_allclose(f(0.5), scipy.stats.norm.logpdf([0.5, 0.5], [0.0, 1.0], 2.0))
    assert type(ad.compile(stats.norm.pdf)(0.5)) is type(scipy.stats.norm.pdf(0.5))
    assert ad.compile(lambda x: stats.norm.pdf(x))(np.float32(0.5)).dtype == np.float32
    for call in (stats.gamma.pdf, lambda x: stats.norm.pdf(x, width=2), lambda x: stats.t.pdf(x, 2, 0, 1, 1)):
        with pytest.raises(TypeError, match="scipy.stats"):
            ad.compile(call)(0.5)


def test_dirichlet_of_invalid_arguments_is_nan():
    x, alpha = np.array([0.2, 0.3, 0.5]), np.array([1.5, 2.0, 0.7])
    f = ad.compile(stats.dirichlet.logpdf)
    np.testing.assert_allclose(f(x, alpha), scipy.stats.dirichlet.logpdf(x, alpha), rtol=1e-12)
    for a, b in ((x * 1.1, alpha), (np.array([-0.1, 0.6, 0.5]), alpha), (x, -alpha)):
        with pytest.raises(ValueError):
            scipy.stats.dirichlet.logpdf(a, b)
        assert np.isnan(f(a, b)) and np.isnan(ad.grad(stats.dirichlet.logpdf, (0, 1))(a, b)).all()


def test_geom_has_scipys_values_far_out():
    assert ad.compile(lambda p: stats.geom.pmf(1, p))(0.3) == 0.3
    log = ad.compile(lambda p: stats.geom.logpmf(1e306, p))(0.3)
    assert log == pytest.approx(1e306 * np.log1p(-0.3), rel=1e-14)
