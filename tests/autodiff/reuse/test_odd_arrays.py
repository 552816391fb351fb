"""Memory maps, subclasses and other byte orders as arguments."""

import numpy as np
import pytest

from gpt2 import autodiff as ad


def on_disk(path, dtype):
    x = np.memmap(path, dtype, mode="w+", shape=3)
    x[:] = 1 / np.arange(1.0, 4.0)
    return x


def test_the_dtype_of_a_memory_map_counts(tmp_path):
    g = ad.compile(lambda x: x * 2)
    for _ in range(2):
        for dtype in (np.float32, np.float64):
            x = on_disk(tmp_path / np.dtype(dtype).name, dtype)
            found = g(x)
            assert found.dtype == dtype and type(found) is np.ndarray
            np.testing.assert_array_equal(found, 2 * np.asarray(x))


def double(x):
    x *= 2.0


def test_a_memory_map_is_written_to(tmp_path):
    g, x = ad.compile(double), on_disk(tmp_path / "x", float)
    for n in range(3):
        g(x)
        np.testing.assert_allclose(x, 2.0 ** (n + 1) / np.arange(1.0, 4.0))


class Metres(np.ndarray):
    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return "metres"


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("kind", [np.matrix, lambda x: np.array(x).view(Metres)])
def test_arrays_with_array_ufunc_are_refused(kind):
    x = kind([[1.0, 2.0], [3.0, 4.0]])
    g = ad.compile(lambda x: x * x)
    g(np.asarray(x))
    name = type(x).__name__
    with pytest.raises(ad.AutodiffError, match=f"argument x is a {name}, which overrides NumPy's operations"):
        g(x)
    with pytest.raises(ad.AutodiffError, match=f"a {name} met a recorded value, which overrides"):
        ad.compile(lambda y: y * x)(np.ones((2, 2)))


def test_arguments_in_another_byte_order():
    x, other = np.arange(1.0, 4.0), np.arange(1.0, 4.0).astype(">f8")
    f = lambda x: np.stack([x.astype(">f4"), np.tanh(x)]) + np.zeros_like(x)  # noqa: E731
    g = ad.compile(f)
    for given in (x, other, x, other, other):
        found = g(given)
        np.testing.assert_array_equal(found, f(x).astype(float))
        assert found.dtype.isnative
    d = ad.grad(lambda x: np.sum(x**3))(other)
    np.testing.assert_allclose(d, 3 * x**2, rtol=1e-14)
    assert d.dtype.isnative

    g = ad.compile(double)
    for _ in range(2):
        with pytest.raises(ad.AutodiffError, match="writes to an array in a byte order"):
            g(other)
        g(x)
    with pytest.raises(ad.AutodiffError, match="dtype >f8 met a recorded value"):
        ad.compile(lambda x: x * other)(x)
