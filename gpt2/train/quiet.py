"""Tells whether the machine did little else while something was measured.

with watched() as quiet:
    ...                     # measure
if quiet(): ...             # keep what was measured
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BUSY = 0.1  # of the machine's cores; where others took more, it was not quiet


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
