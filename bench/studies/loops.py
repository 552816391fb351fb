"""Study: the gradient of an ODE solver with many steps and in-place writes."""

from functools import partial

import numpy as np

from bench.harness.worker import seconds_of
from bench.studies.measure import peak_bytes
from bench.studies.study import Result, Study
from gpt2 import autodiff as ad

CARRY = 200
STEPS = (100, 1000, 10_000)


def move(q, v, k):
    """One step of 1 ms, in place."""
    q += 0.001 * v
    v[1:-1] += 0.001 * k * (q[2:] - 2.0 * q[1:-1] + q[:-2])
    v[:] -= 0.001 * np.sin(q)
    return q, v


def start():
    return np.linspace(0.0, 1.0, CARRY), np.zeros(CARRY)


def by_scan(k, n):
    (q, v), _ = ad.scan(lambda c, _: (move(*c, k), None), start(), length=n)
    return np.sum(v * v) + np.sum(q * q)


def by_while_loop(k, n):
    def body(carry):
        i, q, v = carry
        return (i + 1, *move(q, v, k))

    _, q, v = ad.while_loop(lambda c: c[0] < n, body, (0, *start()))
    return np.sum(v * v) + np.sum(q * q)


def by_python(k, n):
    q, v = np.zeros_like(k, shape=CARRY), np.zeros_like(k, shape=CARRY)
    q[:] = start()[0]
    for _ in range(n):
        q, v = move(q, v, k)
    return np.sum(v * v) + np.sum(q * q)


WAYS = {"scan": (by_scan, STEPS), "while_loop": (by_while_loop, STEPS), "python": (by_python, STEPS[:1])}


def run(options):
    result = Result()
    table = result.table(
        "Gradient of the final energy by the spring constants",
        "way | steps | compile [s] | gradient [s] | a step [s] | peak [B]",
        note="Compile: the first call less a later one. Peak: of NumPy's allocations during a later call.",
    )
    k = np.full(CARRY - 2, 50.0)
    for way, (f, steps) in WAYS.items():
        gradient = ad.grad(f)
        for n in (10,) if options.quick else steps:
            length = np.array(n) if f is by_while_loop else n  # an argument, so that one program serves all
            call = partial(gradient, k, length)
            first, *later = (seconds_of(call) for _ in range(3))
            peak = peak_bytes(call)
            table.add(way, n, first - min(later), min(later), min(later) / n, peak)
    result.note(f"All carries of {STEPS[-1]} steps would take {STEPS[-1] * 2 * CARRY * 8:,} bytes.")
    return result


STUDY = Study(
    "loops",
    "What do time and memory of a gradient cost through a loop of many steps that writes in place?",
    "A chain of 200 pendulums, integrated by the symplectic Euler method in arrays that each step updates in "
    "place. The final energy is differentiated with respect to the spring constants through ad.scan, "
    "ad.while_loop, with the number of steps as an argument, and a Python loop of 100 steps.",
    run,
    seconds=20,
)
