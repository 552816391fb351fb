"""axpby against NumPy, with BLAS and without, whole and in parts."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.run import blas as module

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("blas", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_axpby_against_float64(dtype, blas, monkeypatch):
    if not blas:
        monkeypatch.setattr(module, "_axpby_of", lambda char: None)
    x, y = np.random.default_rng(0).standard_normal((2, 1001)).astype(dtype)
    x.flags.writeable = False
    kept, expected = x.copy(), -0.3 * x.astype("f8") + 0.9 * y.astype("f8")
    ad.axpby(-0.3, x, 0.9, y, np.empty_like(y))
    # the rounding of each factor, and two roundings of terms smaller than 4
    np.testing.assert_allclose(y, expected, rtol=0, atol=8 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(x, kept)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_axpby_in_parts_has_the_same_bits(dtype):
    x, y = np.random.default_rng(1).standard_normal((2, 400)).astype(dtype)
    whole, parts, scratch = y.copy(), y.copy(), np.empty_like(y)
    ad.axpby(0.1, x, 0.7, whole, scratch)
    for start, stop in ((0, 1), (1, 50), (50, 57), (57, 400)):
        ad.axpby(0.1, x[start:stop], 0.7, parts[start:stop], scratch[start:stop])
    assert parts.tobytes() == whole.tobytes()


def test_axpby_of_nothing():
    ad.axpby(0.1, np.empty(0), 0.7, np.empty(0), np.empty(0))


def test_blas_whose_rounding_depends_on_position_is_not_used():
    def uneven(n, alpha, x, _, beta, y, __):
        import ctypes

        numbers = (ctypes.c_double * n).from_address(y)
        for i in range(n):
            numbers[i] = numbers[i] * beta + i % 8 * 1e-16

    assert not module._is_even(uneven, "d")
