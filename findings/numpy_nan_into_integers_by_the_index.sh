#!/usr/bin/env bash
# Whether NumPy writes nan into integers depends on the index, and on whose float it is.
#
# y[0] = np.float64("nan") and y[...] = np.float64("nan") are a ValueError, as Python's int(nan) is: the number is asked
# for an int. y[[0]] = and y[mask] = of the same number write -2**63, with a warning; so do np.put, np.place, np.insert,
# and np.array(x, int). A Python float is an error in all of them, a 0-d array in none. x.flat[0] = is like y[0] =, and
# x.flat = like y[[0]] =. np.pad is an error, and np.full writes. The same goes for infinities, and for np.int64(300) into
# int8, which y[0] = refuses and y[[0]] = wraps around.
#
# Seen on Linux x86-64, Python 3.11.7, NumPy 2.4.6 (E: an error, w: it writes):
#                      y[0]  y[...]  y.flat[0]  y[[0]]  y.flat  np.put  np.array  np.pad  np.full
#     float("nan")      E      E         E        E       E       E        E        E       w
#     np.float64(nan)   E      E         E        w       w       w        w        E       w
#     np.array(nan)     w      w         w        w       w       w        w        E       w
#     np.int64(300)     E      E         E        w       w       w        w        E       w    (y of int8)
#
# PYTHON names another Python (default: python3).
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/venv"
"$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6
"$place/venv/bin/python" -W ignore - << 'END'
import sys

import numpy as np

WAYS = [
    "y[0] = x",
    "y[...] = x",
    "y.flat[0] = x",
    "y[[0]] = x",
    "y.flat = x",
    "np.put(y, 0, x)",
    "np.array(x, y.dtype)",
    "np.pad(y, 1, constant_values=x)",
    "np.full(1, x, y.dtype)",
]


def tried(way, x, dtype):
    try:
        exec(way, {"np": np, "x": x, "y": np.zeros(2, dtype)})
    except (ValueError, OverflowError):
        return "E"
    return "w"


numbers = [(float("nan"), np.int64), (np.float64("nan"), np.int64), (np.array(np.nan), np.int64), (np.int64(300), np.int8)]
seen = ["".join(tried(way, x, dtype) for way in WAYS) for x, dtype in numbers]
for (x, dtype), row in zip(numbers, seen):
    print(f"{x!r:24} into {dtype.__name__}: {row}")
sys.exit(seen != ["EEEEEEEEw", "EEEwwwwEw", "wwwwwwwEw", "EEEwwwwEw"])
END
