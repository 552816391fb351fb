"""A call or several of every NumPy function that is recorded, for test_coverage.py: name -> [(function,
shapes)], from numpy_calls.txt and from CALLS below.

    # np.sum
    function -- shapes

A shape stands for an array of that shape, filled at random (magnitudes 0.3 to 2, random signs); an array or
another value stands for itself. Sizes all differ, so that a swapped axis cannot pass.
"""

import operator

import numpy as np

from tests.support.tables import sections

A, B, V, W = (3, 4), (4, 5), (4,), (3,)  # two matrices, two vectors
S, LONG = (3, 3), (7,)
IDS = np.array([2, 0, 2])
MASK = np.array([[True, False, True, False], [False, True, True, True], [True, False, False, True]])
HOLES = np.array([[False, True, False, False], [False, False, True, True], [False, False, False, False]])
BINS = np.array([0, 3, 3, 1])
COUNTED = np.arange(7.0)
METHODS = (
    "inverted_cdf averaged_inverted_cdf closest_observation interpolated_inverted_cdf hazen weibull "
    "median_unbiased normal_unbiased lower higher midpoint nearest"
).split()


def spd(x):
    """Symmetric and positive definite."""
    return x @ x.T + 3.0 * np.eye(x.shape[0])


def written(write):
    """A function that writes into a copy of its argument, and returns the copy."""

    def f(x, *rest):
        y = x.copy()
        write(y, *rest)
        return y * y

    return f


def each(names, *shapes, **options):
    """One call of each of these functions, with arrays of these shapes and these options."""

    def call(name):
        return lambda *arrays: operator.attrgetter(name)(np)(*arrays, **options)

    return {f"np.{name}": [(call(name), *shapes)] for name in names.split()}


def fft_calls(name):
    f = getattr(np.fft, name)
    if name.endswith("fft"):
        return [(lambda x: f(x), A), (lambda x: f(x, n=5, axis=0), A)]
    return [(lambda x: f(x), (2, 3, 4)), (lambda x: f(x, s=(4, 3), axes=(0, 2), norm="ortho"), (2, 3, 4))]


def with_nans(f):
    """f of an array in which some elements are nan."""
    return lambda x: f(np.where(HOLES, np.nan, x))


def quantile_by(function, method):
    return lambda x: function(x, [0.2, 0.55, 1.0], axis=1, method=method)


def padded(mode, **options):
    return lambda x: np.pad(x, ((2, 1), (3, 5)), mode, **options), A


def slid(function):
    """The longer argument second."""

    def call(mode):
        return lambda x, y: function(y, x, mode)

    return [(call(mode), LONG, V) for mode in ("full", "same", "valid")]


def both(function):
    """A function of two polynomials, also with one that is no recorded value."""
    return [(lambda x, y: function(x, y), V, LONG), (lambda x: function(x, [1.0, 2.0]), V)]


def by_name(name, factor=1.0):
    """A function of np.emath, where the real one has values and where it has none."""
    return [(lambda x: getattr(np.emath, name)(x * factor), A)]


CALLS = {
    **each(
        "amax ptp nanmax nanmin nanvar nanprod nancumsum nancumprod cumulative_sum cumulative_prod "
        "linalg.vector_norm",
        A, axis=1),
    **each(
        "amin ediff1d nanmean nanstd cov corrcoef atleast_3d fliplr flipud nan_to_num real_if_close sinc "
        "i0 unique unique_values linalg.pinv linalg.svdvals linalg.matrix_transpose fft.fftshift",
        A),
    **each("vdot vecdot linalg.vecdot", A, A),
    **each("matrix_transpose linalg.matrix_norm linalg.diagonal linalg.trace", (2, 3, 4)),
    **{f"np.fft.{name}": fft_calls(name) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{f"np.fft.{name}{n}": fft_calls(name + n) for name in ("fft", "ifft", "rfft", "irfft") for n in "2n"},
    "np.quantile": [(quantile_by(np.quantile, m), A) for m in METHODS],
    "np.nanquantile": [(with_nans(quantile_by(np.nanquantile, m)), A) for m in ["linear", *METHODS]],
    "np.pad": [
        *(padded(mode) for mode in ("linear_ramp", "maximum", "mean", "median", "minimum")),
        padded("linear_ramp", end_values=((1.0, 2.0), (3.0, 4.0))),
        padded("mean", stat_length=((2, 1), (3, 2))),
        padded("reflect", reflect_type="odd"),
        padded("symmetric", reflect_type="odd"),
    ],
    **{f"np.{f.__name__}": slid(f) for f in (np.convolve, np.correlate)},
    **{f"np.{f.__name__}": both(f) for f in (np.polyadd, np.polysub, np.polymul)},
    **{f"np.emath.{name}": by_name(name) for name in ("sqrt", "log", "log2", "log10")},
    **{f"np.emath.{name}": by_name(name, 1.5) for name in ("arccos", "arcsin", "arctanh")},
}  # fmt: skip
for name, lines in sections(__file__).items():
    rows = (line.split(" -- ") for line in lines)
    CALLS.setdefault(name, []).extend((eval(call), *eval(f"({shapes},)")) for call, shapes in rows)

# Recorded, but nothing to differentiate: they give no real or complex numbers, or constants only
CONSTANT = {
    f"np.{name}"
    for name in """
    all allclose any argmax argmin argpartition argsort argwhere array2string array_equal
    array_equiv array_repr array_str bincount can_cast common_type count_nonzero digitize empty eye
    flatnonzero identity isclose iscomplex iscomplexobj isin isneginf isposinf isreal isrealobj
    linalg.matrix_rank may_share_memory min_scalar_type nanargmax nanargmin ndim nonzero ones
    ravel_multi_index result_type searchsorted shape shares_memory size tri unravel_index zeros
""".split()
}
