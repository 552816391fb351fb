"""gpt2.autodiff.scipy: values against SciPy's, derivatives against finite differences."""

import contextlib

import numpy as np
import pytest

pytest.importorskip("scipy")
import scipy

from gpt2 import autodiff as ad
from gpt2.autodiff.scipy import linalg, signal, special, stats
from tests.support.trees import assert_close

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(5)
A = np.eye(3) * 2.0 + 0.4 * RNG.normal(size=(3, 3))
S = A @ A.T + np.eye(3)
B, V, W = RNG.normal(size=(3, 2)), RNG.normal(size=3), RNG.normal(size=5)
Z = np.array([-1.7, -0.2, 0.4, 2.1])
P = np.array([0.15, 0.4, 0.8])
Q = np.array([0.3, 1.0, 2.6])
IMAGE, KERNEL = RNG.normal(size=(4, 5)), RNG.normal(size=(2, 3))
BANDS = np.array([[0, 0, 0.3, 0.2, 0.1], [0, 0.2, 0.4, 0.3, 0.5], [3, 4, 5, 3, 4], [0.3, 0.2, 0.1, 0.5, 0]])
TALL = np.random.default_rng(3).normal(size=(5, 4))
LU, PIVOTS = scipy.linalg.lu_factor(A)

# name -> (function of floating-point arguments, its arguments, order to which it is differentiated)
CALLS = {
    "logsumexp": (lambda x: special.logsumexp(x, axis=1), (IMAGE,), 2),
    "logsumexp of all": (lambda x: special.logsumexp(x, keepdims=True), (IMAGE,), 2),
    "logsumexp, weights": (lambda x, b: special.logsumexp(x, axis=0, b=b), (IMAGE, np.exp(IMAGE)), 2),
    "softmax": (lambda x: special.softmax(x, axis=0), (IMAGE,), 2),
    "log_softmax": (lambda x: special.log_softmax(x, axis=1), (IMAGE,), 2),
    "polygamma": (lambda x: special.polygamma(2, x) + special.polygamma(0, x), (Q,), 2),
    "multigammaln": (lambda x: special.multigammaln(x, 3), (2.7,), 2),
    "expm": (linalg.expm, (A,), 2),
    "logm": (linalg.logm, (S,), 1),
    "sqrtm": (linalg.sqrtm, (S,), 2),
    "sinm, cosm": (lambda a: linalg.sinm(a) @ linalg.cosm(a), (A,), 1),
    "inv, det": (lambda a: linalg.inv(a) * linalg.det(a), (A,), 2),
    "pinv, norm": (lambda a: linalg.pinv(a) * linalg.norm(a), (B,), 1),
    "cholesky, upper": (lambda a: linalg.cholesky(a), (S,), 2),
    "cholesky, lower": (lambda a: linalg.cholesky(a, lower=True), (S,), 1),
    "cho_solve": (lambda a, b: linalg.cho_solve(linalg.cho_factor(a), b), (S, B), 1),
    "cho_solve, lower": (lambda a, b: linalg.cho_solve(linalg.cho_factor(a, lower=True), b), (S, V), 1),
    "solve": (lambda a, b: linalg.solve(a, b), (A, B), 2),
    "solve, positive": (lambda a, b: linalg.solve(a, b, assume_a="pos"), (S, V), 1),
    "solve, transposed": (lambda a, b: linalg.solve(a, b, transposed=True), (A, V), 1),
    "solve_triangular": (lambda a, b: linalg.solve_triangular(a, b), (A, B), 2),
    "solve_triangular, lower": (lambda a, b: linalg.solve_triangular(a, b, lower=True, trans="T"), (A, V), 1),
    "solve_triangular, unit": (lambda a, b: linalg.solve_triangular(a, b, unit_diagonal=True), (A, B), 1),
    "lu_solve": (lambda lu, b: linalg.lu_solve((lu, PIVOTS), b), (LU, B), 1),
    "lu_solve, transposed": (lambda lu, b: linalg.lu_solve((lu, PIVOTS), b, trans=1), (LU, V), 1),
    "lu_factor": (lambda a: linalg.lu_factor(a)[0], (A[[2, 0, 1]],), 2),
    "lu_factor, lu_solve": (lambda a, b: linalg.lu_solve(linalg.lu_factor(a), b), (A[[2, 0, 1]], B), 2),
    "solve_sylvester": (linalg.solve_sylvester, (A, S, A.T @ S), 1),
    "lyapunov": (linalg.solve_continuous_lyapunov, (A, S), 1),
    "lyapunov, discrete": (linalg.solve_discrete_lyapunov, (0.2 * A, S), 1),
    "toeplitz": (linalg.toeplitz, (V, W), 1),
    "toeplitz, symmetric": (lambda c: linalg.toeplitz(c), (V,), 1),
    "solve_toeplitz": (lambda c, b: linalg.solve_toeplitz(c, b), (np.array([3.0, 0.5, 0.2]), V), 1),
    "solve_banded": (lambda ab, b: linalg.solve_banded((1, 2), ab, b), (BANDS, W), 1),
    "block_diag": (linalg.block_diag, (A, B, V), 1),
    "eigh": (lambda a: linalg.eigh(a)[0] + np.sum(linalg.eigh(a)[1] ** 2 * a, 0), (S,), 1),
    "eigvalsh, two matrices": (lambda a, b: linalg.eigvalsh(a, b), (A + A.T, S), 1),
    "svd": (lambda a: linalg.svdvals(a) + linalg.svd(a, full_matrices=False)[1], (B,), 1),
    "qr": (lambda a: linalg.qr(a, mode="economic")[1] ** 2, (B,), 1),
    "pinv, tall": (linalg.pinv, (TALL,), 1),
    "pinv, rtol": (lambda a: linalg.pinv(a, rtol=1e-8), (TALL,), 1),
    "eigh, some values": (lambda a: linalg.eigh(a.T @ a, subset_by_index=[1, 2])[0], (TALL,), 1),
    "eigh, some vectors": (lambda a: linalg.eigh(a.T @ a, subset_by_index=[1, 2])[1] ** 2, (TALL,), 1),
    "eigvalsh, some values": (lambda a: linalg.eigvalsh(a.T @ a, subset_by_value=[0.5, 4.0]), (TALL,), 1),
    "qr, pivoting": (lambda a: linalg.qr(a, mode="economic", pivoting=True)[1], (TALL,), 1),
    "qr, positional": (lambda a: linalg.qr(a, False, None, "economic", True)[0], (TALL,), 1),
    "solve, positional": (
        lambda a: linalg.solve(a.T @ a, a.T, False, False, False, True, "pos"), (TALL,), 1
    ),
    "convolve": (lambda a, b: signal.convolve(a, b), (V, W), 2),
    "convolve, same": (lambda a, b: signal.convolve(a, b, mode="same"), (W, V), 1),
    "convolve, valid": (lambda a, b: signal.convolve(a, b, mode="valid"), (IMAGE, KERNEL), 1),
    "fftconvolve": (lambda a, b: signal.fftconvolve(a, b, mode="same"), (IMAGE, KERNEL), 2),
    "convolve2d": (lambda a, b: signal.convolve2d(a, b), (IMAGE, KERNEL), 1),
    "correlate": (lambda a, b: signal.correlate(a, b, mode="same"), (IMAGE, KERNEL), 1),
    "lfilter": (lambda b, a, x: signal.lfilter(b, a, x), (V, np.array([1.5, 0.3, -0.2, 0.1]), W), 1),
    "lfilter, FIR": (lambda b, x: signal.lfilter(b, [2.0], x, axis=0), (V, IMAGE), 1),
    "lfilter, gain": (lambda x: signal.lfilter([3.0], [2.0], x), (W,), 1),
    "lfilter, start": (lambda b, x, zi: signal.lfilter(b, [1.0, 0.5], x, zi=zi), (V[:2], W, V[:1]), 1),
    "multivariate normal": (stats.multivariate_normal.logpdf, (B.T, V, S), 1),
    "multivariate normal, pdf": (lambda x, m: stats.multivariate_normal.pdf(x, m, 2.0), (V, B[:, 0]), 1),
    "multivariate normal, default": (lambda x: stats.multivariate_normal.logpdf(x), (Z,), 1),
    "multivariate normal, entropy": (lambda a: stats.multivariate_normal.entropy(V, a), (S,), 2),
    "dirichlet": (lambda x, a: stats.dirichlet.logpdf(x / np.sum(x), a), (Q, Q + 1.0), 1),
}  # fmt: skip

# distribution -> (points, shape parameters)
DISTRIBUTIONS = {
    "norm": (Z, ()), "laplace": (Z, ()), "logistic": (Z, ()), "cauchy": (Z, ()), "gumbel_r": (Z, ()),
    "t": (Z, (3.4,)), "expon": (Q, ()), "uniform": (P, ()), "halfnorm": (Q, ()), "lognorm": (Q, (0.7,)),
    "gamma": (Q, (2.3,)), "chi2": (Q, (3.2,)), "invgamma": (Q, (2.2,)), "beta": (P, (1.7, 2.4)),
    "f": (Q, (3.1, 5.2)), "pareto": (Q + 1.0, (2.1,)), "weibull_min": (Q, (1.6,)), "rayleigh": (Q, ()),
}  # fmt: skip
# The derivative of their cdf by a shape parameter has no closed formula
NO_SHAPE = {"t", "gamma", "chi2", "invgamma", "beta", "f"}
DISCRETE = {
    "poisson": (np.array([0, 1, 4]), (2.3,)), "bernoulli": (np.array([0, 1]), (0.3,)),
    "binom": (np.array([0, 2, 5]), (5, 0.4)), "nbinom": (np.array([0, 2, 5]), (3.5, 0.4)),
    "geom": (np.array([1, 2, 5]), (0.4,)),
}  # fmt: skip


def check_value_and_grads(f, args, order=1, rtol=1e-9):
    """f compiled equals f on plain arrays, which go to SciPy; its gradients equal finite differences."""
    assert_close(ad.compile(f)(*args), f(*args), rtol=rtol, atol=1e-12)
    ad.check_grads(f, args, order=order)


@pytest.mark.parametrize("name", CALLS)
def test_function_values_and_derivatives(name):
    check_value_and_grads(*CALLS[name])


def check_vmap_and_second_derivatives(f, args):
    """`ad.vmap` of two examples is a loop; of the gradient too. What has no such derivative says so."""
    both = tuple(np.stack([a, np.asarray(a, float) * 1.0003 + 1e-4]) for a in args)

    def loss(*args):
        return sum(np.sum(np.sin(leaf)) for leaf in ad.tree.leaves(f(*args)))

    with contextlib.suppress(NotImplementedError):
        for g in (f, ad.grad(loss, tuple(range(len(args))))):
            loop = [ad.tree.leaves(g(*(a[k] for a in both))) for k in range(2)]
            for found, *expected in zip(ad.tree.leaves(ad.vmap(g)(*both)), *loop, strict=True):
                np.testing.assert_allclose(found, np.stack(expected), rtol=1e-8, atol=1e-10)
        ad.check_grads(f, args, order=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_vmap_and_second_derivatives(name):
    check_vmap_and_second_derivatives(*CALLS[name][:2])


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_continuous_distributions(name):
    x, shapes = DISTRIBUTIONS[name]
    d = getattr(stats, name)
    x = x * 1.3 + 0.2 if name not in ("uniform", "beta") else x
    for method in ("logpdf", "pdf"):
        check_value_and_grads(lambda x, s, *p: getattr(d, method)(x, *p, loc=0.1, scale=s), (x, 1.4, *shapes))  # noqa: B023
    check_value_and_grads(lambda x: d.logpdf(x, *shapes, 0.1, 1.5), (x,), order=2)
    for method in ("cdf", "logcdf", "sf", "logsf"):
        f = lambda x, loc, s, *p: getattr(d, method)(x, *(p or shapes), loc=loc, scale=s)  # noqa: B023, E731
        check_value_and_grads(f, (x, -0.2, 1.4, *(() if name in NO_SHAPE else shapes)), rtol=1e-8)
    if name in NO_SHAPE:
        with pytest.raises(ad.AutodiffError, match="no closed formula"):
            ad.grad(lambda a: np.sum(d.cdf(x, a, *shapes[1:])))(shapes[0])


@pytest.mark.parametrize("method", ["logpmf", "pmf"])
@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distributions(name, method):
    """Derivatives by the parameters that are floats."""
    k, shapes = DISCRETE[name]
    whole, floats = [s for s in shapes if type(s) is int], [s for s in shapes if type(s) is float]
    f = getattr(getattr(stats, name), method)
    check_value_and_grads(lambda *p: f(k, *whole, *p), tuple(floats), order=2)


def test_gradient_is_zero_outside_the_support():
    x = np.array([-1.0, 0.5, 2.0])
    for name in ("expon", "gamma", "beta", "lognorm", "uniform", "pareto", "weibull_min"):
        shapes = DISTRIBUTIONS[name][1]
        d = getattr(stats, name)
        np.testing.assert_allclose(ad.compile(lambda x: d.logpdf(x, *shapes))(x), d.logpdf(x, *shapes))  # noqa: B023
        g = ad.grad(lambda x: np.sum(d.pdf(x, *shapes) + d.cdf(x, *shapes)))(x)  # noqa: B023
        assert np.isfinite(g).all() and g[0] == 0.0


def test_nan_does_not_spread_to_earlier_samples_of_lfilter():
    x = np.array([1.0, 2.0, np.nan, 4.0])
    f = lambda x: signal.lfilter([1.0, 0.5], [1.0, -0.3], x)  # noqa: E731
    np.testing.assert_allclose(ad.compile(f)(x), f(x))
    assert np.isfinite(ad.jacobian(f)(x)[:2]).all()


def test_programs_with_scipy_calls_are_reused():
    g = ad.grad(lambda a: np.sum(linalg.expm(a)) + stats.norm.logpdf(a[0, 0]) + special.logsumexp(a[0]))
    np.testing.assert_array_equal(g(A), g(A))
    assert ad.why_recorded(g) is None


def test_modules_have_all_names_of_scipy():
    for ours in (special, linalg, stats, signal):
        for name in getattr(scipy, ours.__name__.split(".")[-1]).__all__:
            assert getattr(ours, name) is not None
    assert special.erf is scipy.special.erf and linalg.LinAlgError is scipy.linalg.LinAlgError
    assert (
        stats.norm.ppf(0.5) == 0.0 and stats.norm(1.0).mean() == 1.0 and signal.firwin(3, 0.5).shape == (3,)
    )
    assert stats.skewnorm.pdf(0.3, 1.0) == scipy.stats.skewnorm.pdf(0.3, 1.0)  # without a derivative rule
    assert stats.hypergeom.mean(20, 7, 12) == scipy.stats.hypergeom.mean(20, 7, 12)
    assert stats.wishart.mean(4, S).shape == (3, 3) and stats.skewnorm(1.0).mean() > 0.0


@pytest.mark.parametrize("call, message", [
    (lambda x: scipy.linalg.cholesky(x), r"test_modules.py:\d+: .* plain array.*gpt2.autodiff.scipy"),
    (lambda x: scipy.stats.norm.logpdf(x), r"test_modules.py:\d+: .*scipy.stats.*gpt2.autodiff.scipy"),
    (lambda x: linalg.schur(x)[0], r"test_modules.py:\d+: scipy.linalg.schur has no derivative"),
    (lambda x: linalg.solve(x, x, assume_a="diagonal"), "scipy.linalg.solve with assume_a='diagonal'"),
    (lambda x: linalg.lu_factor(np.stack([x, x])), "lu_factor of an array of shape"),
    (lambda x: stats.skewnorm.pdf(x, 1.0), r"test_modules.py:\d+: scipy.stats.skewnorm.pdf has no"),
    (lambda x: stats.skewnorm.pdf(1.0, x), r"scipy.stats.skewnorm.pdf has no derivative"),
    (lambda x: stats.wishart(4, x), r"scipy.stats.wishart has no derivative"),
    (lambda x: stats.multivariate_normal.cdf(x, x), r"scipy.stats.multivariate_normal.cdf has no derivative"),
    (lambda x: stats.norm.ppf(x), "scipy.stats.norm.ppf has no derivative rule"),
    (lambda x: stats.norm(x), r"scipy.stats.norm has no derivative"),
    (lambda x: signal.hilbert(x), "scipy.signal.hilbert has no derivative rule"),
    (lambda x: linalg.pinv(x, atol=0.1), r"test_modules.py:\d+: scipy.linalg.pinv with atol= has no"),
    (lambda x: linalg.eigh(x, driver="ev"), r"test_modules.py:\d+: scipy.linalg.eigh with driver= has no"),
    (lambda x: linalg.qr(x, many=1), r"test_modules.py:\d+: scipy.linalg.qr: got an unexpected .*'many'"),
    (lambda x: linalg.cholesky(x, True, True, False, 1), r"test_modules.py:\d+: .*cholesky: too many pos"),
])  # fmt: skip
def test_unsupported_calls_are_errors(call, message):
    with pytest.raises(ad.AutodiffError, match=message):
        ad.grad(lambda x: np.sum(call(x)))(S)


def test_pivots_of_qr_are_scipys():
    pivots = ad.compile(lambda a: linalg.qr(a, mode="economic", pivoting=True)[2])(TALL)
    np.testing.assert_array_equal(pivots, scipy.linalg.qr(TALL, mode="economic", pivoting=True)[2])
