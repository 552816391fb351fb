"""Gradients of a function of one argument by the installed peers, in float64."""

from functools import partial


def gradients(result):
    """Title -> (module with NumPy's names, make).

    make(f, x) returns a function that computes the gradient at x. Missing packages are noted in the Result.
    """
    found = {}
    if (autograd := result.peer("autograd")) is not None:
        import autograd.numpy

        found["HIPS autograd"] = autograd.numpy, lambda f, x: partial(autograd.grad(f), x)
    if (jax := result.peer("jax")) is not None:
        jax.config.update("jax_enable_x64", True)
        found["JAX, jit"] = jax.numpy, partial(_jitted, jax)
    if (torch := result.peer("torch")) is not None:
        found["PyTorch"] = torch, partial(_eager, torch)
    return found


def _jitted(jax, f, x):
    gradient, x = jax.jit(jax.grad(f)), jax.numpy.asarray(x)
    return lambda: gradient(x).block_until_ready()


def _eager(torch, f, x):
    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)

    def gradient():
        leaf.grad = None
        f(leaf).backward()
        return leaf.grad

    return gradient
