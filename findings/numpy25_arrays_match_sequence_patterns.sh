#!/usr/bin/env bash
# Since NumPy 2.5 an array matches a sequence pattern: `match x: case [a, b]: ...` takes another branch than with 2.4.
#
# np.ndarray got CPython's type flag of sequences, which is all that `case [...]` looks at. isinstance(x,
# collections.abc.Sequence) stays False, so the two questions, which PEP 634 means to agree, have different answers. A 0-d
# array matches `[*_]` too, and `case [a]` with one raises TypeError (len() of unsized object) instead of going on to the
# next case. Code that matches `case [*items]` before `case np.ndarray()` unpacks arrays now.
#
# Seen on Linux x86-64, Python 3.13.0:
#     NumPy 2.4.6    (2,) array: other      0-d array: other                Sequence: False
#     NumPy 2.5.5    (2,) array: pair       0-d array: TypeError            Sequence: False
#
# PYTHON names a Python from 3.12 on for which both have wheels (default: python3.13); without one this exits with 2.
set -euo pipefail
python=$(command -v "${PYTHON:-python3.13}") || { echo "no Python 3.13 here; PYTHON names one"; exit 2; }
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/matched.py" << 'END'
import sys
from collections.abc import Sequence

import numpy as np


def matched(x):
    match x:
        case [a, b]:
            return "pair"
        case _:
            return "other"


try:
    scalar = matched(np.array(1.0))
except TypeError:
    scalar = "TypeError"
found = matched(np.ones(2)), scalar, isinstance(np.ones(2), Sequence)
print(f"NumPy {np.__version__}: (2,) array: {found[0]}, 0-d array: {found[1]}, Sequence: {found[2]}")
sys.exit(found != (("pair", "TypeError", False) if sys.argv[1] == "new" else ("other", "other", False)))
END
for pair in "old 2.4.6" "new 2.5.5"; do
    set -- $pair
    "$python" -m venv "$place/$1"
    "$place/$1/bin/pip" install --quiet --disable-pip-version-check "numpy==$2"
    "$place/$1/bin/python" "$place/matched.py" "$1"
done
