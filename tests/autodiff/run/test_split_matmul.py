"""Products shared out over threads: the same bits whichever way, the choice measured once and remembered."""

import itertools
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from gpt2.autodiff.run import blas, by_time, kernels, remembered, split_matmul, threads

pytestmark = pytest.mark.numeric


@pytest.fixture(autouse=True)
def afresh():
    remembered.forget()
    split_matmul.trials.forget()
    threads.set_threads(3)
    yield
    threads.set_threads(1)
    remembered.forget()
    split_matmul.trials.forget()


def operands(M, K, N, dtype, transposed=""):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((K, M) if "a" in transposed else (M, K)).astype(dtype)
    b = rng.standard_normal((N, K) if "b" in transposed else (K, N)).astype(dtype)
    return a.T if "a" in transposed else a, b.T if "b" in transposed else b


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize(
    "shape", [(256, 130, 700), (67, 300, 1001), (1500, 64, 90), (768, 128, 65), (33, 400, 900)]
)
@pytest.mark.parametrize("large", [split_matmul.LARGE, 1 << 12])
def test_every_way_that_is_taken_gives_the_bits_of_the_plain_product(
    monkeypatch, shape, transposed, dtype, large
):
    monkeypatch.setattr(split_matmul, "LARGE", large)  # as for products of which only a part is checked
    a, b = operands(*shape, dtype, transposed)
    want = a @ b
    for way in split_matmul.WAYS:
        out = np.full(want.shape, np.nan, dtype)
        if split_matmul.keeps_bits(way, a, b, out, 3):
            split_matmul._run(way, a, b, out, 3, threads.run_on_threads)
            np.testing.assert_array_equal(out, want, err_msg=way)


def test_some_way_is_taken():
    """Else the test above would have nothing to compare, and two threads would be as fast as one."""
    a, b = operands(256, 768, 768, np.float32)
    taken = [w for w in ("rows", "columns") if split_matmul.keeps_bits(w, a, b, np.empty((256, 768), "f"), 2)]
    assert taken


def test_what_is_turned_is_a_transpose_and_small(monkeypatch):
    monkeypatch.setattr(split_matmul, "keeps_bits", lambda *_: True)  # which depends on the processor
    monkeypatch.setattr(split_matmul, "MOST_TURNED", 1 << 20)  # which depends on its cache
    a, b = operands(256, 768, 768, np.float32, "b")
    out = np.empty((256, 768), np.float32)
    assert "turned" in split_matmul._Trial(a, b, out, 2).unchecked
    assert not split_matmul._Trial(a, np.ascontiguousarray(b), out, 2).unchecked
    monkeypatch.setattr(split_matmul, "MOST_TURNED", 1 << 16)
    assert not split_matmul._Trial(a, b, out, 2).unchecked


def test_a_turned_product_is_checked_when_there_is_time_and_tried_only_then(monkeypatch):
    """Until then the choice is open, however often the others were tried."""
    now, checked, used = [0.0], [], []
    monkeypatch.setattr(split_matmul, "MOST_TURNED", 1 << 20)
    monkeypatch.setattr(split_matmul.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(split_matmul, "_check_budget", split_matmul._CheckBudget())

    def check(way, *given):
        checked.append(way)
        now[0] += 1.0
        return True

    def timed(way, *given):
        used.append(way)
        return {"turned": 1.0}.get(way, 2.0), False

    monkeypatch.setattr(split_matmul, "keeps_bits", check)
    monkeypatch.setattr(split_matmul, "_timed", timed)
    out = np.empty((256, 768), np.float32)
    for k, seed in enumerate((0, 1)):
        a, b = operands(256, 768 + 48 * seed, 768, np.float32, "b")
        for _ in range(4 * by_time.SAMPLES):
            kernels.matmul(a, b, out)
        assert ("turned" in used) == (k == 0)  # the first was checked at once; then no time was left
        assert len(split_matmul.chosen.by_key) == 1
        used.clear()
    assert checked == ["columns", "rows", "turned", "columns", "rows"]
    now[0] += 1.0 / split_matmul.CHECKS
    for _ in range(by_time.SAMPLES):
        kernels.matmul(a, b, out)
    assert checked[-1] == "turned" and list(split_matmul.chosen.by_key.values()) == ["turned"] * 2


def test_zeros_prove_nothing(monkeypatch):
    """Any order gives the same sum of zeros: a way is judged by numbers that show a difference."""
    monkeypatch.setattr(split_matmul, "_piece", off_in_the_last_bit(split_matmul._piece))
    zeros = np.zeros((256, 768), np.float32)
    for way in ("rows", "columns"):
        assert not split_matmul.keeps_bits(way, zeros, zeros.T @ zeros, np.empty((256, 768), "f"), 2)


def off_in_the_last_bit(piece, only=("rows", "even rows", "columns")):
    def off(way, s, a, b, out):
        piece(way, s, a, b, out)
        part = out[s] if way in split_matmul.BY_ROWS else out[:, s]
        if way in only:
            part[...] = np.nextafter(part, np.inf, where=part != 0, out=part.copy())

    return off


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sizes_that_no_tile_divides_keep_their_bits(dtype):
    """Some sizes are no multiples of BLAS's tiles, and cut products then add up in another order."""
    for M, K, N in ((1192, 28, 275), (71, 222, 293), (25, 1165, 342), (17, 1292, 311)):
        for transposed in ("", "a", "b"):
            a, b = operands(M, K, N, dtype, transposed)
            want, out = a @ b, np.empty((M, N), dtype)
            for _ in range(3 * by_time.SAMPLES):
                np.testing.assert_array_equal(kernels.matmul(a, b, out), want)


def test_the_fastest_way_is_chosen_once_and_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(split_matmul, "AWAY_S", 1e9)  # other programs may be at work beside the tests
    monkeypatch.setattr(split_matmul.chosen, "sure", 1)
    remembered.remember(tmp_path / "folder")
    a, b = operands(200, 300, 400, np.float32)
    want, out = a @ b, np.empty((200, 400), np.float32)
    for _ in range(3 * by_time.SAMPLES):
        assert kernels.matmul(a, b, out) is out
        np.testing.assert_array_equal(out, want)
    ((key, way),) = split_matmul.chosen.by_key.items()
    assert key == (200, 300, 400, "C", "C", "f", 3)
    stored = json.loads((tmp_path / "folder" / "products.json").read_text())
    assert stored == {split_matmul.chosen.machine(): {"200 300 400 C C f 3": [way, 1, remembered.today()]}}

    remembered.forget()
    remembered.remember(tmp_path / "folder")
    monkeypatch.setattr(split_matmul, "_try", None)  # nothing is tried again
    kernels.matmul(a, b, out)
    assert split_matmul.chosen.by_key == {key: way}


def clock(monkeypatch, times):
    """Samples of so many (milliseconds, disturbed), by way, over and over. Returns what takes one."""
    monkeypatch.setattr(split_matmul, "keeps_bits", lambda *how: True)  # whatever kernel runs here
    samples = {way: itertools.cycle(values) for way, values in times.items()}

    def timed(way, a, b, out, threads, share):
        ms, disturbed = next(samples[way])
        return 1e-3 * ms, disturbed

    monkeypatch.setattr(split_matmul, "_timed", timed)
    a, b = operands(288, 300, 400, np.float32)
    return lambda: kernels.matmul(a, b, np.empty((288, 400), np.float32))


QUIET = {"rows": [(4, False), (2, False)], "columns": [(3, False)]}


def test_what_counts_is_the_shortest_time(monkeypatch):
    product = clock(monkeypatch, QUIET)
    for _ in range(2 * by_time.SAMPLES):
        assert not split_matmul.chosen.by_key
        product()
    assert list(split_matmul.chosen.by_key.values()) == ["rows"]


def test_a_sample_of_a_disturbed_moment_does_not_count(monkeypatch, tmp_path):
    remembered.remember(tmp_path)
    product = clock(monkeypatch, {**QUIET, "columns": [(1, True), (3, False)]})
    while not split_matmul.chosen.by_key:
        product()
    assert list(split_matmul.chosen.by_key.values()) == ["rows"]
    assert '"rows"' in (tmp_path / "products.json").read_text()


def test_where_the_machine_is_busy_all_the_time_nothing_is_written_down(monkeypatch, tmp_path):
    remembered.remember(tmp_path)
    product = clock(monkeypatch, {**QUIET, "columns": [(1, True)]})
    for _ in range(2 * by_time.ATTEMPTS):
        assert not split_matmul.chosen.by_key
        product()
    assert list(split_matmul.chosen.by_key.values()) == ["columns"] and not list(tmp_path.iterdir())


@pytest.mark.parametrize("way", split_matmul.WAYS)
def test_a_thread_that_waits_is_noticed(monkeypatch, way):
    """As one whose core another program has."""
    a, b = operands(600, 700, 800, np.float32)
    out = np.empty((600, 800), np.float32)

    def timed():
        return split_matmul._timed(way, a, b, out, 2, threads.run_on_threads)

    with monkeypatch.context() as alone:  # a thread that always runs
        alone.setattr(split_matmul.time, "thread_time", time.perf_counter)
        assert not timed()[1]
    piece, matmul = split_matmul._piece, np.matmul
    monkeypatch.setattr(split_matmul, "_piece", lambda *args: (time.sleep(0.02), piece(*args)))
    if way == "whole":
        monkeypatch.setattr(split_matmul.np, "matmul", lambda *a, **k: (time.sleep(0.02), matmul(*a, **k)))
    assert timed()[1]


def test_small_products_and_one_thread_take_the_plain_call():
    a, b = operands(100, 100, 100, np.float32)
    kernels.matmul(a, b, np.empty((100, 100), np.float32))
    threads.set_threads(1)
    a, b = operands(200, 300, 400, np.float32)
    kernels.matmul(a, b, np.empty((200, 400), np.float32))
    assert not split_matmul.chosen.by_key and not split_matmul.trials.open


def test_a_way_that_changes_a_bit_is_not_taken(monkeypatch):
    by_rows = off_in_the_last_bit(split_matmul._piece, only=split_matmul.BY_ROWS)
    monkeypatch.setattr(split_matmul, "_piece", by_rows)
    a, b = operands(200, 300, 400, np.float32)
    want, out = a @ b, np.empty((200, 400), np.float32)
    for _ in range(3 * by_time.SAMPLES):
        kernels.matmul(a, b, out)
        np.testing.assert_array_equal(out, want)
    assert not set(split_matmul.chosen.by_key.values()) & set(split_matmul.BY_ROWS)


@pytest.mark.parametrize("keeps, rows", [(True, "even rows"), (False, "rows")])
def test_few_rows_are_cut_evenly_where_that_keeps_the_bits(monkeypatch, keeps, rows):
    monkeypatch.setattr(split_matmul, "keeps_bits", lambda way, *given: keeps or way != "even rows")
    for M, found in ((256, rows), (384, "rows"), (1000, "rows")):
        a, b = operands(M, 300, 400, np.float32)
        tried = split_matmul._Trial(a, b, np.empty((M, 400), np.float32), 2).times
        assert set(tried) - {"whole"} == {found, "columns"}, M
    assert [s.stop - s.start for s in split_matmul._pieces_of("even rows", 256, 400, 2)] == [132, 124]


def test_where_every_cut_changes_a_bit_the_product_stays_whole(monkeypatch):
    monkeypatch.setattr(split_matmul, "_piece", off_in_the_last_bit(split_matmul._piece))
    a, b = operands(800, 300, 400, np.float32)
    np.testing.assert_array_equal(kernels.matmul(a, b, np.empty((800, 400), np.float32)), a @ b)
    assert list(split_matmul.chosen.by_key.values()) == ["whole"]


def test_what_is_large_is_checked_and_not_timed(monkeypatch):
    monkeypatch.setattr(split_matmul, "LARGE", 1 << 12)
    a, b = operands(800, 300, 400, np.float32)
    np.testing.assert_array_equal(kernels.matmul(a, b, np.empty((800, 400), np.float32)), a @ b)
    ((key, way),) = split_matmul.chosen.by_key.items()  # after one call
    assert way == "rows" or not split_matmul.keeps_bits("rows", a, b, np.empty((800, 400), "f"), 3)


def test_choices_are_kept_apart_by_the_kernels_of_blas():
    """Two machines may call their processors the same; and OPENBLAS_CORETYPE names other kernels."""
    assert blas.blas_kernels() and blas.blas_kernels() in split_matmul.chosen.machine()


PROGRAM = """
import numpy as np
from gpt2.autodiff.run import blas, kernels, threads

blas.limit_blas_threads(1)
rng = np.random.default_rng(0)
for M, K, N in ((256, 768, 2304), (252, 768, 3072), (768, 256, 770), (301, 512, 1025), (1000, 64, 8400)):
    for dtype in (np.float32, np.float64):
        a, b = rng.standard_normal((M, K)).astype(dtype), rng.standard_normal((K, N)).astype(dtype)
        for n in (1, 2, 3):
            threads.set_threads(n)
            for _ in range(8):
                out = kernels.matmul(a, b, np.empty((M, N), dtype))
                assert np.array_equal(out, a @ b), (M, K, N, dtype, n)
        turned = np.ascontiguousarray(b.T).T
        want = a @ turned
        for _ in range(6):
            out = kernels.matmul(a, turned, np.empty((M, N), dtype))
            assert np.array_equal(out, want), (M, K, N, dtype, "turned")
print(blas.blas_kernels())
"""


# The same products by NumPy alone
PLAIN = """
import numpy as np

for M, K, N in ((256, 768, 2304), (252, 768, 3072), (768, 256, 770), (301, 512, 1025), (1000, 64, 8400)):
    for dtype in (np.float32, np.float64):
        np.ones((M, K), dtype) @ np.ones((K, N), dtype)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["Haswell", "Sandybridge", "SkylakeX"])
def test_the_same_bits_with_the_kernels_of_other_processors(kernel):
    if kernel == "SkylakeX" and "avx512f" not in processor_features():
        pytest.skip("needs AVX-512")
    env = {**os.environ, "OPENBLAS_CORETYPE": kernel}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=300
    )
    if done.returncode < 0 and subprocess.run([sys.executable, "-c", PLAIN], env=env).returncode < 0:
        pytest.skip(
            f"NumPy {np.__version__} alone crashes with these kernels: OpenBLAS 0.3.34 does, in float64"
        )
    assert done.returncode == 0, done.stderr
    assert kernel.lower() in done.stdout.lower()


def processor_features():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        return info.read().split()
