"""Random NumPy programs that round, compare and cast at the edges, and a check that they keep their bits.

    program = write(seed)    a Program: statements that were run while they were written, so they do run
    check(program)           raises Difference where a strict program gives another bit than NumPy: with all
                             passes, without one of them, with one alone; and where a derivative lost or
                             gained a nan or an infinity
    shrink(program, error)   the smallest program found that still has a difference

The arguments hold zeros of both signs, infinities, nans, exact multiples, numbers near the ends of their
dtype and below its smallest normal one. Random programs for derivatives, with moderate numbers, are in
programs.py.
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import replace

import numpy as np

from gpt2.autodiff import passes
from gpt2.autodiff.derive.differentiate import vjp_graph
from gpt2.autodiff.emit.program import Program as EmittedProgram
from gpt2.autodiff.emit.scalar import ScalarProgram, is_scalar
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops.exactness import decided
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.record.record import record
from gpt2.autodiff.switches import PASSES, Options
from tests.support.random import fills, programs
from tests.support.random.programs import Difference, reduced
from tests.support.tables import sections

SHAPES = [(), (1,), (5,), (8,), (2, 3), (3, 2), (4, 1), (1, 3), (2, 1, 3), (17,), (3, 20), (130,), (9, 16)]
MOST = 300  # entries of an array
SPECIAL = "0.0 -0.0 1.0 -1.0 inf -inf nan 49.0 98.0 0.1 0.3 0.7 2.5 3.5 1e30 -1e30 1e-30 1e-38 3e38 1e-42"
CONSTANTS = (
    "0.0 -0.0 1.0 -1.0 2.0 0.5 4.0 3.0 0.1 49.0 1000.0 7.0 1/3 1e30 1e-30 1e-40 1e38 np.inf -np.inf "
    "2.0**-20 2.0**100 16777217.0 134217729.0 1 0 3 -1 2"
).split()

GRAMMAR = sections(__file__)
HELPERS = """
def _written(a, c):
    x = np.zeros_like(a)
    x[...] = a
    x[..., :1] += c
    return x
""" + fills.fillers()
RUN_HELPERS = compile(HELPERS, "<helpers>", "exec")


class Program(programs.Program):
    """f(*arguments): statements (name, expression), and the names returned."""

    HELPERS = HELPERS

    def __str__(self):
        return str(programs.Program(self.arguments, tuple(f"{n} = {e}" for n, e in self.body), self.results))

    def reproducer(self) -> str:
        values = [f"{n} = np.{_array(x)}" for n, x in self.arguments.items()]
        return "\n".join(["import numpy as np; from numpy import *", HELPERS, *values, "", str(self)])


def _array(x) -> str:
    return f"array({x.tolist()!r}, dtype={x.dtype})" if x.shape else f"{x.dtype}({x.item()!r})"


# ---- Writing ---------------------------------------------------------------------------------------------


def write(seed: int) -> Program:
    """A random program. One in six is of numbers by themselves, which become `math` code."""
    rng = np.random.default_rng([8, seed])
    numbers = seed % 6 == 5
    dtype = np.float64 if numbers or rng.random() < 0.4 else np.float32
    known: dict = {}
    for k in range(rng.integers(1, 4)):
        shape = () if numbers else SHAPES[rng.integers(len(SHAPES))]
        known[f"x{k}"] = _drawn(rng, shape, dtype)
    if not numbers and rng.random() < 0.3:
        known["n0"] = rng.choice([0, 1, -1, 3, 127, -128, 2**53 + 1, 7, 2**31, -(2**63)], size=4)
        known["m0"] = rng.integers(-5, 9, 4)
    arguments = dict(known)
    body = []
    for k in range(rng.integers(1, 9)):
        for _ in range(30):
            name, expression = f"t{k}", _expression(rng, known, numbers)
            value = _tried(expression, known)
            if value is not None:
                known[name] = value
                body.append((name, expression))
                break
    made = [n for n, _ in body] or list(arguments)
    few = sorted(rng.choice(len(made), size=min(len(made), int(rng.integers(1, 4))), replace=False))
    results = tuple(made[i] for i in few)
    return Program(arguments, tuple(body), results, seed)


def _drawn(rng, shape, dtype) -> np.ndarray:
    special = np.array([float(t) for t in SPECIAL.split()])
    kind = rng.integers(4)
    if kind == 0:
        x = rng.choice(special, size=shape)
    elif kind == 1:
        x = rng.integers(-100, 100, shape) * rng.choice([0.1, 49.0, 1.0, 0.5, 1 / 3])
    elif kind == 2:
        x = rng.standard_normal(shape) * 10.0 ** rng.integers(-42, 39, shape)
    else:
        x = np.where(rng.random(shape) < 0.1, rng.choice(special, size=shape), rng.standard_normal(shape) * 9)
    with np.errstate(all="ignore"):
        return np.asarray(x, dtype)


def _expression(rng, known: dict, numbers: bool) -> str:
    floats = [n for n, x in known.items() if x.dtype.kind == "f"]
    integers = [n for n, x in known.items() if x.dtype.kind == "i"]
    arrays = [n for n in floats if known[n].ndim]
    kinds = [(GRAMMAR["formulas"], 10), (GRAMMAR["decisions"], 4)]
    if not numbers:
        kinds += [(GRAMMAR["shaping"], 2 * bool(arrays)), (GRAMMAR["reductions"], 4 * bool(arrays))]
        kinds += [(GRAMMAR["products"], 1), (GRAMMAR["of_integers"], 3 * bool(integers))]
        kinds += [(fills.FILLED, 2 * bool(arrays))]
    weights = np.array([w for _, w in kinds], float)
    forms = kinds[rng.choice(len(kinds), p=weights / weights.sum())][0]
    form = forms[rng.integers(len(forms))]
    pick = lambda names: names[rng.integers(len(names))]  # noqa: E731
    source = arrays if forms in (GRAMMAR["reductions"], GRAMMAR["shaping"], fills.FILLED) else floats
    a, b = pick(source), pick(floats)
    ndim = known[a].ndim
    axis = int(rng.integers(ndim)) if ndim else 0
    p, q = pick(floats), pick(floats)
    return form.format(
        a=a,
        b=b,
        c=pick(CONSTANTS),
        d=pick(CONSTANTS),
        i=axis,
        k=rng.choice([str(axis), "None"])
        if ndim < 3
        else rng.choice([str(axis), "(0, 2)", "(1, 2)", "None"]),
        n=pick(integers) if integers else "",
        m=pick(integers) if integers else "",
        p=p,
        q=q,
    )


def _tried(expression: str, known: dict):
    """The value, if NumPy computes it."""
    found: dict = {"np": np}
    exec(RUN_HELPERS, found)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = eval(expression, {**found, **{n: _as_user(x) for n, x in known.items()}})
    except (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError):
        return None
    value = np.asarray(value)
    return value if value.dtype.kind in "fib" and 0 < value.size <= MOST else None


def _as_user(x: np.ndarray):
    return x if x.shape else x[()]


# ---- Checking --------------------------------------------------------------------------------------------


def ways(seed: int) -> list[Options]:
    """All passes; none; without one of them; with one alone. Which one goes by the seed."""
    one = PASSES[seed % len(PASSES)]
    return [Options(), Options(off=PASSES), Options(off={one}), Options(off=set(PASSES) - {one})]


def check(program: Program) -> None:
    """Raise Difference unless everything made of the program gives NumPy's bits."""
    f = program.function()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = [_as_user(x) for x in program.values()]
        expected = [np.asarray(y) for y in f(*given)]
        rec = record(f, tuple(given), {})
        graph = rec.graph
        operands = [np.asarray(x) for x in rec.operands(given)]
        for got, y in zip(rec.results, expected):
            same("recorded", getattr(got, "value", got), y)
        for options in ways(program.seed):
            name = f"without {','.join(sorted(options.off)) or 'nothing'}"
            simple = passes.simplify(graph, options)
            found = {
                "evaluated ": evaluate_graph(simple, operands),
                "emitted ": EmittedProgram(simple, options)(*operands),
            }
            if is_scalar(simple):
                numbers = [x.item() for x in operands]
                found["as math "] = ScalarProgram(simple, exact=decided(simple))(*numbers)
            for how, results in found.items():
                for got, y in zip(results, expected):
                    same(how + name, got, y)
        derivatives(graph, operands, expected)


def same(what: str, got, expected) -> None:
    """The same bits; nans are equal, zeros of different signs are not."""
    got, expected = np.asarray(got), np.asarray(expected)
    if got.dtype != expected.dtype or got.shape != expected.shape:
        if not (got.dtype == expected.dtype and got.size == expected.size == 1):
            raise Difference(what, f"{got.dtype}{got.shape}, expected {expected.dtype}{expected.shape}")
    ok = np.array_equal(got, expected, equal_nan=expected.dtype.kind == "f")
    if ok and expected.dtype.kind == "f":
        ok = np.array_equal(np.signbit(got)[got == 0], np.signbit(expected)[expected == 0])
    if not ok:
        raise Difference(what, f"{got!r}, expected {expected!r}")


def derivatives(graph: Graph, operands, expected) -> None:
    """The values beside a gradient keep their bits; the gradient keeps its nans and infinities."""
    wrt = [i for i, x in enumerate(graph.inputs) if x.dtype.kind == "f"]
    outs = [i for i, o in enumerate(graph.outputs) if o.dtype.kind == "f"]
    if not wrt or not outs:
        return
    joint = vjp_graph(passes.simplify(graph), wrt, outs)
    seeds = [np.ones(graph.outputs[i].shape, graph.outputs[i].dtype) for i in outs]
    plain = evaluate_graph(joint, [*operands, *seeds])
    simple = passes.simplify(joint)
    got = EmittedProgram(simple)(*operands, *seeds)
    for g, y in zip(got, expected):
        same("value beside a gradient", g, y)
    n = len(graph.outputs)
    alone = Graph(joint.inputs, joint.outputs[n:], joint.name)
    for g, also, y in zip(got[n:], EmittedProgram(passes.simplify(alone))(*operands, *seeds), plain[n:]):
        # of one number terms are added up, which may cancel to a rounding, whose sign is the order's
        tests = (np.isnan, np.isposinf, np.isneginf) if np.ndim(y) else (np.isnan, np.isinf)
        for x in (g, also):
            for test in tests:
                if not np.array_equal(test(x), test(y)):
                    raise Difference("gradient", f"{x!r}, evaluated op by op {y!r}")


# ---- Shrinking -------------------------------------------------------------------------------------------


def difference(program: Program) -> Difference | None:
    try:
        check(program)
    except Difference as error:
        return error
    except Exception:
        return None
    return None


def shrink(program: Program, error: Difference) -> Program:
    """Fewer statements, results and arguments with the same kind of difference."""
    return reduced(program, _smaller, lambda p: getattr(difference(p), "kind", None) == error.kind)


def _smaller(p: Program):
    for i in range(len(p.results)):
        if len(p.results) > 1:
            yield replace(p, results=p.results[:i] + p.results[i + 1 :])
    used = " ".join([e for _, e in p.body] + list(p.results)).replace("(", " ").replace(")", " ")
    for i, (name, _) in enumerate(p.body):
        rest = " ".join(e for _, e in p.body[i + 1 :])
        if name not in p.results and name not in rest:
            yield replace(p, body=p.body[:i] + p.body[i + 1 :])
        elif name not in p.results:
            made = None
            with np.errstate(all="ignore"), warnings.catch_warnings(), contextlib.suppress(Exception):
                warnings.simplefilter("ignore")
                made = replace(p, results=(name,)).function()(*[_as_user(x) for x in p.values()])[0]
            if made is not None:
                arguments = {**p.arguments, name: np.asarray(made)}
                yield replace(p, body=p.body[:i] + p.body[i + 1 :], arguments=arguments)
    for name in p.arguments:
        if name not in used and len(p.arguments) > 1:
            yield replace(p, arguments={k: v for k, v in p.arguments.items() if k != name})
