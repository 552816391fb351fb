"""Free memory and cores of this machine and its containers, and whether other processes keep it busy."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Control groups of version 2 lie in CGROUP itself, those of version 1 in CGROUP/memory
PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
# The CPU time of a container: "QUOTA PERIOD" in microseconds, or "max PERIOD"
CPU_MAX = CGROUP / "cpu.max"

# Files of a control group: memory limit, memory used, and the same for swap (version 1: for both together)
V2 = "memory.max", "memory.current", "memory.swap.max", "memory.swap.current"
V1 = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.memsw.usage_in_bytes",
)

BUSY = 0.1  # share of the cores that other processes may take on a quiet machine


def free_memory(swap: bool = False) -> int | None:
    """Bytes that this process can still allocate, on this machine and in its container; None if the system
    does not say. `swap`: include swap.
    """
    limits = [*_of_machine(), *(limit for folder in _groups() for limit in _of_group(folder))]
    if not limits:
        return None
    memory, on_disk = (max(0.0, min(limit)) for limit in zip(*limits))
    return int(memory + (on_disk if swap else 0))


def available() -> list[int]:
    """The numbers of the cores in this process's affinity mask; none if the system does not say."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return []


def cores() -> int:
    """Cores that this process may use, by affinity and its container's limit."""
    count = len(available()) or os.cpu_count() or 1
    try:
        quota, period = CPU_MAX.read_text().split()
        return max(1, min(count, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or no limit
        return count


def size(count: float) -> str:
    """Bytes as text: 12 bytes, 1.5 MiB, 300 GiB."""
    if count < 1024:
        return f"{count:.0f} bytes"
    units = ["KiB", "MiB", "GiB"]
    count /= 1024
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.0f} {units[0]}" if count >= 100 else f"{count:.1f} {units[0]}"


def _of_machine() -> Iterator[tuple[float, float]]:
    """(memory, swap) that are free; nothing if MemAvailable is missing, as in the first WSL."""
    try:
        lines = (PROC / "meminfo").read_text(encoding="ascii").splitlines()
        free = dict(line.split()[:2] for line in lines if line.startswith(("MemAvailable:", "SwapFree:")))
        yield 1024.0 * int(free["MemAvailable:"]), 1024.0 * int(free.get("SwapFree:", 0))
    except (OSError, ValueError, KeyError):
        return


def _groups() -> list[Path]:
    """The folders of this process's control groups and of their ancestors, which limit it as well.

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
    """(memory, swap) that a control group leaves; nothing if it has no memory limit."""
    for limit, used, swap_limit, swap_used in (V2, V1):
        try:
            memory, swap = _left(folder, limit, used), _left(folder, swap_limit, swap_used)
            if memory == math.inf:
                continue
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # total_: including child groups
            pages = {kind.removeprefix("total_"): int(count) for kind, count in lines}
        except (OSError, ValueError):
            continue
        if swap_limit == V1[2]:
            swap -= memory
        # the page cache can be reclaimed, except for shared memory
        yield memory + pages.get("file", pages.get("cache", 0)) - pages.get("shmem", 0), swap


def _left(folder: Path, limit: str, used: str) -> float:
    """Bytes between use and limit; infinite if there is no limit."""
    try:
        text = (folder / limit).read_text().strip()
    except OSError:  # such as no accounting of swap
        return math.inf
    return math.inf if text == "max" else int(text) - int((folder / used).read_text())


@contextmanager
def watched() -> Iterator[Callable[[], bool]]:
    """Yields a function that says, after the block, whether the machine was otherwise idle during it; True if
    the system does not say.

        with watched() as quiet:
            ...                 # measure
        if quiet(): ...         # keep what was measured
    """
    before, began, mine = busy_seconds(), time.perf_counter(), own_seconds()
    idle = True

    def quiet() -> bool:
        return idle

    yield quiet
    after, cores = busy_seconds(), os.cpu_count() or 1
    if before is not None and after is not None:
        others = after - before - (own_seconds() - mine)
        idle = others <= BUSY * cores * (time.perf_counter() - began)


def busy_seconds() -> float | None:
    """CPU seconds of all cores together since boot, including time stolen by a hypervisor."""
    try:
        with open("/proc/stat", encoding="ascii") as stat:
            user, nice, system, _, _, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """CPU seconds of this process and of its children that it has waited for."""
    return sum(os.times()[:4])
