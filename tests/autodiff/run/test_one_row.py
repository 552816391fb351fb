"""One row times a transposed matrix: dot products, divided among threads."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.run import one_row, split_matmul


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr(one_row, "trials", split_matmul.Trials())
    ad.set_threads(2)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float64", 1e-13)])
@pytest.mark.parametrize("N", [1, 700, 2 * one_row.SHARE_FROM // (4 * 300) + 7])
def test_product_is_accurate_and_threads_change_no_bit(dtype, tolerance, N, two_threads):
    rng = np.random.default_rng(0)
    a, w = rng.standard_normal((1, 300)).astype(dtype), rng.standard_normal((N, 300)).astype(dtype)
    out, alone = np.empty((1, N), dtype), np.empty((1, N), dtype)
    assert one_row.matmul_in_any_order(a, w.T, out) is out
    scale = np.abs(a) @ np.abs(w.T)
    assert np.max(np.abs(out - a @ w.T) / scale) < tolerance
    ad.set_threads(1)
    np.testing.assert_array_equal(one_row.matmul_in_any_order(a, w.T, alone), out)
    ad.set_threads(2)
    for _ in range(2 * split_matmul.SAMPLES + 1):  # both ways, then the chosen one
        out[...] = np.nan
        np.testing.assert_array_equal(one_row.matmul_in_any_order(a, w.T, out), alone)
    assert len(one_row.trials.chosen) == (w.nbytes >= one_row.SHARE_FROM)


@pytest.mark.parametrize("best", ["alone", "shared"])
def test_way_with_the_shortest_sample_is_chosen(best, two_threads, monkeypatch):
    """Both ways are timed in turn. The first sample of the better one is slow."""
    ways, now, run = [], [0.0], one_row._run

    def timed(way, *args):
        ways.append(way)
        now[0] += 1.0 if way == best and len(ways) > 2 else 2.0 if way != best else 9.0
        return run(way, *args)

    monkeypatch.setattr(one_row, "_run", timed)
    monkeypatch.setattr(split_matmul.time, "perf_counter", lambda: now[0])
    a, w = np.ones((1, 64), np.float32), np.ones((one_row.SHARE_FROM // 256, 64), np.float32)
    out = np.empty((1, len(w)), np.float32)
    for _ in range(2 * split_matmul.SAMPLES + 3):
        one_row.matmul_in_any_order(a, w.T, out)
    assert ways == ["alone", "shared"] * split_matmul.SAMPLES + [best] * 3
    small = w[:-1]
    one_row.matmul_in_any_order(a, small.T, out[:, :-1])
    assert ways[-1] == "alone" and len(one_row.trials.chosen) == 1


def test_other_operands_go_to_blas(monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(one_row, "_run", None)
    for a, b in (
        (rng.standard_normal((2, 5)), rng.standard_normal((4, 5)).T),  # two rows
        (rng.standard_normal((1, 5)), rng.standard_normal((5, 4))),  # columns are not contiguous
        (rng.standard_normal((1, 5)).astype("f4"), rng.standard_normal((4, 5)).T),  # two dtypes
        (rng.standard_normal((1, 5)) + 1j, rng.standard_normal((4, 5)).T + 1j),
    ):
        out = np.empty((len(a), 4), np.result_type(a, b))
        np.testing.assert_array_equal(one_row.matmul_in_any_order(a, b, out), a @ b)


def test_dot_products_are_used_with_fast_math_only(monkeypatch):
    """They add in another order than NumPy."""
    called = []
    run = one_row._run
    monkeypatch.setattr(one_row, "_run", lambda *args: called.append(1) or run(*args))
    x, w = np.ones((1, 8)), np.ones((3, 8))
    for math, times in (("strict", 0), ("fast", 1)):
        ad.Fixed(lambda x, w: x @ w.T, ad.Options(math=math))(x, w)
        assert len(called) == times
