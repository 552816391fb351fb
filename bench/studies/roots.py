"""Study: root-finding iterations with derivatives up to the third from automatic differentiation.

Newton            x - f / f'
Halley            x - 2 f f' / (2 f'^2 - f f'')
Golbabai-Javidi   x - f / f' - f^2 f'' / (2 (f'^3 - f f' f''))      2007, from a perturbation series
Noor              a Newton step, then a step of Halley's            Noor and Noor 2007
Zhanlav           x - tau f / f', tau = 1 + L/2 + L^2/2 - M/6       Newton steps of another length,
                  L = f f'' / f'^2, M = f^2 f''' / f'^3             here to the third derivative
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.studies.markdown import number
from bench.studies.measure import interleave, memory
from bench.studies.study import Result, Study
from gpt2 import autodiff as ad

CLOSE = 1e-14  # relative to x: a shorter step ends the iteration
MOST = 50  # iterations
ROUNDING = 1e-11  # smaller errors are mostly rounding


# ---- Methods -----------------------------------------------------------------------------------------------


def newton(d, x):
    f, f1 = d[1](x)
    return x - f / f1


def halley(d, x):
    f, f1, f2 = d[2](x)
    return x - 2.0 * f * f1 / (2.0 * f1 * f1 - f * f2)


def golbabai_javidi(d, x):
    f, f1, f2 = d[2](x)
    return x - f / f1 - f * f * f2 / (2.0 * (f1**3 - f * f1 * f2))


def noor(d, x):
    return halley(d, newton(d, x))


def zhanlav(d, x):
    f, f1, f2, f3 = d[3](x)
    L, M = f * f2 / f1**2, f * f * f3 / f1**3
    return x - (1.0 + 0.5 * L + 0.5 * L * L - M / 6.0) * f / f1


@dataclass(frozen=True)
class Method:
    """step(d, x) -> the next x, where d[k](x) = (f, f', ..., kth derivative).

    order: the proven order of convergence at simple roots
    """

    step: Callable
    derivatives: int
    order: int


METHODS = {
    "Newton": Method(newton, 1, 2),
    "Halley": Method(halley, 2, 3),
    "Golbabai-Javidi": Method(golbabai_javidi, 2, 3),
    "Noor": Method(noor, 2, 6),
    "Zhanlav": Method(zhanlav, 3, 4),
}


# ---- Functions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Equation:
    """formula(xp) -> f; root: to 20 digits; start: the initial x; by_hand: f', f'', f'''."""

    text: str
    formula: Callable
    root: float
    start: float
    by_hand: tuple


EQUATIONS = (
    Equation(
        "x^3 + 4 x^2 - 10",
        lambda xp: lambda x: x**3 + 4 * x**2 - 10,
        1.3652300134140968458,
        2.0,
        (lambda x: 3 * x**2 + 8 * x, lambda x: 6 * x + 8, lambda x: 6.0),
    ),
    Equation(
        "cos x - x",
        lambda xp: lambda x: xp.cos(x) - x,
        0.73908513321516064166,
        0.0,
        (lambda x: -math.sin(x) - 1, lambda x: -math.cos(x), math.sin),
    ),
    Equation(
        "x exp x - 1",
        lambda xp: lambda x: x * xp.exp(x) - 1,
        0.56714329040978387300,
        1.0,
        tuple(lambda x, k=k: (x + k) * math.exp(x) for k in (1, 2, 3)),
    ),
)


def by_hand(equation):
    """d of the equation, a function for each derivative."""
    chain = equation.formula(math), *equation.by_hand
    return [together(chain[: k + 1]) for k in range(4)]


def compiled(f):
    """One program, in which the derivatives share common subexpressions."""
    return ad.compile(f, pure=True)


def derived(f, grad=ad.grad, wrap=compiled):
    """d of f by repeated `grad`; wrap(function) makes each d[k] of a function that returns all it has to."""
    chain = [f]
    for _ in range(3):
        chain.append(grad(chain[-1]))
    return [wrap(together(chain[: k + 1])) for k in range(4)]


def together(functions):
    functions = tuple(functions)
    return lambda x: tuple([f(x) for f in functions])


def solve(method, d, x):
    """(root, iterations), the last step included, which no longer changes x."""
    for k in range(1, MOST + 1):
        new = method.step(d, x)
        if abs(new - x) <= CLOSE * abs(new):
            return new, k
        x = new
    raise ArithmeticError(f"no root within {MOST} iterations")


def observed_order(method, d, root):
    """The order of convergence, measured as the slope of log(error after a step) over log(error before it).

    An iteration of order 6 gets from 0.1 to rounding in two steps, too few to measure. So single steps are
    made from distances that halve, left and right of the root. The slope is that of the two smallest
    distances for which the error is not yet rounding, as it is closest to the limit. Returns the median over
    both sides.
    """
    slopes = []
    for side in (1.0, -1.0):
        distances = [0.4 * 0.5**k for k in range(18)]
        errors = [abs(method.step(d, root + side * e) - root) for e in distances]
        usable = [(e, after) for e, after in zip(distances, errors) if ROUNDING < after < e]
        (e1, a1), (e2, a2) = usable[-2:]
        slopes.append(math.log(a1 / a2) / math.log(e1 / e2))
    return float(np.median(slopes))


# ---- The study ---------------------------------------------------------------------------------------------


def run(options):
    result = Result()
    equations = EQUATIONS[:1] if options.quick else EQUATIONS
    for equation in equations:
        sources = contenders(result, equation)
        order_table(result, equation, sources["derived"])
        time_table(result, equation, sources, options.seconds / len(equations) / 2)
    return result


def contenders(result, equation):
    """Title -> d, where d[k](x) is f and its first k derivatives."""
    found = {"by hand": by_hand(equation), "derived": derived(equation.formula(np))}
    if (autograd := result.peer("autograd")) is not None:
        f = equation.formula(importlib.import_module("autograd.numpy"))
        found["HIPS autograd"] = derived(f, autograd.grad, as_floats)
    if (jax := result.peer("jax")) is not None:
        jax.config.update("jax_enable_x64", True)
        found["JAX, jit"] = derived(equation.formula(jax.numpy), jax.grad, lambda f: as_floats(jax.jit(f)))
    if (torch := result.peer("torch")) is not None:
        f = equation.formula(torch)
        found["PyTorch"] = [partial(torch_derivatives, torch, f, k) for k in range(4)]
    return found


def as_floats(f):
    """f with its results as Python floats, as those of the other contenders are."""
    return lambda x: tuple([float(v) for v in f(x)])


def torch_derivatives(torch, f, most, x):
    x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    values = [f(x)]
    for k in range(most):
        if not values[-1].requires_grad:  # the last derivative is constant
            values.append(torch.zeros(()))
            continue
        values += torch.autograd.grad(values[-1], x, create_graph=k + 1 < most)
    return tuple([float(v) for v in values])


def order_table(result, equation, d):
    table = result.table(
        f"{equation.text} = 0: convergence",
        "method | derivatives | iterations | error | order, proved | order, measured",
    )
    for name, method in METHODS.items():
        root, iterations = solve(method, d, equation.start)
        order = observed_order(method, d, equation.root)
        error = f"{abs(root - equation.root):.1e}"
        table.add(name, method.derivatives, iterations, error, method.order, order)


def time_table(result, equation, sources, seconds):
    solvers = {
        (name, source): partial(solve, method, d, equation.start)
        for name, method in METHODS.items()
        for source, d in sources.items()
    }
    for (name, source), f in solvers.items():
        error = abs(f()[0] - equation.root)
        assert error < 1e-12, f"{name} with derivatives {source}: root off by {error}"
    times = interleave(solvers, seconds)
    table = result.table(
        f"{equation.text} = 0: from {equation.start:g} to the root",
        "method | derivatives | time [s] | relative to by hand [x] | peak [B] | arrays",
    )
    for (name, source), sample in times.items():
        used = memory(solvers[name, source])
        table.add(name, source, sample, sample.over(times[name, "by hand"]), used.peak_bytes, used.arrays)
    spans = []
    for source in sources:
        if source != "by hand":
            ratios = [times[name, source].over(times[name, "by hand"]).median for name in METHODS]
            spans.append(f"{number(min(ratios))} to {number(max(ratios))} ({source})")
    fastest = min(METHODS, key=lambda name: times[name, "derived"].median)
    result.note(
        f"{equation.text} = 0: time of a root relative to derivatives by hand: {', '.join(spans)}. "
        f"With derived ones {fastest} is fastest."
    )


STUDY = Study(
    "roots",
    "Higher orders of convergence cost higher derivatives. With derivatives from autodiff, do they pay?",
    "Newton, Halley, Golbabai-Javidi, Noor and Zhanlav on three equations, in float64. The derived programs "
    "give f and all the derivatives that a method asks for in one call; those by hand are a function each. A "
    "solution is done when a step is shorter than 1e-14 of x. The order is measured from single steps: two "
    "distances from the root, one half of the other, as small as rounding allows; the ratio of the errors "
    "after a step is 2 to the order.",
    run,
    seconds=30,
)
