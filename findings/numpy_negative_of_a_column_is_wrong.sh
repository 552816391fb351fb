#!/usr/bin/env bash
# np.negative(a[:, 0], out=b[:, 0]) gives wrong numbers where rows have 16 bytes (4 of float32) or 64 (8 of float64).
#
# Both the column read and the column written have that stride. All numbers but the first are those of other elements.
# Other widths are right, a contiguous out too, and so are np.multiply(a[:, 0], -1, out=b[:, 0]) and -a[:, 0]. In place
# (out=a[:, 0]) it is as wrong. NumPy 2.5.5 is right.
#
# Seen on Linux x86-64 (an AMD of family 25, an Intel of family 6, model 207), Python 3.11.7, NumPy 2.3.5 and 2.4.6:
#     float32, rows of 4 8 16 32 64 bytes: 0 0 63 0 0 of 64 wrong
#     float64, rows of 8 16 32 64 128 bytes: 0 0 0 63 0 of 64 wrong
#
# PYTHON names another Python (default: python3), NUMPY another release of NumPy.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/venv"
"$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check "numpy==${NUMPY:-2.4.6}"
"$place/venv/bin/python" - << 'END'
import sys

import numpy as np


def wrong(dtype, width):
    a = np.arange(1, 1 + 64 * width, dtype=dtype).reshape(64, width)
    b = np.zeros_like(a)
    np.negative(a[:, 0], out=b[:, 0])
    return int(np.sum(b[:, 0] != a[:, 0] * -1))


seen = [[wrong(np.float32, w) for w in (1, 2, 4, 8, 16)], [wrong(np.float64, w) for w in (1, 2, 4, 8, 16)]]
print(f"NumPy {np.__version__}: float32, rows of 4 8 16 32 64 bytes: {seen[0]}")
print(f"NumPy {np.__version__}: float64, rows of 8 16 32 64 128 bytes: {seen[1]}")
sys.exit(seen != [[0, 0, 63, 0, 0], [0, 0, 0, 63, 0]])
END
