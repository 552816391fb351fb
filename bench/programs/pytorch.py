"""The programs in PyTorch, eager and through torch.compile.

Loops are Python's. torch.compile is applied to a whole program if it has no loops, and else to the step, as
compiling all steps together takes minutes.
"""

from functools import partial

import numpy as np
import torch
from torch.utils._pytree import tree_map

from bench.programs import formulas
from bench.programs.library import Library, python_loop, python_while

torch.set_default_dtype(torch.float64)


def triangular(q, l):
    (K, D), (columns, rows) = q.shape, np.triu_indices(q.shape[1], 1)
    factors = torch.zeros(K, D, D)
    factors[:, torch.from_numpy(rows), torch.from_numpy(columns)] = l
    factors.diagonal(dim1=1, dim2=2).copy_(torch.exp(q))
    return factors


def slope(f):
    def gradient(x, *others):
        x = x if x.requires_grad else x.detach().requires_grad_()
        return torch.autograd.grad(f(EAGER, x, *others), x, create_graph=True)[0]

    return gradient


NAMES = dict(
    np=torch,
    grad=torch.func.grad,
    vjp=lambda f, *inputs: torch.func.vjp(f, *inputs)[1],
    logsumexp=torch.logsumexp,
    smallest=torch.amin,
    powers=lambda t, m: torch.linalg.vander(t, N=m),
    cross=torch.linalg.cross,
    triangular=triangular,
    whiten=lambda lower, y: torch.linalg.solve_triangular(lower, y[:, None], upper=False)[:, 0],
)
EAGER = Library(
    **NAMES,
    scan=lambda *inputs, **named: python_loop(EAGER, *inputs, **named),
    while_loop=lambda *inputs: python_while(EAGER, *inputs),
    slope=slope,
)
COMPILED = Library(
    **NAMES,
    scan=lambda body, *inputs, **named: python_loop(COMPILED, compiled(body), *inputs, **named),
    while_loop=lambda cond, body, *inputs: python_while(COMPILED, cond, compiled(body), *inputs),
    slope=lambda f: torch.func.grad(partial(f, COMPILED)),
)
STEPS = {}


def compiled(body):
    """The body, compiled on first use."""
    if body not in STEPS:
        step = torch.compile(lambda *inputs: body(COMPILED, *inputs))
        STEPS[body] = lambda library, *inputs: step(*inputs)
    return STEPS[body]


# ---- Programs ----------------------------------------------------------------------------------------------


def direction(library, centroids, points):
    first = torch.func.grad(lambda c: formulas.kmeans(library, c, points))
    slope, curvature = torch.func.jvp(first, (centroids,), (torch.ones_like(centroids),))
    return slope / curvature


def ht(library, theta, *others):
    return torch.func.jacfwd(lambda theta: formulas.ht(library, theta, *others))(theta)


OTHERS = {"kmeans": direction, "ba": formulas.ba_blocks, "ht": ht}
LOOPS = {"ode", "lstm", "saddle", "particle", "rk4", "kalman", "hidden-markov", "rnn"}


def program(name, variant, inputs):
    """A function without arguments that returns the derivatives. variant: eager or compile."""
    library = COMPILED if variant == "compile" else EAGER
    wrapped = torch.compile if variant == "compile" and name not in LOOPS else lambda f: f
    inputs = tree_map(_tensor, inputs)
    if name in OTHERS:
        f = wrapped(partial(OTHERS[name], library))
        return lambda: f(*inputs)
    formula, count = formulas.GRADIENTS[name]
    f, leaves = wrapped(partial(formula, library)), [x.requires_grad_() for x in inputs[:count]]
    return lambda: torch.autograd.grad(f(*inputs), leaves)


def _tensor(x):
    """Convert arrays and floats to tensors; ints are left alone."""
    return torch.as_tensor(x) if isinstance(x, (np.ndarray, float)) else x
