"""Profile a training step by the statements of its compiled programs: matrix products, memory traffic, rest.

    python -m bench.statements
    python -m bench.statements --size 124M-B1T1024 --backward whole --threads 2 --steps 5

A clock is read after every statement of the emitted programs; figures are medians over the steps. Products of
one shape make one row: number of calls, FLOPs, time, share of the machine's best rate. Other statements, such
as regions over blocks of rows, are grouped by the user's file that they come from: bytes of all arrays read
and written, each counted once, and the bandwidth relative to a copy. AdamW and the gradient's norm, which are
not compiled programs, have a row each. Reading the clock slows a step down a little, so both times are
printed.
"""

import ast
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
from gpt2.model import GPT2
from gpt2.model.optimizer import AdamW

PRODUCTS = ("matmul", "np.matmul")
ORIGIN = re.compile(r"# (\S+?)\.py:\d+")


def main(argv):
    parser = program.parser(
        "bench.statements", "Where a step's time goes, by products and by memory.", "threads of the step"
    )
    program.model_flags(parser)
    program.number(parser, "--steps", 5, "steps that are timed")
    options = parser.parse_args(argv)
    size, threads = sizes.find(options.size, flag="--size"), program.thread_counts(options.threads)[-1]
    report = program.Report(options, "statements")
    load = machine.Load()
    result = measure(size, options.backward, threads, options.steps)
    result["load"] = load.report()
    report.add(result, as_text(result))
    report.write()
    return 0


# ---- Measuring ---------------------------------------------------------------------------------------------


class Clock:
    """Times the statements of emitted programs, to which it adds calls of `look`."""

    def __init__(self):
        self.texts = []  # source line of each statement
        self.files = []  # the user's files that it comes from
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
                self.work[k].append(work_of(self.texts[k], sys._getframe(1)))
                now = time.perf_counter()
        self.last = now

    def instrumented(self, source):
        """The source with a call of `look` after each statement of its functions."""
        lines, region = [], []
        for line in source.split("\n"):
            inside = line.startswith("     ") or not line.strip()
            if region and not inside:
                lines += region  # a region's function counts as one statement, at its call
                origin, region = region, []
            elif region:
                region.append(line)
                continue
            if line.startswith("    def "):
                region = [line]
                continue
            if line.startswith("    return"):
                lines.append(line)
            elif line.startswith("    "):
                called = "run_blocks(" in line
                lines += [line, f"    _look({self.added(line, origin if called else [line])})"]
            else:
                lines.append(line)
                if line.startswith("def ") and not line.startswith("def setup"):
                    lines.append("    _look(-1)")
        return "\n".join([*lines, *region])

    def added(self, line, origin):
        self.texts.append(line.strip())
        self.files.append(", ".join(sorted({*ORIGIN.findall("\n".join(origin))})))
        self.seconds.append(0.0)
        return len(self.texts) - 1


def work_of(text, frame):
    """The work of a statement: (M, K, N, number of matrices) of a product, else the bytes of its arrays.

    0 for views, and for calls of functions whose statements are timed themselves.
    """
    call, names = ast.parse(text).body[0].value, frame.f_locals
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
    best = [rates.sgemm_peak(threads)], [rates.copy_bandwidth(threads)]
    plain = Training(size, backward)
    without = [plain.step(tokens, targets)["all"] for _ in range(steps + 2)][2:]
    del plain
    emitted.load_source = load_source
    try:
        training = Training(size, backward)
        for clock.noting in (False, True, False):
            training.step(tokens, targets)
        samples, parts = [], []
        for _ in range(steps):
            clock.seconds[:] = [0.0] * len(clock.seconds)
            parts.append(training.step(tokens, targets))
            samples.append(list(clock.seconds))
    finally:
        emitted.load_source = load
    best[0].append(rates.sgemm_peak(threads))
    best[1].append(rates.copy_bandwidth(threads))
    ad.set_threads(1)
    return {
        "size": size.name,
        "backward": backward,
        "threads": threads,
        "sgemm": max(best[0]),
        "copy": max(best[1]),
        "step_ms": 1e3 * statistics.median(without),
        "clocked_ms": 1e3 * statistics.median(part["all"] for part in parts),
        "rows": rows(clock, samples, parts, training.model.num_parameters),
    }


class Training:
    """A training step, timed in three parts."""

    def __init__(self, size, backward):
        self.model = GPT2(size.config, backward, seed=0)
        self.optimizer = AdamW(self.model)

    def step(self, tokens, targets):
        """Seconds of the parts, and of all, as a dict."""
        times = [time.perf_counter()]
        self.model.loss_and_grads(tokens, targets)
        times.append(time.perf_counter())
        norm = self.optimizer.grad_norm()
        times.append(time.perf_counter())
        self.optimizer.update(norm, clip=CLIP)
        times.append(time.perf_counter())
        grads, norm, update = (b - a for a, b in zip(times, times[1:]))
        return {"grads": grads, "norm": norm, "AdamW": update, "all": times[-1] - times[0]}


def rows(clock, samples, parts, parameters):
    """A dict for each group of statements: kind, name, calls, flops, bytes, ms."""
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


# ---- Reports -----------------------------------------------------------------------------------------------


def as_text(result):
    total = result["step_ms"]
    lines = []
    for row in result["rows"]:
        ms = row["ms"]
        if row["flops"]:
            rate = row["flops"] / ms / 1e6
            figures = [f"{row['flops'] / 1e9:.2f}", "", f"{rate:.0f}", f"{1e9 * rate / result['sgemm']:.0%}"]
            least = 1e3 * row["flops"] / result["sgemm"]  # ms
        else:
            rate = row["bytes"] / ms / 1e6
            figures = ["", f"{row['bytes'] / 2**20:.0f}", f"{rate:.1f}", f"{1e9 * rate / result['copy']:.0%}"]
            least = 1e3 * row["bytes"] / result["copy"]
        lines.append([row["name"], str(row["calls"]), *figures, f"{ms:.1f}", f"{ms - least:.1f}"])
    threads, sgemm, copy = result["threads"], result["sgemm"], result["copy"]
    accounted = sum(row["ms"] for row in result["rows"])
    products = sum(row["ms"] for row in result["rows"] if row["flops"])
    flops = sum(row["flops"] for row in result["rows"])
    header = ["statements", "calls", "GFLOP", "MiB", "GFLOP/s or GB/s", "of the best", "ms", "above it"]
    return "\n".join(
        [
            f"{result['size']}, gpt2 {result['backward']}, {ratios.plural(threads, 'thread')}: "
            f"{total:.0f} ms a step, {result['clocked_ms']:.0f} with a clock",
            f"the machine: {sgemm / 1e9:.0f} GFLOP/s in products, {copy / 1e9:.1f} GB/s in copies",
            f"products: {flops / 1e9:.0f} GFLOP, {products:.0f} ms, "
            f"at the best rate {1e3 * flops / sgemm:.0f}; all else {accounted - products:.0f} ms; "
            f"between statements {result['clocked_ms'] - accounted:.0f}",
            "",
            ratios.table(header, lines),
            program.load_line(result["load"]),
        ]
    )


if __name__ == "__main__":
    program.run(main)
