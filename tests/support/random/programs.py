"""Random programs in plain NumPy, as a person might write them, and a check of everything derived from one.

    program = write(seed)       a Program: statements that were run while they were written, so they do run
    print(program)              its source, which can be pasted anywhere
    check(program)              raises Difference where two ways to compute the same thing disagree
    shrink(program, error)      the smallest program found that still has the same kind of difference

Statements are elementwise formulas, reductions, slices and other views, writes in place (also through views
and into arguments), matrix products, branches and loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpt2 import autodiff as ad
from gpt2.autodiff import passes
from gpt2.autodiff.check.numeric import central_difference, pairing
from gpt2.autodiff.derive.differentiate import jvp_graph, vjp_graph
from gpt2.autodiff.emit.program import Program as EmittedProgram
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.keep.partition import partition
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.record.record import record
from tests.support.random.graphs import compatible
from tests.support.tables import sections

SHAPES = [(), (4,), (3,), (3, 4), (4, 3), (2, 3), (3, 3), (2, 3, 4), (3, 1), (1, 4)]
LARGEST = 30.0  # entries; larger ones make differences imprecise
MOST = 72  # entries of an array


@dataclass(frozen=True)
class Program:
    """f(*arguments): statements, then a tuple of results."""

    HELPERS = ""  # functions that the statements call

    arguments: dict
    body: tuple
    results: tuple
    seed: int = 0

    def __str__(self):
        lines = [f"def f({', '.join(self.arguments)}):"]
        lines += ["    " + line for statement in self.body for line in statement.split("\n")]
        lines.append(f"    return {', '.join(self.results)},")
        return "\n".join(lines)

    def reproducer(self) -> str:
        values = [f"{name} = np.array({x.tolist()!r})" for name, x in self.arguments.items()]
        return "\n".join(["import numpy as np", "", *values, "", str(self), f"# seed {self.seed}"])

    def function(self) -> Callable:
        scope: dict = {"np": np}
        exec(compile(self.HELPERS + str(self), f"<random program {self.seed}>", "exec"), scope)
        return scope["f"]

    def values(self) -> list:
        return [x.copy() for x in self.arguments.values()]


# ---- Writing ---------------------------------------------------------------------------------------------

# Of statements that write, c is written to, and b fits a place of it
GRAMMAR = sections(__file__)


# Names that people may give to variables, and that emitted code has a use for itself
ODD_NAMES = ["s{n}", "ones_{n}_float64", "blocks{n}", "scratch{n}", "t{n}_", "rows_{n}", "fused_{n}"]
ODD_ARGUMENTS = "s1 s2 take_rows add_rows blocks1 scratch1 memory setup ones_4_float64".split()


class Writer:
    """Writes a program a statement at a time, running each as it is written."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.naming = np.random.default_rng((seed, 1))  # a separate generator: each seed keeps its program
        names = self.naming.permutation(ODD_ARGUMENTS).tolist() if self.naming.random() < 0.25 else "xyz"
        count = int(self.rng.integers(1, 4))
        self.arguments = {name: self.draw(SHAPES[self.rng.integers(len(SHAPES))]) for name in names[:count]}
        self.body: list[str] = []
        self.run()

    def draw(self, shape):
        return self.rng.uniform(-1.5, 1.5, shape)

    def run(self) -> None:
        """What the names stand for after the statements so far, with the sharing of memory as it is."""
        self.names = {"np": np, **{k: v.copy() for k, v in self.arguments.items()}}
        for statement in self.body:
            exec(statement, self.names)

    def arrays(self) -> dict:
        return {k: v for k, v in self.names.items() if isinstance(v, (np.ndarray, np.floating))}

    def pick(self, test=lambda x: True) -> str | None:
        fitting = [k for k, v in self.arrays().items() if test(v)]
        if not fitting:
            return None
        recent = fitting[-4:] if self.rng.random() < 0.7 else fitting
        return recent[self.rng.integers(len(recent))]

    def one_of(self, table) -> str:
        return table[self.rng.integers(len(table))]

    def fresh(self) -> str:
        n = len(self.body)
        odd = self.naming.choice(ODD_NAMES).format(n=n)
        return f"t{n}" if self.naming.random() < 0.75 or odd in self.names else odd

    def statement(self) -> str | None:
        kind = self.rng.choice(
            ["unary", "binary", "reduce", "shape", "matrix", "write", "control"],
            p=[0.16, 0.18, 0.13, 0.17, 0.08, 0.18, 0.10],
        )
        return getattr(self, kind)()

    def unary(self):
        return f"{self.fresh()} = " + self.one_of(GRAMMAR["unary"]).format(a=self.pick())

    def binary(self):
        a = self.pick()
        b = self.pick(lambda v: compatible(self.names[a], v))
        return f"{self.fresh()} = " + self.one_of(GRAMMAR["binary"]).format(a=a, b=b)

    def reduce(self):
        a = self.pick(lambda v: v.ndim > 0)
        if a is None:
            return None
        ndim = self.names[a].ndim
        axes = [None, int(self.rng.integers(ndim)), -1]
        if ndim > 1:
            axes.append((0, ndim - 1))
        return f"{self.fresh()} = " + self.one_of(GRAMMAR["reductions"]).format(
            a=a, k=axes[self.rng.integers(len(axes))], i=int(self.rng.integers(ndim))
        )

    def shape(self):
        a = self.pick(lambda v: v.ndim > 0)
        if a is None:
            return None
        axis = int(self.rng.integers(self.names[a].ndim))
        return f"{self.fresh()} = " + self.one_of(GRAMMAR["shaping"]).format(a=a, i=axis)

    def matrix(self):
        a = self.pick(lambda v: v.ndim == 2)
        if a is None:
            return None
        b = self.pick(lambda v: v.ndim in (1, 2) and v.shape[0] == self.names[a].shape[1])
        if b is not None and self.rng.random() < 0.4:
            return f"{self.fresh()} = {a} @ {b} * 0.5"
        return f"{self.fresh()} = " + self.one_of(GRAMMAR["matrix"]).format(a=a)

    def write(self):
        c = self.pick(lambda v: isinstance(v, np.ndarray) and v.ndim > 0 and v.flags.writeable)
        if c is None:
            return None
        shape = self.names[c].shape
        b = self.pick(lambda v: compatible(v, self.names[c]) and np.broadcast_shapes(v.shape, shape) == shape)
        return self.one_of(GRAMMAR["writes"]).format(c=c, b=b, t=self.fresh())

    def control(self):
        a = self.pick(lambda v: v.ndim > 0)
        return a and self.one_of(GRAMMAR["control"]).format(a=a, t=self.fresh())

    def grow(self) -> None:
        """Add a statement, unless the one drawn does not run here or makes bad numbers."""
        text = self.statement()
        if text is None:
            return
        self.body.append(text)
        try:
            with np.errstate(all="raise", under="ignore"):
                exec(text, self.names)
            fine = len(self.arrays()) > 0 and all(
                x.dtype == np.float64
                and 0 < x.size <= MOST
                and x.ndim <= 4
                and bool(np.all(np.isfinite(x)) and np.max(np.abs(x)) <= LARGEST)
                for x in self.arrays().values()
            )
        except (ValueError, IndexError, TypeError, ArithmeticError, AttributeError):
            fine = False
        if not fine:
            self.body.pop()
            self.run()

    def program(self, seed) -> Program:
        made = [k for k, v in self.arrays().items() if k not in self.arguments] or list(self.arguments)
        chosen = {made[-1], made[self.rng.integers(len(made))]}
        return Program(self.arguments, tuple(self.body), tuple(sorted(chosen)), seed)


def write(seed: int) -> Program:
    writer = Writer(seed)
    for _ in range(int(writer.rng.integers(4, 16))):
        writer.grow()
    return writer.program(seed)


# ---- Checking --------------------------------------------------------------------------------------------


class Difference(AssertionError):
    """Two ways to compute one thing disagree. `kind` names them."""

    def __init__(self, kind: str, detail: str):
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


@dataclass
class Report:
    """Counts of what a check could not decide: near a kink, differences say nothing."""

    undecided: int = 0


def check(program: Program, api: bool = True) -> Report:
    """Raise Difference unless all derived from a program agrees. `api`: ad.vjp and its reuse as well."""
    f = program.function()
    rng = np.random.default_rng(program.seed)
    report = Report()
    with np.errstate(all="ignore"):
        graph, arrays = _recorded(program, f)
        wrt = [i for i, x in enumerate(graph.inputs) if x.dtype.kind == "f"][: len(program.arguments)]
        outs = [k for k, o in enumerate(graph.outputs) if o.dtype.kind == "f"]
        direction = [rng.standard_normal(arrays[i].shape) for i in wrt]
        cotangent = [rng.standard_normal(graph.outputs[k].shape) for k in outs]

        forward = jvp_graph(graph, wrt)
        tangent = evaluate_graph(forward, [*arrays, *direction])[len(graph.outputs) :]
        tangent = [tangent[k] for k in outs]
        _against_differences(program, f, tangent, direction, outs, len(graph.outputs), report)

        joint = vjp_graph(graph, wrt, outs)
        given = [*arrays, *cotangent]
        plain = evaluate_graph(joint, given)
        gradient = plain[len(graph.outputs) :]
        (left, size), (right, more) = pairing(cotangent, tangent), pairing(gradient, direction)
        if not abs(left - right) <= 1e-10 * (size + more) + 1e-13:
            raise Difference("forward and reverse", f"{left:.15g} and {right:.15g}")

        try:
            simple = passes.simplify(joint)
            _same("optimised and not", evaluate_graph(simple, given), plain)
            _same("emitted and evaluated", EmittedProgram(simple)(*given), plain)
            count, outputs = len(graph.inputs), len(graph.outputs)
            first, second, _ = partition(simple, count, outputs)  # a forward and a backward
            results = EmittedProgram(passes.simplify(first))(*given[:count])
            second = EmittedProgram(passes.simplify(second))
            halves = [*results[:outputs], *second(*results[outputs:], *given[count:])]
            _same("in two halves and in one", halves, plain)
            if api:
                _through_api(program, f, cotangent, outs, plain, gradient, graph)
        except Difference:
            if not _jumps(joint, given, plain, rng):
                raise
            report.undecided += 1
    return report


def _jumps(graph, given, plain, rng) -> bool:
    """Whether a rounding more or less makes another result: an argmax of what would be equal, for one."""
    for _ in range(5):
        near = [
            x * (1.0 + 1e-14 * rng.standard_normal(x.shape)) if x.dtype.kind == "f" else x
            for x in map(np.asarray, given)
        ]
        if not _near(evaluate_graph(graph, near), plain, 1e-9):
            return True
    return False


def _recorded(program, f) -> tuple[Graph, list]:
    values = program.values()
    plain = [*f(*values)]
    try:
        rec = record(f, program.values())
    except Exception as error:
        raise Difference("recorded", f"{type(error).__name__}: {error}") from error
    arrays = [*program.values(), *(a for _, a in rec.captures)]
    wanted = [*plain, *(values[i] for i in rec.written)]
    _same("recorded and run", evaluate_graph(rec.graph, arrays), wanted)
    for i, (x, was) in enumerate(zip(values, program.values())):
        if i not in rec.written and not np.array_equal(x, was):
            raise Difference("recorded", f"argument {i} is written to, which the recording does not know")
    return rec.graph, arrays


def _against_differences(program, f, tangent, direction, outs, count, report) -> None:
    values = program.values()

    # arguments that were written to are results as well
    written = record(f, program.values()).written if count > len(program.results) else ()

    def run(*xs):
        xs = [np.array(x) for x in xs]
        return [*f(*xs), *(xs[i] for i in written)]

    wrt = range(len(values))
    found = []
    for step in (1e-3, 1e-4, 1e-5):
        try:
            difference = central_difference(run, values, wrt, direction, outs, step)
        except (ValueError, IndexError, TypeError):  # another branch, of other shapes or refused by NumPy
            continue
        if any(np.shape(d) != np.shape(t) for d, t in zip(difference, tangent)):
            continue
        if _near(tangent, difference, 1e-6):
            return
        found.append(difference)
    for a in found:
        for b in found:
            if a is not b and _near(a, b, 1e-5) and not _holds_beside(program, f, a, direction, outs, count):
                raise Difference("forward mode and central differences", _most(tangent, a))
    report.undecided += 1  # the differences disagree with each other: a kink or a jump is near


def _holds_beside(program, f, difference, direction, outs, count) -> bool:
    """Whether the differences are the derivative a rounding away, where another branch is taken."""
    rng = np.random.default_rng(program.seed)
    for _ in range(8):
        near = {k: x * (1.0 + 1e-14 * rng.standard_normal(x.shape)) for k, x in program.arguments.items()}
        graph, arrays = _recorded(replace(program, arguments=near), f)
        tangents = evaluate_graph(jvp_graph(graph, range(len(near))), [*arrays, *direction])[count:]
        if _near([tangents[k] for k in outs], difference, 1e-5):
            return True
    return False


def _near(a, b, rtol) -> bool:
    size = max([1.0, *(np.max(np.abs(x), initial=0.0) for x in (*a, *b))])
    return all(np.max(np.abs(np.subtract(x, y)), initial=0.0) <= rtol * size for x, y in zip(a, b))


def _most(a, b) -> str:
    k = int(np.argmax([np.max(np.abs(np.subtract(x, y)), initial=0.0) for x, y in zip(a, b)]))
    return f"result {k}: {np.asarray(a[k]).tolist()} and {np.asarray(b[k]).tolist()}"


def _same(kind, got, wanted) -> None:
    if len(got) != len(wanted):
        raise Difference(kind, f"{len(got)} and {len(wanted)} results")
    for k, (a, b) in enumerate(zip(got, wanted)):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            raise Difference(kind, f"result {k}: {a.dtype} {a.shape} and {b.dtype} {b.shape}")
    if not _near(got, wanted, 1e-10):
        raise Difference(kind, _most(got, wanted))


def _through_api(program, f, cotangent, outs, plain, gradient, graph) -> None:
    """ad.vjp twice, at this point and at another one: reuse must not show."""
    results = len(program.results)
    if len(graph.outputs) > results:
        return  # it writes to its arguments
    wanted = {k: ct for k, ct in zip(outs, cotangent)}
    cts = tuple(wanted.get(k, np.zeros(graph.outputs[k].shape)) for k in range(results))
    moved = replace(program, arguments={k: v * -0.6 + 0.1 for k, v in program.arguments.items()})
    try:
        afresh = moved.function()(*moved.values())
    except Exception:  # another branch, which NumPy refuses
        afresh = None
    try:
        out, pull = ad.vjp(f, *program.values())
        _same("ad.vjp and evaluated", [*out, *pull(cts)], [*plain[:results], *gradient])
        if afresh is None:
            return
        again, pull = ad.vjp(f, *moved.values())
    except (ValueError, IndexError) as error:
        raise Difference("ad.vjp", str(error)) from error
    if all(np.all(np.isfinite(x)) for x in afresh):
        _same("ad.vjp at a second point", again, afresh)
    if [np.shape(x) for x in again] != [np.shape(ct) for ct in cts]:
        return
    rec = record(f, moved.values())
    if rec.written:
        return  # another branch, which writes to its arguments
    joint = vjp_graph(rec.graph, range(len(program.arguments)), range(results))
    captured = [a for _, a in rec.captures]
    want = evaluate_graph(joint, [*moved.values(), *captured, *cts])[results:]
    if all(np.all(np.isfinite(x)) for x in want):
        _same("ad.vjp's gradient at a second point", pull(cts), want)


# ---- Shrinking -------------------------------------------------------------------------------------------


def shrink(program: Program, error: Difference) -> Program:
    """The smallest program found by leaving out, whose check fails in the same way."""
    return reduced(program, _smaller, lambda p: _fails(p, error.kind))


def reduced(program, smaller: Callable, fails: Callable):
    """A program that still fails, though none of those that `smaller` makes of it does."""
    while (failing := next(filter(fails, smaller(program)), None)) is not None:
        program = failing
    return program


def _smaller(p: Program):
    if len(p.results) > 1:
        for r in p.results:
            yield replace(p, results=(r,))
    for i in range(len(p.body)):
        yield replace(p, body=p.body[:i] + p.body[i + 1 :])
    for i, statement in enumerate(p.body):  # a plain array instead of what was computed
        name = statement.split(" = ")[0]
        if name.isidentifier() and statement not in [f"{name} = {x}.copy()" for x in p.arguments]:
            for x in p.arguments:
                yield replace(p, body=(*p.body[:i], f"{name} = {x}.copy()", *p.body[i + 1 :]))
    for name in p.arguments:
        if len(p.arguments) > 1:
            yield replace(p, arguments={k: v for k, v in p.arguments.items() if k != name})


def _fails(p: Program, kind: str) -> bool:
    try:
        with np.errstate(all="ignore"):
            p.function()(*p.values())
        check(p)
    except Difference as found:
        return found.kind == kind
    except Exception:
        return False  # not a program
    return False
