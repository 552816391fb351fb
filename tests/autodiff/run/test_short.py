"""Kernels for a short last axis, which go column by column: the bits of NumPy's loops."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.ops import OPS
from gpt2.autodiff.run import kernels, short

rng = np.random.default_rng(5)


def draw(shape, dtype=np.float64):
    """Numbers of very different magnitudes, so that another order of summation changes bits."""
    return (rng.normal(size=shape) * 10.0 ** rng.integers(-6, 7, size=shape)).astype(dtype)


def assert_same_bits(a, b):
    assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", range(2, short.LONGEST + 1))
def test_sum_last_has_numpys_bits(n, dtype):
    for shape in ((5000, n), (70, 3, n), (3, n), (1, 90, n)):
        x = draw(shape, dtype)
        turned, part = np.swapaxes(x, 0, -2), np.repeat(x, 2, axis=-1)[..., ::2]
        for y in (x, np.asfortranarray(x), part, turned, np.full_like(x, -0.0)):
            out = np.empty(y.shape[:-1], dtype)
            short.sum_last(y, out)
            assert_same_bits(out, np.add.reduce(y, axis=-1, out=np.empty_like(out)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", range(2, short.IN_ORDER + 1))
def test_sum_products_has_numpys_bits(n, dtype):
    for shape in ((9000, n), (70, 300, n), (1, 20000, n), (90, 1, n), (0, 4, n)):
        x, y = draw(shape, dtype), draw(shape, dtype)
        for a, b in ((x, x), (np.asfortranarray(x), y), (-0.0 * np.abs(x), np.abs(y))):
            out = np.empty(shape[:-1], dtype)
            short.sum_products(a, b, out)
            assert_same_bits(out, np.add.reduce(np.ascontiguousarray(a * b), axis=-1))


@pytest.mark.parametrize("f", [np.minimum, np.maximum])
def test_extreme_last_has_numpys_bits(f):
    x = draw((80, 20))
    x[3, 4], x[70] = np.nan, np.inf
    for y in (x, x[:2], np.asfortranarray(x)):
        out = np.empty(len(y))
        short.extreme_last(f, y, out)
        assert_same_bits(out, f.reduce(y, axis=1))


def test_by_columns_and_put_where_have_numpys_bits():
    a, b, c = draw((100, 1, 3)), draw((80, 3)), draw((100, 80, 1))
    for f in (np.add, np.subtract, np.multiply, np.divide):
        for args in ((a, b), (c, a), (b, c), (2.0, c)):
            out = np.empty((100, 80, 3))
            assert short.by_columns(f, *args, out=out) is out
            assert_same_bits(out, f(*args, out=np.empty_like(out)))
    for where, value in ((c > 0.0, a), (a > 0.0, 1.0), (b > 0.0, c)):
        out, expected = np.zeros((2, 100, 80, 3))
        short.put_where(out, value, where)
        np.copyto(expected, value, where=where)
        assert_same_bits(out, expected)


def test_add_numbers_has_the_bits_of_add_at():
    index, values = rng.integers(0, 7, size=(40, 3)), draw((40, 3))
    for i in (index, index - 7):
        out, expected = np.zeros((2, 7))
        kernels.add_numbers(out, i, values)
        np.add.at(expected, i, values)
        assert_same_bits(out, expected)
    with pytest.raises(IndexError):
        kernels.add_numbers(np.zeros(7), index + 4, values)


def test_add_rows_without_columns():
    kernels.add_rows(np.zeros((5, 0)), np.array([0, 2, 2]), np.zeros((3, 0)))
    x = np.ones((5, 0))
    assert ad.grad(lambda x: np.sum(x[np.array([0, 2, 2])]))(x).shape == x.shape


@pytest.mark.parametrize("index", [[[1, 1]], [[2]], [[1, 0]] * 4])
def test_gradient_of_what_is_taken_along_an_axis(index):
    """NumPy broadcasts the index along the other axes."""
    x, index = draw((4, 5)), np.array(index)
    expected = np.zeros_like(x)
    np.add.at(expected, (np.arange(4)[:, None], index), 1.0)
    got = ad.grad(lambda x: np.sum(np.take_along_axis(x, index, 1)))(x)
    np.testing.assert_array_equal(got, expected)


def energy(x):
    offset = x[:, None] - x[None, :]
    squared = np.sum(offset * offset, axis=-1)
    return np.sum(np.where(squared[..., None] > 0.5, offset, 0.1) ** 2, axis=(0, 2)) + np.sum(squared[:2])


def manhattan(x):
    return np.sum(np.abs(x[:, None] - x[None, :]), axis=-1)


@pytest.mark.parametrize(
    ("f", "used"), [(energy, ["by_columns(", "sum_products(", "put_where("]), (manhattan, ["sum_last("])]
)
def test_programs_of_pairwise_offsets_use_column_kernels(f, used):
    x = draw((70, 3))
    compiled = ad.compile(f)
    assert_same_bits(compiled(x), f(x))
    source = ad.source(compiled, emitted=True)
    assert all(kernel in source for kernel in used)


@pytest.mark.parametrize("points", [12, 70])
def test_gradient_of_pairwise_offsets(points):
    """The number of points decides whether there are column kernels."""
    x = rng.normal(size=(points, 3))
    ad.check_grads(lambda x: np.sum(np.sqrt(energy(x))), (x,), order=1)


def pair_potential(x, weights):
    """Reads offsets three times, and its gradient sums them over each of the first two axes."""
    offset = x[:, None] - weights[None, :] * x[None, :]
    return np.sum(np.sqrt(np.sum(offset**2, axis=2) + 1.0))


def test_pairwise_offsets_are_stored_as_planes():
    x, weights = rng.normal(size=(2, 150, 3))
    f, g = ad.compile(pair_potential), ad.grad(pair_potential)
    assert_same_bits(np.asarray(f(x, weights)), np.asarray(pair_potential(x, weights)))
    gradient = g(x, weights)
    source = ad.source(g, emitted=True)
    assert "add_planes(" in source and "sum_in_planes(" in source
    offset = x[:, None] - weights[None, :] * x[None, :]
    each = offset / np.sqrt(np.sum(offset**2, axis=2) + 1.0)[:, :, None]
    expected = np.sum(each, axis=1) - weights * np.sum(each, axis=0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-11, atol=1e-12)


def test_offsets_read_through_a_view_are_stored_in_rows():
    def f(x, weights):
        offset = (x[:, None] - weights[None, :]) * 2.0
        return np.sum(offset.reshape(len(x), -1) * np.arange(3.0 * len(weights)), axis=1)

    x, weights = rng.normal(size=(2, 150, 3))
    assert_same_bits(ad.compile(f)(x, weights), f(x, weights))


@pytest.mark.parametrize(("kernel", "axis"), [(short.add_planes, 0), (short.sum_in_planes, 1)])
def test_sums_of_planes(kernel, axis):
    planes = np.moveaxis(draw((3, 20, 30)), 0, -1)
    out = np.empty((planes.shape[1 - axis], 3))
    kernel(planes, np.ones(30), out)
    np.testing.assert_allclose(out, planes.sum(axis), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_share_among_has_the_bits_of_its_definition(dtype):
    """One, several or no chosen elements per row; extremes that are nan in a few rows or in all."""
    evaluate = OPS["share_among"].evaluate
    for trial in range(40):
        shape, axes = [((30, 7), (1,)), ((30, 7), (0,)), ((6, 5, 4), (1, 2)), ((4, 1), (1,))][trial % 4]
        levels = 3 if trial % 3 else 10**6  # with a million levels ties are rare
        x = rng.integers(0, levels, shape).astype(dtype)
        if trial % 5 == 0:
            x.flat[rng.integers(x.size, size=2)] = np.nan
        extreme = np.max(x, axis=axes, keepdims=True)
        chosen = ~(x < extreme) if trial % 7 else rng.random(shape) < 1 / shape[-1]
        g, out = rng.normal(size=extreme.shape).astype(dtype), np.empty(shape, dtype)
        with np.errstate(divide="ignore"):
            kernels.share_among(g, chosen, extreme, out, axes)
            assert_same_bits(out, evaluate(g, chosen, extreme, axes=axes))


def test_gradient_of_a_minimum_is_shared_among_ties():
    x = rng.integers(0, 300, (200, 90)).astype(float)
    x[7, 3], x[9] = np.nan, 5.0
    weights = rng.normal(size=200)
    g = ad.grad(lambda x: np.sum(np.min(x, axis=1) * weights))
    chosen = ~(x > np.min(x, axis=1, keepdims=True))
    count = np.where(np.isnan(np.min(x, axis=1)), np.nan, chosen.sum(1))
    assert_same_bits(g(x), np.where(chosen, (weights / count)[:, None], 0.0))
    assert "share_among(" in ad.source(g, emitted=True)
