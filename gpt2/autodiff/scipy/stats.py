"""scipy.stats: densities and distribution functions. The derivative is with respect to every argument, but
for the shape of a distribution function that is an incomplete gamma or beta function.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.special as sp
import scipy.stats as _scipy

from ..errors import unsupported
from ..record.record import apply_op
from ..record.source_lines import here
from .passing import is_recorded, scipy_value
from .rules.distributions import LAWS

_LOG_2PI = math.log(2.0 * math.pi)


def __getattr__(name: str) -> Any:
    return scipy_value(_scipy, name)


def __dir__() -> list[str]:
    return dir(_scipy)


class Distribution:
    """A SciPy distribution. Some methods take recorded values, each as an op (rules/distributions.py); all
    others are SciPy's.
    """

    def __init__(self, name: str, methods: tuple[str, ...]):
        self._name, self._theirs, self._methods = name, getattr(_scipy, name), methods
        self._law = LAWS[name]

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

        def method(*args, **kwargs):
            if not is_recorded(args, kwargs):
                return value(*args, **kwargs)
            if name not in self._methods:
                raise unsupported(f"scipy.stats.{self._name}.{name}", here())
            return apply_op("distribution", *self._arguments(name, args, kwargs), law=self._name, method=name)

        method.__name__ = name
        return method

    def _arguments(self, method: str, args: tuple, kwargs: dict) -> list:
        """x, the shapes, loc and scale, from arguments by position and by name."""
        first, end = ("k", ()) if self._law.discrete else ("x", (("scale", 1.0),))
        arguments = {"loc": 0.0, **dict(end)}
        names = [first, *self._law.shapes, *arguments]
        for name, value in (*zip(names, args), *kwargs.items()):
            if name not in names or name in kwargs and name in names[: len(args)]:
                raise TypeError(f"scipy.stats.{self._name}.{method}: unexpected argument {name}")
            arguments[name] = value
        if len(args) > len(names) or len(arguments) < len(names):
            raise TypeError(f"scipy.stats.{self._name}.{method} takes {', '.join(names)}")
        return [np.asarray(v) if isinstance(v, (list, tuple)) else v for v in (arguments[n] for n in names)]


DENSITIES, TAILS = ("logpdf", "pdf"), ("cdf", "logcdf", "sf", "logsf")

_LAWS_WITH_TAILS = (
    "norm laplace logistic cauchy gumbel_r t expon uniform halfnorm lognorm gamma chi2 invgamma beta f "
    "pareto weibull_min rayleigh"
)
for _name in _LAWS_WITH_TAILS.split():
    globals()[_name] = Distribution(_name, DENSITIES + TAILS)
poisson = Distribution("poisson", ("logpmf", "pmf", *TAILS))
for _name in ("bernoulli", "binom", "nbinom", "geom"):
    globals()[_name] = Distribution(_name, ("logpmf", "pmf"))


class _Several:
    """A multivariate distribution: methods that subclasses do not define are SciPy's."""

    def __init__(self, name: str):
        self._name, self._theirs = name, getattr(_scipy, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return scipy_value(_scipy, self._theirs.__class__.__name__.removesuffix("_gen"))(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return scipy_value(self._theirs, name, f"scipy.stats.{self._name}")


class _Normal(_Several):
    def logpdf(self, x: Any, mean: Any = None, cov: Any = 1, allow_singular: Any = False) -> Any:
        """From the Cholesky factor of the covariance matrix, which has to be positive definite."""
        if not is_recorded((x, mean, cov)):
            return self._theirs.logpdf(x, mean, cov, allow_singular)
        if allow_singular:
            raise unsupported("scipy.stats.multivariate_normal.logpdf(allow_singular=True)", here())
        x = x if np.ndim(x) else np.reshape(x, (1,))
        sizes = [np.shape(v)[-1] for v in (mean, cov) if v is not None and np.ndim(v)]
        n = sizes[0] if sizes else 1  # as SciPy has it: numbers alone are of one dimension
        matrix = cov * np.eye(n) if np.ndim(cov) < 2 else cov
        half = np.linalg.cholesky(matrix)
        d = x if mean is None else x - mean
        flat = np.reshape(d, (-1, n))
        z = np.linalg.solve(half, np.swapaxes(flat, 0, 1))
        size = -0.5 * np.sum(z * z, axis=0) - np.sum(np.log(np.diagonal(half))) - 0.5 * n * _LOG_2PI
        infinite = np.any(np.isinf(flat), axis=1) & ~np.any(np.isnan(flat), axis=1)
        size = np.where(infinite, -np.inf, size)
        lead = np.shape(d) if n == 1 and np.ndim(d) == 1 else np.shape(d)[:-1]
        return np.squeeze(np.reshape(size, lead))

    def pdf(self, x: Any, mean: Any = None, cov: Any = 1, allow_singular: Any = False) -> Any:
        if not is_recorded((x, mean, cov)):
            return self._theirs.pdf(x, mean, cov, allow_singular)
        return np.exp(self.logpdf(x, mean, cov, allow_singular))

    def entropy(self, mean: Any = None, cov: Any = 1) -> Any:
        """Half the logarithm of det(2 pi e cov)."""
        if not is_recorded((mean, cov)):
            return self._theirs.entropy(mean, cov)
        sizes = [np.shape(v)[-1] for v in (mean, cov) if v is not None and np.ndim(v)]
        n = sizes[0] if sizes else 1
        half = np.linalg.cholesky(cov * np.eye(n) if np.ndim(cov) < 2 else cov)
        return np.sum(np.log(np.diagonal(half))) + 0.5 * n * (1.0 + _LOG_2PI)


class _Dirichlet(_Several):
    def logpdf(self, x: Any, alpha: Any) -> Any:
        if not is_recorded((x, alpha)):
            return self._theirs.logpdf(x, alpha)
        if np.shape(x)[0] != np.shape(alpha)[0]:  # the last probability may be left out
            x = np.concatenate([x, 1.0 - np.sum(x, axis=0, keepdims=True)])
        points = np.all(x >= 0.0, axis=0) & (np.abs(np.sum(x, axis=0) - 1.0) <= 1e-9)
        valid = points & np.all(alpha > 0.0)
        whole = sp.gammaln(np.sum(alpha)) - np.sum(sp.gammaln(alpha))
        weights = alpha - 1.0
        terms = sp.xlogy(np.reshape(weights, (-1, *(1,) * (np.ndim(x) - 1))), x)
        return (whole + np.sum(terms, axis=0)) * np.where(valid, 1.0, np.nan)  # an error of SciPy's is nan

    def pdf(self, x: Any, alpha: Any) -> Any:
        if not is_recorded((x, alpha)):
            return self._theirs.pdf(x, alpha)
        return np.exp(self.logpdf(x, alpha))


multivariate_normal = _Normal("multivariate_normal")
dirichlet = _Dirichlet("dirichlet")
