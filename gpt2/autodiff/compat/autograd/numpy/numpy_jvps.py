"""autograd.numpy.numpy_jvps: forward rules. Those of NumPy's functions are the compiler's (docs/ops.md)."""

from __future__ import annotations

from typing import Any

import numpy as np


def broadcast(x: Any, target: Any) -> Any:
    """x in the shape of the target."""
    return np.broadcast_to(x, np.shape(target))
