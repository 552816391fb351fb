"""How much cache a core has, of which the sizes of blocks are made.

Linux says it of every core in /sys. Where the system does not, or not in this way, UNKNOWN is taken: blocks
are then smaller than some processors would have them, and larger than others would.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

SYSTEM = Path("/sys/devices/system/cpu")
UNKNOWN = 4 << 20
NAME = "GPT2_AD_CACHE"  # the environment variable that says it instead
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@cache
def cache_bytes() -> int:
    """Bytes of cache for one core: the largest that it has, and of one that several cores share its part.

    Linux says that; elsewhere it is taken to be 4 MiB. The environment variable
    GPT2_AD_CACHE, a number of bytes, has the last word. Of several kinds of cores the least counts.

    Blocks of elementwise work and of AdamW are cut to fit: the same on any number of threads, but perhaps not
    on another machine, where a sum over blocks may then be rounded otherwise.

        >>> ad.cache_bytes() > 0
        True
    """
    said = os.environ.get(NAME)
    if said:
        if not said.isdecimal() or not int(said):
            raise ValueError(f"{NAME} is {said!r}, expected a number of bytes")
        return int(said)
    return said_by_system(SYSTEM) or UNKNOWN


def said_by_system(root: Path) -> int | None:
    """The least of what the cores have, from a folder such as Linux's; None where any of it is missing."""
    try:
        cores = [
            folder for folder in root.iterdir() if folder.name[:3] == "cpu" and folder.name[3:].isdecimal()
        ]
        shares = [
            share for core in cores if (core / "cache").is_dir() for share in [_of_core(core / "cache")]
        ]
        return min(shares, default=0) or None
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _of_core(folder: Path) -> int:
    """The largest cache that a core has, its own or its part of a shared one."""
    found = [0]
    for one in folder.glob("index*"):
        if _text(one / "type") in ("Data", "Unified"):
            size = _text(one / "size")
            found.append(int(size[:-1]) * UNITS[size[-1]] // _count(_text(one / "shared_cpu_list")))
    return max(found)


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


def _count(cores: str) -> int:
    """How many there are in a list such as "0-3,8-11"."""
    ends = [part.partition("-") for part in cores.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def in_cache(width: int, least: int, most: int) -> int:
    """How many elements to handle at once, so that they stay in cache: a power of two.

    width         bytes of an element, in all arrays that are in use at once: they fill half of a core's
                  cache at most
    least, most   powers of two: below the one calls cost more than what they do, beyond the other nothing is
                  gained

        >>> block = ad.in_cache(2 * 4, least=1 << 14, most=1 << 20)
        >>> 1 << 14 <= block <= 1 << 20
        True
    """
    fitting = max(1, cache_bytes() // 2 // width)
    return min(most, max(least, 1 << fitting.bit_length() - 1))
