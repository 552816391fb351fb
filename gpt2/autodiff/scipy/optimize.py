"""scipy.optimize: roots, by the implicit function theorem, and minima for parameters in any tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize as _scipy

from .. import tree
from ..errors import ConvergenceError
from ..implicit.equations import root as implicit_root
from ..record.source_lines import here
from ..transforms.gradient import value_and_grad
from .passing import Result, names_of, ours, unsupported_option

__getattr__, __dir__ = names_of(_scipy)


@ours(_scipy)
def root(fun: Callable, x0, args=(), method="hybr", jac=None, tol=None, callback=None, options=None) -> Any:
    """An OptimizeResult with the root as its x, and no other attributes."""
    if jac or callback is not None:
        raise unsupported_option("scipy.optimize.root", "with jac= or callback=")
    solver = Solver(method, tol, options, here())
    args = args if isinstance(args, tuple) else (args,)
    return Result(x=implicit_root(fun, x0, *args, solver=solver))


class Solver:
    """scipy.optimize.root with these settings. Equal settings make equal programs."""

    def __init__(self, method: str, tol: float | None, options: dict | None, loc: tuple | None):
        self.method, self.tol, self.options, self.loc = method, tol, options, loc

    def structure(self) -> tuple:
        return self.method, self.tol, tuple(sorted((self.options or {}).items())), self.loc

    def __call__(self, f: Callable, x0: Any) -> Any:
        solution = _scipy.root(f, x0, method=self.method, tol=self.tol, options=self.options)
        if not solution.success:
            left, steps = float(np.max(np.abs(solution.fun), initial=0.0)), int(solution.get("nfev", 0))
            message = f"{' '.join(solution.message.split())} After {steps} evaluations |f(x)| is {left:.3g}"
            raise ConvergenceError(f"scipy.optimize.root: {message}", left, steps, self.loc)
        return np.reshape(solution.x, np.shape(x0))


def minimize(fun: Callable, x0: Any, args: tuple = (), method: Any = None, **options: Any) -> Any:
    """scipy.optimize.minimize(fun, x0) with the gradient derived; x0 is any tree of arrays and numbers.

    The result is SciPy's, with `x` and `jac` in the structure of x0. Your own gradient (jac=) is for
    scipy.optimize itself.
    """
    if "jac" in options:
        raise TypeError("minimize: the gradient is derived here; scipy.optimize takes one of your own")
    vector, back = tree.ravel(x0)
    gradient = value_and_grad(fun)

    def both(vector, *args):
        value, gradients = gradient(back(vector), *args)
        return value, np.asarray(tree.ravel(gradients)[0], float)

    result = _scipy.minimize(both, np.asarray(vector, float), args, method, jac=True, **options)
    result.x = back(result.x)
    if "jac" in result:
        result.jac = back(result.jac)
    return result
