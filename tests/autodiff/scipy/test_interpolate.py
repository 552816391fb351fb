"""gpt2.autodiff.scipy.interpolate: values against SciPy's, derivatives against finite differences."""

import numpy as np
import pytest

from gpt2 import autodiff as ad

pytest.importorskip("scipy")
import scipy.interpolate as theirs

from gpt2.autodiff.scipy import interpolate as ours
from tests.autodiff.scipy.test_modules import check_vmap_and_second_derivatives

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(3)
X = np.array([0.1, 0.7, 1.2, 2.4, 3.1, 3.9, 4.6])
Y, ROWS = RNG.normal(size=7), RNG.normal(size=(2, 7, 3))
INSIDE, OUTSIDE = np.array([[0.3, 1.9], [4.4, 2.6]]), np.array([-0.2, 0.9, 3.3, 4.9])
T = np.array([0, 0, 0, 1, 2, 3, 3, 3.0])
ENDS = ((1, 0.3), (2, -0.2))
GRID, HEIGHTS = (X[:3], X[:4]), RNG.normal(size=(3, 4, 2))
SPOTS = np.array([[0.3, 1.9], [1.1, 0.4], [0.8, 2.3]])
OPEN = {"bounds_error": False, "fill_value": None}

# name -> (function of a module and of arguments, the arguments)
CALLS = {
    "cubic": (lambda m, q, y: m.CubicSpline(X, y)(q), (OUTSIDE, Y)),
    "cubic, natural": (lambda m, q, y: m.CubicSpline(X, y, bc_type="natural")(q), (OUTSIDE, Y)),
    "cubic, ends": (lambda m, q, y: m.CubicSpline(X, y, bc_type=ENDS)(q), (OUTSIDE, Y)),
    "cubic, slope at end": (lambda m, a: m.CubicSpline(X, Y, bc_type=((1, a), "clamped"))(INSIDE), (0.3,)),
    "cubic, derivative": (lambda m, q, y: m.CubicSpline(X, y)(q, 1), (OUTSIDE, Y)),
    "cubic, integral": (lambda m, q, y: m.CubicSpline(X, y).integrate(q[0], q[1]), (INSIDE[0], Y)),
    "cubic, antiderivative": (lambda m, q, y: m.CubicSpline(X, y).antiderivative()(q), (INSIDE, Y)),
    "cubic, inner axis": (lambda m, q, y: m.CubicSpline(X, y, axis=1)(q), (INSIDE, ROWS)),
    "cubic, nan outside": (lambda m, q, y: m.CubicSpline(X, y, extrapolate=False)(q), (INSIDE, Y)),
    "cubic, periodic": (lambda m, q, y: m.CubicSpline(X, y, extrapolate="periodic")(q), (OUTSIDE, Y)),
    "plain cubic": (lambda m, q: m.CubicSpline(X, Y).derivative()(q), (OUTSIDE,)),
    "monotone": (lambda m, q, y: m.PchipInterpolator(X, y)(q), (OUTSIDE, Y)),
    "monotone, rising": (lambda m, q, y: m.PchipInterpolator(X, y)(q), (OUTSIDE, np.cumsum(np.abs(Y)))),
    "monotone, inner axis": (lambda m, q, y: m.PchipInterpolator(X, y, axis=1)(q), (OUTSIDE, ROWS)),
    "monotone, two points": (lambda m, q, y: m.PchipInterpolator(X[:2], y)(q), (OUTSIDE, Y[:2])),
    "hermite": (lambda m, q, y, d: m.CubicHermiteSpline(X, y, d)(q), (OUTSIDE, Y, np.sin(Y))),
    "akima": (lambda m, q: m.Akima1DInterpolator(X, Y)(q), (INSIDE,)),
    "polynomials": (lambda m, q, c: m.PPoly(c, X)(q), (OUTSIDE, RNG.normal(size=(3, 6)))),
    "B-splines": (lambda m, q, c: m.BSpline(T, c, 2)(q), (INSIDE / 2, Y[:5])),
    "B-splines, nan outside": (lambda m, q, c: m.BSpline(T, c, 2, False)(q, 1), (INSIDE / 2, Y[:5])),
    "splev": (lambda m, q, c: m.splev(q, (T, c, 2), 1), (INSIDE / 2, Y[:5])),
    "splev, 0 outside": (lambda m, q: m.splev(q, (T, Y[:5], 2), ext=1), (OUTSIDE,)),
    "splev, constant outside": (lambda m, q: m.splev(q, (T, Y[:5], 2), ext=3), (OUTSIDE,)),
    "spline, natural": (lambda m, q, y: m.make_interp_spline(X, y, bc_type="natural")(q), (OUTSIDE, Y)),
    "spline, second derivative": (lambda m, q, y: m.make_interp_spline(X, y)(q, 2), (OUTSIDE, Y)),
    "spline, inner axis": (lambda m, q, y: m.make_interp_spline(X, y, axis=1)(q), (INSIDE, ROWS)),
    "interp1d, beyond": (lambda m, q, y: m.interp1d(X, y, fill_value="extrapolate")(q), (OUTSIDE, Y)),
    "interp1d, inner axis": (lambda m, q, y: m.interp1d(X, y, axis=1)(q), (INSIDE, ROWS)),
    "interp1d, unsorted": (lambda m, q, y: m.interp1d(X[::-1], y)(q), (INSIDE, Y)),
    "grid": (lambda m, q, v: m.RegularGridInterpolator(GRID, v)(q), (SPOTS, HEIGHTS)),
    "grid, beyond": (lambda m, q, v: m.RegularGridInterpolator(GRID, v, **OPEN)(q - 1.3), (SPOTS, HEIGHTS)),
    "grid, 2 outside": (
        lambda m, q, v: m.RegularGridInterpolator(GRID, v, "linear", False, 2.0)(q + 0.47), (SPOTS, HEIGHTS)
    ),
    "grid, descending": (lambda m, q, v: m.RegularGridInterpolator((-X,), v)(-q[..., None]), (INSIDE, Y)),
    "grid, nearest": (
        lambda m, q, v: m.RegularGridInterpolator(GRID, v, "nearest")(q + 0.03), (SPOTS, HEIGHTS)
    ),
    "grid, columns": (lambda m, q, v: m.interpn(GRID, v, (q[:, 0], q[0, 1])), (SPOTS, HEIGHTS)),
    "plain grid": (lambda m, q: m.RegularGridInterpolator(GRID, HEIGHTS)(q), (SPOTS,)),
    "plain interp1d": (lambda m, q: m.interp1d(X, Y, "cubic")(q), (INSIDE,)),
}  # fmt: skip
for _k in (1, 2, 3, 5):
    CALLS[f"spline of degree {_k}"] = (lambda m, q, y, k=_k: m.make_interp_spline(X, y, k)(q), (OUTSIDE, Y))
for _kind in ("linear", "zero", "quadratic", "cubic", "nearest", "nearest-up", "previous", "next"):
    CALLS[f"interp1d, {_kind}"] = (
        lambda m, q, y, kind=_kind: m.interp1d(X, y, kind, bounds_error=False, fill_value=(1.0, 2.0))(q),
        (OUTSIDE, Y),
    )


SECOND_ORDER = ("cubic", "monotone", "spline of degree 3", "grid")


@pytest.mark.parametrize("name", CALLS)
def test_values_and_derivatives(name):
    call, args = CALLS[name]
    f = lambda *a: call(ours, *a)  # noqa: E731
    np.testing.assert_allclose(ad.compile(f)(*args), call(theirs, *args), rtol=1e-9, atol=1e-11)
    ad.check_grads(f, args, order=2 if name in SECOND_ORDER else 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_vmap_and_second_derivatives(name):
    call, args = CALLS[name]
    check_vmap_and_second_derivatives(lambda *a: call(ours, *a), args)


def test_interpolators_of_plain_arrays():
    curves = [
        ours.CubicSpline(X, Y),
        ours.make_interp_spline(X, Y),
        ours.interp1d(X, Y),
        ours.PPoly([[1.0]], [0, 5]),
    ]
    for curve, kind in zip(curves, (theirs.CubicSpline, theirs.BSpline, theirs.interp1d, theirs.PPoly)):
        assert isinstance(curve, kind)
        g = ad.grad(lambda q: np.sum(curve(q) ** 2))  # noqa: B023
        np.testing.assert_array_equal(g(INSIDE), g(INSIDE))
        assert ad.why_recorded(g) is None
        np.testing.assert_allclose(ad.vmap(curve)(INSIDE), curve(INSIDE), rtol=1e-12)
    curve = curves[0]
    g = ad.grad(lambda q: np.sum(curve(q)))
    before = g(INSIDE)
    curve.c *= 2.0  # modified in place
    np.testing.assert_allclose(g(INSIDE), 2.0 * before)


@pytest.mark.parametrize("call, message", [
    (lambda q: ours.Akima1DInterpolator(X, q)(1.0), "Akima1DInterpolator of recorded values"),
    (lambda q: ours.CubicSpline(q, Y)(1.0), "CubicSpline with knots that are recorded values"),
    (lambda q: ours.CubicSpline(X, q, bc_type="periodic")(1.0), "bc_type='periodic'"),
    (lambda q: ours.make_interp_spline(X, q, bc_type=([(1, 0.0)], [(1, 0.0)]))(1.0), "values given in"),
    (lambda q: ours.CubicSpline(X, q).roots(), "roots of a curve"),
    (lambda q: ours.interp1d(X, Y)(q + 100.0), "lies beyond 0.1 to 4.6"),
    (lambda q: ours.RegularGridInterpolator(GRID, HEIGHTS)(q[:2], "cubic"), "method='cubic'"),
    (lambda q: ours.RegularGridInterpolator((q,), Y)(1.0), "RegularGridInterpolator with knots that are"),
    (lambda q: ours.RegularGridInterpolator(GRID, HEIGHTS)(q[:2] + 9.0), "out of bounds in dimension 0"),
    (lambda q: ours.RegularGridInterpolator((X[:3],), q)(1.0), "3 points and 7 values"),
    (lambda q: ours.KroghInterpolator(X, q)(1.0), r"test_interpolate.py:\d+: .*Krogh.* of recorded"),
    (lambda q: ours.KroghInterpolator(X, Y)(q), r"test_interpolate.py:\d+: .*KroghInterpolator has no"),
    (lambda q: ours.splev(q, (T, Y[:5], 2), ext=2), "splev with ext=2"),
    (lambda q: theirs.CubicSpline(X, Y)(q), r"test_interpolate.py:\d+: .*CubicSpline turns .*plain"),
    (lambda q: theirs.CubicSpline(X, q)(1.0), r"test_interpolate.py:\d+: .*CubicSpline turns .*plain"),
])  # fmt: skip
def test_unsupported_calls_are_errors(call, message):
    with pytest.raises(Exception, match=message):
        ad.grad(lambda q: np.sum(call(q)))(Y)


def test_changed_interp1d():
    curve = ours.interp1d(X, Y, bounds_error=False)
    value, g = ad.compile(lambda q: curve(q) + 0.0), ad.grad(lambda q: curve(q))
    assert g(0.5) == g(0.5) and np.isnan(value(-1.0))
    curve.fill_value = 2.0
    assert value(-1.0) == curve(-1.0) == 2.0
    curve.y = 2.0 * curve.y
    with pytest.raises(ad.AutodiffError, match="interp1d changed after it was made"):
        g(0.5)


EVALUATED = [name for name, (_, args) in CALLS.items() if np.ndim(args[0]) and "integral" not in name]


@pytest.mark.parametrize("name", EVALUATED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_and_infinite_points(name):
    """SciPy's value or error, except at infinity: there polynomials have their limit, where SciPy's are nan,
    and B-splines are nan, where SciPy's are infinite. The derivative is nan where the value is.
    """
    f, (x, *rest) = CALLS[name]
    x, middle = np.array(x, float), np.size(x) // 2
    value, total = ad.compile(lambda x: f(ours, x, *rest)), lambda x: np.sum(f(ours, x, *rest))
    gradient = ad.grad(total)
    for point in (np.nan, np.inf, -np.inf):
        x.flat[middle] = point
        try:
            expected = f(theirs, x, *rest)
        except ValueError:
            with pytest.raises(ValueError, match="beyond|out of bounds"):
                value(x)
            continue
        result = value(x)
        compared = np.isfinite(result) | np.isfinite(expected) | np.isnan(point)
        np.testing.assert_allclose(result[compared], np.asarray(expected)[compared], rtol=1e-9, atol=1e-12)
        if not np.isinf(result).any():
            tangent = ad.jvp(total, (x,), (np.ones_like(x),))[1]
            assert np.isnan(gradient(x).flat[middle]) == np.isnan(result).any() == np.isnan(tangent), point


def test_nan_among_the_values_reaches_the_result():
    y = Y.copy()
    y[3] = np.nan
    result = ad.compile(lambda y: ours.PchipInterpolator(X, y)(np.array([0.3, 1.0, 4.3])))(y)
    np.testing.assert_array_equal(np.isnan(result), [False, True, False])


@pytest.mark.parametrize("kind", ["nearest", "previous", "linear"])
def test_interp1d_keeps_single_precision(kind):
    x = np.arange(5, dtype=np.float32)
    curve = ours.interp1d(x, x * x, kind=kind, fill_value=0.0, bounds_error=False)
    points = np.float32([1.2, 7.0])
    assert ad.compile(curve)(points).dtype == curve(points).dtype
