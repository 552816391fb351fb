"""More rows for the table in numpy_calls.py: what is asked for with options, orders and weights."""

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
    "np.poly": [(lambda x: np.poly(x), V)],
    "np.polyfit": [
        (lambda x, y: np.polyfit(x, y, 2), LONG, LONG),
        (lambda y: np.polyfit(COUNTED, y, 2, w=COUNTED + 1.0), LONG),
        (lambda y: np.polyfit(np.arange(3.0), y, 1), A),
    ],
    "np.bincount": [
        (lambda w: np.bincount(BINS, weights=w), V),
        (lambda w: np.bincount(BINS, w, minlength=6), V),
    ],
    "np.histogram": [
        (lambda w: np.histogram(BINS, bins=3, weights=w)[0], V),
        (lambda w: np.histogram(BINS, bins=[0.0, 1.0, 2.5], weights=w, density=True)[0], V),
    ],
}
