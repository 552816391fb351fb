"""Study: derivatives of scalar functions: the first call, and a hundred later ones."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.studies.measure import interleave, peak_bytes
from bench.studies.peers import gradients
from bench.studies.study import Result, Study
from gpt2 import autodiff as ad

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


def _h_by_hand(x):
    sine, e = math.sin(x), math.exp(x)
    power = sine**e
    inner = 2.5 * power * (1.0 + x * e * (math.log(sine) + math.cos(x) / sine))
    return math.exp(2.5 * x * power) * inner


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
        _h_by_hand,
        -105.63101149036945,
    ),
}
# Differentiated first, so that libraries are initialised before the first calls that count
WARM = Case("x^2", lambda xp: lambda x: x * x, lambda x: 2 * x, 4.0)


def run(options):
    result = Result()
    makers = contenders(result)
    first_calls(WARM, makers)
    for name, case in CASES.items():
        first, functions = first_calls(case, makers)
        times = interleave(functions, math.inf, 10 if options.quick else CALLS, turn_s=0.0)
        table = result.table(
            f"{name}(x) = {case.text}: time",
            "derivative | first call [s] | later call [s] | peak [B]",
            note="Peak: of a call, by tracemalloc, which counts what Python and NumPy allocate, but not the "
            "buffers of PyTorch and JAX.",
        )
        for title, sample in times.items():
            table.add(title, first[title], sample, peak_bytes(functions[title]))
        by_hand = times.pop("by hand").median
        parts = [f"{title} {sample.median / by_hand:.1f}" for title, sample in times.items()]
        result.note(f"{name}: median time of a call relative to by hand: {', '.join(parts)}.")
    return result


def contenders(result):
    """Title -> make(case), which returns a function without arguments: the derivative at 2."""
    makers = {
        "by hand": lambda case: partial(case.by_hand, AT),
        "derived": lambda case: partial(ad.grad(case.formula(np)), AT),
    }
    for title, (module, make) in gradients(result).items():
        makers[title] = lambda case, module=module, make=make: make(case.formula(module), AT)
    return makers


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


STUDY = Study(
    "scalar",
    "What does the derivative of a function of one number cost: the first time, and each time after that?",
    "Derivatives at x = 2 of f = 5 x^10, g = 3 x^3 (cos x - 10 x) and h = exp((5 x / 2) sin(x)^exp(x)), "
    "checked against known values: by hand (Python's math), derived, and by the peers that are installed. "
    "Making the derivative and calling it once is the first call, after another function's has loaded every "
    "library; then 100 calls each, in turns, each timed by itself; then more for the bytes at their peak.",
    run,
    seconds=10,
)
