"""More rows for the table in numpy_calls.py: calls with options, orders and weights."""

import numpy as np

A, V, LONG = (3, 4), (4,), (7,)
HOLES = np.array([[False, True, False, False], [False, False, True, True], [False, False, False, False]])
BINS = np.array([0, 3, 3, 1])
COUNTED = np.arange(7.0)
METHODS = (
    "inverted_cdf averaged_inverted_cdf closest_observation interpolated_inverted_cdf hazen weibull "
    "median_unbiased normal_unbiased lower higher midpoint nearest"
).split()


def with_nans(f):
    """f of an array in which some elements are nan."""
    return lambda x: f(np.where(HOLES, np.nan, x))


def quantile_by(function, method):
    return lambda x: function(x, [0.2, 0.55, 1.0], axis=1, method=method)


def padded(mode, **options):
    return lambda x: np.pad(x, ((2, 1), (3, 5)), mode, **options), A


def slid(function, mode):
    """The longer argument second."""
    return lambda x, y: function(y, x, mode), LONG, V


def both(function):
    """A function of two polynomials, also with one that is no recorded value."""
    return [(lambda x, y: function(x, y), V, LONG), (lambda x: function(x, [1.0, 2.0]), V)]


def by_name(name, factor=1.0):
    """A function of np.emath, where the real one has values and where it has none."""
    return [(lambda x: getattr(np.emath, name)(x * factor), A)]


# What NumPy composes of its own functions, with rarely used options
COMPOSED = {
    "np.cov": [
        (lambda x: np.cov(x, fweights=[1, 2, 1, 3]), A),
        (lambda x: np.cov(x, x[::-1], aweights=x[0] ** 2, ddof=0), A),
        (lambda x: np.cov(x, rowvar=False, bias=True, aweights=[0.5, 1.0, 2.0]), A),
    ],
    "np.real_if_close": [
        (lambda x: np.real_if_close(x + 0j), A),
        (lambda x: np.real_if_close(x + 1j * x), A),
    ],
    "np.fft.rfftn": [(lambda x: np.fft.rfftn(x, axes=(0, 0)), A)],
    "np.fft.irfftn": [(lambda x: np.fft.irfftn(x, axes=(1, 1)), A)],
    "np.logspace": [(lambda x: np.logspace(x[0], x[1], 3, base=[1.5, 2.0, 2.5, 3.0]), A)],
    "np.size": [(lambda x: x * np.size(x, axis=1), A)],
    "np.delete": [(lambda x: np.delete(x, [True, False, True, False], axis=1), A)],
    "np.outer": [(lambda x: np.outer(x, x, np.zeros_like(x, shape=(4, 4))), V)],  # out= by its place
    "np.ptp": [(lambda x: np.ptp(x, 0, np.zeros_like(x[0])), A)],
    "np.sum": [(lambda x: np.sum(x, 0, None, np.zeros_like(x[0])), A)],
    "np.mean": [(lambda x: np.mean(x, 1, None, np.zeros_like(x[:, 0])), A)],
    "np.fix": [(lambda x: x * np.fix(x, np.zeros_like(x)), A)],
    "np.isposinf": [(lambda x: x * np.isposinf(np.where(x > 0, np.inf, x), np.zeros_like(x, bool)), A)],
}

MORE = {
    "np.quantile": [(quantile_by(np.quantile, m), A) for m in METHODS],
    "np.nanquantile": [(with_nans(quantile_by(np.nanquantile, m)), A) for m in ["linear", *METHODS]],
    "np.nanpercentile": [(with_nans(lambda x: np.nanpercentile(x, 30, axis=0)), A)],
    "np.nanmedian": [
        (with_nans(lambda x: np.nanmedian(x)), A),
        (with_nans(lambda x: np.nanmedian(x, axis=1, keepdims=True)), A),
    ],
    "np.pad": [
        *(padded(mode) for mode in ("linear_ramp", "maximum", "mean", "median", "minimum")),
        padded("linear_ramp", end_values=((1.0, 2.0), (3.0, 4.0))),
        padded("mean", stat_length=((2, 1), (3, 2))),
        padded("reflect", reflect_type="odd"),
        padded("symmetric", reflect_type="odd"),
        (lambda x: np.pad(x, 2, "empty")[2:-2, 2:-2], A),
    ],
    "np.convolve": [slid(np.convolve, mode) for mode in ("full", "same", "valid")],
    "np.correlate": [slid(np.correlate, mode) for mode in ("full", "same", "valid")],
    "np.polyadd": both(np.polyadd),
    "np.polysub": both(np.polysub),
    "np.polymul": both(np.polymul),
    "np.polyder": [(lambda x: np.polyder(x), V), (lambda x: np.polyder(x, 2), V)],
    "np.polyint": [(lambda x: np.polyint(x), V), (lambda x: np.polyint(x, 2, k=[3.0, 4.0]), V)],
    "np.poly": [
        (lambda x: np.poly(x), V),
        (lambda x: np.poly(x + 1j * x[::-1]), V),
        (lambda x: np.poly(x @ x.T), (3, 4)),
    ],
    "np.polyfit": [
        (lambda x, y: np.polyfit(x, y, 2), LONG, LONG),
        (lambda y: np.polyfit(COUNTED, y, 2, w=COUNTED + 1.0), LONG),
        (lambda y: np.polyfit(np.arange(3.0), y, 1), A),
        (lambda y: np.polyfit(COUNTED, y, 2, full=True)[:2], LONG),
        (lambda y: np.polyfit(COUNTED, y, 2, cov=True), LONG),
    ],
    "np.bincount": [
        (lambda w: np.bincount(BINS, weights=w), V),
        (lambda w: np.bincount(BINS, w, minlength=6), V),
    ],
    "np.histogram": [
        (lambda w: np.histogram(BINS, bins=3, weights=w)[0], V),
        (lambda w: np.histogram(BINS, bins=[0.0, 1.0, 2.5], weights=w, density=True)[0], V),
        (lambda x: np.histogram(x, 4), LONG),
        (lambda x, w: np.histogram(x, 3, weights=w, density=True), LONG, LONG),
        (lambda x: np.histogram(x, 3, range=(x[0] - 3.0, x[1] + 3.0), density=True), LONG),
        (lambda e: np.histogram([0.1, 0.4, 0.5], np.cumsum(np.abs(e)) - 1.0, density=True), V),
    ],
    "np.histogram_bin_edges": [(lambda x: np.histogram_bin_edges(x, "sturges"), LONG)],
    "np.histogram2d": [
        (lambda x, y, w: np.histogram2d(x, y, 2, weights=w, density=True), LONG, LONG, LONG),
        (lambda w: np.histogram2d(BINS, BINS, [2, [0.0, 1.0, 2.5, 4.0]], weights=w)[0], V),
    ],
    "np.histogramdd": [
        (lambda x, w: np.histogramdd(x, [2, 3], weights=w, density=True)[0], (7, 2), LONG),
        (lambda x: np.histogramdd(x, 2)[1][1], (7, 2)),
    ],
    "np.polydiv": [
        (lambda u, v: np.polydiv(u, v), LONG, V),
        (lambda u: np.polydiv(u, [1.0, 2.0]), V),
        (lambda v: np.polydiv([1.0, 2.0, 3.0], v), V),
    ],
    "np.roots": [
        (lambda p: np.abs(np.roots(p)), V),
        (lambda p: np.abs(np.roots(np.append(p, 0.0))), V),
    ],
    "np.trim_zeros": [(lambda p: np.trim_zeros(np.pad(p, (2, 1))) ** 2, V)],
    "np.arange": [(lambda a, b: np.arange(a * a, 9.0, b * b + 0.4), (), ())],
    "np.unique_all": [(lambda x: np.unique_all(x).values, A)],
    "np.unique_counts": [(lambda x: np.unique_counts(x).values, A)],
    "np.unique_inverse": [(lambda x: np.unique_inverse(x).values[np.unique_inverse(x)[1]], A)],
    "np.union1d": [(lambda x, y: np.union1d(x, y), V, LONG)],
    "np.setdiff1d": [(lambda x: np.setdiff1d(x, [1.0, 2.0]), V)],
    "np.setxor1d": [(lambda x, y: np.setxor1d(x, y), V, LONG)],
    "np.sort_complex": [(lambda x: np.sort_complex(x) * (1 + 2j), V)],
    **{f"np.emath.{name}": by_name(name) for name in ("sqrt", "log", "log2", "log10")},
    **{f"np.emath.{name}": by_name(name, 1.5) for name in ("arccos", "arcsin", "arctanh")},
    "np.emath.logn": [(lambda n, x: np.emath.logn(n * n, x), V, V)],
    "np.emath.power": [(lambda x, p: np.emath.power(x, p), V, V), (lambda x: np.emath.power(x, -2), V)],
}
