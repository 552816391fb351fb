"""The ufuncs of scipy.special that have derivatives. Loaded when one of them is first recorded.

PARTIALS has for each name its partial derivatives, in ops again, so that derivatives of any order follow.
None: there is no formula for that argument (the order of a Bessel function, the shape of an incomplete gamma
function), and its derivative is an UnsupportedError.

`OP_OF` has the op for each ufunc. Formulas: DLMF, dlmf.nist.gov.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy.special

from ...errors import UnsupportedError
from ...graph import Node
from ...ops import leads
from ...ops.build import absolute, cos, equal, exp, floor, log, sign, sin, sqrt, square, where
from ...ops.elementwise import broadcast_shape, ufunc_dtype
from ...ops.table import SEVERAL, apply, row

PREFIX = "special_"
OP_OF: dict[np.ufunc, str] = {}

NAN, INF = math.nan, math.inf
ROOT_PI, ROOT_TWO_PI = math.sqrt(math.pi), math.sqrt(2.0 * math.pi)


def f(name: str) -> Callable[..., Node]:
    """The function that makes a node of that ufunc."""
    return lambda *args: apply(PREFIX + name, *args)


psi, zeta, gamma, gammaln, beta, betaln = map(f, "psi zeta gamma gammaln beta betaln".split())
expit, jv, yv, iv, kv, ive, kve = map(f, "expit jv yv iv kv ive kve".split())
j0, j1, y0, y1, i0, i1, i0e, i1e = map(f, "j0 j1 y0 y1 i0 i1 i0e i1e".split())
k0, k1, k0e, k1e, ellipk, ellipe = map(f, "k0 k1 k0e k1e ellipk ellipe".split())
erfcx, log1p, hyp1f1, hyp2f1, betaincinv = map(f, "erfcx log1p hyp1f1 hyp2f1 betaincinv".split())
xlogy, xlog1py = f("xlogy"), f("xlog1py")


def psi_rise(x: Node, h: Node | float) -> Node:
    """psi(x + h) - psi(x)."""
    return apply(PREFIX + "psi_rise", x, h)


def valid(out: Node, slope: Node) -> Node:
    """The slope, which is nan where the value is."""
    return where(equal(out, out), slope, NAN)


def _far(x, limit, series, formula):
    """formula(x), whose terms cancel for large x, and series(1 / x**2) beyond the limit."""
    far = absolute(x) > limit
    return where(far, series(1.0 / square(where(far, x, limit))), formula)


def _near(x, size, series, formula):
    """formula(x), whose terms cancel around 0, and series(x) for smaller |x|."""
    near = absolute(x) < size
    return where(near, series(where(near, x, 0.0)), formula(where(near, size, x)))


def _erfcx(out, x):
    def series(u):
        return u * (-0.5 + u * (0.75 + u * (-1.875 + u * 6.5625))) * (2.0 / ROOT_PI)

    return where(x > 50.0, _far(x, 50.0, series, x), 2.0 * x * out - 2.0 / ROOT_PI)


def _rgamma(out, x):
    """By reflection below 1/2, where out is 0 and psi infinite at the poles of gamma."""
    low = x < 0.5
    z = where(low, x, 0.0)
    turn = math.pi * (z - 2.0 * apply("rint", 0.5 * z))
    slope = gamma(1.0 - z) * (cos(turn) - sin(turn) * psi(1.0 - z) / math.pi)
    return where(low, slope, -out * psi(where(low, 1.0, where(x < 1e3, x, 1e3))))


def _gamma_density(a, x):
    """At 0 as a power, whose derivatives are exact there."""
    z = where(x < 1e300, where(equal(x, 0.0), 1.0, x), 1e300)  # no difference of infinities
    at_0 = where(equal(x, 0.0), x, 0.0) ** (a - 1.0) * exp(-x - gammaln(a))
    return where(equal(x, 0.0), at_0, exp(xlogy(a - 1.0, z) - z - gammaln(a)))


def _beta_density(a, b, x):
    """At 0 and 1 as a product of powers, whose derivatives are exact there."""
    edge = equal(x * (1.0 - x), 0.0)
    z, u = where(edge, 0.5, x), where(edge, x, 0.5)
    at_edge = u ** (a - 1.0) * (1.0 - u) ** (b - 1.0) / beta(a, b)
    return where(edge, at_edge, exp(xlogy(a - 1.0, z) + xlog1py(b - 1.0, -z) - betaln(a, b)))


def _binom(out, k, slope):
    """0 for a k of -inf, where the value is 0 and the difference of psi nan."""
    return valid(out, where(equal(absolute(k), INF), 0.0, slope))


def _poch(out, z, m, share=1.0):
    """The slope by z of share * gamma(z + m) / gamma(z), which is 0 where gamma(z) has a pole."""
    pole = (z <= 0.0) * equal(z, floor(z)) * (z + m > 0.0)
    start, end = where(pole, z, 0.0), where(pole, z + m, 1.0)
    there = gamma(end) * _rgamma(out, start) * share + out * psi(end)
    return where(pole, there, out * psi_rise(where(pole, 1.0, z), m))


def _beta_inverse(out, a, b, y):
    """From 1 - out where that is small, as out has no digits of it."""
    high = (y > 0.5) * (out > 0.5)
    rest = betaincinv(b, a, 1.0 - where(high, y, 0.5))
    return 1.0 / where(high, _beta_density(b, a, rest), _beta_density(a, b, out))


def _log_ratio(x, y):
    """log(x / y), also near 1 and where the quotient is out of range."""
    rest = (x - y) / y
    near = absolute(rest) < 0.5
    return where(near, log1p(where(near, rest, 0.0)), log(x) - log(y))


def _quotient(x, y):
    """x / y, which is 0 for x = 0."""
    zero = equal(x, 0.0)
    return where(zero, 0.0, x / where(zero, 1.0, y))


def _hankel_slope(v, x, sign_of_terms):
    """The derivative of Hankel's series for ive or kve, over its first term. DLMF 10.40.1, 10.40.2."""
    mu, term, slope = 4.0 * v * v, 1.0, -0.5
    for k in range(1, 7):
        term = term * (mu - (2.0 * k - 1.0) ** 2) * (sign_of_terms / (8.0 * k)) / x
        slope = slope - (k + 0.5) * term
    return slope / x


def _ive(out, v, x, formula):
    """The slope of ive, whose terms cancel for large x."""
    far = absolute(x) > 1e4
    z = where(far, x, 1e4)
    series = sign(out) * sign(z) / sqrt(2.0 * math.pi * absolute(z)) * _hankel_slope(v, absolute(z), -1.0)
    return where(far, series, formula)


def _i1e(out, x):
    """It is odd, so its slope is that of |x|."""
    z = absolute(x)
    return _ive(absolute(out), 1.0, z, 0.5 * (i0e(z) + ive(2.0, z)) - absolute(out))


def _kve(v, x, formula):
    far = x > 1e4
    z = where(far, x, 1e4)
    return where(far, sqrt(0.5 * math.pi / z) * _hankel_slope(v, z, 1.0), formula)


def _from_infinity(out, slope):
    """The slope, infinite where out is: there its terms are, of both signs."""
    return where(equal(absolute(out), INF), -out, valid(out, slope))


PARTIALS: dict[str, Callable] = {
    # error functions and the normal distribution
    "erf": lambda out, x: ((2.0 / ROOT_PI, exp(-square(x))),),
    "erfc": lambda out, x: ((-2.0 / ROOT_PI, exp(-square(x))),),
    "erfcx": lambda out, x: (_erfcx(out, x),),
    "erfi": lambda out, x: ((2.0 / ROOT_PI, exp(square(x))),),
    "erfinv": lambda out, x: ((0.5 * ROOT_PI, exp(square(out))),),
    "erfcinv": lambda out, x: ((-0.5 * ROOT_PI, exp(square(out))),),
    "dawsn": lambda out, x: (
        _far(x, 50.0, lambda u: -u * (0.5 + u * (0.75 + u * (1.875 + u * 6.5625))), 1.0 - 2.0 * x * out),
    ),
    "ndtr": lambda out, x: ((1.0 / ROOT_TWO_PI, exp(-0.5 * square(x))),),
    "log_ndtr": lambda out, x: (2.0 / ROOT_TWO_PI / erfcx(x * -math.sqrt(0.5)),),
    "ndtri": lambda out, x: ((ROOT_TWO_PI, exp(0.5 * square(out))),),
    # gamma and beta functions
    "gamma": lambda out, x: (out * psi(x),),
    "rgamma": lambda out, x: (_rgamma(out, x),),
    "gammaln": lambda out, x: (psi(x),),
    "loggamma": lambda out, x: (valid(out, psi(x)),),
    "gammasgn": lambda out, x: (valid(out, 0.0),),
    "psi": lambda out, x: (valid(out, zeta(2.0, x)),),
    "zeta": lambda out, s, q: (None, lambda: valid(out, -s * zeta(s + 1.0, q))),
    "beta": lambda out, a, b: (lambda: -out * psi_rise(a, b), lambda: -out * psi_rise(b, a)),
    "betaln": lambda out, a, b: (lambda: -psi_rise(a, b), lambda: -psi_rise(b, a)),
    "betainc": lambda out, a, b, x: (None, None, lambda: valid(out, _beta_density(a, b, x))),
    "betaincc": lambda out, a, b, x: (None, None, lambda: valid(out, -_beta_density(a, b, x))),
    "betaincinv": lambda out, a, b, y: (None, None, lambda: valid(out, _beta_inverse(out, a, b, y))),
    "gammainc": lambda out, a, x: (None, lambda: valid(out, _gamma_density(a, x))),
    "gammaincc": lambda out, a, x: (None, lambda: valid(out, -_gamma_density(a, x))),
    "gammaincinv": lambda out, a, y: (None, lambda: valid(out, 1.0 / _gamma_density(a, out))),
    "gammainccinv": lambda out, a, y: (None, lambda: valid(out, -1.0 / _gamma_density(a, out))),
    "poch": lambda out, z, m: (lambda: _poch(out, z, m), lambda: out * psi(z + m)),
    "binom": lambda out, n, k: (
        lambda: _binom(out, k, _poch(out, n - k + 1.0, k, 1.0 / gamma(k + 1.0))),
        lambda: _binom(out, k, out * psi_rise(k + 1.0, n - 2.0 * k)),
    ),
    # logistic functions, entropies
    "expit": lambda out, x: ((out, expit(-x)),),
    "logit": lambda out, x: (valid(out, 1.0 / (x * (1.0 - x))),),
    "log_expit": lambda out, x: (expit(-x),),
    "xlogy": lambda out, x, y: (lambda: valid(out, log(y)), lambda: valid(out, _quotient(x, y))),
    "xlog1py": lambda out, x, y: (lambda: valid(out, log1p(y)), lambda: valid(out, _quotient(x, 1.0 + y))),
    "entr": lambda out, x: (-log(x) - 1.0,),
    "rel_entr": lambda out, x, y: (
        lambda: valid(out, _log_ratio(x, y) + 1.0),
        lambda: valid(out, -_quotient(x, y)),
    ),
    "kl_div": lambda out, x, y: (
        lambda: valid(out, _log_ratio(x, y)),
        lambda: valid(out, _quotient(y - x, y)),
    ),
    # Bessel functions
    "j0": lambda out, x: (-j1(x),),
    "j1": lambda out, x: (0.5 * (j0(x) - jv(2.0, x)),),
    "y0": lambda out, x: (-y1(x),),
    "y1": lambda out, x: (0.5 * (y0(x) - yv(2.0, x)),),
    "i0": lambda out, x: (i1(x),),
    "i1": lambda out, x: (0.5 * (i0(x) + iv(2.0, x)),),
    "i0e": lambda out, x: (_ive(out, 0.0, x, i1e(x) - sign(x) * out),),
    "i1e": lambda out, x: (_i1e(out, x),),
    "k0": lambda out, x: (-k1(x),),
    "k1": lambda out, x: (-0.5 * (k0(x) + kv(2.0, x)),),
    "k0e": lambda out, x: (_kve(0.0, x, out - k1e(x)),),
    "k1e": lambda out, x: (_kve(1.0, x, out - 0.5 * (k0e(x) + kve(2.0, x))),),
    "jv": lambda out, v, x: (None, lambda: 0.5 * (jv(v - 1.0, x) - jv(v + 1.0, x))),
    "yv": lambda out, v, x: (None, lambda: _from_infinity(out, 0.5 * (yv(v - 1.0, x) - yv(v + 1.0, x)))),
    "yn": lambda out, n, x: (None, lambda: 0.5 * (yv(n - 1.0, x) - yv(n + 1.0, x))),
    "iv": lambda out, v, x: (None, lambda: 0.5 * (iv(v - 1.0, x) + iv(v + 1.0, x))),
    "kn": lambda out, n, x: (None, lambda: -0.5 * (kv(n - 1.0, x) + kv(n + 1.0, x))),
    "kv": lambda out, v, x: (None, lambda: -0.5 * (kv(v - 1.0, x) + kv(v + 1.0, x))),
    "ive": lambda out, v, x: (
        None,
        lambda: valid(out, _ive(out, v, x, 0.5 * (ive(v - 1.0, x) + ive(v + 1.0, x)) - sign(x) * out)),
    ),
    "kve": lambda out, v, x: (
        None,
        lambda: _from_infinity(out, _kve(v, x, out - 0.5 * (kve(v - 1.0, x) + kve(v + 1.0, x)))),
    ),
    # integrals
    "expi": lambda out, x: (_expi(out, x),),
    "exp1": lambda out, x: (valid(out, -exp(-x) / x),),
    "spence": lambda out, x: (_spence(x),),
    "ellipk": lambda out, m: (0.5 * (out - _ellip(m)) / (1.0 - m),),
    "ellipe": lambda out, m: (-0.5 * _ellip(m),),
    "hyp2f1": lambda out, a, b, c, z: (
        None,
        None,
        None,
        lambda: a * b / c * hyp2f1(a + 1.0, b + 1.0, c + 1.0, z),
    ),
    "hyp1f1": lambda out, a, b, z: (None, None, lambda: a / b * hyp1f1(a + 1.0, b + 1.0, z)),
    "hyp0f1": lambda out, v, z: (None, lambda: apply(PREFIX + "hyp0f1", v + 1.0, z) / v),
    # functions that NumPy has too, or nearly
    "exp10": lambda out, x: ((math.log(10.0), out),),
    "exp2": lambda out, x: ((math.log(2.0), out),),
    "expm1": lambda out, x: (exp(x),),
    "log1p": lambda out, x: (valid(out, 1.0 / (1.0 + x)),),
    "exprel": lambda out, x: (_exprel(out, x),),
    "cosm1": lambda out, x: (-sin(x),),
    "cbrt": lambda out, x: (1.0 / (3.0 * square(out)),),
    "pseudo_huber": lambda out, d, r: (
        lambda: _pseudo_huber(out, d, r),
        lambda: d * sin(apply("arctan", r / d)),
    ),
}


def _spence(x):
    return _near(x - 1.0, 0.5, lambda z: -hyp2f1(1.0, 1.0, 2.0, -z), lambda z: -log(x) / z)


def _ellip(m):
    """(K - E) / m. DLMF 19.5.1."""

    def quotient(m):
        m = where(m < -1e300, -1e300, m)
        return (ellipk(m) - ellipe(m)) / m

    return _near(m, 0.5, lambda m: 0.25 * math.pi * hyp2f1(1.5, 0.5, 2.0, m), quotient)


def _exprel(out, x):
    up, down = where(x > 0.0, x, 1.0), where(x < 0.0, x, -1.0)
    slope = where(x > 0.0, out * (1.0 - 1.0 / up) + 1.0 / up, (exp(down) - out) / down)
    near = absolute(x) < 1.0
    return where(near, 0.5 * hyp1f1(2.0, 3.0, where(near, x, 0.0)), slope)


def _expi(out, x):
    far = x > 700.0  # exp(x) overflows before the quotient
    z = where(far, where(x < 1e4, x, 1e4), 1.0)
    return valid(out, where(far, exp(z - log(z)), exp(where(far, 0.0, x)) / x))


def _pseudo_huber(out, d, r):
    """By angles, which avoid a quotient of infinities."""
    angle = apply("arctan", r / d)
    return valid(out, r * sin(angle) * square(apply("tan", 0.5 * angle)))


def _psi_rise(x, h):
    """Of positive x and x + h, or their mirror images: 20 steps up by recurrence, then the series of psi
    term by term, which has no difference of large numbers. DLMF 5.5.2, 5.11.2.
    """
    ends = [np.where(y == 0.0, NAN, scipy.special.psi(y)) for y in (x + h, x)]  # a pole, as at -1, -2, ...
    plain = np.where(np.isposinf(x) & np.isfinite(h), 0.0, ends[0] - ends[1])
    mirrored = (np.floor(h) == h) & (x + h <= 0.0) & (x <= 0.0)  # psi(1 - z) = psi(z) + pi cot(pi z)
    start = np.where(mirrored, 1.0 - x - h, x)
    good = (start > 0.0) & (start + h > 0.0) & np.isfinite(start) & np.isfinite(h)
    a, d = np.where(good, start, 1.0), np.where(good, h, 0.0)
    total = np.zeros_like(a + d)
    for _ in range(20):
        total += d / a / (a + d)
        a = a + 1.0
    b = a + d
    u, v = 1.0 / np.square(a), 1.0 / np.square(b)
    terms = 1.0 / 12.0 - (u + v) / 120.0 + (u * u + u * v + v * v) / 252.0 - (u + v) * (u * u + v * v) / 240.0
    total += np.log1p(d / a) + d / (2.0 * a * b) + d * (a + b) * u * v * terms
    small = np.abs(h) < 1e-3 * np.abs(x - np.rint(x))  # beside the distance from the next pole
    taylor = sum(-((-h) ** k) * scipy.special.zeta(k + 1.0, x) for k in range(1, 5))
    return np.where(good, np.where(mirrored, -total, total), np.where(small, taylor, plain))


def _row(name: str, function: Callable, partials: Callable, like: np.ufunc, cost: float = 20.0) -> None:
    """The op of an elementwise function, whose results have the dtypes of the ufunc `like`."""

    @functools.wraps(partials)
    def or_refusals(out, *args):
        def refused(k):
            raise no_formula(f"scipy.special.{name}", f"argument {k}", "x", out.loc)

        rules = partials(out, *args)
        return tuple([functools.partial(refused, k) if d is None else d for k, d in enumerate(rules)])

    row(
        PREFIX + name,
        "elementwise",
        infer=lambda *args: (broadcast_shape(*args), ufunc_dtype(like, tuple(a.dtype for a in args))),
        evaluate=function,
        partials=or_refusals,
        singular=SEVERAL,
        leads=leads.ELEMENTWISE,
        cost=cost,
        needs="scipy",
    )


def no_formula(what: str, argument: str, name: str, loc: tuple | None = None) -> UnsupportedError:
    return UnsupportedError(
        f"{what} has no derivative with respect to {argument}: there is no closed formula. "
        f"ad.stop_gradient({name}) makes a constant of that argument; or give the function a rule of your "
        "own with @ad.custom_vjp",
        loc,
    )


def _psi_rise_partials(out, x, h):
    """Between two poles by reflection."""
    mirrored = equal(h, floor(h)) * (x + h <= 0.0) * (x <= 0.0)
    start, end = where(mirrored, 1.0 - x - h, x), where(mirrored, 1.0 - x, x + h)
    return lambda: zeta(2.0, end) - zeta(2.0, start), lambda: zeta(2.0, x + h)


for _name, _partials in PARTIALS.items():
    _home, _own = (scipy.special._ufuncs, "_zeta") if _name == "zeta" else (scipy.special, _name)
    _function = getattr(_home, _own, None)
    if isinstance(_function, np.ufunc):  # not every SciPy has it
        _row(_name, _function, _partials, _function)
        OP_OF[_function] = PREFIX + _name
OP_OF[scipy.special.digamma] = PREFIX + "psi"  # the same values
_row("psi_rise", _psi_rise, _psi_rise_partials, scipy.special.beta, cost=60.0)
