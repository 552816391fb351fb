"""ode: a chain of linear equations, solved by the classical Runge-Kutta method (an_ode of cmpad)."""

from functools import partial

import numpy as np

from bench.gradbench.function import Function, array
from bench.programs import formulas
from bench.programs.library import NUMPY
from gpt2 import autodiff as ad


def _read(data):
    x = array(data["x"])
    return x, np.zeros_like(x), np.ones(1), int(data["s"])


FUNCTIONS = {
    "primal": Function(ad.compile(partial(formulas.ode_solution, NUMPY), pure=True), _read),
    "gradient": Function(ad.grad(partial(formulas.ode, NUMPY), pure=True), _read),
}
