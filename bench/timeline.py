"""Draw a training step: each thread's regions and matrix products over time, and the memory plan.

    python -m bench.timeline
    python -m bench.timeline --size 8x256-B8T128 --backward auto --threads 2 --out timeline.svg
    python -m bench.timeline --memory memory.svg

The last of a few steps is drawn. Gaps between a thread's bars are interpreter overhead, waiting for other
threads, or direct calls of NumPy. Timing costs about a microsecond for each bar.

--memory draws the compiler's memory plan. It takes --backward whole, which is one program. Parameters and the
optimizer's moments, which are allocated once, are not in it.
"""

import re
import threading
import time
from pathlib import Path

import numpy as np

from bench import drawing
from bench.harness import program, sizes
from gpt2 import autodiff as ad
from gpt2.autodiff.run import kernels, threads
from gpt2.autodiff.run.split_matmul import product
from gpt2.errors import UserError, counted
from gpt2.model import GPT2
from gpt2.model.optimizer import AdamW

COLOURS = {"product": "own", "region": "green"}
KEYS = {"own": "products", "green": "regions over blocks of rows"}


def main(argv):
    parser = program.parser(
        "bench.timeline",
        "Draw which region or product each thread is at, over a step.",
        "threads of the step",
    )
    program.model_flags(parser, "4x128-B12T64")
    program.number(parser, "--steps", 5, "steps, of which the last is drawn")
    add = parser.add_argument
    add("--out", metavar="FILE", default="timeline.svg", help="the picture (default timeline.svg)")
    add("--memory", metavar="FILE", help="another picture: the memory plan of the step")
    options = parser.parse_args(argv)
    size = sizes.find(options.size, flag="--size")
    if options.memory and options.backward != "whole":
        raise UserError("--memory needs --backward whole, where the step is one program with one memory plan")
    drawing.look()  # fails before measuring if matplotlib is missing
    count = program.thread_counts(options.threads)[-1]
    spans, seconds = record(size, options.backward, count, options.steps)
    subject = f"{size.name}, {options.backward}, {counted(count, 'thread')}"
    title = f"{subject}: {1e3 * seconds:.1f} ms a step"
    Path(options.out).write_text(picture(spans, seconds, title), encoding="utf-8")
    program.say(options, f"{title}\n" + "\n".join(summary(spans, seconds)) + f"\nwrote {options.out}")
    if options.memory:
        Path(options.memory).write_text(memory(size), encoding="utf-8")
        program.say(options, f"wrote {options.memory}")
    return 0


def memory(size):
    """SVG of the memory plan of the loss and its gradients."""
    model = GPT2(size.config, "whole", seed=None)
    tokens, targets = np.zeros((2, size.B, size.T), np.int64)
    svg = model.program.memory_drawing(*model._arrays(), tokens, targets)
    names = list(model.params)
    svg = re.sub(r"\barrays_(\d+)\b", lambda match: names[int(match[1])], svg)
    svg = re.sub(r"\bdarrays_(\d+)(?:_\d+)?\b", lambda match: f"d{names[int(match[1])]}", svg)
    # the drawing inherits its colours from the page around it, which a file lacks
    style = "svg { color: #1f2328; background: #ffffff } @media (prefers-color-scheme: dark) { "
    style += "svg { color: #e6edf3; background: #0d1117 } }"
    return svg.replace(">", f"><style>{style}</style>", 1) + "\n"


# ---- Recording ---------------------------------------------------------------------------------------------


class Spans:
    """Records the work of threads as (thread, "region" or "product", name, begin, end), in seconds."""

    def __init__(self):
        self.records = []

    def timed(self, kind, name, function):
        def wrapper(*args):
            begin = time.perf_counter()
            result = function(*args)
            self.records.append((threading.get_ident(), kind, name, begin, time.perf_counter()))
            return result

        return wrapper

    def run_blocks(self, body, blocks, scratch, alone=False):
        return RUN_BLOCKS(self.timed("region", body.__name__, body), blocks, scratch, alone)

    def matmul(self, a, b, out):
        name = f"{a.shape[0]} x {a.shape[1]} x {b.shape[1]}"
        whole = self.timed("product", name, product)
        if threads.count == 1:
            return whole(a, b, out, 1, threads.run_on_threads)
        shared = lambda job: threads.run_on_threads(self.timed("product", name, job))  # noqa: E731
        begin, before = time.perf_counter(), len(self.records)
        result = product(a, b, out, threads.count, shared)
        if len(self.records) == before:  # too small to be split
            self.records.append((threading.get_ident(), "product", name, begin, time.perf_counter()))
        return result


RUN_BLOCKS, MATMUL = kernels.run_blocks, kernels.matmul


def record(size, backward, count, steps):
    """The spans of the last step, relative to its start, and the seconds of that step."""
    spans = Spans()
    # replaced before compiling, as programs hold on to the functions
    kernels.run_blocks, kernels.matmul = spans.run_blocks, spans.matmul
    before = ad.get_threads()
    try:
        ad.set_threads(count)
        model = GPT2(size.config, backward, seed=0)
        optimizer = AdamW(model)
        tokens, targets = np.random.default_rng(0).integers(0, size.config.vocab_size, (2, size.B, size.T))
        for _ in range(steps):
            spans.records.clear()
            begin = time.perf_counter()
            model.loss_and_grads(tokens, targets)
            optimizer.step(clip=1.0)
            seconds = time.perf_counter() - begin
    finally:
        kernels.run_blocks, kernels.matmul = RUN_BLOCKS, MATMUL
        ad.set_threads(before)
    spans = [(*work, t0 - begin, t1 - begin) for *work, t0, t1 in spans.records]
    return spans, seconds


# ---- Reports -----------------------------------------------------------------------------------------------


def lanes(spans):
    """The threads in the order of their first span."""
    return list(dict.fromkeys(thread for thread, *_ in sorted(spans, key=lambda span: span[3])))


def summary(spans, seconds):
    """A line for each thread: the shares of the step that it spends in products and regions."""
    for k, thread in enumerate(lanes(spans)):
        shares = dict.fromkeys(("product", "region"), 0.0)
        for other, kind, _, begin, end in spans:
            if other == thread:
                shares[kind] += (end - begin) / seconds
        product, region = shares.values()
        rest = 1 - product - region
        yield f"thread {k + 1}: products {product:.0%}, regions {region:.0%}, neither {rest:.0%}"


def picture(spans, seconds, title):
    """SVG with a lane for each thread and a bar for each of its spans."""
    order = lanes(spans)
    names = [f"thread {k + 1}" for k in range(len(order))]
    shown = [
        (order.index(thread), COLOURS[kind], begin, end, f"{name}: {1e6 * (end - begin):.0f} us")
        for thread, kind, name, begin, end in spans
    ]
    return drawing.adaptive(drawing.svg(drawing.lanes(title, names, shown, seconds, KEYS)))


if __name__ == "__main__":
    program.run(main)
