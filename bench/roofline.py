"""Roofline of a training step: its products and its memory traffic beside the bounds that this machine sets.

    python -m bench.roofline
    python -m bench.roofline --sizes 124M-B1T1024,4x128-B12T64 --backward whole manual --threads 1,2

A clock is read after every statement of the emitted programs; figures are medians over the steps. Products of
one shape make one row. Other statements, such as regions over blocks of rows, are grouped by the user's files
that they come from; they move the bytes of all their arrays, each counted once. AdamW and the gradient's
norm, which are not compiled programs, have a row each. The bound is a row's FLOPs at the best rate of a
float32 product, or its bytes at the bandwidth of a copy. Reading the clock slows a step down a little, so
both times are printed.
"""

import ast
import functools
import itertools
import re
import statistics
import sys
import time
from collections import defaultdict

import numpy as np

from bench.harness import machine, program, rates, ratios, sizes
from bench.harness.sizes import CLIP
from gpt2 import autodiff as ad
from gpt2.autodiff.emit import program as emitted
from gpt2.errors import counted
from gpt2.model import GPT2
from gpt2.model.optimizer import AdamW

PRODUCTS = ("matmul", "np.matmul")
ORIGIN = re.compile(r"# (\S+?)\.py:\d+")


def main(argv):
    parser = program.parser(
        "bench.roofline", "Compare the training step with what this machine could do.", "threads of the step"
    )
    program.names(parser, "--sizes", "124M-B4T64", f"of model and batch: {', '.join(sizes.SIZES)}, or all")
    words = "manual, auto, whole, or a mix; several are measured one after the other (default whole)"
    parser.add_argument("--backward", metavar="WHICH", nargs="+", default=["whole"], help=words)
    program.number(parser, "--steps", 5, "steps that are timed")
    options = parser.parse_args(argv)
    chosen = sizes.find_all(options.sizes)
    report = program.Report(options, "roofline")
    counts = program.thread_counts(options.threads)
    for size, backward, threads in itertools.product(chosen, options.backward, counts):
        load = machine.Load()
        result = measure(size, backward, threads, options.steps)
        result["load"] = load.report()
        report.add(result, as_text(result))
    report.write()


# ---- Measuring ---------------------------------------------------------------------------------------------


class Clock:
    """Times the statements of emitted programs, to which it adds calls of `look`."""

    def __init__(self):
        self.statements = []
        self.files = []  # the user's files that each comes from
        self.seconds = []
        self.work = defaultdict(list)  # index of a statement -> `work_of` each of its calls
        self.noting = False  # whether to fill `work`
        self.last = 0.0

    def look(self, k):
        """Add the time since the last look to statement k; -1 at the start of a program."""
        now = time.perf_counter()
        if k >= 0:
            self.seconds[k] += now - self.last
            if self.noting:
                self.work[k].append(work_of(self.statements[k], sys._getframe(1)))
                now = time.perf_counter()
        self.last = now

    def instrumented(self, source):
        """The source with a call of `look` after each statement of its functions."""
        tree, lines = ast.parse(source), source.split("\n")
        for function in tree.body:
            if isinstance(function, ast.FunctionDef) and function.name != "setup":
                function.body = [_look(-1), *self._timed(function.body, lines)]
        return ast.unparse(ast.fix_missing_locations(tree))

    def _timed(self, body, lines):
        """The statements of a function; the body of a region counts at its call."""
        texts = {}  # of regions, by name
        for statement in body:
            yield statement
            text = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
            if isinstance(statement, ast.FunctionDef):
                texts[statement.name] = text
            elif not isinstance(statement, ast.Return):
                yield _look(len(self.statements))
                names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
                origins = ORIGIN.findall("\n".join([text, *(texts[name] for name in names & texts.keys())]))
                self.statements.append(statement)
                self.files.append(", ".join(sorted({*origins})))
                self.seconds.append(0.0)


def _look(k):
    return ast.parse(f"_look({k})").body[0]


def work_of(statement, frame):
    """The work of a statement: (M, K, N, number of matrices) of a product, else the bytes of its arrays.

    0 for views, for `if` (of a copy that a result in its own buffer does without), and for calls of functions
    whose statements are timed themselves.
    """
    call, names = getattr(statement, "value", None), frame.f_locals
    function = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    if function in PRODUCTS:
        a, b = (eval(compile(ast.Expression(x), "", "eval"), frame.f_globals, names) for x in call.args[:2])
        if a.ndim > 1 and b.ndim > 1:  # a product with a vector of ones is a sum
            return a.shape[-2], a.shape[-1], b.shape[-1], int(np.prod(a.shape[:-2]))
    helper = getattr(frame.f_globals.get(function), "__code__", None)
    if not function.startswith("np.") and (helper is None or helper.co_filename.startswith("<")):
        return 0
    values = [names[n.id] for n in ast.walk(call) if isinstance(n, ast.Name) and n.id in names]
    for f in list(values):  # a region's arrays are in its closure
        values += [cell.cell_contents for cell in getattr(f, "__closure__", None) or ()]
    arrays = {}
    for x in values:
        if isinstance(x, np.ndarray):
            arrays[x.__array_interface__["data"][0], x.nbytes] = x.nbytes
    return sum(arrays.values())


def measure(size, backward, threads, steps):
    """The machine's rates, the time of a step with and without the clock, and `rows`, as a dict."""
    clock, load = Clock(), emitted.load_source

    def load_source(source, env, name):
        env["_look"] = clock.look
        return load(clock.instrumented(source), env, name)

    ad.set_threads(threads)
    tokens, targets = next(sizes.batches(size))
    before = rates.sgemm_peak(threads), rates.copy_bandwidth()

    def stepping():
        model = GPT2(size.config, backward, seed=0)
        return functools.partial(timed_step, model, AdamW(model), tokens, targets)

    step = stepping()
    without = [step()["all"] for _ in range(steps + 2)][2:]
    del step
    emitted.load_source = load_source
    try:
        step = stepping()
        for clock.noting in (False, True, False):
            step()
        samples, parts = [], []
        for _ in range(steps):
            clock.seconds[:] = [0.0] * len(clock.seconds)
            parts.append(step())
            samples.append(list(clock.seconds))
    finally:
        emitted.load_source = load
    after = rates.sgemm_peak(threads), rates.copy_bandwidth()  # again, as the machine's speed varies
    ad.set_threads(1)
    result = {
        "size": size.name,
        "backward": backward,
        "threads": threads,
        "sgemm": max(before[0], after[0]),
        "copy": max(before[1], after[1]),
        "step_ms": 1e3 * statistics.median(without),
        "clocked_ms": 1e3 * statistics.median(part["all"] for part in parts),
        "rows": rows(clock, samples, parts, size.config.num_parameters),
    }
    for row in result["rows"]:
        row["bound_ms"] = 1e3 * (row["flops"] / result["sgemm"] + row["bytes"] / result["copy"])
    return result


def timed_step(model, optimizer, tokens, targets):
    """Seconds of the parts of a training step, and of all, as a dict."""
    times = [time.perf_counter()]
    model.loss_and_grads(tokens, targets)
    times.append(time.perf_counter())
    norm = optimizer.grad_norm()
    times.append(time.perf_counter())
    optimizer.update(norm, clip=CLIP)
    times.append(time.perf_counter())
    grads, norm, update = (b - a for a, b in zip(times, times[1:]))
    return {"grads": grads, "norm": norm, "AdamW": update, "all": times[-1] - times[0]}


def rows(clock, samples, parts, parameters):
    """A dict for each group of statements: kind, name, calls, flops, bytes (one of the two is 0), ms."""
    totals = defaultdict(lambda: {"calls": 0, "flops": 0, "bytes": 0, "each": [0.0] * len(samples)})
    for k, calls in clock.work.items():
        if isinstance(calls[0], tuple):
            M, K, N, count = calls[0]
            key = "product", f"{f'{count} of ' if count > 1 else ''}{M} x {K} x {N}"
            totals[key]["flops"] += 2 * M * K * N * count * len(calls)
        else:
            key = "memory", clock.files[k] or "views and numbers"
            totals[key]["bytes"] += sum(calls)
        totals[key]["calls"] += len(calls)
        for i, seconds in enumerate(samples):
            totals[key]["each"][i] += seconds[k]
    for name, width in (("norm", 4), ("AdamW", 28)):
        each = [part[name] for part in parts]
        totals["memory", name] = {"calls": 1, "flops": 0, "bytes": width * parameters, "each": each}
    timed = []
    for (kind, name), row in totals.items():
        ms = 1e3 * statistics.median(row.pop("each"))
        timed.append({"kind": kind, "name": name, **row, "ms": ms})
    return sorted(timed, key=lambda row: (row["kind"] != "product", -row["ms"]))


def as_text(result):
    lines = [line(row) for row in result["rows"]]
    sgemm, copy, clocked = result["sgemm"], result["copy"], result["clocked_ms"]
    products = [row for row in result["rows"] if row["flops"]]
    ms, bound = (sum(row[key] for row in products) for key in ("ms", "bound_ms"))
    accounted = sum(row["ms"] for row in result["rows"])
    flops = sum(row["flops"] for row in products)
    header = ["statements", "calls", "GFLOP", "MiB", "GFLOP/s or GB/s", "of the best", "ms", "above it"]
    return "\n".join(
        [
            f"{result['size']}, gpt2 {result['backward']}, {counted(result['threads'], 'thread')}: "
            f"{result['step_ms']:.0f} ms a step, {clocked:.0f} with a clock",
            f"the machine: {sgemm / 1e9:.0f} GFLOP/s in products, {copy / 1e9:.1f} GB/s in copies",
            f"products: {flops / 1e9:.0f} GFLOP, {ms:.0f} ms, at the best rate {bound:.0f}; "
            f"all else {accounted - ms:.0f} ms; between statements {clocked - accounted:.0f}",
            "",
            ratios.table(header, lines),
            program.load_line(result["load"]),
        ]
    )


def line(row):
    """A row's cells. Its rate relative to the machine's is its bound relative to its time."""
    ms, bound = row["ms"], row["bound_ms"]
    if row["flops"]:
        figures = [f"{row['flops'] / 1e9:.2f}", "", f"{row['flops'] / ms / 1e6:.0f}"]
    else:
        figures = ["", f"{row['bytes'] / 2**20:.0f}", f"{row['bytes'] / ms / 1e6:.1f}"]
    return [row["name"], str(row["calls"]), *figures, f"{bound / ms:.0%}", f"{ms:.1f}", f"{ms - bound:.1f}"]


if __name__ == "__main__":
    program.run(main)
