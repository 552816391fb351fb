"""Arrays with a short last axis, column by column: the same bits as NumPy's own loops."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.ops import OPS
from gpt2.autodiff.run import kernels, short

rng = np.random.default_rng(5)


def drawn(shape, dtype=np.float64):
    """Numbers of very different sizes, so that another order of additions shows."""
    return (rng.normal(size=shape) * 10.0 ** rng.integers(-6, 7, size=shape)).astype(dtype)


def same(a, b):
    assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", range(2, short.LONGEST + 1))
def test_sums_over_a_short_axis_have_numpys_bits(n, dtype):
    for shape in ((5000, n), (70, 3, n), (3, n), (1, 90, n)):
        x = drawn(shape, dtype)
        for y in (x, np.asfortranarray(x), np.repeat(x, 2, axis=-1)[..., ::2], np.swapaxes(x, 0, -2)):
            out = np.empty(y.shape[:-1], dtype)
            short.sum_last(y, out)
            same(out, np.add.reduce(y, axis=-1, out=np.empty_like(out)))


def test_the_sum_of_negative_zeros_is_what_numpy_says():
    for n in (3, 9):
        x, out = np.full((100, n), -0.0), np.empty(100)
        short.sum_last(x, out)
        same(out, np.add.reduce(x, axis=1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", range(2, short.IN_ORDER + 1))
def test_sums_of_products_have_numpys_bits(n, dtype):
    for shape in ((9000, n), (70, 300, n), (1, 20000, n), (90, 1, n), (0, 4, n)):
        x, y = drawn(shape, dtype), drawn(shape, dtype)
        for a, b in ((x, x), (np.asfortranarray(x), y), (-0.0 * np.abs(x), np.abs(y))):
            out = np.empty(shape[:-1], dtype)
            short.sum_products(a, b, out)
            same(out, np.add.reduce(np.ascontiguousarray(a * b), axis=-1))


@pytest.mark.parametrize("f", [np.minimum, np.maximum])
def test_extremes_of_short_rows_are_numpys(f):
    x = drawn((80, 20))
    x[3, 4], x[70] = np.nan, np.inf
    for y in (x, x[:2], np.asfortranarray(x)):
        out = np.empty(len(y))
        short.extreme_last(f, y, out)
        same(out, f.reduce(y, axis=1))


def test_columns_are_what_rows_are():
    a, b, c = drawn((100, 1, 3)), drawn((80, 3)), drawn((100, 80, 1))
    for f in (np.add, np.subtract, np.multiply, np.divide):
        for args in ((a, b), (c, a), (b, c), (2.0, c)):
            out = np.empty((100, 80, 3))
            assert short.by_columns(f, *args, out=out) is out
            same(out, f(*args, out=np.empty_like(out)))
    for where, value in ((c > 0.0, a), (a > 0.0, 1.0), (b > 0.0, c)):
        found, expected = np.zeros((100, 80, 3)), np.zeros((100, 80, 3))
        short.put_where(found, value, where)
        np.copyto(expected, value, where=where)
        same(found, expected)


def test_numbers_are_added_to_zeros_as_numpy_does():
    index, values = rng.integers(0, 7, size=(40, 3)), drawn((40, 3))
    for i in (index, index - 7):
        found, expected = np.zeros(7), np.zeros(7)
        kernels.add_numbers(found, i, values)
        np.add.at(expected, i, values)
        same(found, expected)
    with pytest.raises(IndexError):
        kernels.add_numbers(np.zeros(7), index + 4, values)


def energy(x):
    offset = x[:, None] - x[None, :]
    squared = np.sum(offset * offset, axis=-1)
    return np.sum(np.where(squared[..., None] > 0.5, offset, 0.1) ** 2, axis=(0, 2)) + np.sum(squared[:2])


def test_programs_of_points_in_space_go_by_columns():
    """And what a compiled program gives is what NumPy gives, to the bit."""
    x = drawn((70, 3))
    f = ad.compile(energy)
    same(f(x), energy(x))
    source = ad.source(f, x, emitted=True)
    assert "by_columns(" in source and "sum_products(" in source and "put_where(" in source
    h = ad.compile(lambda x: np.sum(np.abs(x[:, None] - x[None, :]), axis=-1))
    same(h(x), np.sum(np.abs(x[:, None] - x[None, :]), axis=-1))
    assert "sum_last(" in ad.source(h, emitted=True)
    points = rng.normal(size=(12, 3))
    ad.check_grads(lambda x: np.sum(np.sqrt(energy(x))), (points,), order=1)
    many = rng.normal(size=(70, 3))
    e = np.zeros_like(many)
    e[3, 1] = 1e-6
    slope = (np.sum(np.sqrt(energy(many + e))) - np.sum(np.sqrt(energy(many - e)))) / 2e-6
    assert ad.grad(lambda x: np.sum(np.sqrt(energy(x))))(many)[3, 1] == pytest.approx(slope, rel=1e-6)


def forces(x, weights):
    """Offsets that are read three times, and summed over the rows and over the axis before the last."""
    offset = x[:, None] - weights[None, :] * x[None, :]
    return np.sum(np.sqrt(np.sum(offset**2, axis=2) + 1.0))


def test_offsets_of_points_lie_in_planes():
    """The value has NumPy's bits; gradients those of the same program without planes, but for the sums."""
    x, weights = rng.normal(size=(150, 3)), rng.normal(size=(150, 3))
    f, g = ad.compile(forces), ad.grad(forces)
    same(np.asarray(f(x, weights)), np.asarray(forces(x, weights)))
    found = g(x, weights)
    source = ad.source(g, emitted=True)
    assert "add_planes(" in source and "sum_in_planes(" in source
    offset = x[:, None] - weights[None, :] * x[None, :]
    each = offset / np.sqrt(np.sum(offset**2, axis=2) + 1.0)[:, :, None]
    expected = np.sum(each, axis=1) - weights * np.sum(each, axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


def test_what_is_read_through_a_view_lies_row_by_row():
    def f(x, weights):
        offset = (x[:, None] - weights[None, :]) * 2.0
        return np.sum(offset.reshape(len(x), -1) * np.arange(3.0 * len(weights)), axis=1)

    x, weights = rng.normal(size=(150, 3)), rng.normal(size=(150, 3))
    same(ad.compile(f)(x, weights), f(x, weights))


def test_sums_of_planes_are_sums():
    planes = np.moveaxis(np.ascontiguousarray(np.moveaxis(drawn((20, 30, 3)), -1, 0)), 0, -1)
    out = np.empty((30, 3))
    short.add_planes(planes, np.ones(25), out)
    np.testing.assert_allclose(out, planes.sum(0), rtol=1e-9, atol=1e-9)
    out = np.empty((20, 3))
    short.sum_in_planes(planes, np.ones(30), out)
    np.testing.assert_allclose(out, planes.sum(1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_gradient_is_shared_among_equals(dtype):
    """Rows with one, several or no element that is chosen, and extremes that are nan, one or all at once."""
    evaluate = OPS["share_among"].evaluate
    for trial in range(40):
        shape, axes = [((30, 7), (1,)), ((30, 7), (0,)), ((6, 5, 4), (1, 2)), ((4, 1), (1,))][trial % 4]
        levels = 3 if trial % 3 else 10**6  # of so many numbers hardly two are equal
        x = rng.integers(0, levels, shape).astype(dtype)
        if trial % 5 == 0:
            x.flat[rng.integers(x.size, size=2)] = np.nan
        extreme = np.max(x, axis=axes, keepdims=True)
        chosen = ~(x < extreme) if trial % 7 else rng.random(shape) < 1 / shape[-1]
        g, out = rng.normal(size=extreme.shape).astype(dtype), np.empty(shape, dtype)
        with np.errstate(divide="ignore"):
            kernels.share_among(g, chosen, extreme, out, axes)
            same(out, evaluate(g, chosen, extreme, axes=axes))


def test_the_gradient_of_a_minimum_in_blocks_of_rows():
    x = rng.integers(0, 300, (200, 90)).astype(float)
    x[7, 3], x[9] = np.nan, 5.0
    weights = rng.normal(size=200)
    g = ad.grad(lambda x: np.sum(np.min(x, axis=1) * weights))
    chosen = ~(x > np.min(x, axis=1, keepdims=True))
    count = np.where(np.isnan(np.min(x, axis=1)), np.nan, chosen.sum(1))
    same(g(x), np.where(chosen, (weights / count)[:, None], 0.0))
    assert "share_among(" in ad.source(g, emitted=True)
