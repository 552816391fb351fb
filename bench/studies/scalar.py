"""Study: derivatives of scalar functions: the first call, and a hundred later ones."""

import math
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.harness.turns import orders
from bench.harness.worker import seconds_of
from bench.studies.measure import Sample
from bench.studies.peers import gradients
from bench.studies.study import Result, Study
from gpt2 import autodiff as ad
from gpt2.autodiff.derive.differentiate import gradient_graph
from gpt2.autodiff.pipeline import Pipeline
from gpt2.autodiff.record.record import record

AT = 2.0
CALLS = 100
TOLERANCE = 1e-12  # of a derivative, relative: a few rounding errors in float64


@dataclass(frozen=True)
class Case:
    """formula(np) -> the function, written with that module's functions; by_hand: its derivative."""

    text: str
    formula: Callable
    by_hand: Callable
    derivative: float  # at 2


CASES = {
    "f": Case("5 x^10", lambda xp: lambda x: 5 * x**10, lambda x: 50 * x**9, 25600.0),
    "g": Case(
        "3 x^3 (cos x - 10 x)",
        lambda xp: lambda x: 3 * x**3 * (xp.cos(x) - 10 * x),
        lambda x: 9 * x**2 * (math.cos(x) - 10 * x) + 3 * x**3 * (-math.sin(x) - 10),
        -996.8044243595134,
    ),
    "h": Case(
        "exp((5 x / 2) sin(x)^exp(x))",
        lambda xp: lambda x: xp.exp((5 * x / 2) * xp.sin(x) ** xp.exp(x)),
        lambda x: _h_by_hand(x),
        -105.63101149036945,
    ),
}


# Differentiated first, so that libraries are initialised before the first calls that count
WARM = Case("x^2", lambda xp: lambda x: x * x, lambda x: 2 * x, 4.0)


def _h_by_hand(x):
    sine, e = math.sin(x), math.exp(x)
    power = sine**e
    inner = 2.5 * power * (1.0 + x * e * (math.log(sine) + math.cos(x) / sine))
    return math.exp(2.5 * x * power) * inner


def run(options):
    result = Result()
    calls = 10 if options.quick else CALLS
    makers = contenders(result)
    first_calls(WARM, makers)
    for name, case in CASES.items():
        first, functions = first_calls(case, makers)
        times, sizes = single_calls(functions, calls), allocated(functions, calls)
        tables(result, name, case, first, times, sizes)
    stages_table(result, 3 if options.quick else 21)
    return result


# ---- Contenders --------------------------------------------------------------------------------------------


def contenders(result):
    """Title -> make(case), which returns a function without arguments: the derivative at 2."""
    makers = {"by hand": lambda case: lambda: case.by_hand(AT), "derived": derived}
    for title, (module, make) in gradients(result).items():
        makers[title] = lambda case, module=module, make=make: make(case.formula(module), AT)
    return makers


def derived(case):
    return partial(ad.grad(case.formula(np)), AT)


# ---- Measuring ---------------------------------------------------------------------------------------------


def first_calls(case, makers):
    """({title: seconds to make and first call it}, {title: function}). The derivatives are checked."""
    first, functions = {}, {}
    for title, make in makers.items():
        begin = time.perf_counter()
        functions[title] = make(case)
        value = functions[title]()
        first[title] = time.perf_counter() - begin
        error = abs(float(value) / case.derivative - 1.0)
        assert error < TOLERANCE, f"{title}: derivative of {case.text} is {value}, not {case.derivative}"
    return first, functions


def single_calls(functions, calls):
    """Title -> Sample of seconds of single calls, taken in turns. Reading the clock takes some 50 ns.

    Each is preceded by an uncounted call, as the other functions have used the caches.
    """
    values = {title: [] for title in functions}
    for order in orders(functions, calls, math.inf):
        for title in order:
            functions[title]()
            values[title].append(seconds_of(functions[title]))
    return {title: Sample(seconds) for title, seconds in values.items()}


def allocated(functions, calls):
    """Title -> Sample of peak bytes of a call."""
    tracemalloc.start()  # not measure.peak_bytes, whose garbage collection takes 0.1 s a call
    try:
        return {title: Sample([_peak(f) for _ in range(calls)]) for title, f in functions.items()}
    finally:
        tracemalloc.stop()


def _peak(f):
    f()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    f()
    return max(tracemalloc.get_traced_memory()[1] - before, 0)


def stages(case, rounds):
    """Samples of seconds: of recording, and of compiling the recorded graph."""
    f = case.formula(np)
    recording = record(f, (AT,))
    return {
        "record": Sample([seconds_of(lambda: record(f, (AT,))) for _ in range(rounds)]),
        "compile": Sample([seconds_of(lambda: _compiled(recording)) for _ in range(rounds)]),
    }


def _compiled(recording):
    joint = gradient_graph(recording.graph, [0])
    gradients = type(joint)(joint.inputs, joint.outputs[1:], joint.name)
    return Pipeline("f_grad", ad.Options()).program(gradients, scalar=True)


# ---- Reports -----------------------------------------------------------------------------------------------


def tables(result, name, case, first, times, sizes):
    table = result.table(
        f"{name}(x) = {case.text}: time",
        "derivative | first call [s] | mean [s] | median [s] | variance [ns^2] | standard deviation [s] | n",
    )
    for title, sample in times.items():
        variance = sample.variance * 1e18
        table.add(title, first[title], sample.mean, sample.median, variance, sample.std, sample.n)
    table = result.table(
        f"{name}(x) = {case.text}: allocated at the peak of a call",
        "derivative | mean [B] | median [B] | variance [B^2] | standard deviation [B] | n",
        note="By tracemalloc, which counts what Python and NumPy allocate, but not the buffers of "
        "PyTorch and JAX.",
    )
    for title, sample in sizes.items():
        table.add(title, sample.mean, sample.median, sample.variance, sample.std, sample.n)
    by_hand = times["by hand"].median
    parts = [f"{title} {times[title].median / by_hand:.1f}" for title in times if title != "by hand"]
    result.note(f"{name}: median time of a call relative to by hand: {', '.join(parts)}.")


def stages_table(result, rounds):
    table = result.table(
        "The derived derivative, stage by stage",
        "function | recording [s] | compiling [s] | running [s]",
        note="A first call is all three; compiling includes differentiating.",
    )
    for name, case in CASES.items():
        times, call = stages(case, rounds), derived(case)
        call()
        table.add(
            f"{name}(x) = {case.text}",
            times["record"],
            times["compile"],
            single_calls({"derived": call}, 10 * rounds)["derived"],
        )


STUDY = Study(
    "scalar",
    "What does the derivative of a function of one number cost: the first time, and each time after that?",
    "Derivatives at x = 2 of f = 5 x^10, g = 3 x^3 (cos x - 10 x) and h = exp((5 x / 2) sin(x)^exp(x)), "
    "checked against known values: by hand (Python's math), derived, and by the peers that are installed. "
    "Making the derivative and calling it once is the first call, after another function's has loaded every "
    "library; then 100 calls each, in turns, each timed by itself; then 100 more each for the bytes at their "
    "peak.",
    run,
    seconds=10,
)
