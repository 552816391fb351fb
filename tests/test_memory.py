"""How much memory is free: of the machine, and in containers of both kinds."""

import pytest

from gpt2 import machine
from gpt2.errors import UserError
from gpt2.machine import free_memory
from gpt2.train import Settings, opened

MEMINFO = "MemTotal: 9 kB\nMemAvailable:  {} kB\nSwapTotal: 400 kB\nSwapFree: 300 kB\n"
LIMITS = {  # files of a group that may have 9000 bytes and has taken 8000, 600 of them pages of files
    "v2": ("memory.max", "memory.current", "file {}\nshmem 100\n"),
    "v1": ("memory.limit_in_bytes", "memory.usage_in_bytes", "cache 1\ntotal_cache {}\ntotal_shmem 100\n"),
}


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A function that writes files of a system that has 5 GB free and 300 kB of swap."""
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "cgroup")

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(text))

    write({"proc/meminfo": MEMINFO.format(5_000_000)})
    return write


def limited(kind, folder, limit=9000, used=8000, cached=700):
    names = LIMITS[kind]
    root = "cgroup/memory" if kind == "v1" else "cgroup"
    texts = (limit, used, names[2].format(cached))
    return {f"{root}/{folder}/{name}": text for name, text in zip((*names[:2], "memory.stat"), texts)}


def test_the_machine_alone(system):
    assert free_memory() == 5_000_000 * 1024 and free_memory(swap=True) == 5_000_300 * 1024


@pytest.mark.parametrize(
    "text",
    [
        "MemFree: 5000000 kB\nSwapFree: 3 kB\n",  # the first WSL: how much could be had is not said
        "",
        "MemAvailable:\n",
        "MemAvailable: many kB\n",
    ],
)
def test_a_system_that_does_not_say(system, text):
    system({"proc/meminfo": text})
    assert free_memory() is free_memory(swap=True) is None


@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize(
    ("own", "folder"),
    [
        (None, "."),
        ("/", "."),
        ("/docker/1f", "docker/1f"),
        ("/docker/1f", "docker"),  # a limit of the group that this one lies in
        ("/docker/1f", "."),  # the container sees its own group at the root
        ("/../x", "."),
    ],
)
def test_a_container(system, kind, own, folder):
    if own is not None:
        system({"proc/self/cgroup": f"7:cpu,cpuacct:{own}x\n4:memory:{own}\n0::{own}\n"})
    system(limited(kind, folder))
    assert free_memory() == 9000 - 8000 + 700 - 100


def test_the_tightest_of_several_limits_counts(system):
    system({"proc/self/cgroup": "0::/a/b\n"})
    system(limited("v2", "a", 10**9, 0) | limited("v2", "a/b", "max", 0))
    assert free_memory() == 10**9 + 600
    system(limited("v2", ".", 10**8, 0))
    assert free_memory() == 10**8 + 600
    system(limited("v2", "a", 1000, 2000, cached=0))  # over its limit, as after it was lowered
    assert free_memory() == 0


def test_swap_in_a_container(system):
    system(limited("v2", "."))
    assert free_memory(swap=True) == 1600 + 300 * 1024
    system({"cgroup/memory.swap.max": 500, "cgroup/memory.swap.current": 100})
    assert free_memory(swap=True) == 1600 + 400
    system({"cgroup/memory.swap.max": 0})
    assert free_memory(swap=True) == 1600


def test_swap_in_a_container_of_version_1(system):
    system(limited("v1", "."))
    assert free_memory(swap=True) == 1600 + 300 * 1024
    of_both = {"memory.memsw.limit_in_bytes": 9700, "memory.memsw.usage_in_bytes": 8200}
    system({f"cgroup/memory/{name}": text for name, text in of_both.items()})
    assert free_memory(swap=True) == 1600 + 500


@pytest.mark.parametrize("kind", LIMITS)
def test_a_step_that_a_container_cannot_hold_is_refused(system, tmp_path, kind):
    """The machine has 5 GB free, of which the run's container may have 64 MB."""
    (tmp_path / "my.txt").write_text("to be or not to be that is the question " * 600, encoding="utf-8")
    fits = Settings(data=str(tmp_path / "my.txt"), tokenizer="char", batch_size=2, block_size=16, n_embd=64)
    large = Settings(data=str(tmp_path / "my.txt"), tokenizer="char", batch_size=500, block_size=5000)
    system({"proc/self/cgroup": "4:memory:/pod\n0::/pod\n"})
    system(limited(kind, "pod", 64 << 20, 0, cached=100))
    with opened(fits):
        pass
    with pytest.raises(UserError, match=r"not enough memory: .* and 64\.3 MiB are free; take a smaller"):
        with opened(large):
            pass
