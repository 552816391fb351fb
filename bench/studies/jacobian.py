"""Study: Jacobians of 500 results by 500 arguments, beside jax.jacrev and jax.jacfwd."""

from functools import partial

import numpy as np

from bench.studies.measure import interleave
from bench.studies.study import Result, Study
from gpt2 import autodiff as ad

TOLERANCE = 1e-9  # relative to the largest entry


def functions(xp, n):
    """Title -> a function from n numbers to n numbers, in terms of the array module xp."""
    rng = np.random.default_rng(3)
    first, second = (xp.asarray(rng.normal(size=(n, n)) / n**0.5) for _ in range(2))

    def softmax(x):
        e = xp.exp(x - xp.max(x))
        return e / xp.sum(e)

    return {
        "tanh(W x)": lambda x: xp.tanh(first @ x),
        "V tanh(W x)": lambda x: second @ xp.tanh(first @ x),
        "tanh(V tanh(W x))": lambda x: xp.tanh(second @ xp.tanh(first @ x)),
        "softmax(W x)": lambda x: softmax(first @ x),
        "sin(x) sum(x^2)": lambda x: xp.sin(x) * xp.sum(x**2),
    }


def run(options):
    result = Result()
    if (jax := result.peer("jax")) is None:
        result.note("JAX is not installed, so there is no comparison.")
        return result
    jax.config.update("jax_enable_x64", True)
    n = 20 if options.quick else 500
    x = np.random.default_rng(4).normal(size=n)
    on_device, theirs = jax.numpy.asarray(x), functions(jax.numpy, n)
    heads = "function | ad.jacobian [s] | jax.jacrev [s] | jax.jacfwd [s] | jacrev / ad [x] | jacfwd / ad [x]"
    table = result.table(f"{n} results by {n} arguments", heads)
    for title, f in functions(np, n).items():
        calls = {"ad": partial(ad.jacobian(f, pure=True), x)}
        for name in ("jacrev", "jacfwd"):
            jacobian = jax.jit(getattr(jax, name)(theirs[title]))
            calls[name] = lambda jacobian=jacobian: jax.block_until_ready(jacobian(on_device))
        expected = np.asarray(calls["jacrev"]())
        assert np.max(np.abs(calls["ad"]() - expected)) <= TOLERANCE * np.max(np.abs(expected)), title
        times = interleave(calls, options.seconds / len(theirs))
        ratios = [times[name].over(times["ad"]) for name in ("jacrev", "jacfwd")]
        table.add(title, *times.values(), *ratios)
        reverse, forward = (ratio.median for ratio in ratios)
        result.note(f"{title}: jacrev takes {reverse:.2f} times as long, jacfwd {forward:.2f}.")
    return result


STUDY = Study(
    "jacobian",
    "How long does a whole Jacobian take beside JAX?",
    "Five functions from 500 numbers to 500, in float64. JAX is jitted, and compilation is not counted. The "
    "matrices are compared first, to 1e-9; then all take turns.",
    run,
    seconds=25,
)
