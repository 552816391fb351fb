"""Sizes of blocks come from the caches of the machine."""

import os
import subprocess
import sys

import numpy as np
import pytest

from gpt2.autodiff.run import caches


@pytest.fixture
def fresh_sizes(monkeypatch):
    """caches.cache_bytes reads the sizes again, in the test and after it."""
    monkeypatch.delenv(caches.NAME)
    caches.cache_bytes.cache_clear()
    yield
    caches.cache_bytes.cache_clear()


def core(root, name, *found):
    """A core with caches: (type, size, cores that share it)."""
    (root / name / "cache").mkdir(parents=True)
    for k, (kind, size, cores) in enumerate(found):
        folder = root / name / "cache" / f"index{k}"
        folder.mkdir()
        for file, text in (("type", kind), ("size", size), ("shared_cpu_list", cores)):
            (folder / file).write_text(f"{text}\n")


def test_a_core_has_its_part_of_a_shared_cache(tmp_path):
    own = ("Data", "32K", "0"), ("Instruction", "64M", "0"), ("Unified", "1024K", "0")
    core(tmp_path, "cpu0", *own, ("Unified", "32M", "0-3,8-11"))
    assert caches.read_from_system(tmp_path) == 4 << 20
    core(tmp_path, "cpu1", *own, ("Unified", "1408K", "0-1"))  # its own second one is larger than its part
    assert caches.read_from_system(tmp_path) == 1 << 20
    core(
        tmp_path, "cpu12", ("Data", "32K", "12"), ("Unified", "2048K", "12-15")
    )  # a small core beside large ones
    assert caches.read_from_system(tmp_path) == 512 << 10
    (tmp_path / "cpufreq").mkdir()
    (tmp_path / "cpu13").mkdir()  # switched off
    assert caches.read_from_system(tmp_path) == 512 << 10


@pytest.mark.parametrize("size, cores", [("", "0"), ("large", "0"), ("32M", ""), ("32M", "all"), ("0K", "0")])
def test_what_is_not_understood_is_not_taken(tmp_path, size, cores):
    core(tmp_path, "cpu0", ("Unified", size, cores))
    assert caches.read_from_system(tmp_path) is None


def test_the_default_size_of_a_cache(tmp_path, monkeypatch, fresh_sizes):
    monkeypatch.setattr(caches, "SYSTEM", tmp_path / "nowhere")
    assert caches.cache_bytes() == caches.UNKNOWN
    core(tmp_path, "cpu0", ("Unified", "8M", "0"))
    caches.cache_bytes.cache_clear()
    monkeypatch.setattr(caches, "SYSTEM", tmp_path)
    assert caches.cache_bytes() == 8 << 20


@pytest.mark.parametrize("said", ["much", "-1", "0", "1.5"])
def test_a_number_of_bytes_is_asked_for(monkeypatch, fresh_sizes, said):
    monkeypatch.setenv(caches.NAME, said)
    with pytest.raises(ValueError, match=f"GPT2_AD_CACHE is '{said}', expected a number of bytes"):
        caches.cache_bytes()


@pytest.mark.parametrize(
    "cache, width, size",
    [(16 << 20, 4, 1 << 20), (4 << 20, 4, 1 << 19), (1408 << 10, 4, 1 << 17), (1 << 10, 4, 1 << 16)],
)
def test_elements_fill_half_of_a_cache(monkeypatch, fresh_sizes, cache, width, size):
    monkeypatch.setenv(caches.NAME, str(cache))
    assert caches.in_cache(width, 1 << 16, 1 << 20) == size
    if 1 << 16 < size < 1 << 20:
        assert size * width <= cache // 2 < 2 * size * width


SIZES = """
import numpy as np
from gpt2 import autodiff as ad
from gpt2.model import optimizer
from gpt2.autodiff.emit import regions
from gpt2.autodiff.run import split_matmul
g = ad.grad(lambda x: np.sum(np.tanh(x) ** 2))
g(np.ones((4096, 256), np.float32))
blocks = ad.source(g, emitted=True).split("rows in ")[1].split()[0]
print(regions.BLOCK_BYTES, split_matmul.MOST_TURNED, optimizer.BLOCK, blocks)
"""


@pytest.mark.parametrize("cache", [1 << 20, 16 << 20])
def test_programs_are_cut_to_the_cache(cache):
    """Blocks of regions, of AdamW and of turned products; a region of 4 MiB has as many as it takes."""
    env = {**os.environ, caches.NAME: str(cache)}
    run = subprocess.run([sys.executable, "-c", SIZES], env=env, capture_output=True, text=True)
    assert not run.returncode, run.stderr
    block, turned, adamw, blocks = map(int, run.stdout.split())
    assert block * 8 <= cache and turned * 4 <= cache and adamw * 48 <= max(cache, 48 << 15)
    assert blocks == (4 << 20) // block
    assert (block == 1 << 20) == (cache == 16 << 20)
    assert np.log2(block) % 1 == 0
