"""Products shared out over threads: the same bits whichever way, the choice measured once and remembered."""

import json

import numpy as np
import pytest

from gpt2.autodiff.run import kernels, remembered, split_matmul, threads


@pytest.fixture(autouse=True)
def afresh():
    remembered.forget()
    split_matmul._trials.clear()
    threads.set_threads(3)
    yield
    threads.set_threads(1)
    remembered.forget()
    split_matmul._trials.clear()


def operands(M, K, N, dtype, transposed=""):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((K, M) if "a" in transposed else (M, K)).astype(dtype)
    b = rng.standard_normal((N, K) if "b" in transposed else (K, N)).astype(dtype)
    return a.T if "a" in transposed else a, b.T if "b" in transposed else b


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize(
    "shape", [(256, 130, 700), (67, 300, 1001), (1500, 64, 90), (768, 128, 65), (33, 40, 9)]
)
def test_every_way_gives_the_bits_of_the_plain_product(shape, transposed, dtype):
    a, b = operands(*shape, dtype, transposed)
    want = a @ b
    for way in split_matmul.WAYS:
        out = np.full(want.shape, np.nan, dtype)
        split_matmul._run(way, a, b, out, 3, threads.run_on_threads)
        np.testing.assert_array_equal(out, want, err_msg=way)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sizes_that_no_tile_divides_keep_their_bits(dtype):
    """Some sizes are no multiples of BLAS's tiles, and cut products then add up in another order."""
    for M, K, N in ((1192, 28, 275), (71, 222, 293), (25, 1165, 342), (17, 1292, 311)):
        for transposed in ("", "a", "b"):
            a, b = operands(M, K, N, dtype, transposed)
            want, out = a @ b, np.empty((M, N), dtype)
            for _ in range(3 * split_matmul.SAMPLES):
                np.testing.assert_array_equal(kernels.matmul(a, b, out), want)


def test_the_fastest_way_is_chosen_once_and_remembered(tmp_path, monkeypatch):
    remembered.remember(tmp_path / "folder")
    a, b = operands(200, 300, 400, np.float32)
    want, out = a @ b, np.empty((200, 400), np.float32)
    for _ in range(3 * split_matmul.SAMPLES):
        assert kernels.matmul(a, b, out) is out
        np.testing.assert_array_equal(out, want)
    ((key, way),) = split_matmul.chosen.made.items()
    assert key == (200, 300, 400, "C", "C", "f", 3)
    stored = json.loads((tmp_path / "folder" / "products.json").read_text())
    assert stored == {split_matmul.chosen.machine(): {"200 300 400 C C f 3": way}}

    remembered.forget()
    remembered.remember(tmp_path / "folder")
    monkeypatch.setattr(split_matmul, "_try", None)  # nothing is tried again
    kernels.matmul(a, b, out)
    assert split_matmul.chosen.made == {key: way}


def test_small_products_and_one_thread_take_the_plain_call():
    a, b = operands(100, 100, 100, np.float32)
    kernels.matmul(a, b, np.empty((100, 100), np.float32))
    threads.set_threads(1)
    a, b = operands(200, 300, 400, np.float32)
    kernels.matmul(a, b, np.empty((200, 400), np.float32))
    assert not split_matmul.chosen.made and not split_matmul._trials


def test_a_way_that_changes_a_bit_is_not_taken(monkeypatch):
    run = split_matmul._run

    def off(way, a, b, out, *rest):
        run(way, a, b, out, *rest)
        if way == "rows":
            out *= 1 + 1e-6
        return out

    monkeypatch.setattr(split_matmul, "_run", off)
    a, b = operands(200, 300, 400, np.float32)
    want, out = a @ b, np.empty((200, 400), np.float32)
    for _ in range(3 * split_matmul.SAMPLES):
        kernels.matmul(a, b, out)
        np.testing.assert_array_equal(out, want)
    assert list(split_matmul.chosen.made.values()) != ["rows"]


def test_nothing_large_is_tried(monkeypatch):
    monkeypatch.setattr(split_matmul, "LARGE", 1 << 12)
    monkeypatch.setattr(split_matmul, "_try", None)
    a, b = operands(200, 300, 400, np.float32)
    np.testing.assert_array_equal(kernels.matmul(a, b, np.empty((200, 400), np.float32)), a @ b)
