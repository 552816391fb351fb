"""Interleaved timing of functions, the bytes they allocate, and the number of arrays.

    first_call(f)                                          seconds of a call: recording, compiling, running
    interleave({"manual": f, "derived": g}, seconds=2)     name -> Sample of seconds a call
    memory(f)                                              Memory: bytes at the peak, arrays
    with threads(2): ...                                   compiled programs and BLAS on this many threads

All functions are called without arguments. They are timed in turns, in a new order each
round: a machine drifts, and only times measured side by side can be compared.
"""

import gc
import random
import statistics
import time
import tracemalloc
from contextlib import contextmanager
from dataclasses import dataclass

from bench.harness import ratios
from bench.studies.allocations import counted
from gpt2 import autodiff as ad

TURN_S = 2e-3  # a turn repeats short calls until about this time has passed: the clock costs 50 ns
ROUNDS = 21


@dataclass(frozen=True)
class Sample:
    """Numbers measured one by one.

    values   one a round, in the order in which they were measured: seconds, bytes, or a ratio
    first    the very first call, not among the others; None if it was not measured
    """

    values: list
    first: float | None = None

    def __post_init__(self):
        object.__setattr__(self, "values", [float(x) for x in self.values])

    @property
    def n(self):
        return len(self.values)

    @property
    def median(self):
        return ratios.spread(self.values)["median"]

    @property
    def q1(self):
        return ratios.spread(self.values)["q1"]

    @property
    def q3(self):
        return ratios.spread(self.values)["q3"]

    @property
    def mean(self):
        return statistics.fmean(self.values)

    @property
    def variance(self):
        """Of the sample (n - 1); 0 for a single value."""
        return statistics.variance(self.values) if self.n > 1 else 0.0

    @property
    def std(self):
        return self.variance**0.5

    @property
    def min(self):
        return min(self.values)

    @property
    def max(self):
        return max(self.values)

    def over(self, other):
        """The ratios to another sample of the same interleaved run, round by round: a Sample."""
        return Sample([a / b for a, b in zip(self.values, other.values, strict=True)])


@dataclass(frozen=True)
class Memory:
    """What one call allocates.

    peak_bytes    how much more there was at the highest point than before it (tracemalloc): Python and NumPy
    kept_bytes    how much of that its result still holds
    arrays        how many times NumPy asked for memory for an array's elements, on the calling thread, single
                  numbers left out; None where that cannot be counted
    array_bytes   the sum of those requests
    """

    peak_bytes: int
    kept_bytes: int
    arrays: int | None
    array_bytes: int | None


# ---- Time --------------------------------------------------------------------------------------------------


def seconds_of(f, calls=1):
    """Seconds a call, over so many calls in a row."""
    begin = time.perf_counter()
    for _ in range(calls):
        f()
    return (time.perf_counter() - begin) / calls


def first_call(f):
    """Seconds of this one call."""
    return seconds_of(f)


def interleave(functions, seconds=2.0, rounds=ROUNDS, turn_s=TURN_S, least=3, seed=0):
    """Name -> Sample of seconds a call, for functions that take turns.

    functions   name -> function without arguments. Each is called once before anything counts, and the time
                of that call is the sample's `first`
    seconds     for everything together; as many rounds as that allows, at least `least`, at most `rounds`
    turn_s      a turn is one call, or as many as fill this time; what counts is the time a call. In a turn of
                several, one more comes first and does not count: the others have been in the caches since
    """
    first = {name: first_call(f) for name, f in functions.items()}
    calls = {name: _calls(f, turn_s) for name, f in functions.items()}
    values = {name: [] for name in functions}
    order, shuffle = list(functions), random.Random(seed).shuffle
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()  # a collection in the middle of a turn would count as the function's own time
    try:
        begin = time.perf_counter()
        for done in range(rounds):
            spent = time.perf_counter() - begin
            if done >= least and spent + spent / done > seconds:
                break
            shuffle(order)
            for name in order:
                if calls[name] > 1:
                    functions[name]()
                values[name].append(seconds_of(functions[name], calls[name]))
    finally:
        if collecting:
            gc.enable()
    return {name: Sample(values[name], first[name]) for name in functions}


def _calls(f, turn_s):
    """How many calls fill a turn."""
    shortest = seconds_of(f)
    if shortest < turn_s:  # a short call may have been interrupted, or had cold caches
        shortest = min(shortest, seconds_of(f))
    return max(1, min(100_000, round(turn_s / max(shortest, 1e-8))))


@contextmanager
def threads(n):
    """Compiled programs and BLAS on n threads; one thread afterwards."""
    ad.set_threads(n)
    ad.limit_blas_threads(1)  # with more, products are cut in parts by the compiled programs themselves
    try:
        yield n
    finally:
        ad.set_threads(1)


# ---- Memory ------------------------------------------------------------------------------------------------


def memory(f):
    """What a call of f allocates: bytes at its next call, arrays at the one after that."""
    return Memory(*peak_and_kept(f), *counted(f))


def peak_and_kept(f):
    """(peak, kept) bytes of a call, by tracemalloc, which makes it slower: never measure time inside."""
    gc.collect()
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        result = f()
        after, peak = tracemalloc.get_traced_memory()
        del result
    finally:
        if not tracing:
            tracemalloc.stop()
    return max(peak - before, 0), max(after - before, 0)
