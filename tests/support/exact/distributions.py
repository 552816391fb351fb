"""Distributions against SciPy and mpmath: compare(name, method, cases(name, n, rng)).

For each law and method of gpt2.autodiff.scipy.stats: the value within a derived function is SciPy's own, or
that of mpmath where SciPy's is not the true one; and the derivatives by every argument, in both modes, are
those of mpmath to 1e-10. Points lie at the edges of the support, in far tails, at infinity and nan;
parameters are sometimes invalid, numbers of events sometimes not whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.stats
from mpmath import mp, mpf

from gpt2 import autodiff as ad
from gpt2.autodiff.scipy import stats

DIGITS = 90
STEP = mpf(10) ** -20
RTOL, TINY, HUGE = 1e-10, mpf(2) ** -1020, mpf(2) ** 1024
INF, NAN = np.inf, np.nan


def normal_tail(z):
    return mp.erfc(z / mp.sqrt(2)) / 2


def lower_gamma(a, x):
    return x**a * mp.exp(-x) / mp.gamma(a + 1) * mp.hyp1f1(1, a + 1, x)


def upper_gamma(a, x):
    return mp.gammainc(a, x, mp.inf, regularized=True)


def lower_beta(a, b, x, y):
    """The regularised incomplete beta function at x = 1 - y: its series, which has no differences."""
    if x > mpf("0.95"):
        return 1 - lower_beta(b, a, y, x)
    return x**a * y**b / a / mp.beta(a, b) * mp.hyp2f1(a + b, 1, a + 1, x)


def student_tail(z, df):
    if z < 0:
        return 1 - student_tail(-z, df)
    return lower_beta(df / 2, mpf(1) / 2, df / (df + z * z), z * z / (df + z * z)) / 2 if z else mpf(1) / 2


@dataclass(frozen=True)
class Law:
    """The formulas of a law at z = (x - loc) / scale within its support, of mpmath numbers."""

    log_density: Callable
    cdf: Callable
    sf: Callable
    low: float = -INF
    high: float = INF
    shapes: tuple[tuple[float, ...], ...] = ()  # for each shape, values to take
    refused: tuple[int, ...] = ()  # shapes by which the distribution function has no derivative


SMALL = (0.3, 1.0, 2.0, 2.7, 40.0, 0.1, 900.0)
LAWS = {
    "norm": Law(lambda z: -(z * z + mp.log(2 * mp.pi)) / 2, lambda z: normal_tail(-z), normal_tail),
    "laplace": Law(
        lambda z: -abs(z) - mp.log(2),
        lambda z: mp.exp(z) / 2 if z < 0 else 1 - mp.exp(-z) / 2,
        lambda z: mp.exp(-z) / 2 if z > 0 else 1 - mp.exp(z) / 2,
    ),
    "logistic": Law(
        lambda z: -abs(z) - 2 * mp.log1p(mp.exp(-abs(z))),
        lambda z: 1 / (1 + mp.exp(-z)),
        lambda z: 1 / (1 + mp.exp(z)),
    ),
    "cauchy": Law(
        lambda z: -mp.log(mp.pi * (1 + z * z)),
        lambda z: mp.atan2(1, -z) / mp.pi,
        lambda z: mp.atan2(1, z) / mp.pi,
    ),
    "gumbel_r": Law(
        lambda z: -z - mp.exp(-z), lambda z: mp.exp(-mp.exp(-z)), lambda z: -mp.expm1(-mp.exp(-z))
    ),
    "t": Law(
        lambda z, df: (
            mp.loggamma((df + 1) / 2)
            - mp.loggamma(df / 2)
            - mp.log(df * mp.pi) / 2
            - (df + 1) / 2 * mp.log1p(z * z / df)
        ),
        lambda z, df: student_tail(-z, df),
        student_tail,
        shapes=(SMALL,),
        refused=(0,),
    ),
    "expon": Law(lambda z: -z, lambda z: -mp.expm1(-z), lambda z: mp.exp(-z), 0.0),
    "uniform": Law(lambda z: 0 * z, lambda z: z, lambda z: 1 - z, 0.0, 1.0),
    "halfnorm": Law(
        lambda z: (mp.log(2 / mp.pi) - z * z) / 2,
        lambda z: mp.erf(z / mp.sqrt(2)),
        lambda z: mp.erfc(z / mp.sqrt(2)),
        0.0,
    ),
    "lognorm": Law(
        lambda z, s: -((mp.log(z) / s) ** 2) / 2 - mp.log(s * z) - mp.log(2 * mp.pi) / 2,
        lambda z, s: normal_tail(-mp.log(z) / s),
        lambda z, s: normal_tail(mp.log(z) / s),
        0.0,
        shapes=(SMALL[:4],),
    ),
    "gamma": Law(
        lambda z, a: (a - 1) * mp.log(z) - z - mp.loggamma(a),
        lambda z, a: lower_gamma(a, z),
        lambda z, a: upper_gamma(a, z),
        0.0,
        shapes=(SMALL,),
        refused=(0,),
    ),
    "chi2": Law(
        lambda z, k: (k / 2 - 1) * mp.log(z) - z / 2 - mp.loggamma(k / 2) - k * mp.log(2) / 2,
        lambda z, k: lower_gamma(k / 2, z / 2),
        lambda z, k: upper_gamma(k / 2, z / 2),
        0.0,
        shapes=(SMALL,),
        refused=(0,),
    ),
    "invgamma": Law(
        lambda z, a: -(a + 1) * mp.log(z) - 1 / z - mp.loggamma(a),
        lambda z, a: upper_gamma(a, 1 / z),
        lambda z, a: lower_gamma(a, 1 / z),
        0.0,
        shapes=(SMALL,),
        refused=(0,),
    ),
    "beta": Law(
        lambda z, a, b: (a - 1) * mp.log(z) + (b - 1) * mp.log1p(-z) - mp.log(mp.beta(a, b)),
        lambda z, a, b: lower_beta(a, b, z, 1 - z),
        lambda z, a, b: lower_beta(b, a, 1 - z, z),
        0.0,
        1.0,
        shapes=(SMALL, SMALL),
        refused=(0, 1),
    ),
    "f": Law(
        lambda z, n, m: (
            n / 2 * mp.log(n / m)
            + (n / 2 - 1) * mp.log(z)
            - (n + m) / 2 * mp.log1p(z * n / m)
            - mp.log(mp.beta(n / 2, m / 2))
        ),
        lambda z, n, m: lower_beta(n / 2, m / 2, n * z / (n * z + m), m / (n * z + m)),
        lambda z, n, m: lower_beta(m / 2, n / 2, m / (n * z + m), n * z / (n * z + m)),
        0.0,
        shapes=(SMALL, SMALL),
        refused=(0, 1),
    ),
    "pareto": Law(
        lambda z, b: mp.log(b) - (b + 1) * mp.log(z),
        lambda z, b: -mp.expm1(-b * mp.log(z)),
        lambda z, b: z**-b,
        1.0,
        shapes=(SMALL,),
    ),
    "weibull_min": Law(
        lambda z, c: mp.log(c) + (c - 1) * mp.log(z) - z**c,
        lambda z, c: -mp.expm1(-(z**c)),
        lambda z, c: mp.exp(-(z**c)),
        0.0,
        shapes=((0.3, 1.0, 2.0, 2.7, 6.0),),
    ),
    "rayleigh": Law(
        lambda z: mp.log(z) - z * z / 2, lambda z: -mp.expm1(-z * z / 2), lambda z: mp.exp(-z * z / 2), 0.0
    ),
}


def log_choose(n, k):
    return mp.loggamma(n + 1) - mp.loggamma(k + 1) - mp.loggamma(n - k + 1)


def times_log(k, p):
    """k log(p), which is 0 where k is."""
    return k * mp.log(p) if k else mpf(0)


def poisson_parts(k, mu):
    k = mp.floor(k)
    return upper_gamma(k + 1, mu), lower_gamma(k + 1, mu)


PROBABILITIES = (0.3, 1e-6, 0.999, 0.5)
COUNTS = {
    "poisson": Law(
        lambda k, mu: times_log(k, mu) - mu - mp.loggamma(k + 1),
        lambda k, mu: poisson_parts(k, mu)[0],
        lambda k, mu: poisson_parts(k, mu)[1],
        0.0,
        shapes=((0.3, 2.5, 40.0),),
    ),
    "bernoulli": Law(
        lambda k, p: times_log(k, p) + times_log(1 - k, 1 - p), None, None, 0.0, 1.0, (PROBABILITIES,)
    ),
    "binom": Law(
        lambda k, n, p: log_choose(n, k) + times_log(k, p) + times_log(n - k, 1 - p),
        None,
        None,
        0.0,
        5.0,
        ((5.0,), PROBABILITIES),
        refused=(0,),
    ),
    "nbinom": Law(
        lambda k, n, p: (
            mp.loggamma(k + n) - mp.loggamma(n) - mp.loggamma(k + 1) + n * mp.log(p) + times_log(k, 1 - p)
        ),
        None,
        None,
        0.0,
        shapes=((0.5, 3.0, 20.0), PROBABILITIES),
    ),
    "geom": Law(lambda k, p: times_log(k - 1, 1 - p) + mp.log(p), None, None, 1.0, shapes=(PROBABILITIES,)),
}
METHODS = ("logpdf", "pdf", "cdf", "logcdf", "sf", "logsf")


def methods_of(name: str) -> list[str]:
    if name in LAWS:
        return list(METHODS)
    return ["logpmf", "pmf", *(("cdf", "logcdf", "sf", "logsf") if name == "poisson" else ())]


# ---- Expected values -------------------------------------------------------------------------------------


def near_edge(law: Law, x, loc, scale) -> list:
    """Points that stand for x: itself, or two within the support that come nearer to an edge or infinity."""
    z = (mpf(x) - mpf(loc)) / mpf(scale) if np.isfinite(x) else mpf(x)
    if not mp.isfinite(z):
        sign = 1 if z > 0 else -1
        far = (50, 60) if law is LAWS["gumbel_r"] and z < 0 else (mpf(10) ** 12, mpf(10) ** 15)
        return [sign * v for v in far]
    if z == law.low:
        return [z + mpf(10) ** (-25 if z else -30), z + mpf(10) ** (-35 if z else -40)]
    if z == law.high:
        return [z - mpf(10) ** -25, z - mpf(10) ** -35]
    return [z]


def value_at(law: Law, method: str, z, shapes):
    if method in ("logpdf", "logpmf"):
        return law.log_density(z, *shapes)
    if method in ("pdf", "pmf"):
        return mp.exp(law.log_density(z, *shapes))
    part = law.cdf(z, *shapes) if "cdf" in method else law.sf(z, *shapes)
    if not method.startswith("log"):
        return part
    other = law.sf(z, *shapes) if "cdf" in method else law.cdf(z, *shapes)
    return mp.log1p(-other) if other < mpf("0.5") else mp.log(part)


def slope_by(f: Callable, value, low: float = -INF, high: float = INF):
    """The derivative of f, by a difference far smaller than the distance from the edges of the support."""
    h = STEP * min(
        max(abs(value), mpf(10) ** -310), *(abs(value - e) for e in (low, high) if np.isfinite(e)), 1e300
    )
    return (f(value + h) - f(value - h)) / (2 * h)


def slopes_at(law: Law, method: str, z, shapes, scale, discrete: bool) -> list:
    """By x, loc, scale and the shapes, at one z within the support."""
    log_density = law.log_density
    by_z = mpf(0) if discrete else slope_by(lambda z: log_density(z, *shapes), z, law.low, law.high)
    by_shape = [
        None
        if discrete and k in law.refused
        else slope_by(lambda v: log_density(z, *changed(shapes, k, v)), p)  # noqa: B023
        for k, p in enumerate(shapes)
    ]
    if "pdf" in method or "pmf" in method:
        p = mpf(1)
        if not method.startswith("log"):
            p = mp.exp(log_density(z, *shapes)) / (1 if discrete else scale)
        by_x, by_scale = by_z / scale, -(1 + z * by_z) / scale
        return [None if d is None else p * d for d in (by_x, -by_x, by_scale, *by_shape)]
    sign = 1 if "cdf" in method else -1
    part = 1 / value_at(law, method[3:], z, shapes) if method.startswith("log") else mpf(1)
    density = mpf(0) if discrete else mp.exp(log_density(z, *shapes)) * part / scale
    found = [sign * density, -sign * density, -sign * density * z]
    smaller = law.cdf if law.cdf(z, *shapes) < mpf("0.5") else law.sf
    turned = sign if smaller is law.cdf else -sign
    for k, p in enumerate(shapes):
        if k in law.refused:
            found.append(None)
        else:
            by_log = slope_by(lambda v: mp.log(smaller(z, *changed(shapes, k, v))), p)  # noqa: B023
            found.append(turned * part * smaller(z, *shapes) * by_log)
    return found


def changed(values, k: int, v) -> list:
    return [v if i == k else p for i, p in enumerate(values)]


def limit(values: list) -> float | None:
    """The limit of these numbers, the last of which is nearest to the point; None if it is unclear."""
    if any(v is None for v in values):
        return None
    last = values[-1]
    if len(values) == 1 or abs(values[0] - last) <= abs(last) * mpf(10) ** -7:
        return as_float(last)
    if abs(last) < abs(values[0]) / 2 and abs(last) < mpf(10) ** -8:
        return 0.0
    if abs(last) > 1 and abs(last) > abs(values[0]):
        return INF if last > 0 else -INF
    return None


def as_float(v) -> float:
    return float(v) if abs(v) < HUGE else INF if v > 0 else -INF


def expected(law: Law, method: str, args: tuple, discrete: bool) -> tuple[float | None, list]:
    """The value, and the derivatives by x, loc, scale and shapes. None where nothing is expected."""
    x, *shapes, loc, scale = args
    if not discrete or method in ("cdf", "sf", "logcdf", "logsf"):
        z, whole = (x - loc) / scale, True
    else:
        z, whole = x - loc, float(x - loc).is_integer()
    n = 3 + len(shapes)
    if not (law.low <= z <= law.high) or not whole:
        below = z < law.low
        ends = {"logcdf": -INF if below else 0.0, "cdf": 0.0 if below else 1.0}
        ends |= {"sf": 1.0 if below else 0.0, "logsf": 0.0 if below else -INF, "pdf": 0.0, "pmf": 0.0}
        return ends.get(method, -INF), [0.0] * n
    exact = [mpf(s) for s in shapes]
    points = near_edge(law, x, loc, scale) if not discrete else [mpf(z)]
    if discrete and not np.isfinite(z) or law is LAWS["gumbel_r"] and -INF < z < -100:
        # exp(-exp(100)) is beyond mpmath
        return None, [None] * n
    scale = mpf(scale)
    values = [value_at(law, method, p, exact) for p in points]
    if method == "logpdf":
        values = [v - mp.log(scale) for v in values]
    if method == "pdf":
        values = [v / scale for v in values]
    if law is LAWS["invgamma"] and z < 1e-30:  # differences of numbers of 300 digits
        return limit(values), [None] * n
    rows = [slopes_at(law, method, p, exact, scale, discrete) for p in points]
    return limit(values), [limit(list(column)) for column in zip(*rows)]


def is_close(found: float, wanted: float | None, rtol: float = RTOL) -> bool:
    if wanted is None:
        return True
    if np.isnan(found) or np.isnan(wanted):
        return bool(np.isnan(found) and np.isnan(wanted))
    if not (np.isfinite(found) and np.isfinite(wanted)):
        return found == wanted or min(abs(found), abs(wanted)) > 1e300 and found * wanted > 0
    return abs(found - wanted) <= rtol * abs(wanted) + 1e-299


def is_true(found: float, value: float | None) -> bool:
    """Whether a value that is not SciPy's is that of mpmath."""
    return value is not None and is_close(found, value, 1e-9)


def within_rounding(
    law: Law, method: str, args: tuple, discrete: bool, k: int, found: float, wanted: float
) -> bool:
    """Whether a derivative is as far from the exact one as rounding z by a few bits makes it."""
    x, *rest, loc, scale = args
    z = (x - loc) / scale
    if not np.isfinite(z) or not np.isfinite(found):
        return k > 2 and abs(found - wanted) < 1e-15  # a difference of psi that is 0
    allowed = 0.0
    given = (x if discrete else z, *rest, loc if discrete else 0.0, 1.0)
    same = expected(law, method, given, discrete)[1][k]
    for j, turn in itertools.product(range(1 + len(rest)), (1e-15, -1e-15)):
        moved = changed(given, j, given[j] * (1 + turn)) if j or not discrete else given
        if not law.low <= moved[0] <= law.high:
            continue
        other = expected(law, method, moved, discrete)[1][k]
        if other is not None and same is not None:
            allowed = max(allowed, abs(other - same) / (1 if k > 2 and method != "pdf" else abs(scale)))
    return abs(found - wanted) <= 10 * allowed + RTOL * abs(wanted) + (1e-15 if k > 2 else 0.0)


# ---- Cases -----------------------------------------------------------------------------------------------

FAR = (15.0, 40.0, 800.0, 1e4, 1e7, 1e9)


def beside(edge: float, side: int) -> float:
    """The next number to that side; of 0 one whose inverse times a few thousand is finite."""
    return float(np.nextafter(edge, side * INF)) if edge else side * 1e-302


def points(law: Law, discrete: bool, rng) -> list[float]:
    if discrete:
        top = law.high if np.isfinite(law.high) else 30.0
        low = [law.low - 1, law.low, law.low + 1]
        edge = [*low, top, top + 1, law.low + 0.5, 2.5, -0.5, NAN, INF, -INF, 1e3]
        return [*edge, *rng.integers(law.low, top + 1, 4).astype(float)]
    edges = [e for e in (law.low, law.high) if np.isfinite(e)]
    found = [*edges, *(beside(e, s) for e in edges for s in (-1, 1)), INF, -INF, NAN, 0.0, -1.5]
    if law.high == 1.0:
        return [*found, 1e-300, 1e-12, 1 - 1e-12, *rng.uniform(0, 1, 6), 2.0]
    start = law.low if np.isfinite(law.low) else 0.0
    far = [start + f for f in (*FAR, *rng.choice(FAR, 3) * rng.uniform(0.5, 2, 3))]
    near = [start + f for f in (1e-9, 1e-4, 0.999, 1.0, *rng.exponential(2.0, 6), *rng.exponential(9.0, 2))]
    both = [*far, *near, *(() if start == 1.0 else (1e-300 if np.isfinite(law.low) else 1e-29, 1e-30))]
    return [*found, *both, *(() if np.isfinite(law.low) else [-v for v in both])]


def cases(name: str, n: int, rng) -> list[tuple]:
    """Arguments (x, *shapes, loc, scale) of one law: n of them, the edges first."""
    discrete, law = name in COUNTS, {**LAWS, **COUNTS}[name]
    found = []
    while len(found) < n:
        for z in points(law, discrete, rng):
            shapes = [float(rng.choice(s)) for s in law.shapes]
            plain = rng.random() < 0.5
            loc = 0.0 if plain else float(rng.choice([0.25, -3.0, 2.0]))
            scale = 1.0 if plain or discrete else float(rng.choice([2.0, 0.5, 4.0, 3.7]))
            if rng.random() < 0.12:  # something invalid
                which = rng.integers(len(shapes) + 2)
                if which < len(shapes):
                    shapes[which] = float(rng.choice([-1.0, NAN, -0.5]))
                elif which == len(shapes) or discrete:
                    loc = NAN
                else:
                    scale = float(rng.choice([0.0, -1.0, NAN]))
            found.append((z * scale + loc, *shapes, loc, scale))
    return found[:n]


def is_valid(name: str, args: tuple) -> bool:
    x, *shapes, loc, scale = args
    return bool(getattr(scipy.stats, name)._argcheck(*shapes)) and scale > 0 and not np.isnan([x, loc]).any()


# ---- The comparison --------------------------------------------------------------------------------------


def derived(name: str, method: str, columns: list) -> tuple[np.ndarray, dict[int, list]]:
    """The values, and for each argument its derivatives in reverse and in forward mode."""
    law, discrete = {**LAWS, **COUNTS}[name], name in COUNTS
    bound = getattr(getattr(stats, name), method)
    n = len(law.shapes)

    def f(*args):
        x, *shapes, loc, scale = args
        return bound(x, *shapes, loc) if discrete else bound(x, *shapes, loc=loc, scale=scale)

    values = np.asarray(ad.compile(f)(*columns))
    slopes = {}
    for k in range(len(columns)):
        refused = k - 1 in law.refused and method not in ("pdf", "logpdf")
        if refused or discrete and k == n + 2:
            continue
        g = ad.grad(lambda *a: np.sum(f(*a)), k)(*columns)
        alone = lambda v, k=k: f(*changed(columns, k, v))  # noqa: E731
        t = ad.jvp(alone, (columns[k],), (np.ones(len(columns[k])),))[1]
        slopes[k] = [np.asarray(g), np.asarray(t)]
    return values, slopes


def of_scipy(own: Callable, args: tuple) -> float:
    """SciPy's value; infinite where it raises an OverflowError, as beta.pdf does."""
    try:
        return float(own(*args))
    except OverflowError:
        return INF


def compare(name: str, method: str, rows: list[tuple]) -> tuple[int, int, list[str]]:
    """How many values and derivatives are wrong, of how many, and lines about them."""
    law, discrete = {**LAWS, **COUNTS}[name], name in COUNTS
    columns = [np.array(c) for c in zip(*rows)]
    own = getattr(getattr(scipy.stats, name), method)
    theirs = [of_scipy(own, row[: -1 if discrete else None]) for row in rows]
    values, slopes = derived(name, method, columns)
    n = len(law.shapes)
    place = {0: 0, n + 1: 1, n + 2: 2, **{k + 1: k + 3 for k in range(n)}}
    names = ["x", *(f"shape {k}" for k in range(n)), "loc", "scale"]
    wrong, tried, lines = 0, 0, []
    for i, row in enumerate(rows):
        if is_valid(name, row):
            value, exact = expected(law, method, row, discrete)
        else:
            value, exact = NAN, [NAN] * (n + 3)
        tried += 1
        if "cdf" in method or "sf" in method:
            rounded = ((row[0] - row[-2]) / row[-1], *row[1:-2], 0.0, 1.0) if row[-1] > 0 else row
            value = [value, expected(law, method, rounded, discrete)[0] if is_valid(name, rounded) else NAN]
        if not (is_close(values[i], theirs[i]) or any(is_true(values[i], v) for v in np.ravel(value))):
            wrong += 1
            lines.append(f"value {row}: {values[i]!r}, SciPy {theirs[i]!r}, mpmath {value!r}")
        for k, modes in slopes.items():
            wanted = exact[place[k]]
            if np.isnan(values[i]) and np.isnan(theirs[i]):
                wanted = NAN
            for mode, found in zip(("reverse", "forward"), modes):
                tried += 1
                d = float(found[i])
                if is_close(d, wanted):
                    continue
                if method == "pdf" and values[i] == 0.0 == d and wanted is not None and abs(wanted) < 1e-200:
                    continue  # what underflows has no slope
                if np.isinf([row[0], values[i]]).all() and k > 0 and d == 0.0:  # it stays infinite
                    continue
                known = wanted is not None and np.isfinite(wanted)
                if known and within_rounding(law, method, row, discrete, place[k], d, wanted):
                    continue
                wrong += 1
                lines.append(f"d/d{names[k]} {mode} {row}: {d!r}, mpmath {wanted!r}")
    return wrong, tried, lines
