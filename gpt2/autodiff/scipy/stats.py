"""scipy.stats: densities and distribution functions. The derivative is with respect to every argument, but
for the shape of a distribution function that is an incomplete gamma or beta function.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special as sp
import scipy.stats as _scipy

from ..record.record import apply_op
from .passing import Delegate, is_recorded, names_of, ours
from .rules.distributions import LAWS

_LOG_2PI = math.log(2.0 * math.pi)

__getattr__, __dir__ = names_of(_scipy)


# Laws that are another one: its name, and its arguments from (x, *shapes, loc, scale)
SAME = {
    "chi2": ("gamma", lambda x, df, loc, scale: (x, 0.5 * df, loc, 2.0 * scale)),
    "bernoulli": ("binom", lambda k, p, loc: (k, 1.0, p, loc)),
}


def _rule(name: str, method: str) -> Callable:
    """A method of a distribution, which is an op for recorded values (rules/distributions.py)."""
    theirs = getattr(getattr(_scipy, name), method)
    law, arguments_of = SAME.get(name, (name, lambda *values: values))
    shapes = getattr(_scipy, name).shapes
    defaults = {"loc": 0.0} if LAWS[law].discrete else {"loc": 0.0, "scale": 1.0}
    names = ["k" if LAWS[law].discrete else "x", *(shapes.split(", ") if shapes else ()), *defaults]

    @functools.wraps(theirs)
    def rule(*args, **kwargs):
        if not is_recorded(args, kwargs):
            return theirs(*args, **kwargs)
        arguments = {**defaults, **dict(zip(names, args)), **kwargs}
        if len(args) > len(names) or set(arguments) != set(names) or set(kwargs) & set(names[: len(args)]):
            raise TypeError(f"scipy.stats.{name}.{method} takes {', '.join(names)}, each once")
        values = (arguments[n] for n in names)
        values = (np.asarray(v) if isinstance(v, (list, tuple)) else v for v in values)
        return apply_op("distribution", *arguments_of(*values), law=law, method=method)

    return rule


TAILS = ("cdf", "logcdf", "sf", "logsf")
for _name in (*LAWS, *SAME):
    _law = LAWS[SAME.get(_name, (_name,))[0]]
    _methods = [f"log{_law.density}", _law.density]
    _methods += TAILS if not _law.discrete or _name == "poisson" else ()
    _rules = {method: _rule(_name, method) for method in _methods}
    globals()[_name] = Delegate(getattr(_scipy, _name), f"scipy.stats.{_name}", _rules)


_of_normal = ours(_scipy.multivariate_normal, "scipy.stats.multivariate_normal")
_of_dirichlet = ours(_scipy.dirichlet, "scipy.stats.dirichlet")


class _Normal(Delegate):
    @staticmethod
    def _factor(mean: Any, cov: Any) -> tuple[int, Any]:
        """The dimension (of numbers alone it is 1, as in SciPy) and the Cholesky factor of the covariance."""
        sizes = [np.shape(v)[-1] for v in (mean, cov) if v is not None and np.ndim(v)]
        n = sizes[0] if sizes else 1
        return n, np.linalg.cholesky(cov * np.eye(n) if np.ndim(cov) < 2 else cov)

    @staticmethod
    @_of_normal
    def logpdf(x: Any, mean: Any = None, cov: Any = 1) -> Any:
        """From the Cholesky factor of the covariance matrix, which has to be positive definite."""
        x = x if np.ndim(x) else np.reshape(x, (1,))
        n, half = _Normal._factor(mean, cov)
        d = x if mean is None else x - mean
        flat = np.reshape(d, (-1, n))
        z = np.linalg.solve(half, np.swapaxes(flat, 0, 1))
        size = -0.5 * np.sum(z * z, axis=0) - np.sum(np.log(np.diagonal(half))) - 0.5 * n * _LOG_2PI
        infinite = np.any(np.isinf(flat), axis=1) & ~np.any(np.isnan(flat), axis=1)
        size = np.where(infinite, -np.inf, size)
        lead = np.shape(d) if n == 1 and np.ndim(d) == 1 else np.shape(d)[:-1]
        return np.squeeze(np.reshape(size, lead))

    @staticmethod
    @_of_normal
    def pdf(x: Any, mean: Any = None, cov: Any = 1) -> Any:
        return np.exp(_Normal.logpdf(x, mean, cov))

    @staticmethod
    @_of_normal
    def entropy(mean: Any = None, cov: Any = 1) -> Any:
        """Half the logarithm of det(2 pi e cov)."""
        n, half = _Normal._factor(mean, cov)
        return np.sum(np.log(np.diagonal(half))) + 0.5 * n * (1.0 + _LOG_2PI)


class _Dirichlet(Delegate):
    @staticmethod
    def _parts(x: Any, alpha: Any) -> tuple:
        """All probabilities, of which the last may be left out; their powers; the logarithm of the factor."""
        if np.shape(x)[0] != np.shape(alpha)[0]:
            x = np.concatenate([x, 1.0 - np.sum(x, axis=0, keepdims=True)])
        powers = np.reshape(alpha - 1.0, (-1, *(1,) * (np.ndim(x) - 1)))
        return x, powers, sp.gammaln(np.sum(alpha)) - np.sum(sp.gammaln(alpha))

    @staticmethod
    @_of_dirichlet
    def logpdf(x: Any, alpha: Any) -> Any:
        x, weights, whole = _Dirichlet._parts(x, alpha)
        points = np.all(x >= 0.0, axis=0) & (np.abs(np.sum(x, axis=0) - 1.0) <= 1e-9)
        valid = points & np.all(alpha > 0.0)
        return (whole + np.sum(sp.xlogy(weights, x), axis=0)) * np.where(
            valid, 1.0, np.nan
        )  # an error of SciPy's is nan

    @staticmethod
    @_of_dirichlet
    def pdf(x: Any, alpha: Any) -> Any:
        """The exponential of logpdf; with a probability of 0 a product of powers, which have derivatives."""
        x, weights, whole = _Dirichlet._parts(x, alpha)
        edge = np.any(x == 0.0, axis=0)
        inner = np.where(edge, 1.0 / np.shape(x)[0], x)
        powers = np.prod(np.where(edge, x, 1.0) ** weights, axis=0) * np.exp(whole)
        return np.where(edge, powers, np.exp(_Dirichlet.logpdf(inner, alpha)))


multivariate_normal = _Normal(_scipy.multivariate_normal, "scipy.stats.multivariate_normal")
dirichlet = _Dirichlet(_scipy.dirichlet, "scipy.stats.dirichlet")
