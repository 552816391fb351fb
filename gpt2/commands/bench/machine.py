"""Measure the machine, and say what the engine chooses on it: `gpt2 bench --machine`.

Each figure is the best of several calls, for one thread and for all of them.

    products      float32 matrix products, GFLOP/s; with other kernels of OpenBLAS in a process of their own
    copying       bytes read and written, GB/s, of arrays larger than any cache; and reading, as a sum does
    AdamW         the time of a step relative to copying its bytes
    a short call  microseconds of a ufunc of 8,192 numbers: with several threads the interpreter's lock costs
    waking        microseconds to run an empty job on all threads
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np

from gpt2 import autodiff as ad
from gpt2.errors import counted
from gpt2.machine import cores, free_memory, watched
from gpt2.model import optimizer
from gpt2.train.kernels import OTHERS, VARIABLE

BYTES = 128 << 20  # of the array that is copied: larger than most last-level caches
SIDE = 1536  # rows of the square matrices
SHORT = 8192  # numbers of a short call
CALLS = 200  # short calls that are timed together
SECONDS = 0.5  # of measuring, per figure


def best(function: Callable[[], object], seconds: float = SECONDS) -> float:
    """Seconds of the fastest of as many calls as fit, at least three, after one to warm up."""
    function()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def shared(function: Callable[..., object], *arrays: np.ndarray) -> Callable[[], None]:
    """A function that calls `function` on parts of the arrays along their first axis, a part per thread."""
    parts = list(zip(*(np.array_split(array, ad.get_threads()) for array in arrays)))

    def job(thread: int) -> None:
        function(*parts[thread])

    return lambda: ad.run_on_threads(job)


def products() -> float:
    """GFLOP/s of a float32 product of square matrices, its rows split over the threads."""
    a, b, out = (np.random.default_rng(0).standard_normal((3, SIDE, SIDE))).astype(np.float32)
    seconds = best(shared(lambda rows, result: np.matmul(rows, b, out=result), a, out))
    return 2e-9 * SIDE**3 / seconds


def copying() -> float:
    """GB/s, read and written bytes counted once each."""
    source = np.ones(BYTES // 4, np.float32)
    return 2e-9 * BYTES / best(shared(lambda s, t: np.copyto(t, s), source, np.empty_like(source)))


def reading() -> float:
    """GB/s of a sum."""
    return 1e-9 * BYTES / best(shared(np.sum, np.ones(BYTES // 4, np.float32)))


def adamw() -> float:
    """Time of a step with its norm, relative to copying the bytes that it reads and writes."""
    n = BYTES // 16
    params, grads = np.ones((2, n), np.float32)
    step = optimizer.AdamW(SimpleNamespace(flat_params=params, flat_grads=grads, decayed=[(0, n)])).step
    # read: parameters, gradient twice, both moments; written: parameters and moments. A copy reads and writes
    return best(step) / (8 * params.nbytes / (copying() * 1e9))


def short_call() -> float:
    """Microseconds of a ufunc, each thread with its own small arrays."""
    source = np.ones((ad.get_threads(), SHORT), np.float32)

    def calls(rows: np.ndarray, out: np.ndarray) -> None:
        for _ in range(CALLS):
            np.multiply(rows, 0.5, out=out)

    return 1e6 * best(shared(calls, source, np.empty_like(source))) / CALLS


def waking() -> float:
    """Microseconds to run an empty job on all threads."""
    return 1e6 * best(lambda: ad.run_on_threads(lambda thread: None))


FIGURES: dict[str, tuple[Callable[[], float], str]] = {
    "products, float32": (products, "GFLOP/s"),
    "copying": (copying, "GB/s"),
    "reading": (reading, "GB/s"),
    "AdamW relative to a copy": (adamw, "times"),
    "a short call": (short_call, "us"),
    "waking the threads": (waking, "us"),
}


def with_kernels(name: str, threads: int) -> float | None:
    """`products` in a process whose OpenBLAS takes these kernels; None if it does not."""
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import print_products; print_products({threads})"],
        env={**os.environ, VARIABLE: name},
        capture_output=True,
        text=True,
    )
    loaded, rate = json.loads(done.stdout) if done.returncode == 0 else ("", None)
    return rate if loaded == name else None


def print_products(threads: int) -> None:
    """Print the name of the loaded kernels and their rate, as JSON."""
    ad.set_threads(threads)
    ad.limit_blas_threads(1)
    print(json.dumps([ad.blas_kernels(), products()]))


def lines() -> Iterator[str]:
    """The report, line by line as it is measured."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    free = free_memory()
    cache = f"{ad.cache_bytes() >> 10:,} KiB of cache each"
    yield f"processor   {ad.processor() or 'unknown'}; {counted(cores(), 'core')}, {cache}"
    yield f"memory      {free / 2**30:.1f} GiB free" if free is not None else "memory      unknown"
    kernels = ad.blas_kernels()
    library = f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
    version = importlib.metadata.version("numpy")
    yield f"NumPy       {version} with {library}{f', kernels for {kernels}' if kernels else ''}"
    yield ""
    counts = sorted({1, cores()})
    yield f"{'':30} {'':8}" + "".join(f"{f'{n} thread' + 's' * (n > 1):>12}" for n in counts)
    before = ad.get_threads()
    with watched() as quiet:
        for name, (measure, unit) in FIGURES.items():
            figures = []
            for n in counts:
                ad.set_threads(n)
                ad.limit_blas_threads(1)
                figures.append(measure())
            yield _row(name, unit, figures)
            if measure is products:
                own_rates = figures
        rates = {kernels: own_rates} if kernels else {}
        for other in OTHERS:
            tried = [with_kernels(other, n) for n in counts if kernels not in ("", other)]
            known = [rate for rate in tried if rate is not None]
            if len(known) == len(counts):
                rates[other] = known
                yield _row(f"products, {other} kernels", "GFLOP/s", known)
    ad.set_threads(before)
    yield ""
    yield from chosen(rates)
    if not quiet():
        yield "note: the machine was busy with other work; measure again when it is idle"


def _row(name: str, unit: str, figures: list[float]) -> str:
    numbers = (f"{x:12.{0 if x >= 100 else 1 if x >= 10 else 2}f}" for x in figures)
    return f"{name:30} {unit:8}{''.join(numbers)}"


def chosen(rates: dict[str, list[float]]) -> Iterator[str]:
    """What the engine chooses here, from the rates of products by kernels."""
    numbers = f"{optimizer.BLOCK >> 10} thousand numbers at a time"
    yield f"AdamW works on {numbers}: half of a core's cache."
    if len(rates) > 1:
        fastest = max(rates, key=lambda name: rates[name][-1])
        yield f"Large products are fastest with the kernels for {fastest};"
        yield "a run times those of its model, and its ways to use the cores."
