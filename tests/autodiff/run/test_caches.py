"""Block sizes follow from the cache sizes of the machine."""

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


def add_core(root, name, *core_caches):
    """Adds a core to a fake /sys/devices/system/cpu; each cache is (type, size, cores that share it)."""
    for k, (kind, size, cores) in enumerate(core_caches):
        folder = root / name / "cache" / f"index{k}"
        folder.mkdir(parents=True)
        for file, text in (("type", kind), ("size", size), ("shared_cpu_list", cores)):
            (folder / file).write_text(f"{text}\n")


def test_shared_cache_is_divided_among_its_cores(tmp_path):
    own = ("Data", "32K", "0"), ("Instruction", "64M", "0"), ("Unified", "1024K", "0")
    add_core(tmp_path, "cpu0", *own, ("Unified", "32M", "0-3,8-11"))
    assert caches.read_from_system(tmp_path) == 4 << 20
    add_core(tmp_path, "cpu1", *own, ("Unified", "1408K", "0-1"))  # its L2 is larger than its share of L3
    assert caches.read_from_system(tmp_path) == 1 << 20
    add_core(tmp_path, "cpu12", ("Data", "32K", "12"), ("Unified", "2048K", "12-15"))  # an efficiency core
    assert caches.read_from_system(tmp_path) == 512 << 10
    (tmp_path / "cpufreq").mkdir()
    (tmp_path / "cpu13").mkdir()  # switched off
    assert caches.read_from_system(tmp_path) == 512 << 10


@pytest.mark.parametrize("size, cores", [("", "0"), ("large", "0"), ("32M", ""), ("32M", "all"), ("0K", "0")])
def test_malformed_cache_entries_are_ignored(tmp_path, size, cores):
    add_core(tmp_path, "cpu0", ("Unified", size, cores))
    assert caches.read_from_system(tmp_path) is None


def test_cache_bytes_come_from_the_system_or_a_default(tmp_path, monkeypatch, fresh_sizes):
    monkeypatch.setattr(caches, "SYSTEM", tmp_path / "nowhere")
    assert caches.cache_bytes() == caches.UNKNOWN
    add_core(tmp_path, "cpu0", ("Unified", "8M", "0"))
    caches.cache_bytes.cache_clear()
    monkeypatch.setattr(caches, "SYSTEM", tmp_path)
    assert caches.cache_bytes() == 8 << 20


@pytest.mark.parametrize("value", ["much", "-1", "0", "1.5"])
def test_invalid_cache_variable_is_an_error(monkeypatch, fresh_sizes, value):
    monkeypatch.setenv(caches.NAME, value)
    with pytest.raises(ValueError, match=f"GPT2_AD_CACHE is '{value}', expected a number of bytes"):
        caches.cache_bytes()


@pytest.mark.parametrize(
    "cache, width, size",
    [(16 << 20, 4, 1 << 20), (4 << 20, 4, 1 << 19), (1408 << 10, 4, 1 << 17), (1 << 10, 4, 1 << 16)],
)
def test_block_fills_half_the_cache_within_limits(monkeypatch, fresh_sizes, cache, width, size):
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
def test_block_sizes_follow_the_cache(cache):
    """Of regions, AdamW and turned products. A region of 4 MiB has as many blocks as it needs."""
    env = {**os.environ, caches.NAME: str(cache)}
    run = subprocess.run([sys.executable, "-c", SIZES], env=env, capture_output=True, text=True)
    assert not run.returncode, run.stderr
    block, turned, adamw, blocks = map(int, run.stdout.split())
    assert block * 8 <= cache and turned * 4 <= cache and adamw * 32 <= max(cache, 32 << 15)
    assert blocks == (4 << 20) // block
    assert (block == 1 << 20) == (cache == 16 << 20)
    assert np.log2(block) % 1 == 0
