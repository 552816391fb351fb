"""Samples as differentiable functions of their distribution's parameters, at fixed noise.

A sample z of a distribution with the cumulative function F(z; a) moves with a so that F stays constant:

    dz/da = -(dF/da) / (dF/dz)

Figurnov, Mohamed and Mnih 2018, Implicit reparameterization gradients. `gamma_sample` and `t_sample` are ops
that give the sample itself, with that as the partial derivative by the shape or the degrees of freedom.

dF/da is an integral of the density times its score, from the lower end to z; or with the other sign from z to
the upper end, as the mean of a score is zero. The side is taken on which the score has one sign, or nearly,
so that nothing cancels. The integrand is cut off where it has fallen to e^-45 of its value at z, and
integrated by Gauss-Legendre quadrature. Relative errors are below 1e-10 for parameters up to 1e5.
"""

from __future__ import annotations

import numpy as np

from ..errors import UnsupportedError
from ..ops.table import Leads, apply, row

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_NODES, _WEIGHTS = (_NODES + 1.0) / 2.0, _WEIGHTS / 2.0  # on 0 .. 1
_DIGAMMA = [1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12]  # Bernoulli's, B_2k / 2k
_FALL = 45.0  # e^-45 is 3e-20


def digamma(x: np.ndarray) -> np.ndarray:
    """The derivative of log gamma, for positive x: by its recurrence, then its asymptotic series."""
    x = np.array(x, float)
    result = np.zeros_like(x)
    for _ in range(10):
        low = x < 10.0
        result[low] -= 1.0 / x[low]
        x[low] += 1.0
    y = 1.0 / (x * x)
    series = np.polynomial.polynomial.polyval(y, _DIGAMMA)
    return result + np.log(x) - 0.5 / x - y * series


def _width(exponent, x0: np.ndarray) -> np.ndarray:
    """Where an exponent has fallen by _FALL; x0 is a guess of the right scale."""
    high = x0.copy()
    for _ in range(200):
        short = exponent(high) > -_FALL
        if not short.any():
            break
        high[short] *= 2.0
    low = np.zeros_like(high)
    for _ in range(30):
        middle = 0.5 * (low + high)
        fell = exponent(middle) < -_FALL
        high, low = np.where(fell, middle, high), np.where(fell, low, middle)
    return high


def _integral(exponent, factor, width: np.ndarray) -> np.ndarray:
    """The integral of exp(exponent(y)) * factor(y) over y = 0 .. width, in four pieces."""
    total = np.zeros_like(width)
    for piece in range(4):
        for node, weight in zip(_NODES, _WEIGHTS):
            y = width * ((piece + node) / 4.0)
            total += weight / 4.0 * np.exp(exponent(y)) * factor(y)
    return total * width


def gamma_slope(a: np.ndarray, z: np.ndarray) -> np.ndarray:
    """dz/da of samples z of the gamma distribution with the shapes a and the scale 1."""
    shape = np.shape(z)
    a, z = (np.asarray(x, float).ravel() for x in (a, z))
    with np.errstate(all="ignore"):
        score = np.log(z) - digamma(a)
        sign = np.where(score < 0, -1.0, 1.0)

        def exponent(y):
            return sign * a * y - z * np.expm1(sign * y)

        def factor(y):
            return sign * score + y

        width = _width(exponent, 1.0 / (np.where(sign < 0, a, 1.0) + np.sqrt(a)))
        slope = z * _integral(exponent, factor, width)
    return np.where(z == 0, 0.0, slope).reshape(shape)


def t_slope(nu: np.ndarray, t: np.ndarray) -> np.ndarray:
    """dt/dnu of samples t of Student's distribution with nu degrees of freedom."""
    shape = np.shape(t)
    nu, t = (np.asarray(x, float).ravel() for x in (nu, t))
    size = np.abs(t)
    slope = np.zeros_like(size)
    constant = digamma((nu + 1.0) / 2.0) - digamma(nu / 2.0) - 1.0 / nu
    for inner in (True, False):
        side = (size < 1.5) == inner
        if side.any():
            slope[side] = _t_slope(nu[side], size[side], constant[side], inner)
    return (np.sign(t) * slope).reshape(shape)


def _t_slope(n: np.ndarray, x: np.ndarray, constant: np.ndarray, inner: bool) -> np.ndarray:
    """The slope of positive samples x, by the integral from 0 to x, or from x to infinity."""

    def score(s):
        u = s * s / n
        return 0.5 * (constant - np.log1p(u) + (n + 1.0) / n * u / (1.0 + u))

    def log_ratio(s):
        return -(n + 1.0) / 2.0 * (np.log1p(s * s / n) - np.log1p(x * x / n))

    if inner:
        return -_integral(log_ratio, score, x)

    def exponent(y):  # s = x e^y
        return np.where(y < 300.0, log_ratio(x * np.exp(np.minimum(y, 300.0))) + y, -2.0 * _FALL)

    def factor(y):
        return score(x * np.exp(np.minimum(y, 300.0)))

    return x * _integral(exponent, factor, _width(exponent, 1.0 / (1.0 + n)))


def _no_second_derivative(t, out, *args):
    raise UnsupportedError(
        "a second derivative by the shape of a gamma distribution, or the degrees of freedom of Student's, "
        "through their random numbers: there is a rule for the first one alone",
        out.loc,
    )


def _in_front(b, *args, **attrs):
    return apply(b.out.op, *(b.front(x, has) for x, has in zip(args, b.flags)), **attrs)


def _sample_row(name: str, slope) -> None:
    """The ops name_sample(parameter, z) and name_slope(parameter, z); both arguments have one shape."""
    row(
        f"{name}_sample",
        "nonlinear",
        infer=lambda a, z: (z.shape, z.dtype),
        evaluate=lambda a, z: np.array(z),
        jvp=_moved,
        leads=Leads(_in_front),
    )
    row(
        f"{name}_slope",
        "nonlinear",
        infer=lambda a, z: (z.shape, z.dtype),
        evaluate=lambda a, z: slope(a, z).astype(np.asarray(z).dtype),
        jvp=_no_second_derivative,
        leads=Leads(_in_front),
        cost=1000.0,
    )


def _moved(t, out, a, z):
    if t[0] is None:
        return t[1]
    by_a = t[0] * apply(out.op.replace("_sample", "_slope"), a, z)
    return by_a if t[1] is None else by_a + t[1]


_sample_row("gamma", gamma_slope)
_sample_row("t", t_slope)
