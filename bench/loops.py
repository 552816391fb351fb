"""Measure time and memory of the gradient of an ODE solver with many steps and in-place writes.

    python -m bench.loops

A chain of 200 pendulums, integrated by the symplectic Euler method in arrays that each step updates in place.
The final energy is differentiated with respect to the spring constants through ad.scan, ad.while_loop (with
the number of steps as an argument) and a Python loop. "compile" is the first call less a later one; "bytes"
is the peak of NumPy's allocations during a later call (tracemalloc).
"""

from __future__ import annotations

import time
import tracemalloc

import numpy as np

from bench.harness import program
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


WAYS = {"scan": by_scan, "while_loop": by_while_loop, "python": by_python}


def measure(f, n) -> tuple[float, float, int]:
    """(seconds of the first call, seconds of a later one, peak bytes of a later one)."""
    g = ad.grad(f)
    k = np.full(CARRY - 2, 50.0)
    n = np.array(n) if f is by_while_loop else n
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        g(k, n)
        times.append(time.perf_counter() - begin)
    tracemalloc.start()
    g(k, n)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return times[0], min(times[1:]), peak


def main(argv) -> None:
    parser = program.plain_parser("bench.loops", __doc__.split("\n")[0])
    add, ways = parser.add_argument, ["scan", "while_loop"]
    steps = "steps of the ODE (default 100 1000 10000)"
    add("--steps", metavar="N", type=int, nargs="+", default=STEPS, help=steps)
    loops = f"how the loop is written, some of {' '.join(WAYS)} (default {' '.join(ways)})"
    add("--ways", metavar="WAY", nargs="+", choices=list(WAYS), default=ways, help=loops)
    args = parser.parse_args(argv)
    print(f"{'way':12}{'steps':>8}{'compile ms':>12}{'gradient ms':>13}{'us a step':>11}{'bytes':>12}")
    for way in args.ways:
        for n in args.steps:
            first, later, peak = measure(WAYS[way], n)
            compile_ms, ms, us = 1e3 * (first - later), 1e3 * later, 1e6 * later / n
            print(f"{way:12}{n:8}{compile_ms:12.0f}{ms:13.1f}{us:11.1f}{peak:12,}")


if __name__ == "__main__":
    program.run(main)
