"""scipy.special against mpmath: compare(name, cases(FUNCTIONS[name], n, rng)).

For each function of scipy.special with a rule: the value within a derived function is SciPy's own, and the
derivatives by every argument that has one, in both modes, are those of mpmath to 1e-10, or as near as
rounding the arguments by a few bits allows. Points lie in the middle, at edges, poles and zeros, in far
tails, at infinity and nan. Where SciPy gives nan, so do the derivatives. Derivatives are left out where the
exact one is not known: at poles, where the limit at infinity does not settle, or where SciPy's own value is
wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.special
from mpmath import mp, mpf

from gpt2 import autodiff as ad
from tests.support.exact.distributions import (
    HUGE,
    INF,
    NAN,
    RTOL,
    as_float,
    changed,
    is_close,
    limit,
    lower_beta,
    lower_gamma,
    normal_tail,
    upper_gamma,
)

LINE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 1e-300, 1e-12, 1e-5, 0.999999, 1.000001)
LINE += (30.0, 600.0, 720.0, 3e4, 1e9, INF)
POSITIVE = (0.3, 1.0, 2.0, 2.5, 40.0, 1e-6, 900.0, 1e-300, 1e8)
UNIT = (0.0, 1.0, 0.5, 1e-300, 1e-12, 1e-5, 1 - 1e-12, 1 - 2e-16, 0.3, 0.7)
ORDERS = (0.0, 0.5, 1.0, 2.0, 2.5, 7.0)
FAILURES = (ValueError, ZeroDivisionError, OverflowError, mp.NoConvergence, NotImplementedError, TypeError)
SMALL = (-1.5, 0.25, 0.5, 1.0, 2.0, 2.5, 6.0)


@dataclass(frozen=True)
class Function:
    """A function of mpmath numbers, and the values from which its arguments are taken.

    held     arguments that have no derivative
    inverse  of which `value` is the inverse, by its last argument
    """

    value: Callable
    points: tuple[tuple[float, ...], ...] = ((),)  # () is the whole line
    held: tuple[int, ...] = ()
    inverse: bool = False


def scaled(bessel: Callable, sign: int) -> Callable:
    return lambda v, x: bessel(v, x) * mp.exp(sign * (abs(x) if sign < 0 else x))


def log_gamma(x):
    if x < -1e5:
        raise ValueError("a pole at each whole number: there is no limit")
    return log_abs(mp.gamma(x)) if x < 0 else mp.loggamma(x)


def quotient(x, y):
    return x * mp.log(x / y) if x else mpf(0)


def times_log(x, y):
    return x * mp.log(y) if x else mpf(0)


def log_abs(x):
    return mp.log(abs(x))


def lower_part(a, b, x):
    return lower_beta(a, b, x, 1 - x)


F = Function
ANY: tuple[float, ...] = ()
ive, kve = scaled(mp.besseli, -1), scaled(mp.besselk, 1)
FUNCTIONS = {
    "erf": F(mp.erf),
    "erfc": F(mp.erfc),
    "erfcx": F(lambda x: mp.exp(x * x) * mp.erfc(x)),
    "erfi": F(mp.erfi),
    "dawsn": F(lambda x: mp.sqrt(mp.pi) / 2 * mp.exp(-x * x) * mp.erfi(x)),
    "ndtr": F(lambda x: normal_tail(-x)),
    "log_ndtr": F(lambda x: mp.log(normal_tail(-x)) if x < 1 else mp.log1p(-normal_tail(x))),
    "erfinv": F(mp.erf, (UNIT,), inverse=True),
    "erfcinv": F(mp.erfc, ((*UNIT, 1.5, 2 - 1e-12),), inverse=True),
    "ndtri": F(lambda x: normal_tail(-x), (UNIT,), inverse=True),
    "gamma": F(mp.gamma),
    "rgamma": F(mp.rgamma),
    "gammaln": F(log_gamma),
    "loggamma": F(mp.loggamma),
    "gammasgn": F(lambda x: mp.sign(mp.gamma(x))),
    "psi": F(mp.digamma),
    "digamma": F(mp.digamma),
    "zeta": F(mp.zeta, ((1.5, 2.0, 4.0, 30.0, 0.5), POSITIVE[:7]), held=(0,)),
    "beta": F(mp.beta, (ANY, POSITIVE)),
    "betaln": F(lambda a, b: log_abs(mp.beta(a, b)), (POSITIVE, POSITIVE)),
    "betainc": F(lower_part, (POSITIVE[:5], POSITIVE[:5], UNIT), held=(0, 1)),
    "betaincc": F(
        lambda a, b, x: lower_beta(b, a, 1 - x, x), (POSITIVE[:5], POSITIVE[:5], UNIT), held=(0, 1)
    ),
    "betaincinv": F(
        lower_part, (POSITIVE[:5], POSITIVE[:5], (0.5, 0.3, 0.7, 1e-5, 0.999)), held=(0, 1), inverse=True
    ),
    "gammainc": F(lower_gamma, (POSITIVE[:6], (0.0, *POSITIVE[:7], 1e-12)), held=(0,)),
    "gammaincc": F(upper_gamma, (POSITIVE[:6], (0.0, *POSITIVE[:7], 1e-12)), held=(0,)),
    "gammaincinv": F(lower_gamma, (POSITIVE[:5], (0.5, 0.3, 0.7, 1e-5, 0.999)), held=(0,), inverse=True),
    "gammainccinv": F(upper_gamma, (POSITIVE[:5], (0.5, 0.3, 0.7, 1e-5, 0.999)), held=(0,), inverse=True),
    "poch": F(lambda z, m: mp.gamma(z + m) / mp.gamma(z), (POSITIVE[:8], (0.5, 1.0, 2.0, 3.5, 1e-5))),
    "binom": F(mp.binomial, ((3.0, 5.5, 40.0, 1e6, 2.25), (0.5, 1.0, 2.0, 2.5, 1e-8))),
    "expit": F(lambda x: 1 / (1 + mp.exp(-x))),
    "logit": F(lambda x: mp.log(x / (1 - x)), (UNIT,)),
    "log_expit": F(lambda x: -mp.log1p(mp.exp(-x))),
    "xlogy": F(times_log, (ANY, POSITIVE)),
    "xlog1py": F(lambda x, y: x * mp.log1p(y) if x else mpf(0), (ANY, (-0.5, -0.999999, *POSITIVE))),
    "entr": F(lambda x: -times_log(x, x)),
    "rel_entr": F(quotient, (POSITIVE, POSITIVE)),
    "kl_div": F(lambda x, y: quotient(x, y) - x + y, (POSITIVE, POSITIVE)),
    "j0": F(lambda x: mp.besselj(0, x)),
    "j1": F(lambda x: mp.besselj(1, x)),
    "y0": F(lambda x: mp.bessely(0, x)),
    "y1": F(lambda x: mp.bessely(1, x)),
    "i0": F(lambda x: mp.besseli(0, x)),
    "i1": F(lambda x: mp.besseli(1, x)),
    "i0e": F(lambda x: ive(0, x)),
    "i1e": F(lambda x: ive(1, x)),
    "k0": F(lambda x: mp.besselk(0, x)),
    "k1": F(lambda x: mp.besselk(1, x)),
    "k0e": F(lambda x: kve(0, x)),
    "k1e": F(lambda x: kve(1, x)),
    "jv": F(mp.besselj, (ORDERS, ANY), held=(0,)),
    "yv": F(mp.bessely, (ORDERS, ANY), held=(0,)),
    "iv": F(mp.besseli, (ORDERS, ANY), held=(0,)),
    "kv": F(mp.besselk, (ORDERS, ANY), held=(0,)),
    "ive": F(ive, (ORDERS, ANY), held=(0,)),
    "kve": F(kve, (ORDERS, ANY), held=(0,)),
    "yn": F(mp.bessely, ((0.0, 1.0, 2.0, 5.0), ANY), held=(0,)),
    "kn": F(mp.besselk, ((0.0, 1.0, 2.0, 5.0), ANY), held=(0,)),
    "expi": F(mp.ei),
    "exp1": F(mp.e1),
    "spence": F(lambda x: mp.polylog(2, 1 - x)),
    "ellipk": F(mp.ellipk),
    "ellipe": F(mp.ellipe),
    "hyp0f1": F(mp.hyp0f1, ((0.5, 1.0, 2.5, 6.0), (-30.0, -1.5, 0.0, 1e-8, 0.5, 2.0, 100.0)), held=(0,)),
    "hyp1f1": F(mp.hyp1f1, (SMALL, SMALL[1:], (-30.0, -1.5, 0.0, 1e-8, 0.5, 2.0, 30.0)), held=(0, 1)),
    "hyp2f1": F(mp.hyp2f1, (SMALL, SMALL, SMALL[1:], (-30.0, -1.5, 0.0, 1e-8, 0.5, 0.9)), held=(0, 1, 2)),
    "exp2": F(lambda x: mp.power(2, x)),
    "exp10": F(lambda x: mp.power(10, x)),
    "expm1": F(mp.expm1),
    "log1p": F(mp.log1p),
    "exprel": F(lambda x: mp.expm1(x) / x if x else mpf(1)),
    "cosm1": F(lambda x: mp.cos(x) - 1),
    "cbrt": F(lambda x: mp.sign(x) * mp.cbrt(abs(x))),
    "pseudo_huber": F(lambda d, r: d * d * (mp.sqrt(1 + (r / d) ** 2) - 1), (POSITIVE[:7], ANY)),
}


def cases(function: Function, n: int, rng) -> list[tuple[float, ...]]:
    found: list[tuple[float, ...]] = []
    while len(found) < n:
        row = []
        for points in function.points:
            if points == ANY:
                x = float(rng.choice(LINE)) if rng.random() < 0.6 else float(rng.exponential(4.0))
                row.append(-x if rng.random() < 0.4 else x)
            else:
                within = points in (UNIT, POSITIVE) and rng.random() < 0.4
                row.append(float(rng.uniform(0, 1) if within else rng.choice(points)))
        if rng.random() < 0.06:
            free = [k for k in range(len(row)) if k not in function.held]
            row[rng.choice(free)] = float(rng.choice([NAN, INF, -INF, -0.5]))
        found.append(tuple(row))
    return found


def near(x: float) -> list:
    """Numbers that stand for x: itself, or two nearer and nearer to infinity."""
    if np.isfinite(x):
        return [mpf(x)]
    return [mpf(x > 0 or -1) * far for far in (mpf(10) ** 6 + 0.3, mpf(10) ** 9 + 0.6)]


def slope(f: Callable, x):
    """The derivative of f at x, with more digits where its values differ in none of few. Raises
    ZeroDivisionError at a pole or a step.
    """
    for digits in (70, 450):
        with mp.workdps(digits):
            h = mpf(10) ** -20 * abs(x) if x else mpf(10) ** -(digits // 3)
            above, below = f(x + h), f(x - h)
            if mp.isinf(above) or mp.isinf(below):
                raise ZeroDivisionError
            d = (above - below) / (2 * h)
            if abs(above - below) > abs(above) * mpf(10) ** -40:
                other = f(x) if x else below
                if abs(above - other) > (abs(above) + abs(other)) / 2 and (x or abs(d) > mpf(10) ** 15):
                    raise ZeroDivisionError
                return d if x or abs(d) > mpf(10) ** -15 else mpf(0)
    return d if x else mpf(0)


def root_of(function: Function, args: tuple, start: float):
    """The z with value(*shapes, z) = y, from SciPy's, by Newton's method."""
    *shapes, y = map(mpf, args)
    z = mpf(start)
    for _ in range(8):
        f = lambda v: function.value(*shapes, v)  # noqa: E731
        z -= (f(z) - y) / slope(f, z)
    return z


def exact(function: Function, args: tuple, k: int, value: float) -> float | None:
    """The derivative by argument k, None where it is not known."""
    if sum(not np.isfinite(a) for a in args) > 1:
        return None
    if any(not np.isfinite(a) for i, a in enumerate(args) if i != k):
        return None
    try:
        if function.inverse:
            z = root_of(function, args, value)
            return as_float(1 / slope(lambda v: function.value(*map(mpf, args[:-1]), v), z))
        found = []
        for point in near(args[k]):
            f = lambda v: function.value(*changed(list(map(mpf, args)), k, v))  # noqa: E731, B023
            d = slope(f, point)
            if isinstance(d, mp.mpc) and abs(d.imag) > abs(d.real) * mpf(10) ** -25:
                return None
            found.append(mp.re(d))
        return limit(found)
    except FAILURES:
        return None


def allowed(function: Function, args: tuple, k: int, value: float, wanted: float) -> float:
    """How far rounding an argument by a few bits moves the derivative."""
    most = 0.0
    for j, a in enumerate(args):
        for turn in (1e-15, -1e-15):
            other = exact(function, tuple(changed(list(args), j, a * (1 + turn))), k, value)
            if other is not None and np.isfinite(other):
                most = max(most, abs(other - wanted))
    return 10 * most


def true_value(function: Function, args: tuple) -> float | None:
    """What mpmath computes, None where that is not known."""
    if function.inverse or sum(not np.isfinite(a) for a in args) > 1:
        return None
    pairs = ([mpf(a)] * 2 if np.isfinite(a) else near(a) for a in args)
    try:
        values = [function.value(*v) for v in zip(*pairs)]
    except FAILURES:
        return None
    if any(abs(mp.im(v)) > abs(mp.re(v)) * mpf(10) ** -25 for v in values):
        return None
    return limit([mp.re(v) for v in values])


def is_known(function: Function, args: tuple, own: float, wanted: float | None) -> bool:
    """Whether a derivative can be judged: SciPy's value is the true one, and this is no pole."""
    if wanted is None or np.isnan(own):
        return wanted is not None
    if len(args) > 1 and np.isinf(own) and np.isinf(args).any():
        return False
    truth = true_value(function, args)
    return np.isfinite(own) if truth is None else is_close(own, truth, 1e-11)


def compare(name: str, rows: list[tuple]) -> tuple[int, int, int, list[str]]:
    """How many are wrong, of how many, how many were left out, and lines about the wrong ones."""
    function, ufunc = FUNCTIONS[name], getattr(scipy.special, name)
    columns = [np.array(c) for c in zip(*rows)]
    theirs = ufunc(*columns)
    values = np.asarray(ad.compile(lambda *a: ufunc(*a))(*columns))
    wrong = tried = out = 0
    lines = []
    for row, value, own in zip(rows, values, theirs):
        tried += 1
        if not (value == own or np.isnan(value) and np.isnan(own)):
            wrong += 1
            lines.append(f"value {row}: {value!r}, SciPy {own!r}")
    for k in range(len(columns)):
        if k in function.held:
            continue
        g = ad.grad(lambda *a: np.sum(ufunc(*a)), k)(*columns)
        t = ad.jvp(lambda v: ufunc(*changed(columns, k, v)), (columns[k],), (np.ones(len(rows)),))[1]  # noqa: B023
        for row, own, *modes in zip(rows, theirs, np.asarray(g), np.asarray(t)):
            wanted = NAN if np.isnan(own) else exact(function, row, k, own)
            if not is_known(function, row, own, wanted):
                out += 2
                continue
            for mode, found in zip(("reverse", "forward"), map(float, modes)):
                tried += 1
                close = is_close(found, wanted)
                if not close and np.isfinite([wanted, found]).all() and abs(wanted) < HUGE:
                    within = allowed(function, row, k, own, wanted) + RTOL * abs(wanted)
                    close = abs(found - wanted) <= within
                if not close:
                    wrong += 1
                    lines.append(f"by {k}, {mode} {row}: {found!r}, mpmath {wanted!r}, value {own!r}")
    return wrong, tried, out, lines
