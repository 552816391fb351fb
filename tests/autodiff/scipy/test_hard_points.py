"""SciPy's functions at edges of a support, at zeros of a pole and at knots, twice.

The right values are limits from inside, by hand: the Taylor series of each density stands beside its row.
"""

import itertools

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("mpmath")
import scipy.special as sp
from mpmath import mp, mpf

from gpt2 import autodiff as ad
from gpt2.autodiff.scipy import interpolate, linalg, special, stats
from tests.support.exact import distributions as exact
from tests.support.exact.points import SECOND, check_derivatives

pytestmark = [pytest.mark.numeric, pytest.mark.filterwarnings("ignore")]
A, inf = np.array, np.inf
COUNTS = np.arange(6.0)

# Forward over forward an infinity of one argument meets a tangent of 0 of another: nan
MIXED = [name for name in SECOND if name != "forward over forward"]

POINTS = {
    "gamma, a=1": (lambda x: stats.gamma.pdf(x, 1.0), 0.0, -1.0, 1.0),  # exp(-x)
    "gamma, a=2": (lambda x: stats.gamma.pdf(x, 2.0), 0.0, 1.0, -2.0),  # x - x**2 + ...
    "gamma, a=3": (lambda x: stats.gamma.pdf(x, 3.0), 0.0, 0.0, 1.0),  # x**2 / 2 - ...
    "gamma, a=2.5": (lambda x: stats.gamma.pdf(x, 2.5), 0.0, 0.0, inf),  # c x**1.5
    "gamma, a=1.5": (lambda x: stats.gamma.pdf(x, 1.5), 0.0, inf, -inf),  # c x**0.5
    "log of gamma": (lambda x: stats.gamma.logpdf(x, 2.0), 0.0, inf, -inf),  # log(x) - x
    "gamma.cdf": (lambda x: stats.gamma.cdf(x, 2.0), 0.0, 0.0, 1.0),  # x**2 / 2 - ...
    "beta at 0": (lambda x: stats.beta.pdf(x, 2.0, 2.0), 0.0, 6.0, -12.0),  # 6 x (1 - x)
    "beta at 1": (lambda x: stats.beta.pdf(x, 2.0, 2.0), 1.0, -6.0, -12.0),
    "chi2": (lambda x: stats.chi2.pdf(x, 4.0), 0.0, 0.25, -0.25),  # x / 4 - x**2 / 8 + ...
    "f": (lambda x: stats.f.pdf(x, 4.0, 6.0), 0.0, 16.0 / 3.0, -320.0 / 9.0),  # c x (1 + 2 x / 3)**-5
    "weibull_min": (lambda x: stats.weibull_min.pdf(x, 3.0), 0.0, 0.0, 6.0),  # 3 x**2 - ...
    "rayleigh": (lambda x: stats.rayleigh.pdf(x), 0.0, 1.0, 0.0),  # x - x**3 / 2 + ...
    "binom at 0": (lambda p: stats.binom.pmf(1, 5, p), 0.0, 5.0, -40.0),  # 5 p (1 - p)**4
    "binom at 1": (lambda p: stats.binom.pmf(4, 5, p), 1.0, -5.0, -40.0),
    "its second moment": (  # 5 p (1 - p) + 25 p**2
        lambda p: np.sum(COUNTS**2 * stats.binom.pmf(COUNTS, 5, p)),
        0.0,
        5.0,
        40.0,
    ),
    "bernoulli": (lambda p: stats.bernoulli.pmf(1, p), 0.0, 1.0, 0.0),
    "poisson": (lambda mu: stats.poisson.pmf(0, mu), 0.0, -1.0, 1.0),  # exp(-mu)
    "poisson.cdf": (lambda mu: stats.poisson.cdf(1, mu), 0.0, 0.0, -1.0),  # 1 - mu**2 / 2 + ...
    "nbinom": (lambda p: stats.nbinom.pmf(1, 3, p), 1.0, -3.0, -18.0),  # 3 p**3 (1 - p)
    "geom": (lambda p: stats.geom.pmf(2, p), 1.0, -1.0, -2.0),  # p (1 - p)
    "dirichlet": (  # 6 p (1 - p)
        lambda p: stats.dirichlet.pdf(np.stack([p, 1.0 - p]), A([2.0, 2.0])),
        0.0,
        6.0,
        -12.0,
    ),
    # x (x + 1) (x + 2)
    **{
        f"poch({x}, 3)": (lambda x: sp.poch(x, 3.0), x, 3 * x * x + 6 * x + 2, 6 * x + 6)
        for x in (0.0, -1.0, -2.0, -3.0)
    },
    "binom(0, 2)": (lambda n: sp.binom(n, 2.0), 0.0, -0.5, 1.0),  # n (n - 1) / 2
    "betainc": (lambda x: sp.betainc(2.0, 3.0, x), 0.0, 0.0, 12.0),  # 6 x**2 - ...
    "gammainc": (lambda x: sp.gammainc(2.0, x), 0.0, 0.0, 1.0),  # x**2 / 2 - ...
    "logsumexp of -inf": (lambda x: special.logsumexp(np.stack([x, x])), -inf, 0.0, None),
}


@pytest.mark.parametrize("name", POINTS)
def test_points(name):
    check_derivatives(*POINTS[name], rtol=1e-10)


def test_a_hessian_at_an_edge_is_symmetric():
    def density(v):
        return stats.gamma.pdf(v[0], 2.0, scale=v[1])  # x / s**2 exp(-x / s)

    check_derivatives(density, A([0.0, 1.0]), [1.0, 0.0], [[-2.0, -2.0], [-2.0, 0.0]])
    for name in MIXED:  # x log(x)
        by_shape = SECOND[name](lambda v: stats.gamma.pdf(v[0], v[1]))(A([0.0, 2.0]))
        np.testing.assert_allclose(by_shape, [[-2.0, -inf], [-inf, 0.0]], 1e-12)


@pytest.mark.parametrize("name, shape", [("gamma", 2.0), ("weibull_min", 3.0), ("beta", 2.0)])
def test_hessians_at_edges_against_mpmath(name, shape):
    """By x, loc, scale and all shapes, at two distances from the edge, whose limit they are."""
    law = exact.LAWS[name]
    others = (3.4,) if name == "beta" else ()
    args = (0.0, shape, *others, 0.0, 2.0)

    def density(*v):
        x, *shapes, loc, scale = v
        return exact.value_at(law, "pdf", (x - loc) / scale, shapes) / scale

    def second(i, j, distance):
        at, h = [distance, *map(mpf, args[1:])], distance * mpf(10) ** -15
        e = [[h * (k == m) for k in range(len(args))] for m in (i, j)]
        corners = [
            s * t * density(*(v + s * p + t * q for v, p, q in zip(at, *e))) for s in (1, -1) for t in (1, -1)
        ]
        return sum(corners) / (4 * h * h)

    found = [SECOND[mode](lambda v: getattr(stats, name).pdf(*v))(A(args)) for mode in MIXED]
    with mp.workdps(300):
        for i, j in itertools.product(range(len(args)), repeat=2):
            wanted = exact.limit([second(i, j, mpf(10) ** -25), second(i, j, mpf(10) ** -35)])
            if wanted is not None:
                np.testing.assert_allclose([h[i, j] for h in found], wanted, 1e-9, 1e-12, err_msg=f"{i}, {j}")


def test_mixed_derivatives_at_edges():
    """With infinities beside them, each by itself."""
    for f, x, wanted in (
        (lambda v: stats.beta.pdf(v[0], 3.4, 2.0, 0.0, v[1]), [2.0, 2.0], 12.716),  # at 1, by mpmath
        (lambda v: stats.gamma.logpdf(v[0], v[1]), [0.0, 1.0], inf),  # log(x)
        (lambda v: stats.weibull_min.cdf(v[0], v[1]), [0.0, 1.0], -inf),  # x log(x)
    ):
        second = ad.jacrev(ad.grad(f))(A(x))
        np.testing.assert_allclose([second[0, 1], second[1, 0]], wanted, 1e-5)
    second = ad.hessian(lambda v: stats.f.pdf(0.0, v[0], v[1]))(A([2.0, 3.4]))
    assert not np.isinf([second[0, 1], second[1, 0]]).any()  # finite, or nan beside an infinity


@pytest.mark.parametrize("kind", ["linear", "slinear", "quadratic", "cubic"])
@pytest.mark.parametrize("beyond", [{}, {"bounds_error": False}])
def test_interp1d_has_the_slope_from_inside_at_its_ends(kind, beyond):
    x = np.arange(4.0)
    first, last = (1.0, 5.0) if "linear" in kind else (0.0, 6.0)  # of x**2, or of its chords
    curve = interpolate.interp1d(x, x**2, kind=kind, **beyond)
    for at, slope in ((0.0, first), (3.0, last)):
        check_derivatives(lambda v: curve(v), at, slope)  # noqa: B023


def test_root_of_a_singular_matrix():
    singular, root = A([[1.0, 2.0], [2.0, 4.0]]), lambda x: np.sum(linalg.sqrtm(x))
    np.testing.assert_array_equal(ad.grad(root)(singular), [[inf, -inf], [-inf, inf]])
    np.testing.assert_allclose(ad.grad(root)(np.diag([4.0, 0.0])), [[0.25, 0.5], [0.5, inf]])
    along = ad.jvp(linalg.sqrtm, (singular,), (singular,))[1]
    np.testing.assert_allclose(along, linalg.sqrtm(singular) / 2.0, 1e-10)
