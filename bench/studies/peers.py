"""Gradients of a function of one argument by the installed peers, in float64."""

import importlib
from functools import partial

TITLES = {"autograd": "HIPS autograd", "jax": "JAX, jit", "torch": "PyTorch"}


def gradients(result, packages=tuple(TITLES)):
    """Title -> (module with NumPy's names, make), of those of these packages that are installed.

    make(f, x) returns a function that computes the gradient at x. Missing packages are noted in the Result.
    """
    found = {}
    for package in packages:
        if (peer := result.peer(package)) is not None:
            names = peer if package == "torch" else importlib.import_module(f"{package}.numpy")
            found[TITLES[package]] = names, partial(MAKE[package], peer)
    return found


def _autograd(autograd, f, x):
    return partial(autograd.grad(f), x)


def _jitted(jax, f, x):
    jax.config.update("jax_enable_x64", True)
    gradient, x = jax.jit(jax.grad(f)), jax.numpy.asarray(x)
    return lambda: gradient(x).block_until_ready()


def _eager(torch, f, x):
    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)

    def gradient():
        leaf.grad = None
        f(leaf).backward()
        return leaf.grad

    return gradient


MAKE = {"autograd": _autograd, "jax": _jitted, "torch": _eager}
