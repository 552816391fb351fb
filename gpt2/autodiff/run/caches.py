"""The cache size of a core, from which sizes of blocks are derived.

Linux lists it for each core in /sys; elsewhere it is taken to be UNKNOWN.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

SYSTEM = Path("/sys/devices/system/cpu")
UNKNOWN = 4 << 20
NAME = "GPT2_AD_CACHE"  # the environment variable that overrides it
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@cache
def cache_bytes() -> int:
    """Bytes of cache for one core: its largest cache, divided by the number of cores that share it.

    Read from Linux's /sys; elsewhere it is taken to be 4 MiB. The environment variable GPT2_AD_CACHE, a
    number of bytes, overrides it. Among several kinds of cores the smallest value counts.

    Blocks of elementwise work and of AdamW are cut to fit: the same on any number of threads, but perhaps not
    on another machine, where a sum over blocks may then be rounded differently.

        >>> ad.cache_bytes() > 0
        True
    """
    setting = os.environ.get(NAME)
    if setting:
        if not setting.isdecimal() or not int(setting):
            raise ValueError(f"{NAME} is {setting!r}, expected a number of bytes")
        return int(setting)
    return read_from_system(SYSTEM) or UNKNOWN


def read_from_system(root: Path) -> int | None:
    """The smallest value of all cores, from a folder such as Linux's; None if anything is missing there."""
    try:
        cores = [f for f in root.iterdir() if f.name[:3] == "cpu" and f.name[3:].isdecimal()]
        shares = [_of_core(core / "cache") for core in cores if (core / "cache").is_dir()]
        return min(shares, default=0) or None
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _of_core(folder: Path) -> int:
    """The largest cache of a core, its own or its part of a shared one."""
    sizes = [0]
    for one in folder.glob("index*"):
        if (one / "type").read_text().strip() in ("Data", "Unified"):
            size, cores = ((one / name).read_text().strip() for name in ("size", "shared_cpu_list"))
            ends = [part.partition("-") for part in cores.split(",")]  # of a list such as 0-3,8-11
            count = sum(int(last or first) - int(first) + 1 for first, _, last in ends)
            sizes.append(int(size[:-1]) * UNITS[size[-1]] // count)
    return max(sizes)


def in_cache(width: int, least: int, most: int) -> int:
    """How many elements to handle at once, so that they stay in cache: a power of two.

    width         bytes of an element, in all arrays that are in use at once: they fill half of a core's
                  cache at most
    least, most   powers of two: below `least` calls cost more than their work, above `most` nothing is gained

        >>> block = ad.in_cache(2 * 4, least=1 << 14, most=1 << 20)
        >>> 1 << 14 <= block <= 1 << 20
        True
    """
    fitting = max(1, cache_bytes() // 2 // width)
    return min(most, max(least, 1 << fitting.bit_length() - 1))
