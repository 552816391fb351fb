#!/usr/bin/env bash
# numpy.__all__ has the same names in every process, in another order in each: it is made from sets.
#
# numpy/__init__.py builds it as a list of a union of sets, so its order follows the hashes of strings, which Python seeds
# at random. The lists of numpy.linalg, fft, random, ma are written out and stay. So a test that is parametrised over
# numpy.__all__ is refused by pytest-xdist ("Different tests were collected between gw0 and gw1"), and a random choice
# among its names differs from run to run for one seed of the generator. sorted(np.__all__) is what both need.
#
# Seen on Linux x86-64, Python 3.11.7, NumPy 2.4.6:
#     numpy: 499 names, 4 orders in 4 processes; with PYTHONHASHSEED=1 in all of them 1
#     numpy.linalg: 32 names, 1 order
#     pytest 9.1.1, pytest-xdist 3.8.0, -n 2: Different tests were collected
#
# PYTHON names another Python (default: python3).
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/venv"
python=$place/venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 pytest==9.1.1 pytest-xdist==3.8.0
unset PYTHONHASHSEED
orders() {
    for _ in 1 2 3 4; do "$python" -c "import $1; print(*$1.__all__)"; done | sort -u | wc -l
}
names() {
    "$python" -c "import numpy; print(len(numpy.__all__), len(set(numpy.__all__)))"
}
cat > "$place/test_names.py" << 'END'
import numpy as np
import pytest


@pytest.mark.parametrize("name", np.__all__)
def test_name(name):
    assert hasattr(np, name)
END
free=$(orders numpy) linalg=$(orders numpy.linalg) fixed=$(PYTHONHASHSEED=1 orders numpy)
echo "orders in 4 processes: numpy $free, with one hash seed $fixed; numpy.linalg $linalg; names: $(names)"
refused=$("$python" -m pytest -q -n 2 "$place/test_names.py" 2>&1 | grep -c "Different tests were collected" || true)
echo "pytest-xdist: Different tests were collected: $refused"
[ "$free" -gt 1 ] && [ "$fixed" = 1 ] && [ "$linalg" = 1 ] && [ "$refused" -gt 0 ]
