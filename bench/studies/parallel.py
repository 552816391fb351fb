"""Study: the cost of derived gradients of parallel regions, over threads and over work per thread."""

from functools import partial

import numpy as np

from bench.studies.measure import interleave, threads
from bench.studies.study import Result, Study
from gpt2 import autodiff as ad
from gpt2.errors import counted

SLICES = 64
MAP_SIZES = (256, 2048, 16384, 65536)  # elements a slice
ROW_SIZES = (64, 512, 4096)  # rows of CHANNELS elements
CHANNELS = 768
TOLERANCE = 1e-10  # float64 sums in other orders, relative to the length of the gradient


def run(options):
    result = Result()
    counts = sorted({n for n in (1, 2, 4, 8, 16, 32, 64) if n <= options.threads} | {options.threads})
    regions = {
        "parallel_map": (
            {n: calls_of(map_energy, SLICES, n) for n in ((64,) if options.quick else MAP_SIZES)},
            f"{SLICES} slices of so many elements, a body of twelve operations",
        ),
        "row region": (
            {n * CHANNELS: calls_of(row_energy, n, CHANNELS) for n in ((8,) if options.quick else ROW_SIZES)},
            f"rows of {CHANNELS} elements, a layernorm and a tanh, cut into blocks of rows",
        ),
    }
    every = [calls for sizes, _ in regions.values() for calls in sizes.values()]
    for name, (sizes, unit) in regions.items():
        times = {}
        for size, calls in sizes.items():
            check(*calls)
            times[size] = interleave(on_threads(calls, counts), 0.8 * options.seconds / len(every))
        report(result, name, unit, times, counts)
    return result


def body(x):
    """Twelve elementwise operations of one slice, and their sum."""
    for _ in range(3):
        x = x + 0.1 * np.sin(x) * np.exp(-x * x)
    return np.sum(x)


def map_energy(x):
    """A parallel map over the slices of x."""
    return np.sum(ad.parallel_map(body, x))


def row_energy(x):
    """A program that the compiler itself cuts into blocks of rows."""
    norm = (x - np.mean(x, -1, keepdims=True)) / np.sqrt(np.var(x, -1, keepdims=True) + 1e-5)
    return np.sum(np.tanh(norm) * x)


def calls_of(energy, rows, columns):
    """(primal, gradient): calls without arguments."""
    x = np.random.default_rng(0).standard_normal((rows, columns))
    return partial(ad.compile(energy), x), partial(ad.grad(energy), x)


def on_threads(calls, counts):
    """(part, threads) -> call, of the primal and the gradient."""

    def on(n, call):
        def run():
            ad.set_threads(n)
            call()

        return run

    return {(part, n): on(n, call) for part, call in zip(("primal", "gradient"), calls) for n in counts}


def check(primal, gradient):
    """Raise AssertionError unless the gradient is finite, and the same on one and two threads."""
    with threads(1):
        alone = gradient()
        value = primal()
    with threads(2):
        together = gradient()
        assert abs(primal() - value) <= TOLERANCE * abs(value)
    assert np.all(np.isfinite(alone))
    assert np.linalg.norm(together - alone) <= TOLERANCE * np.linalg.norm(alone)


def report(result, name, unit, times, counts):
    sizes = sorted(times)
    table = result.table(
        f"{name}: {unit}",
        "elements | threads | primal [s] | gradient [s] | overhead [x] | speed-up of the primal [x] "
        "| speed-up of the gradient [x]",
        note="Overhead: the time of the gradient relative to the primal. Speed-up: how many times as fast as "
        "on one thread.",
    )
    overhead = {}
    for size in sizes:
        t = times[size]
        for n in counts:
            overhead[size, n] = t["gradient", n].over(t["primal", n])
            speed_ups = (t[part, 1].over(t[part, n]) for part in ("primal", "gradient"))
            table.add(size, n, t["primal", n], t["gradient", n], overhead[size, n], *speed_ups)
    most = counts[-1]
    over_threads = [overhead[size, most].median / overhead[size, 1].median for size in sizes]
    over_work = [overhead[size, most].median for size in sizes]
    result.note(
        f"{name}: the overhead on {counted(most, 'thread')} is {min(over_threads):.2f} to "
        f"{max(over_threads):.2f} times that on one, and lies between {min(over_work):.2f} and "
        f"{max(over_work):.2f} over the work per thread."
    )


STUDY = Study(
    "parallel",
    "Does the gradient of a parallel region keep its parallelism: is its time, relative to the region itself,"
    " the same for any number of threads, and for any amount of work per thread?",
    "Two kinds of parallel region in float64: `ad.parallel_map` over 64 slices, and elementwise work with "
    "sums along rows, which the compiler cuts into blocks of rows by itself. Each is compiled, and its "
    "gradient derived; results are compared between one thread and two. Both take turns for every size and "
    "number of threads, BLAS kept to one thread.",
    run,
    seconds=35,
)
