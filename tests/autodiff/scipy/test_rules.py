"""The rows that SciPy's functions have in the table of ops: derivatives in both modes to second order,
against differences, from the rows' own samples; and for many examples at once.
"""

import numpy as np
import pytest

pytest.importorskip("scipy")
import scipy.special as sp

from gpt2 import autodiff as ad
from gpt2.autodiff.check.numeric import check_graph
from gpt2.autodiff.ops import OPS, distributions, matrix_functions, special
from tests.autodiff.nested import test_batch
from tests.autodiff.ops.test_rules import instance

pytestmark = pytest.mark.numeric

ROWS = [*dict.fromkeys(special.OP_OF.values()), "matrix_function", "frechet", "distribution"]
CASES = [pytest.param(n, s, id=f"{n}-{i}") for n in ROWS for i, s in enumerate(OPS[n].samples)]
assert matrix_functions and distributions


@pytest.mark.parametrize("name, sample", CASES)
def test_derivatives(name, sample):
    graph, values = instance(name, sample, "float64")
    check_graph(graph, values, order=2 if "hyp" not in name else 1)


@pytest.mark.parametrize("name, sample", CASES)
def test_single_precision_stays(name, sample):
    graph, values = instance(name, sample, "float64", single=True)
    if len(values) == len(sample.args):  # no constant beside them
        assert graph.outputs[0].dtype == np.float32
        assert OPS[name].evaluate(*values, **sample.attrs).dtype == np.float32


@pytest.mark.parametrize("name, sample", [c for c in CASES if c.id.endswith("-0")])
def test_many_examples(name, sample):
    rng = np.random.default_rng(1)
    graph, values = test_batch.instance(name, sample, "float64", rng)
    for flags in filter(any, test_batch.flags_of(len(values))):
        test_batch.compared(graph, values, flags)


def test_users_code_needs_no_other_import():
    x = np.array([0.3, 0.7])
    f = lambda x: np.sum(sp.erf(x) * sp.gammaln(x) + sp.jv(0, x) + sp.digamma(x) + sp.xlogy(2, x))  # noqa: E731
    g = ad.grad(f)
    first = g(x)
    np.testing.assert_array_equal(first, g(x))
    assert ad.why_recorded(g) is None
    ad.check_grads(f, (x,))
    assert ad.grad(sp.expit)(0.0) == 0.25
    out = np.empty(2)
    assert ad.compile(lambda x: sp.expit(x, out=np.zeros_like(x)))(x).shape == out.shape


def test_edges():
    """At the ends of what a function is defined on, and far away."""
    big = np.array([-40.0, 40.0])
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(sp.log_ndtr(x)))(big), [40.0249688, 0.0], rtol=1e-6)
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(sp.expit(x)))(big * 20), [0.0, 0.0])
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(sp.log_expit(x)))(big * 20), [1.0, 0.0])
    assert ad.grad(lambda y: sp.xlogy(0.0, y))(2.0) == 0.0
    assert ad.grad(sp.j1)(0.0) == 0.5 and ad.grad(sp.erf)(0.0) == 2 / np.sqrt(np.pi)
    assert ad.grad(sp.spence)(1.0) == -1.0
    assert ad.grad(ad.grad(sp.gammaln))(1.0) == pytest.approx(np.pi**2 / 6)


def test_no_formula():
    with pytest.raises(ad.AutodiffError, match=r"test_rules.py:\d+: scipy.special.jv .* argument 0"):
        ad.grad(lambda v: sp.jv(v, 2.0))(1.0)
    assert ad.grad(lambda v, x: sp.jv(v, x), argnums=1)(1.0, 2.0) == pytest.approx(sp.jvp(1.0, 2.0))
    with pytest.raises(
        ad.AutodiffError, match=r"scipy.special.eval_legendre has no derivative rule(.|\n)*custom_vjp"
    ):
        ad.grad(lambda x: sp.eval_legendre(2, x))(1.0)
    for f in (
        lambda x: sp.airy(x)[0],
        lambda x: sp.erf(x, out=np.zeros(1)),
        lambda x: sp.betaln.reduceat(x, [0]),
    ):
        with pytest.raises(ad.AutodiffError, match=r"test_rules.py:\d+: scipy.special.(airy|erf|betaln)"):
            ad.grad(f)(np.ones(1))


def test_scipy_is_not_imported_without_need():
    import subprocess
    import sys

    code = "import sys, numpy as np; from gpt2 import autodiff as ad; ad.grad(np.exp)(1.0)"
    code += "; assert not [m for m in sys.modules if m.startswith('scipy')]"
    subprocess.run([sys.executable, "-c", code], check=True)
