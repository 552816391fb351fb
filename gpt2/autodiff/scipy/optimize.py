"""scipy.optimize: minimize with the gradient derived, for parameters in any tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize as _scipy

from ..api.gradient import value_and_grad
from ..tree import public as tree
from .passing import passed_on


def __getattr__(name: str) -> Any:
    return passed_on(_scipy, name)


def __dir__() -> list[str]:
    return dir(_scipy)


def minimize(fun: Callable, x0: Any, args: tuple = (), method: Any = None, **options: Any) -> Any:
    """scipy.optimize.minimize(fun, x0) with the gradient derived; x0 is any tree of arrays and numbers.

    The result is SciPy's, with `x` and `jac` in the structure of x0. A gradient of one's own (jac=) is for
    scipy.optimize itself.
    """
    if "jac" in options:
        raise TypeError("minimize: the gradient is derived here; scipy.optimize takes one of your own")
    vector, back = tree.ravel(x0)
    gradient = value_and_grad(fun)

    def both(vector, *args):
        value, found = gradient(back(vector), *args)
        return value, np.asarray(tree.ravel(found)[0], float)

    result = _scipy.minimize(both, np.asarray(vector, float), args, method, jac=True, **options)
    result.x = back(result.x)
    if "jac" in result:
        result.jac = back(result.jac)
    return result
