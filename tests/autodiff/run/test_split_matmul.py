"""Matrix products split among threads: no bit changes, and the fastest way is taken."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpt2.autodiff.run import blas, remembered, split_matmul, threads

pytestmark = pytest.mark.numeric


@pytest.fixture(autouse=True)
def three_threads(monkeypatch):
    """Without earlier choices."""
    remembered.forget()
    monkeypatch.setattr(split_matmul, "trials", split_matmul.Trials())
    threads.set_threads(3)
    yield
    remembered.forget()


def operands(M, K, N, dtype=np.float32, transposed=""):
    """The two matrices of a product, and memory for it."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((K, M) if "a" in transposed else (M, K)).astype(dtype)
    b = rng.standard_normal((N, K) if "b" in transposed else (K, N)).astype(dtype)
    out = np.full((M, N), np.nan, dtype)
    return a.T if "a" in transposed else a, b.T if "b" in transposed else b, out


def check_bits(a, b, out):
    """Those of a @ b, in the calls that are measured and in those after them."""
    want = a @ b
    for _ in range(3 * split_matmul.SAMPLES):
        assert split_matmul.matmul(a, b, out) is out
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize(
    "shape", [(256, 130, 700), (67, 300, 1001), (1500, 64, 90), (768, 128, 65), (33, 400, 900)]
)
@pytest.mark.parametrize("large", [split_matmul.LARGE, 1 << 12])
def test_ways_that_pass_the_bit_check_have_the_bits_of_matmul(monkeypatch, shape, transposed, dtype, large):
    monkeypatch.setattr(split_matmul, "LARGE", large)  # of larger products only a part is checked
    a, b, out = operands(*shape, dtype, transposed)
    want = a @ b
    for way in split_matmul.WAYS:
        out[...] = np.nan
        if split_matmul.keeps_bits(way, a, b, out, 3):
            split_matmul._run(way, a, b, out, 3)
            np.testing.assert_array_equal(out, want, err_msg=way)


def test_some_split_passes_the_bit_check():
    """Else the test above compares nothing, and threads gain nothing."""
    a, b, out = operands(256, 768, 768)
    assert any(split_matmul.keeps_bits(way, a, b, out, 2) for way in ("rows", "columns"))


def ways_of(a, b, out):
    remembered.forget()
    return split_matmul._ways(("a product",), a, b, out, 2)


def test_only_small_transposes_are_turned(monkeypatch):
    monkeypatch.setattr(split_matmul, "keeps_bits", lambda *_: True)  # on any processor
    monkeypatch.setattr(split_matmul, "MOST_TURNED", 1 << 20)  # with any cache
    a, b, out = operands(256, 768, 768, transposed="b")
    assert "turned" in ways_of(a, b, out)
    assert "turned" not in ways_of(a, np.ascontiguousarray(b), out)
    monkeypatch.setattr(split_matmul, "MOST_TURNED", 1 << 16)
    assert "turned" not in ways_of(a, b, out)


def test_bit_check_does_not_rely_on_the_operands(monkeypatch):
    """Zeros have the same sum in any order."""
    plant_wrong_bits(monkeypatch)
    zeros = np.zeros((256, 768), np.float32)
    for way in ("rows", "columns"):
        assert not split_matmul.keeps_bits(way, zeros, zeros.T @ zeros, np.empty((256, 768), "f"), 2)


def plant_wrong_bits(monkeypatch, only=("rows", "even rows", "columns")):
    """The pieces of these ways are wrong in the last bit."""
    piece = split_matmul._piece

    def wrong_piece(way, s, a, b, out):
        piece(way, s, a, b, out)
        part = out[s] if way in split_matmul.BY_ROWS else out[:, s]
        if way in only:
            part[...] = np.nextafter(part, np.inf, where=part != 0, out=part.copy())

    monkeypatch.setattr(split_matmul, "_piece", wrong_piece)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sizes_that_are_not_multiples_of_tiles_keep_their_bits(dtype):
    """There BLAS may sum the parts of a product in another order than the whole."""
    for M, K, N in ((1192, 28, 275), (71, 222, 293), (25, 1165, 342), (17, 1292, 311)):
        for transposed in ("", "a", "b"):
            check_bits(*operands(M, K, N, dtype, transposed))


def test_checks_are_remembered(tmp_path, monkeypatch):
    remembered.remember(tmp_path / "folder")
    a, b, out = operands(200, 300, 400)
    for _ in range(2):  # of up to six ways, each SAMPLES times
        check_bits(a, b, out)
    ((key, ways),) = split_matmul.checked.by_key.items()
    assert key == (200, 300, 400, "C", "C", "f", 3)
    assert split_matmul.trials.chosen[key] in ways.split(",")
    stored = json.loads((tmp_path / "folder" / "products.json").read_text())
    assert stored == {split_matmul.checked.machine(): {"200 300 400 C C f 3": [ways, remembered.today()]}}

    remembered.forget()
    split_matmul.trials = split_matmul.Trials()
    remembered.remember(tmp_path / "folder")
    monkeypatch.setattr(split_matmul, "keeps_bits", None)  # nothing is checked again
    split_matmul.matmul(a, b, out)
    assert split_matmul.checked.by_key == {key: ways}


def test_unknown_ways_in_the_file_are_ignored():
    a, b, out = operands(200, 300, 400)
    split_matmul.checked.put(("a product",), "diagonals")
    assert set(split_matmul._ways(("a product",), a, b, out, 2)) <= set(split_matmul.WAYS)


def test_way_with_the_shortest_time_is_chosen(monkeypatch):
    monkeypatch.setattr(split_matmul, "keeps_bits", lambda way, *_: way != "turned")
    now = [0.0]
    samples = {"rows": itertools.cycle([4.0, 2.0]), "columns": itertools.repeat(3.0)}
    monkeypatch.setattr(split_matmul.time, "perf_counter", lambda: now[0])

    def run(way, *_):
        now[0] += next(samples[way])

    monkeypatch.setattr(split_matmul, "_run", run)
    product = operands(288, 300, 400)
    for _ in range(2 * split_matmul.SAMPLES):
        assert not split_matmul.trials.chosen
        split_matmul.matmul(*product)
    assert list(split_matmul.trials.chosen.values()) == ["rows"]


@pytest.mark.parametrize(("n_threads", "sizes"), [(3, (100, 100, 100)), (1, (200, 300, 400))])
def test_small_products_and_one_thread_are_not_split(n_threads, sizes):
    threads.set_threads(n_threads)
    split_matmul.matmul(*operands(*sizes))
    assert not split_matmul.trials.chosen and not split_matmul.trials.open


@pytest.mark.parametrize("shape", [(300, 600), (600, 300)])
def test_product_of_a_matrix_and_its_transpose_has_the_bits_of_matmul(shape):
    """In whatever way products of other matrices of these sizes are done."""
    x, _, out = operands(*shape, shape[0])
    check_bits(x, x.T, out)


def test_way_that_changes_a_bit_is_not_chosen(monkeypatch):
    plant_wrong_bits(monkeypatch, only=split_matmul.BY_ROWS)
    check_bits(*operands(200, 300, 400))
    assert not set(split_matmul.trials.chosen.values()) & set(split_matmul.BY_ROWS)


@pytest.mark.parametrize("even_keeps_bits, expected", [(True, "even rows"), (False, "rows")])
def test_few_rows_are_split_evenly_if_that_keeps_the_bits(monkeypatch, even_keeps_bits, expected):
    monkeypatch.setattr(split_matmul, "keeps_bits", lambda way, *_: even_keeps_bits or way != "even rows")
    for M, way in ((256, expected), (384, "rows"), (1000, "rows")):
        tried = ways_of(*operands(M, 300, 400))
        assert set(tried) - {"whole"} == {way, "columns"}, M
    assert [s.stop - s.start for s in split_matmul._pieces_of("even rows", 256, 400, 2)] == [132, 124]


def test_product_stays_whole_if_every_split_changes_a_bit(monkeypatch):
    plant_wrong_bits(monkeypatch)
    check_bits(*operands(800, 300, 400))
    assert list(split_matmul.trials.chosen.values()) == ["whole"]


def test_large_products_are_checked_but_not_timed(monkeypatch):
    monkeypatch.setattr(split_matmul, "LARGE", 1 << 12)
    a, b, out = operands(800, 300, 400)
    np.testing.assert_array_equal(split_matmul.matmul(a, b, out), a @ b)
    ((key, way),) = split_matmul.trials.chosen.items()  # after one call
    assert way == "rows" or not split_matmul.keeps_bits("rows", a, b, out, 3)


def test_checks_depend_on_the_blas_kernels():
    """They may differ between machines with the same processor name, and by OPENBLAS_CORETYPE."""
    assert blas.blas_kernels() and blas.blas_kernels() in split_matmul.checked.machine()


# NumPy's own products of these sizes, and then every split of them
PLAIN = """
import numpy as np

SIZES = (256, 768, 2304), (252, 768, 3072), (768, 256, 770), (301, 512, 1025), (1000, 64, 8400)
for M, K, N in SIZES:
    for dtype in (np.float32, np.float64):
        np.ones((M, K), dtype) @ np.ones((K, N), dtype)
"""
SPLIT = """
from gpt2.autodiff.run import blas, split_matmul, threads

blas.limit_blas_threads(1)
rng = np.random.default_rng(0)
for M, K, N in SIZES:
    for dtype in (np.float32, np.float64):
        a, b = rng.standard_normal((M, K)).astype(dtype), rng.standard_normal((K, N)).astype(dtype)
        for n in (1, 2, 3):
            threads.set_threads(n)
            for _ in range(8):
                out = split_matmul.matmul(a, b, np.empty((M, N), dtype))
                assert np.array_equal(out, a @ b), (M, K, N, dtype, n)
        turned = np.ascontiguousarray(b.T).T
        want = a @ turned
        for _ in range(6):
            out = split_matmul.matmul(a, turned, np.empty((M, N), dtype))
            assert np.array_equal(out, want), (M, K, N, dtype, "turned")
print(blas.blas_kernels())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["Haswell", "Sandybridge", "SkylakeX"])
def test_bits_with_the_kernels_of_other_processors(kernel):
    if kernel == "SkylakeX" and "avx512f" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip("needs AVX-512")
    env, command = {**os.environ, "OPENBLAS_CORETYPE": kernel}, [sys.executable, "-c", PLAIN + SPLIT]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    if run.returncode < 0 and subprocess.run([sys.executable, "-c", PLAIN], env=env).returncode < 0:
        pytest.skip(f"NumPy {np.__version__} itself crashes with them, as OpenBLAS 0.3.34 in float64")
    assert run.returncode == 0, run.stderr
    assert kernel.lower() in run.stdout.lower()
