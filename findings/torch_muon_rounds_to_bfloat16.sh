#!/usr/bin/env bash
# torch.optim.Muon takes its Newton-Schulz products in bfloat16 whatever the parameter's dtype: a float64 parameter
# is updated with two to three digits. A test that compares another Muon with it to float64's precision cannot pass,
# and a check of gradients through many steps drifts, with no warning and no option to choose otherwise.
#
# PyTorch 2.13.0 (CPU), NumPy 2.4.6, Python 3.11. Prints for a float64 matrix the largest difference between torch's first update
# and the same five iterations in float64, relative to the largest entry:
#
#     update differs from float64 arithmetic by 2.1e-02 of its largest entry; dtype of the parameter: torch.float64
#
# Exits with 1 if the update has become exact to 1e-6.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$place/venv/bin/python" - <<'PYTHON'
import sys

import torch

torch.manual_seed(0)
start = torch.randn(64, 96, dtype=torch.float64)
gradient = torch.randn(64, 96, dtype=torch.float64)
p = torch.nn.Parameter(start.clone())
p.grad = gradient.clone()
torch.optim.Muon([p], lr=1.0, weight_decay=0.0, momentum=0.95).step()
update = start - p.detach()

x = gradient / gradient.norm()  # the first momentum is a multiple of the gradient, and scale cancels
for _ in range(5):
    gram = x @ x.T
    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
difference = float((update - x).abs().max() / x.abs().max())
print(
    f"update differs from float64 arithmetic by {difference:.1e} of its largest entry; "
    f"dtype of the parameter: {p.dtype}"
)
sys.exit(difference < 1e-6)
PYTHON
