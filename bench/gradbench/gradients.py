"""The evaluations that are a function and its gradient, with the formulas of bench/programs.

hello   the square of a number
lse     log-sum-exp
llsq    the least-squares error of a polynomial that approximates the sign function (llsq_obj of cmpad)
ode     a chain of linear equations, solved by the classical Runge-Kutta method (an_ode of cmpad)
lstm    the loss of a small LSTM whose weight matrices are diagonal (ADBench's variant)
gmm     the log posterior of a Gaussian mixture model with a Wishart prior (ADBench). A component's precision
        matrix is Q^T Q; Q is lower triangular with exp(q) on its diagonal and l, column by column, below it
"""

from functools import partial

import numpy as np

from bench.gradbench import Function, array, as_json
from bench.programs import formulas
from bench.programs.library import NUMPY
from gpt2 import autodiff as ad


def read_hello(data):
    return (float(data),)


def read_lse(data):
    return (array(data["x"]),)


def read_llsq(data):
    n = int(data["n"])
    t = -1.0 + 2.0 * np.arange(n) / (n - 1)
    return array(data["x"]), t, np.sign(t)


def read_ode(data):
    x = array(data["x"])
    return x, np.zeros_like(x), np.ones(1), int(data["s"])


def read_lstm(data):
    names = "main_params", "extra_params", "state", "sequence"
    main, extra, state, sequence = (array(data[name]) for name in names)
    return main, extra, state, 0.0, sequence


def write_lstm(gradients):
    return np.concatenate([g.ravel() for g in gradients]).tolist()


def read_gmm(data):
    K, D = int(data["k"]), int(data["d"])
    alpha, mu, q, l, x = (array(data[name]) for name in ("alpha", "mu", "q", "l", "x"))
    return alpha, mu, q, l.reshape(K, D * (D - 1) // 2), x, float(data["gamma"]), int(data["m"])


def write_gmm(gradients):
    return {name: g.tolist() for name, g in zip(("alpha", "mu", "q", "l"), gradients)}


def value_and_gradient(formula, read, write=as_json, argnums=0, names=("primal", "gradient"), of=None):
    """Name -> Function: the value of the formula, and its gradient, or that of another formula."""
    gradient = ad.grad(partial(of or formula, NUMPY), argnums, pure=True)
    value = ad.compile(partial(formula, NUMPY), pure=True)
    return dict(zip(names, (Function(value, read), Function(gradient, read, write))))


NAMES = ("objective", "jacobian")  # ADBench's; those of the others are primal and gradient
EVALUATIONS = {
    "hello": value_and_gradient(formulas.hello, read_hello, names=("square", "double")),
    "lse": value_and_gradient(formulas.lse, read_lse),
    "llsq": value_and_gradient(formulas.llsq, read_llsq),
    "ode": value_and_gradient(formulas.ode_solution, read_ode, of=formulas.ode),
    "lstm": value_and_gradient(formulas.lstm, read_lstm, write_lstm, argnums=(0, 1), names=NAMES),
    "gmm": value_and_gradient(formulas.gmm, read_gmm, write_gmm, argnums=(0, 1, 2, 3), names=NAMES),
}
