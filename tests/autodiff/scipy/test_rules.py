"""The ops of SciPy's functions: derivatives against finite differences, values against mpmath, batches."""

import re
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("mpmath")
import scipy.special as sp
from mpmath import mp

from gpt2 import autodiff as ad
from gpt2.autodiff.check.numeric import check_graph
from gpt2.autodiff.ops import OPS
from gpt2.autodiff.scipy import special as special_of
from gpt2.autodiff.scipy.rules import distributions, matrix_functions, special
from tests import ROOT
from tests.autodiff.ops.test_rules import instance
from tests.autodiff.transforms import test_batch
from tests.support.calls.op_samples import samples_of
from tests.support.exact import functions as exact

pytestmark = pytest.mark.numeric

INF = np.inf
ROWS = [*dict.fromkeys(special.OP_OF.values()), "matrix_function", "frechet", "distribution"]
CASES = [pytest.param(n, s, id=f"{n}-{i}") for n in ROWS for i, s in enumerate(samples_of(n))]
assert matrix_functions and distributions  # their imports add ops to the table


@pytest.mark.parametrize("name, sample", CASES)
def test_derivatives_of_ops(name, sample):
    graph, values = instance(name, sample, "float64")
    check_graph(graph, values, order=2 if "hyp" not in name else 1)


@pytest.mark.parametrize("name, sample", CASES)
def test_float32_is_kept(name, sample):
    graph, values = instance(name, sample, "float64", single=True)
    if len(values) == len(sample.args):  # all arguments are inputs
        assert graph.outputs[0].dtype == np.float32
        assert OPS[name].evaluate(*values, **sample.attrs).dtype == np.float32


@pytest.mark.parametrize("name, sample", [c for c in CASES if c.id.endswith("-0")])
def test_batched_ops(name, sample):
    rng = np.random.default_rng(1)
    graph, values = test_batch.instance(name, sample, "float64", rng)
    for flags in filter(any, test_batch.flags_of(len(values))):
        test_batch.compared(graph, values, flags)


HARD = ["erfcx", "dawsn", "log_ndtr", "rgamma", "betaln", "expit", "i1e", "kve", "ellipk", "spence", "exprel"]
FUNCTIONS = [name if name in HARD else pytest.param(name, marks=pytest.mark.slow) for name in exact.FUNCTIONS]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_derivatives_against_mpmath(name):
    """In tails, at edges, infinity and nan."""
    function, rng = exact.FUNCTIONS[name], np.random.default_rng(2)
    with np.errstate(all="ignore"), mp.workdps(70):
        wrong, tried, out, lines = exact.compare(name, exact.cases(function, 25, rng))
    assert not wrong and tried > 2 * out, lines


def test_every_rule_is_compared_with_mpmath_and_on_the_page():
    rules = {*special.PARTIALS, "digamma"}  # which is psi
    assert rules == {*exact.FUNCTIONS}, "FUNCTIONS of tests/support/exact/functions.py"
    paragraph = re.search(r"There are rules for ((?:.+\n)+)", (ROOT / "docs" / "scipy.md").read_text())[1]
    listed = {*re.findall(r"\w+", paragraph)}
    assert rules - listed == {"psi"}, "docs/scipy.md"  # it is SciPy's other name for digamma
    assert listed - rules == {"jn"}, "docs/scipy.md"  # and this for jv


def test_logsumexp_at_infinity_and_with_weights():
    rows = np.array(
        [[0, -50, -INF], [-INF, -INF, -INF], [3, 3, 3], [INF, 1, 0], [np.nan, 1, 0], [2000, 2000, -2000]]
    )
    with np.errstate(all="ignore"):
        for name in ("logsumexp", "log_softmax"):
            f = ad.compile(getattr(special_of, name))
            for x in (np.zeros(rows.shape), rows):  # also with other values than at recording
                np.testing.assert_allclose(f(x, axis=1), getattr(sp, name)(x, axis=1), rtol=1e-14)
        slope = ad.grad(lambda x: np.sum(special_of.logsumexp(x[::2], axis=1)))(rows[:4])
        np.testing.assert_allclose(slope[::2], [[1.0, np.exp(-50.0), 0.0], [1 / 3] * 3], rtol=1e-14)
        total = lambda a, b: special_of.logsumexp(a, b=b)  # noqa: E731
        a, b = np.array([1.0, 2.0, 800.0]), np.array([1.0, 0.0, 0.0])
        assert ad.compile(total)(a, b) == sp.logsumexp(a, b=b) == 1.0
        by_a, by_b = ad.grad(total, (0, 1))(a[:2], b[:2])
        np.testing.assert_allclose([*by_a, *by_b], [1.0, 0.0, 1.0, np.e], rtol=1e-14)
        np.testing.assert_array_equal(
            ad.compile(lambda a: special_of.multigammaln(a, 3))(np.array([0.5])), [np.nan]
        )


def test_scipy_special_is_recorded_without_our_module():
    x = np.array([0.3, 0.7])
    f = lambda x: np.sum(sp.erf(x) * sp.gammaln(x) + sp.jv(0, x) + sp.digamma(x) + sp.xlogy(2, x))  # noqa: E731
    g = ad.grad(f)
    first = g(x)
    np.testing.assert_array_equal(first, g(x))
    assert ad.why_recorded(g) is None
    ad.check_grads(f, (x,))
    assert ad.grad(sp.expit)(0.0) == 0.25
    assert ad.compile(lambda x: sp.expit(x, out=np.zeros_like(x)))(x).shape == (2,)


def test_derivatives_at_edges_and_far_away():
    big = np.array([-40.0, 40.0])
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(sp.log_ndtr(x)))(big), [40.0249688, 0.0], rtol=1e-6)
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(sp.expit(x)))(big * 20), [0.0, 0.0])
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(sp.log_expit(x)))(big * 20), [1.0, 0.0])
    assert ad.grad(lambda y: sp.xlogy(0.0, y))(2.0) == 0.0
    assert ad.grad(sp.j1)(0.0) == 0.5 and ad.grad(sp.erf)(0.0) == 2 / np.sqrt(np.pi)
    assert ad.grad(sp.spence)(1.0) == -1.0
    assert ad.grad(ad.grad(sp.gammaln))(1.0) == pytest.approx(np.pi**2 / 6)
    with np.errstate(all="ignore"):
        assert ad.grad(sp.binom, 1)(40.0, -INF) == 0.0
        assert ad.grad(sp.beta)(-2.0, 2.0) == pytest.approx(0.75)  # infinite beside it for another b
        assert np.isnan([ad.grad(sp.beta, 1)(a, 2.0) for a in (-2.0, -3.0)]).all()


def test_functions_without_a_formula_are_errors():
    with pytest.raises(ad.AutodiffError, match=r"test_rules.py:\d+: scipy.special.jv .* argument 0"):
        ad.grad(lambda v: sp.jv(v, 2.0))(1.0)
    assert ad.grad(lambda v, x: sp.jv(v, x), argnums=1)(1.0, 2.0) == pytest.approx(sp.jvp(1.0, 2.0))
    with pytest.raises(
        ad.AutodiffError, match=r"scipy.special.eval_legendre has no derivative rule(.|\n)*custom_vjp"
    ):
        ad.grad(lambda x: sp.eval_legendre(2, x))(1.0)
    for f in (lambda x: sp.airy(x)[0], lambda x: sp.betaln.reduceat(x, [0])):
        with pytest.raises(ad.AutodiffError, match=r"test_rules.py:\d+: scipy.special.(airy|betaln)"):
            ad.grad(f)(np.ones(1))
    slope = ad.grad(lambda x: np.sum(sp.erf(x, out=np.zeros(1))))(np.ones(1))  # into an array that it makes
    assert slope == pytest.approx(2.0 / np.sqrt(np.pi) / np.e)


def test_scipy_is_imported_only_when_used():
    code = "import sys, numpy as np; from gpt2 import autodiff as ad; ad.grad(np.exp)(1.0)"
    code += "; assert not [m for m in sys.modules if m.startswith('scipy')]"
    subprocess.run([sys.executable, "-c", code], check=True)
