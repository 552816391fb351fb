"""Study: programs as they stand in textbooks, beside the same rewritten for JAX and HIPS autograd."""

import importlib
from functools import partial

import numpy as np

from bench.studies.measure import interleave
from bench.studies.study import Result, Study
from bench.studies.textbook import PROGRAMS
from gpt2 import autodiff as ad

TOLERANCE = 1e-10  # of derivatives, relative to the largest: sums in another order
OWN, JAX, HIPS = "derived", "JAX, jit", "HIPS autograd"


def run(options):
    result = Result()
    jax, autograd = result.peer("jax"), result.peer("autograd")
    shown = [OWN] + [JAX] * (jax is not None) + [HIPS] * (autograd is not None)
    ratios = result.table("Time of a later call", "program", *(f"{p} [s]" for p in shown))
    firsts = result.table("Time of the first call", "program", *(f"{p} [s]" for p in shown))
    faster = {p: 0 for p in shown[1:]}
    names = list(PROGRAMS)[: 2 if options.quick else None]
    for name in names:
        program, rewritten, (x, *rest) = PROGRAMS[name]
        gradients = {OWN: partial(ad.grad(program), x, *rest)}
        if jax is not None:
            jax.config.update("jax_enable_x64", True)
            gradients[JAX] = of_jax(jax, rewritten, x, rest)
        if autograd is not None:
            gradients[HIPS] = partial(
                autograd.grad(rewritten, 1), importlib.import_module("autograd.numpy"), x, *rest
            )
        times = interleave(gradients, options.seconds / len(names) / 2)
        own = gradients[OWN]()
        for player, gradient in gradients.items():
            error = np.max(np.abs(gradient() - own)) / np.max(np.abs(own))
            assert error < TOLERANCE, f"{name}, {player}: derivatives are off by {error:.1e}"
        ratios.add(name, *(times[p] for p in shown))
        firsts.add(name, *(times[p].first for p in shown))
        for p in faster:
            faster[p] += times[p].median > times[OWN].median
    for p, n in faster.items():
        result.note(f"A later call of {p} takes longer than the derived program's in {n} of {len(names)}.")
    return result


def of_jax(jax, rewritten, x, rest):
    """The jitted gradient at x, which returns when the result is there."""
    gradient = jax.jit(jax.grad(lambda x: rewritten(jax.numpy, x, *rest)))
    x = jax.numpy.asarray(x)
    return lambda: gradient(x).block_until_ready()


STUDY = Study(
    "textbook",
    "Can programs stay as they stand in textbooks, with np.zeros and loops that fill arrays, and what "
    "does that cost? Ten of them, beside the same rewritten without writing in place for JAX and HIPS "
    "autograd.",
    "The gradient by the first argument of each program of bench/studies/textbook.py, in float64: the "
    "heat equation by finite differences, dynamic time warping, the forward pass of a hidden Markov "
    "model, a Kalman filter, bodies under gravity, Gauss and Seidel's iteration, a spline's tridiagonal "
    "solve, a recursive filter, an alignment by Needleman and Wunsch with a soft maximum, a ray marcher. "
    "Here the text is NumPy's, unchanged; rewritten, the loops build lists, or work on whole arrays, and "
    "JAX unrolls and compiles them. Derivatives are compared, to 1e-10; then all take turns in one "
    "process. The first call records, or traces, and compiles.",
    run,
    seconds=120,
)
