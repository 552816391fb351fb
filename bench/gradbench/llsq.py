"""llsq: the least-squares error of a polynomial that approximates the sign function (llsq_obj of cmpad)."""

from functools import partial

import numpy as np

from bench.gradbench.function import Function, array
from bench.programs import formulas
from bench.programs.library import NUMPY
from gpt2 import autodiff as ad

half_squared_distance = partial(formulas.llsq, NUMPY)


def _read(data):
    n = int(data["n"])
    t = -1.0 + 2.0 * np.arange(n) / (n - 1)
    return array(data["x"]), t, np.sign(t)


FUNCTIONS = {
    "primal": Function(ad.compile(half_squared_distance, pure=True), _read),
    "gradient": Function(ad.grad(half_squared_distance, pure=True), _read),
}
