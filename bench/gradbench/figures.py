"""Time GradBench's evaluations at their usual sizes on random inputs: the table of docs/gradbench.md.

    python -m bench.gradbench.figures
    python -m bench.gradbench.figures lse gmm

Medians in milliseconds of CPU time, which other programs on the machine affect little.
"""

import time

import numpy as np

from bench.gradbench import MODULES, protocol
from bench.harness import program
from gpt2.autodiff import limit_blas_threads, set_threads
from gpt2.errors import UserError

ABOUT = "Time GradBench's evaluations, as a table of Markdown."
NAMES = tuple(name for name in MODULES if name != "hello")
RUNS, SECONDS = 5, 0.5  # at least so many runs, and CPU seconds


def normal(rng, *shape):
    return rng.normal(size=shape).tolist()


def gmm(rng, d, k, n):
    below = d * (d - 1) // 2
    parts = {"alpha": (k,), "mu": (k, d), "q": (k, d), "l": (k, below), "x": (n, d)}
    data = {name: (0.3 * rng.normal(size=shape)).tolist() for name, shape in parts.items()}
    return {"d": d, "k": k, "n": n, **data, "gamma": 1.0, "m": 0}


def hand(rng, triangles):
    """Input of ht: a hand of 544 vertices and 100 points, which belong to triangles or to vertices."""
    bones, vertices, points = 22, 544, 100
    model = {
        "bone_count": bones,
        "bone_names": [str(i) for i in range(bones)],
        "is_mirrored": False,
        "parents": [-1, *(int(rng.integers(0, i)) for i in range(1, bones))],
        "base_relatives": (0.5 * rng.normal(size=(bones, 4, 4))).tolist(),
        "inverse_base_absolutes": normal(rng, bones, 4, 4),
        "base_positions": normal(rng, vertices, 4),
        "weights": rng.random((vertices, bones)).tolist(),
        "triangles": rng.integers(0, vertices, (vertices, 3)).tolist(),
    }
    places = rng.integers(0, vertices, points).tolist()
    data = {"model": model, "correspondences": places, "points": normal(rng, points, 3)}
    return {"theta": normal(rng, 26), "us": normal(rng, points, 2) if triangles else [], "data": data}


def rows(rng):
    """(module, size, input, name of the value's function or None, name of the derivative's function)"""
    yield "lse", "n = 320,000", {"x": normal(rng, 320_000)}, "primal", "gradient"
    yield "llsq", "n = 1024, m = 128", {"x": normal(rng, 128), "n": 1024}, "primal", "gradient"
    for n in (8, 10):
        yield "det", f"{n} x {n}", {"A": normal(rng, n * n), "ell": n}, "primal", "gradient"
    for n, s in ((1000, 100), (100_000, 10)):
        data = {"x": rng.random(n).tolist(), "s": s}
        yield "ode", f"n = {n:,}, s = {s}", data, "primal", "gradient"
    for k in (10, 1000):
        points = rng.random((10_000, 8)).tolist()
        data = {"points": points, "centroids": points[-k:]}
        yield "kmeans", f"k = {k}, n = 10,000, d = 8", data, "cost", "dir"
    shapes = {"main_params": (4, 56), "extra_params": (3, 14), "state": (4, 14), "sequence": (1024, 14)}
    data = {name: normal(rng, *shape) for name, shape in shapes.items()}
    yield "lstm", "l = 2, c = 1024, b = 14", data, "objective", "jacobian"
    for d, k in ((10, 25), (64, 50)):
        yield "gmm", f"d = {d}, k = {k}, n = 1000", gmm(rng, d, k, 1000), "objective", "jacobian"
    data = {"cam": normal(rng, 11), "x": normal(rng, 3), "w": 0.7, "feat": normal(rng, 2)}
    data = {"n": 49, "m": 7776, "p": 31_843, **data}
    yield "ba", "n = 49, m = 7776, p = 31,843", data, "objective", "jacobian"
    for name, triangles in (("simple", False), ("complicated", True)):
        yield "ht", f"{name}, 544 vertices, 100 points", hand(rng, triangles), "objective", "jacobian"
    for variant in ("rr", "ff"):
        yield "saddle", variant, {"start": [1.0, 1.0]}, None, variant
        yield "particle", variant, {"w": 0.0}, None, variant


def measure(module, name, data):
    """(median milliseconds of a run, milliseconds of the first call)"""
    function = protocol.function_of(module, name)
    arguments = function.read(data)
    spent = []
    with np.errstate(all="ignore"):
        while len(spent) <= RUNS or sum(spent[1:]) < SECONDS * 1e3:
            begin = time.process_time_ns()
            function.run(*arguments)
            spent.append((time.process_time_ns() - begin) / 1e6)
    return float(np.median(spent[1:])), spent[0]


def digits(number, n=3):
    """A number with n significant digits, or rounded to an integer if it has more; "" for None."""
    if number is None:
        return ""
    return f"{number:.0f}" if number >= 10 ** (n - 1) else f"{number:.{n}g}"


def main(argv):
    parser = program.plain_parser("bench.gradbench.figures", ABOUT)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)} (default: all)")
    names = parser.parse_args(argv).names
    if unknown := sorted(set(names) - set(NAMES)):
        raise UserError(f"unknown evaluation {unknown[0]!r}, expected some of {', '.join(NAMES)}")
    set_threads(1)
    limit_blas_threads(1)
    print("| evaluation | size | value | derivative | ratio | compile |\n|---|---|---:|---:|---:|---:|")
    for module, size, data, value, derivative in rows(np.random.default_rng(5)):
        if names and module not in names:
            continue
        primal = measure(module, value, data)[0] if value else None
        ms, first = measure(module, derivative, data)
        cells = [f"`{module}`", size, digits(primal), digits(ms), digits(ms / primal if primal else None, 2)]
        print(f"| {' | '.join(cells)} | {first:.0f} |", flush=True)


if __name__ == "__main__":
    program.run(main)
