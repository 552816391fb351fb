"""gpt2.autodiff.scipy.ndimage: values against SciPy's, derivatives against finite differences."""

import itertools

import numpy as np
import pytest

from gpt2 import autodiff as ad

pytest.importorskip("scipy")
import scipy.ndimage as scipy_ndimage

from gpt2.autodiff.scipy import ndimage
from tests.autodiff.scipy.test_modules import check_value_and_grads

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(7)
IMAGE = RNG.normal(size=(4, 5))
MODES = ("reflect", "grid-mirror", "constant", "grid-constant", "nearest", "mirror", "grid-wrap", "wrap")
# Up to several image sizes outside of each edge, and at integers
POINTS = np.concatenate(
    [RNG.uniform(-11.0, 14.0, (2, 60)), [[0, 3, -4, 8, 3.5], [4, 5, -8, 0, -0.5]]], axis=1
)


def check_against_scipy(f, *args):
    """f(module, ...) with ndimage, compiled, equals f with scipy.ndimage."""
    np.testing.assert_allclose(
        ad.compile(lambda *a: f(ndimage, *a))(*args), f(scipy_ndimage, *args), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("mode", MODES)
def test_filters_in_all_modes(mode):
    wide = RNG.normal(size=13)  # more taps than pixels
    for weights, axis, origin in ((wide[:3], 0, 1), (wide[:4], 1, -1), (wide, 1, 0)):
        check_against_scipy(lambda m, x: m.correlate1d(x, weights, axis, None, mode, 0.3, origin), IMAGE)  # noqa: B023
        check_against_scipy(lambda m, x: m.convolve1d(x, weights, axis, None, mode, 0.3, origin), IMAGE)  # noqa: B023
    check_against_scipy(lambda m, x: m.gaussian_filter(x, (1.1, 0.7), (0, 2), mode=mode, cval=0.2), IMAGE)
    check_against_scipy(lambda m, x: m.uniform_filter(x, (4, 3), mode=mode, cval=0.2), IMAGE)
    f = lambda x: ndimage.gaussian_filter(x, 0.6, mode=mode, cval=0.2, truncate=3.0)  # noqa: E731
    ad.check_grads(f, (IMAGE,), order=1)


def test_filter_options_and_derivatives_by_weights():
    check_value_and_grads(lambda x, w: ndimage.convolve1d(x, w, 0), (IMAGE, RNG.normal(size=3)), order=2)
    check_value_and_grads(lambda s: ndimage.gaussian_filter(IMAGE, s, order=1), (0.8,), order=2)
    check_against_scipy(lambda m, x: m.gaussian_filter(x, [1.2, 0.0], 3), IMAGE)
    check_against_scipy(lambda m, x: m.gaussian_filter(x, 1.3, axes=(1,), radius=2), IMAGE)
    check_against_scipy(lambda m, x: m.gaussian_filter1d(x, 0.9, 0, mode="mirror"), IMAGE)
    check_against_scipy(lambda m, x: m.uniform_filter1d(x, 4, 0, origin=1), IMAGE)
    many = np.stack([IMAGE, IMAGE[::-1]])
    one = lambda x: ndimage.gaussian_filter(x, 1.0)  # noqa: E731
    np.testing.assert_allclose(ad.vmap(one)(many), [one(x) for x in many], rtol=1e-12)
    g = ad.grad(lambda x: np.sum(one(x) ** 2))
    g(IMAGE)
    assert ad.why_recorded(g) is None


@pytest.mark.parametrize("mode", MODES)
def test_map_coordinates_in_all_modes(mode):
    check_against_scipy(lambda m, x, c: m.map_coordinates(x, c, order=1, mode=mode, cval=0.4), IMAGE, POINTS)
    f = lambda x, c: ndimage.map_coordinates(x, c, order=1, mode=mode, cval=0.4) ** 2  # noqa: E731
    ad.check_grads(f, (IMAGE, POINTS[:, :6] % 5.0 - 0.7), order=1)


def test_map_coordinates_of_three_axes_and_batches():
    block = RNG.normal(size=(3, 2, 4))
    points = RNG.uniform(0.05, 0.95, size=(3, 2, 2)) * np.array([2, 1, 3])[:, None, None]
    check_value_and_grads(lambda x, c: ndimage.map_coordinates(x, c, order=1), (block, points), order=2)
    one = lambda c: ndimage.map_coordinates(block, c, order=1)  # noqa: E731
    np.testing.assert_allclose(ad.vmap(one, in_axes=1)(points), one(points), rtol=1e-12)


@pytest.mark.parametrize("call, message", [
    (lambda x: ndimage.map_coordinates(x, x[:2]), r"test_ndimage.py:\d+: .*map_coordinates with order=3"),
    (lambda x: ndimage.map_coordinates(x, x[:3], order=1), "coordinates of shape"),
    (lambda x: ndimage.gaussian_filter(x, 1.0, mode="edge"), "boundary mode 'edge' is not supported"),
    (lambda x: ndimage.gaussian_filter(np.arange(9), x[0, 0] ** 2 + 1.0), "of integers"),
    (lambda x: ndimage.gaussian_filter(x, 1.0, output=np.zeros((4, 5))), "with output="),
    (lambda x: ndimage.gaussian_filter(x, (1.0, 1.0, 1.0)), "3 values are given for 2 axes"),
    (lambda x: ndimage.correlate1d(x, [1.0, 2.0], origin=5), "origin is 5"),
    (lambda x: ndimage.sobel(x), "scipy.ndimage.sobel has no derivative rule"),
    (lambda x: scipy_ndimage.gaussian_filter(x, 1.0), r"test_ndimage.py:\d+: .*gaussian_filter.*plain"),
])  # fmt: skip
def test_unsupported_calls_are_errors(call, message):
    with pytest.raises(Exception, match=message):
        ad.grad(lambda x: np.sum(call(x)))(IMAGE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_map_coordinates_at_nan_infinity_and_edges(mode):
    """SciPy's values; the derivative is nan where the value is."""
    image = np.random.default_rng(0).normal(size=(4, 5))
    f = lambda c: ndimage.map_coordinates(image, c, order=1, mode=mode, cval=7.0)  # noqa: E731
    value, gradient = ad.compile(f), ad.grad(lambda c: np.sum(f(c)))
    for point, axis in itertools.product([np.nan, np.inf, -np.inf, -1e-17, 3.0, 13.3, -0.5], [0, 1]):
        c = np.array([[1.3, 0.5], [2.4, 1.2]])
        c[axis, 0] = point
        expected, said = f(c), f"at {point} along {axis}"
        np.testing.assert_allclose(value(c), expected, rtol=1e-12, atol=1e-14, err_msg=said)
        tangent = ad.jvp(f, (c,), (np.ones_like(c),))[1]
        np.testing.assert_array_equal(np.isnan(gradient(c)), np.isnan([expected] * 2), said)
        np.testing.assert_array_equal(np.isnan(tangent), np.isnan(expected), said)


def test_recorded_widths_in_a_list():
    def f(s, several):
        return np.sum(ndimage.gaussian_filter(IMAGE, [s, 2.0 * s] if several else s) ** 2)

    ahead, behind = (f(1.1 + h, True) for h in (1e-5, -1e-5))
    assert ad.grad(f)(1.1, True) == pytest.approx((ahead - behind) / 2e-5, rel=1e-7)  # of second order
