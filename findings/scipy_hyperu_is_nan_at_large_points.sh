#!/usr/bin/env bash
# scipy.special.hyperu is nan at some large points where Tricomi's U is an ordinary number: U(a, b, x) x**a tends to 1
# (DLMF 13.7.3), so U(1, 1.3, 1e200) is 1e-200. Whether and where nan comes depends on the parameters: with
# a = 1, b = 0.5 from 1e154 to 1e200 and not at 1e300, with b = 1.3 from 1e200 on, with b = 2 never. An incomplete gamma
# function far in its tail, gammaincc(s, x) Gamma(s) exp(x) = U(1 - s, 1 - s, x), is thus not to be had from it
# without a limit on x.
#
# Seen on Linux x86-64, Python 3.11.7, SciPy 1.17.1, NumPy 2.4.6: hyperu(1, b, x) * x
#     x            1e100  1e150  1e154  1e200  1e300
#     b = 0.5      1      1      nan    nan    1
#     b = 1.3      1      1      1      nan    nan
#     b = 2        1      1      1      1      1
#
# PYTHON names another Python (default: python3).
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/venv"
"$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check scipy==1.17.1 numpy==2.4.6
"$place/venv/bin/python" - << 'END'
import sys

import numpy as np
from scipy.special import hyperu

points = 10.0 ** np.array([100, 150, 154, 200, 300])
seen = []
for b in (0.5, 1.3, 2.0):
    limits = hyperu(1.0, b, points) * points
    print(f"b = {b}:", *limits)
    seen.append("".join("n" if np.isnan(v) else "1" if abs(v - 1.0) < 1e-9 else "?" for v in limits))
sys.exit(seen != ["11nn1", "111nn", "11111"])
END
