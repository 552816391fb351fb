"""lse: log-sum-exp, shifted by the largest value so that nothing overflows."""

import numpy as np

from bench.gradbench.function import Function, array
from gpt2 import autodiff as ad


def log_sum_exp(x):
    """x (n,) -> a number."""
    largest = np.max(x)
    return largest + np.log(np.sum(np.exp(x - largest)))


def _read(data):
    return (array(data["x"]),)


FUNCTIONS = {
    "primal": Function(ad.compile(log_sum_exp, pure=True), _read),
    "gradient": Function(ad.grad(log_sum_exp, pure=True), _read),
}
