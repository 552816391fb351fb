"""Interleaved timing of functions, the bytes that they allocate, and the number of arrays.

    interleave({"manual": f, "derived": g}, seconds=2)     name -> Sample of seconds a call
    memory(f)                                              Memory: peak bytes, arrays
    with threads(2): ...                                   compiled programs and BLAS on this many threads

Functions are called without arguments. They take turns in a new order each round, as the machine's speed
drifts and only times measured side by side can be compared.
"""

import gc
import tracemalloc
from contextlib import contextmanager
from dataclasses import dataclass

from bench.harness import ratios
from bench.harness.turns import orders
from bench.harness.worker import seconds_of
from bench.studies.allocations import counted
from gpt2 import autodiff as ad

TURN_S = 2e-3  # a turn repeats short calls for about this time, as reading the clock costs 50 ns
ROUNDS = 21


@dataclass(frozen=True)
class Sample:
    """Repeated measurements of one quantity.

    values   seconds, bytes or ratios, one a round, in the order in which they were measured
    first    that of the very first call, which is not among the values; None if it was not measured
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

    def over(self, other):
        """The Sample of ratios to another sample of the same interleaved run, round by round."""
        return Sample([a / b for a, b in zip(self.values, other.values, strict=True)])


@dataclass(frozen=True)
class Memory:
    """What one call allocates.

    peak_bytes    the most that Python and NumPy held beyond what they held before (tracemalloc)
    arrays        NumPy's allocations of array elements on the calling thread, single numbers left out; None
                  if they cannot be counted
    array_bytes   the sum of those allocations
    """

    peak_bytes: int
    arrays: int | None
    array_bytes: int | None


# ---- Time --------------------------------------------------------------------------------------------------


def interleave(functions, seconds=2.0, rounds=ROUNDS, turn_s=TURN_S):
    """Name -> Sample of seconds a call, for functions that take turns.

    functions   name -> function without arguments. Its very first call is not counted, but kept as `first`
    seconds, rounds   limits, as of bench.harness.turns.orders
    turn_s      a turn is one call, or the mean of as many as fill this time. A turn of several begins with an
                uncounted call, as the other functions have used the caches; so does each call with 0
    """
    first = {name: seconds_of(f) for name, f in functions.items()}
    calls = {name: _calls(f, turn_s) for name, f in functions.items()}
    values = {name: [] for name in functions}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()  # a collection during a turn would count as the function's time
    try:
        for order in orders(functions, rounds, seconds):
            for name in order:
                if calls[name] > 1 or turn_s == 0:
                    functions[name]()
                values[name].append(seconds_of(functions[name], calls[name]))
    finally:
        if collecting:
            gc.enable()
    return {name: Sample(values[name], first[name]) for name in functions}


def _calls(f, turn_s):
    """The number of calls that fill a turn."""
    shortest = seconds_of(f)
    if shortest < turn_s:  # measured again, as a short call may have been interrupted
        shortest = min(shortest, seconds_of(f))
    return max(1, min(100_000, round(turn_s / max(shortest, 1e-8))))


@contextmanager
def threads(n):
    """Run compiled programs on n threads inside, and on one afterwards."""
    ad.set_threads(n)
    ad.limit_blas_threads(1)  # compiled programs split products over their own threads
    try:
        yield n
    finally:
        ad.set_threads(1)


def memory(f):
    """What a call of f allocates. f is called twice: once for bytes, once for arrays."""
    return Memory(peak_bytes(f), *counted(f))


def peak_bytes(f):
    """Peak bytes of a call, by tracemalloc, which makes the call slower."""
    gc.collect()
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        f()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        if not tracing:
            tracemalloc.stop()
    return max(peak - before, 0)
