"""scipy.stats: densities and distribution functions. The derivative is with respect to every argument, but
for the shape of a distribution function that is an incomplete gamma or beta function.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special as sp
import scipy.stats as _scipy

from ..errors import unsupported
from ..record.source_lines import here
from .passing import is_recorded, passed_on

_LOG_2PI = math.log(2.0 * math.pi)


def __getattr__(name: str) -> Any:
    return passed_on(_scipy, name)


def __dir__() -> list[str]:
    return dir(_scipy)


class Distribution:
    """A distribution of SciPy's. Methods with a formula here take recorded values; all others are SciPy's.

    log_density   log of the density (or of the probability) at z = (x - loc) / scale, of z and the shapes
    cdf           its distribution function; `log_cdf` and `sf` where there is something better than the
                  logarithm of it and 1 - cdf
    inside        where it has a density; -inf elsewhere
    """

    def __init__(
        self,
        name: str,
        log_density: Callable,
        cdf: Callable | None = None,
        log_cdf: Callable | None = None,
        sf: Callable | None = None,
        inside: Callable | None = None,
        middle: float = 0.5,
    ):
        self._name, self._theirs = name, getattr(_scipy, name)
        self._log_density, self._cdf, self._log_cdf, self._sf = log_density, cdf, log_cdf, sf
        self._inside, self._middle = inside, middle
        self._shapes = list(inspect.signature(log_density).parameters)[1:]
        self._discrete = isinstance(self._theirs, _scipy.rv_discrete)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_recorded(args, kwargs):
            raise unsupported(
                f"scipy.stats.{self._name}(...)", here(), "frozen with a recorded value is not recorded"
            )
        return self._theirs(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._theirs, name)
        if not callable(value):
            return value
        made = {"logpdf": self._log, "logpmf": self._log, "pdf": self._plain, "pmf": self._plain}
        made |= {"cdf": self._below, "logcdf": self._log_below, "sf": self._above, "logsf": self._log_above}

        def method(*args, **kwargs):
            if not is_recorded(args, kwargs):
                return value(*args, **kwargs)
            if name not in made:
                raise unsupported(f"scipy.stats.{self._name}.{name}", here())
            return made[name](*self._standard(args, kwargs))

        method.__name__ = name
        return method

    def _standard(self, args: tuple, kwargs: dict) -> tuple:
        """(z, scale, shapes), from arguments by position and by name."""
        names = [*self._shapes, "loc"] if self._discrete else [*self._shapes, "loc", "scale"]
        x, *rest = args if args else (kwargs["k" if self._discrete else "x"],)
        given = {
            **dict(zip(names, rest, strict=False)),
            **{k: v for k, v in kwargs.items() if k not in ("x", "k")},
        }
        scale = given.get("scale", 1.0)
        z = x - given["loc"] if "loc" in given else x
        z = z / scale if "scale" in given else z
        return z, scale, [given[n] for n in self._shapes]

    def _log(self, z, scale, shapes):
        value = self._within(z, shapes, lambda z: self._log_density(z, *shapes), -np.inf)
        return value - np.log(scale) if not self._discrete else value

    def _plain(self, z, scale, shapes):
        return np.exp(self._log(z, scale, shapes))

    def _within(self, z, shapes, f: Callable, outside: float):
        """f(z) where there is a density; elsewhere it is computed in the middle, so that nothing is nan."""
        if self._inside is None:
            return f(z)
        good = self._inside(z, *shapes)
        return np.where(good, f(np.where(good, z, self._middle)), outside)

    def _distribution(self, z, shapes):
        if self._cdf is None:
            raise unsupported(f"scipy.stats.{self._name}.cdf", here())
        return self._cdf(z, *shapes)

    def _below(self, z, scale, shapes):
        return self._distribution(z, shapes)

    def _log_below(self, z, scale, shapes):
        return self._log_cdf(z, *shapes) if self._log_cdf else np.log(self._distribution(z, shapes))

    def _above(self, z, scale, shapes):
        return self._sf(z, *shapes) if self._sf else 1.0 - self._distribution(z, shapes)

    def _log_above(self, z, scale, shapes):
        return np.log(self._above(z, scale, shapes))


def _positive(z, *shapes):
    return z > 0


def _not_negative(z, *shapes):
    return z >= 0


def _clipped(z):
    return np.where(z > 0, z, 0.0)


def _t_log(z, df):
    half = 0.5 * (df + 1.0)
    return sp.gammaln(half) - sp.gammaln(0.5 * df) - 0.5 * np.log(df * math.pi) - half * np.log1p(z * z / df)


def _t_cdf(z, df):
    tail = 0.5 * sp.betainc(0.5 * df, 0.5, df / (df + z * z))
    return np.where(z > 0, 1.0 - tail, tail)


def _f_log(z, dfn, dfd):
    a, b = 0.5 * dfn, 0.5 * dfd
    return a * np.log(dfn / dfd) + (a - 1.0) * np.log(z) - (a + b) * np.log1p(z * dfn / dfd) - sp.betaln(a, b)


def _choose(n, k):
    return sp.gammaln(n + 1.0) - sp.gammaln(k + 1.0) - sp.gammaln(n - k + 1.0)


norm = Distribution(
    "norm", lambda z: -0.5 * (z * z + _LOG_2PI), sp.ndtr, log_cdf=sp.log_ndtr, sf=lambda z: sp.ndtr(-z)
)
laplace = Distribution(
    "laplace",
    lambda z: -np.abs(z) - math.log(2.0),
    lambda z: np.where(z > 0, 1.0 - 0.5 * np.exp(-np.abs(z)), 0.5 * np.exp(-np.abs(z))),
)
logistic = Distribution(
    "logistic",
    lambda z: sp.log_expit(z) + sp.log_expit(-z),
    sp.expit,
    log_cdf=sp.log_expit,
    sf=lambda z: sp.expit(-z),
)
cauchy = Distribution(
    "cauchy", lambda z: -math.log(math.pi) - np.log1p(z * z), lambda z: 0.5 + np.arctan(z) / math.pi
)
gumbel_r = Distribution(
    "gumbel_r", lambda z: -z - np.exp(-z), lambda z: np.exp(-np.exp(-z)), log_cdf=lambda z: -np.exp(-z)
)
t = Distribution("t", _t_log, _t_cdf)
expon = Distribution("expon", lambda z: -z, lambda z: -np.expm1(-_clipped(z)), inside=_not_negative)
uniform = Distribution(
    "uniform", lambda z: z * 0.0, lambda z: np.clip(z, 0.0, 1.0), inside=lambda z: (z >= 0) & (z <= 1)
)
halfnorm = Distribution(
    "halfnorm",
    lambda z: 0.5 * (math.log(2.0 / math.pi) - z * z),
    lambda z: sp.erf(_clipped(z) / math.sqrt(2.0)),
    inside=_not_negative,
)
lognorm = Distribution(
    "lognorm",
    lambda z, s: -0.5 * (np.log(z) / s) ** 2 - np.log(s * z) - 0.5 * _LOG_2PI,
    lambda z, s: np.where(z > 0, sp.ndtr(np.log(np.where(z > 0, z, 1.0)) / s), 0.0),
    inside=_positive,
)
gamma = Distribution(
    "gamma",
    lambda z, a: sp.xlogy(a - 1.0, z) - z - sp.gammaln(a),
    lambda z, a: sp.gammainc(a, _clipped(z)),
    sf=lambda z, a: sp.gammaincc(a, _clipped(z)),
    inside=_positive,
)
chi2 = Distribution(
    "chi2",
    lambda z, df: sp.xlogy(0.5 * df - 1.0, z) - 0.5 * z - sp.gammaln(0.5 * df) - 0.5 * math.log(2.0) * df,
    lambda z, df: sp.gammainc(0.5 * df, 0.5 * _clipped(z)),
    sf=lambda z, df: sp.gammaincc(0.5 * df, 0.5 * _clipped(z)),
    inside=_positive,
)
invgamma = Distribution(
    "invgamma",
    lambda z, a: -(a + 1.0) * np.log(z) - sp.gammaln(a) - 1.0 / z,
    lambda z, a: np.where(z > 0, sp.gammaincc(a, 1.0 / np.where(z > 0, z, 1.0)), 0.0),
    inside=_positive,
)
beta = Distribution(
    "beta",
    lambda z, a, b: sp.xlogy(a - 1.0, z) + sp.xlog1py(b - 1.0, -z) - sp.betaln(a, b),
    lambda z, a, b: sp.betainc(a, b, np.clip(z, 0.0, 1.0)),
    inside=lambda z, a, b: (z > 0) & (z < 1),
)
f = Distribution(
    "f",
    _f_log,
    lambda z, dfn, dfd: sp.betainc(0.5 * dfn, 0.5 * dfd, dfn * _clipped(z) / (dfn * _clipped(z) + dfd)),
    inside=_positive,
)
pareto = Distribution(
    "pareto",
    lambda z, b: np.log(b) - (b + 1.0) * np.log(z),
    lambda z, b: np.where(z > 1, 1.0 - np.where(z > 1, z, 1.0) ** -b, 0.0),
    inside=lambda z, b: z >= 1,
    middle=2.0,
)
weibull_min = Distribution(
    "weibull_min",
    lambda z, c: np.log(c) + (c - 1.0) * np.log(z) - z**c,
    lambda z, c: np.where(z > 0, -np.expm1(-(np.where(z > 0, z, 1.0) ** c)), 0.0),
    inside=_positive,
)
rayleigh = Distribution(
    "rayleigh",
    lambda z: np.log(z) - 0.5 * z * z,
    lambda z: -np.expm1(-0.5 * _clipped(z) ** 2),
    inside=_positive,
)
poisson = Distribution(
    "poisson",
    lambda z, mu: sp.xlogy(z, mu) - sp.gammaln(z + 1.0) - mu,
    lambda z, mu: np.where(z < 0, 0.0, sp.gammaincc(np.floor(_clipped(z)) + 1.0, mu)),
    inside=_not_negative,
)
bernoulli = Distribution(
    "bernoulli",
    lambda z, p: sp.xlogy(z, p) + sp.xlog1py(1.0 - z, -p),
    inside=lambda z, p: (z == 0) | (z == 1),
)
binom = Distribution(
    "binom",
    lambda z, n, p: _choose(n, z) + sp.xlogy(z, p) + sp.xlog1py(n - z, -p),
    inside=lambda z, n, p: (z >= 0) & (z <= n),
)
nbinom = Distribution(
    "nbinom",
    lambda z, n, p: _choose(z + n - 1.0, z) + n * np.log(p) + sp.xlog1py(z, -p),
    inside=_not_negative,
)
geom = Distribution(
    "geom", lambda z, p: sp.xlog1py(z - 1.0, -p) + np.log(p), inside=lambda z, p: z >= 1, middle=1.0
)


class _Several:
    """A distribution of vectors: its methods are here, all others SciPy's."""

    def __init__(self, name: str):
        self._name, self._theirs = name, getattr(_scipy, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return passed_on(_scipy, self._theirs.__class__.__name__.removesuffix("_gen"))(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return passed_on(self._theirs, name, f"scipy.stats.{self._name}")


class _Normal(_Several):
    def logpdf(self, x: Any, mean: Any = None, cov: Any = 1, allow_singular: Any = False) -> Any:
        """From the Cholesky factor of the covariance matrix, which has to be positive definite."""
        if not is_recorded((x, mean, cov)):
            return self._theirs.logpdf(x, mean, cov, allow_singular)
        if allow_singular:
            raise unsupported("scipy.stats.multivariate_normal.logpdf(allow_singular=True)", here())
        x = x if np.ndim(x) else np.reshape(x, (1,))
        given = [np.shape(v)[-1] for v in (mean, cov) if v is not None and np.ndim(v)]
        n = given[0] if given else 1  # as SciPy has it: numbers alone are of one dimension
        matrix = cov * np.eye(n) if np.ndim(cov) < 2 else cov
        half = np.linalg.cholesky(matrix)
        d = x if mean is None else x - mean
        flat = np.reshape(d, (-1, n))
        z = np.linalg.solve(half, np.swapaxes(flat, 0, 1))
        size = -0.5 * np.sum(z * z, axis=0) - np.sum(np.log(np.diagonal(half))) - 0.5 * n * _LOG_2PI
        lead = np.shape(d) if n == 1 and np.ndim(d) == 1 else np.shape(d)[:-1]
        return np.squeeze(np.reshape(size, lead))

    def pdf(self, x: Any, mean: Any = None, cov: Any = 1, allow_singular: Any = False) -> Any:
        if not is_recorded((x, mean, cov)):
            return self._theirs.pdf(x, mean, cov, allow_singular)
        return np.exp(self.logpdf(x, mean, cov, allow_singular))

    def entropy(self, mean: Any = None, cov: Any = 1) -> Any:
        """Half the logarithm of det(2 pi e cov), whatever the mean is."""
        if not is_recorded((mean, cov)):
            return self._theirs.entropy(mean, cov)
        given = [np.shape(v)[-1] for v in (mean, cov) if v is not None and np.ndim(v)]
        n = given[0] if given else 1
        half = np.linalg.cholesky(cov * np.eye(n) if np.ndim(cov) < 2 else cov)
        return np.sum(np.log(np.diagonal(half))) + 0.5 * n * (1.0 + _LOG_2PI)


class _Dirichlet(_Several):
    def logpdf(self, x: Any, alpha: Any) -> Any:
        if not is_recorded((x, alpha)):
            return self._theirs.logpdf(x, alpha)
        if np.shape(x)[0] != np.shape(alpha)[0]:  # the last probability may be left out
            x = np.concatenate([x, 1.0 - np.sum(x, axis=0, keepdims=True)])
        whole = sp.gammaln(np.sum(alpha)) - np.sum(sp.gammaln(alpha))
        weights = alpha - 1.0
        return whole + np.sum(sp.xlogy(np.reshape(weights, (-1, *(1,) * (np.ndim(x) - 1))), x), axis=0)

    def pdf(self, x: Any, alpha: Any) -> Any:
        if not is_recorded((x, alpha)):
            return self._theirs.pdf(x, alpha)
        return np.exp(self.logpdf(x, alpha))


multivariate_normal = _Normal("multivariate_normal")
dirichlet = _Dirichlet("dirichlet")
