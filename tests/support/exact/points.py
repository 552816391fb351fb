"""First and second derivatives of a function at a point, by every combination of both modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpt2 import autodiff as ad

FIRST = {"reverse": ad.grad, "forward": ad.jacfwd}
SECOND = {
    "forward over reverse": ad.hessian,
    "reverse over reverse": lambda f: ad.jacrev(ad.grad(f)),
    "forward over forward": lambda f: ad.jacfwd(ad.jacfwd(f)),
    "reverse over forward": lambda f: ad.jacrev(ad.jacfwd(f)),
}


def check_derivatives(f: Callable, x: Any, first: Any, second: Any = None, rtol: float = 1e-11) -> None:
    """Compare with the right values; None: not compared. Zeros may be a rounding of 1e-14."""
    with np.errstate(all="ignore"):
        for modes, wanted in ((FIRST, first), (SECOND, second)):
            for name, derivative in modes.items() if wanted is not None else ():
                found = derivative(f)(x)
                np.testing.assert_allclose(found, wanted, rtol, 1e-14, err_msg=name)
