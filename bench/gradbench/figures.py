"""Time GradBench's evaluations at their usual sizes on random inputs: the table of docs/gradbench.md.

    python -m bench.gradbench.figures
    python -m bench.gradbench.figures lse gmm

Medians in milliseconds of CPU time, which other programs on the machine affect little.
"""

import time

import numpy as np

from bench.gradbench import MODULES, protocol
from bench.gradbench.descent import VARIANTS
from bench.harness import program
from gpt2.autodiff import limit_blas_threads, set_threads
from gpt2.errors import UserError

ABOUT = "Time GradBench's evaluations, as a table of Markdown."
NAMES = tuple(name for name in MODULES if name != "hello")
RUNS, SECONDS = 5, 0.5  # at least so many runs, and CPU seconds


# ---- Random inputs, by evaluation --------------------------------------------------------------------------


def normal(rng, *shape):
    return rng.normal(size=shape).tolist()


def kmeans(rng, k, n, d):
    points = rng.random((n, d)).tolist()
    return {"points": points, "centroids": points[-k:]}


def lstm(rng, layers, characters, b):
    shapes = {"main_params": (2 * layers, 4 * b), "extra_params": (3, b), "state": (2 * layers, b)}
    shapes["sequence"] = (characters, b)
    return {name: normal(rng, *shape) for name, shape in shapes.items()}


def gmm(rng, d, k, n):
    below = d * (d - 1) // 2
    parts = {"alpha": (k,), "mu": (k, d), "q": (k, d), "l": (k, below), "x": (n, d)}
    data = {name: (0.3 * rng.normal(size=shape)).tolist() for name, shape in parts.items()}
    return {"d": d, "k": k, "n": n, **data, "gamma": 1.0, "m": 0}


def ba(rng, n, m, p):
    data = {"cam": normal(rng, 11), "x": normal(rng, 3), "w": 0.7, "feat": normal(rng, 2)}
    return {"n": n, "m": m, "p": p, **data}


def hand(rng, vertices, points, complicated=False):
    """A hand and points, which belong to vertices, or to triangles if it is complicated."""
    bones = 22
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
    return {"theta": normal(rng, 26), "us": normal(rng, points, 2) if complicated else [], "data": data}


INPUTS = {
    "hello": lambda rng: 3.0,
    "lse": lambda rng, n: {"x": normal(rng, n)},
    "llsq": lambda rng, n, m: {"x": normal(rng, m), "n": n},
    "det": lambda rng, n: {"A": normal(rng, n * n), "ell": n},
    "ode": lambda rng, n, s: {"x": rng.random(n).tolist(), "s": s},
    "kmeans": kmeans,
    "lstm": lstm,
    "gmm": gmm,
    "ba": ba,
    "ht": hand,
    "saddle": lambda rng: {"start": [1.0, 1.0]},
    "particle": lambda rng: {"w": 0.0},
}
# (evaluation, its size in words, arguments of its random input); of the last ones what is timed is a variant
ROWS = (
    ("lse", "n = 320,000", 320_000),
    ("llsq", "n = 1024, m = 128", 1024, 128),
    ("det", "8 x 8", 8),
    ("det", "10 x 10", 10),
    ("ode", "n = 1,000, s = 100", 1000, 100),
    ("ode", "n = 100,000, s = 10", 100_000, 10),
    ("kmeans", "k = 10, n = 10,000, d = 8", 10, 10_000, 8),
    ("kmeans", "k = 1000, n = 10,000, d = 8", 1000, 10_000, 8),
    ("lstm", "l = 2, c = 1024, b = 14", 2, 1024, 14),
    ("gmm", "d = 10, k = 25, n = 1000", 10, 25, 1000),
    ("gmm", "d = 64, k = 50, n = 1000", 64, 50, 1000),
    ("ba", "n = 49, m = 7776, p = 31,843", 49, 7776, 31_843),
    ("ht", "simple, 544 vertices, 100 points", 544, 100),
    ("ht", "complicated, 544 vertices, 100 points", 544, 100, True),
    *((name, variant) for variant in ("rr", "ff") for name in ("saddle", "particle")),
)


# ---- The table ---------------------------------------------------------------------------------------------


def measure(function, data):
    """(median milliseconds of a run, milliseconds of the first call)"""
    arguments = function.read(data)
    spent = []
    with np.errstate(all="ignore"):
        while len(spent) <= RUNS or sum(spent[1:]) < SECONDS * 1e3:
            begin = time.process_time_ns()
            function.run(*arguments)
            spent.append((time.process_time_ns() - begin) / 1e6)
    return float(np.median(spent[1:])), spent[0]


def digits(number, n=3):
    """A number with n significant digits, or rounded to an integer if it has more."""
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
    rng = np.random.default_rng(5)
    for module, size, *sizes in ROWS:
        data = INPUTS[module](rng, *sizes)
        if names and module not in names:
            continue
        functions = protocol.functions_of(module)
        value = ratio = ""
        if size in VARIANTS:
            ms, first = measure(functions[size], data)
        else:  # its functions are the value and the derivative
            (plain, _), (ms, first) = (measure(function, data) for function in functions.values())
            value, ratio = digits(plain), digits(ms / plain, 2)
        cells = (f"`{module}`", size, value, digits(ms), ratio, f"{first:.0f}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    program.run(main)
