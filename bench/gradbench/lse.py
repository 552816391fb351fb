"""lse: log-sum-exp."""

from functools import partial

from bench.gradbench.function import Function, array
from bench.programs import formulas
from bench.programs.library import NUMPY
from gpt2 import autodiff as ad

log_sum_exp = partial(formulas.lse, NUMPY)


def _read(data):
    return (array(data["x"]),)


FUNCTIONS = {
    "primal": Function(ad.compile(log_sum_exp, pure=True), _read),
    "gradient": Function(ad.grad(log_sum_exp, pure=True), _read),
}
