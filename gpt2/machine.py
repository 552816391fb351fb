"""What the machine has left: memory that is free here and in its containers, and whether others are at work.

free_memory()           bytes, or None where the system does not say
with watched() as quiet:
    ...                 # measure
if quiet(): ...         # keep what was measured
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Where Linux says so. Control groups of version 2 lie in CGROUP itself, those of version 1 in CGROUP/memory
PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")

# Of a control group: the limit of memory, what is taken of it, and the same of swap (version 1: of both)
V2 = "memory.max", "memory.current", "memory.swap.max", "memory.swap.current"
V1 = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.memsw.usage_in_bytes",
)

BUSY = 0.1  # of the machine's cores; where others took more, it was not quiet


def free_memory(swap: bool = False) -> int | None:
    """Bytes that this process could still take, on this machine and in its container, or None if the system
    does not say. `swap`: on disk as well.
    """
    found = [*_of_machine(), *(room for folder in _groups() for room in _of_group(folder))]
    if not found:
        return None
    memory, on_disk = (max(0.0, min(room)) for room in zip(*found))
    return int(memory + (on_disk if swap else 0))


def _of_machine() -> Iterator[tuple[float, float]]:
    """(memory, swap) that are free; nothing if MemAvailable is missing, as in the first WSL."""
    try:
        lines = (PROC / "meminfo").read_text(encoding="ascii").splitlines()
        free = dict(line.split()[:2] for line in lines if line.startswith(("MemAvailable:", "SwapFree:")))
        yield 1024.0 * int(free["MemAvailable:"]), 1024.0 * int(free.get("SwapFree:", 0))
    except (OSError, ValueError, KeyError):
        return


def _groups() -> list[Path]:
    """The folders of this process's control groups and of all that these lie in, which limit it as well.

    A container may see its own group at the root, whatever path /proc names.
    """
    try:
        lines = [line.split(":", 2) for line in (PROC / "self/cgroup").read_text().splitlines()]
    except OSError:
        lines = []
    paths = [Path(path.strip("/")) for _, kinds, path in lines if "memory" in kinds or not kinds]
    inside = {p for path in paths if ".." not in path.parts for p in (path, *path.parents)} | {Path()}
    return [root / path for root in (CGROUP, CGROUP / "memory") for path in inside]


def _of_group(folder: Path) -> Iterator[tuple[float, float]]:
    """(memory, swap) that a control group leaves; nothing if it has no limit of memory."""
    for limit, used, swap_limit, swap_used in (V2, V1):
        try:
            memory, swap = _left(folder, limit, used), _left(folder, swap_limit, swap_used)
            if memory == math.inf:
                continue
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # total_: with the groups inside this one
            pages = {kind.removeprefix("total_"): int(count) for kind, count in lines}
        except (OSError, ValueError):
            continue
        if swap_limit == V1[2]:
            swap -= memory
        # pages of files are given up where memory is wanted, unless they are shared memory themselves
        yield memory + pages.get("file", pages.get("cache", 0)) - pages.get("shmem", 0), swap


def _left(folder: Path, limit: str, used: str) -> float:
    """Bytes between what is taken and the limit; infinite if there is none."""
    try:
        text = (folder / limit).read_text().strip()
    except OSError:  # as where the system counts no swap
        return math.inf
    return math.inf if text == "max" else int(text) - int((folder / used).read_text())


@contextmanager
def watched() -> Iterator[Callable[[], bool]]:
    """A function that says, after the block, whether the machine did little else meanwhile. True where the
    system does not tell."""
    before, began, mine = busy(), time.perf_counter(), own()
    found = True

    def quiet() -> bool:
        return found

    yield quiet
    after, cores = busy(), os.cpu_count() or 1
    if before is not None and after is not None:
        others = after - before - (own() - mine)
        found = others <= BUSY * cores * (time.perf_counter() - began)


def busy() -> float | None:
    """Seconds for which all cores together have worked, or been taken away by the machine below."""
    try:
        with open("/proc/stat", encoding="ascii") as stat:
            user, nice, system, _, _, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own() -> float:
    """Seconds for which this process, and those it has started and waited for, have worked."""
    return sum(os.times()[:4])
