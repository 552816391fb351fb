"""Study: programs as they stand in textbooks, beside the same rewritten for JAX and HIPS autograd."""

from functools import partial

import numpy as np

from bench.studies.measure import interleave
from bench.studies.peers import gradients
from bench.studies.study import Result, Study
from bench.studies.textbook import PROGRAMS
from gpt2 import autodiff as ad

TOLERANCE = 1e-10  # of derivatives, relative to the largest: sums in another order
OWN = "derived"


def run(options):
    result = Result()
    peers = gradients(result, ("jax", "autograd"))
    tables = [
        result.table(title, "program", *(f"{player} [s]" for player in (OWN, *peers)))
        for title in ("Time of a later call", "Time of the first call")
    ]
    slower = dict.fromkeys(peers, 0)
    names = list(PROGRAMS)[: 2 if options.quick else None]
    for name in names:
        program, rewritten, (x, *rest) = PROGRAMS[name]
        calls = {OWN: partial(ad.grad(program), x, *rest)}
        for peer, (xp, make) in peers.items():
            calls[peer] = make(lambda x, xp=xp, f=rewritten, rest=rest: f(xp, x, *rest), x)
        times = interleave(calls, options.seconds / len(names) / 2)
        own = calls[OWN]()
        for player, call in calls.items():
            error = np.max(np.abs(call() - own)) / np.max(np.abs(own))
            assert error < TOLERANCE, f"{name}, {player}: derivatives are off by {error:.1e}"
        tables[0].add(name, *times.values())
        tables[1].add(name, *(sample.first for sample in times.values()))
        for peer in peers:
            slower[peer] += times[peer].median > times[OWN].median
    for peer, n in slower.items():
        result.note(f"A later call of {peer} takes longer than the derived program's in {n} of {len(names)}.")
    return result


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
