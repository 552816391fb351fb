"""Where a step's time goes, statement by statement of the compiled program: products, memory, and the rest.

    python -m bench.statements
    python -m bench.statements --size 124M-B1T1024 --backward whole --threads 2 --steps 5

The clock is read after every line of the emitted programs; the median over some steps counts.
Products of one shape are one row: how many, their operations, the time, and the share of the machine's best
rate. Everything else, such as regions over blocks of rows, is grouped by the user's file that it comes from:
the bytes of all arrays read and written, each counted once, and the bandwidth beside that of a copy. AdamW
and the gradient's norm are not programs and have a row each. The clock makes a step a little slower: both
times are printed.
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
    """The time since the last look belongs to the statement that has just ended."""

    def __init__(self):
        self.texts = []  # of each statement its line
        self.files = []  # and the user's files that it comes from
        self.seconds = []
        self.about = defaultdict(list)  # statement -> of each call (M, K, N, how many) of a product, or bytes
        self.looking = False  # whether to note the arrays of statements
        self.last = 0.0

    def look(self, k):
        now = time.perf_counter()
        if k >= 0:
            self.seconds[k] += now - self.last
            if self.looking:
                self.about[k].append(described(self.texts[k], sys._getframe(1)))
                now = time.perf_counter()
        self.last = now

    def instrumented(self, source):
        """The source with a look at the clock after each statement of its functions."""
        lines, region = [], []
        for line in source.split("\n"):
            inside = line.startswith("     ") or not line.strip()
            if region and not inside:
                lines += region  # the function of a region, which is one statement: where it is called
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


def described(text, frame):
    """What a statement works on: (M, K, N, how many) of a product, or the bytes of its arrays; 0 for views,
    and for a call of a function that has its own statements.
    """
    call, names = ast.parse(text).body[0].value, frame.f_locals
    function = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    if function in PRODUCTS:
        a, b = (eval(compile(ast.Expression(x), "", "eval"), frame.f_globals, names) for x in call.args[:2])
        if a.ndim > 1 and b.ndim > 1:  # not a sum, with a vector of ones
            return a.shape[-2], a.shape[-1], b.shape[-1], int(np.prod(a.shape[:-2]))
    helper = getattr(frame.f_globals.get(function), "__code__", None)
    if not function.startswith("np.") and (helper is None or helper.co_filename.startswith("<")):
        return 0
    values = [names[n.id] for n in ast.walk(call) if isinstance(n, ast.Name) and n.id in names]
    for f in list(values):  # the arrays that a region reads and writes
        values += [cell.cell_contents for cell in getattr(f, "__closure__", None) or ()]
    arrays = {}
    for x in values:
        if isinstance(x, np.ndarray):
            arrays[x.__array_interface__["data"][0], x.nbytes] = x.nbytes
    return sum(arrays.values())


def measure(size, backward, threads, steps):
    """The machine's rates, seconds of a step with and without a clock, and a row for all that is alike."""
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
        for clock.looking in (False, True, False):
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
    def __init__(self, size, backward):
        self.model = GPT2(size.config, backward, seed=0)
        self.optimizer = AdamW(self.model)

    def step(self, tokens, targets):
        """Seconds of the parts of a step."""
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
    """A dict for each kind of statement: kind, name, calls, ms, and flops or bytes."""
    totals = defaultdict(lambda: {"calls": 0, "flops": 0, "bytes": 0, "each": [0.0] * len(samples)})
    for k, calls in clock.about.items():
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
