"""scipy.optimize: roots, differentiated by the implicit function theorem (api/implicit.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize as _scipy

from ..api.implicit import root as implicit_root
from ..errors import ConvergenceError
from .passing import not_like_this, ours, passed_on


def __getattr__(name: str) -> Any:
    return passed_on(_scipy, name)


def __dir__() -> list[str]:
    return dir(_scipy)


@ours(_scipy)
def root(
    fun: Callable,
    x0: Any,
    args: Any = (),
    method: Any = "hybr",
    jac: Any = None,
    tol: Any = None,
    callback: Any = None,
    options: Any = None,
) -> Any:
    """An OptimizeResult with the root as its x. What SciPy says besides is not recorded, and not there."""
    if jac or callback is not None:
        raise not_like_this("scipy.optimize.root", "with jac= or callback=")
    solver = Solver(method, tol, options)
    args = args if isinstance(args, tuple) else (args,)
    return _scipy.OptimizeResult(x=implicit_root(fun, x0, *args, solver=solver))


class Solver:
    """scipy.optimize.root with these settings. Equal settings make equal programs."""

    def __init__(self, method: str, tol: float | None, options: dict | None):
        self.method, self.tol, self.options = method, tol, options

    def structure(self) -> tuple:
        return self.method, self.tol, tuple(sorted((self.options or {}).items()))

    def __call__(self, f: Callable, x0: Any) -> Any:
        found = _scipy.root(f, x0, method=self.method, tol=self.tol, options=self.options)
        if not found.success:
            left, steps = float(np.max(np.abs(found.fun), initial=0.0)), int(found.get("nfev", 0))
            told = f"{' '.join(found.message.split())} After {steps} evaluations |f(x)| is {left:.3g}"
            raise ConvergenceError(f"scipy.optimize.root: {told}", left, steps)
        return np.reshape(found.x, np.shape(x0))
