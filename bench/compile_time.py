"""How long compiling takes, stage by stage: each layer alone, and the whole loss of 1 to 12 blocks.

    python -m bench.compile_time [--repeat N] [--real]
    python -m bench.compile_time --growth [N ...]

Milliseconds, for each stage the least of N runs that all compile anew. Recording computes the function once:
what that takes NumPy alone is a column of its own, in no sum. Layers are those of GPT-2 124M at B=4, T=64;
models are narrow (C=48, V=512), so that NumPy takes little of the time, or with --real 124M's as well.

With --growth: milliseconds an operation for programs written out in n operations (bench/growth.py), from
recording to the first gradient, in seconds of the processor. It should not rise with n.
"""

import argparse
import functools
import itertools
import time

import numpy as np

from bench.cases import cases
from bench.growth import PROGRAMS
from gpt2 import autodiff
from gpt2.autodiff import passes
from gpt2.autodiff.derive.differentiate import vjp_graph
from gpt2.autodiff.emit.layout import lower
from gpt2.autodiff.emit.program import compile_graph
from gpt2.autodiff.emit.regions import schedule
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.keep.partition import partition
from gpt2.autodiff.ops.cost import NS_PER_BYTE
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.record.record import record
from gpt2.layers import LAYERS
from gpt2.model import GPT2, GPT2Config

STAGES = ("record", "simplify", "derive", "simplify 2", "partition", "simplify 3", "schedule", "emit")
GROWTH = (100, 1000, 10_000)
BLOCKS = (1, 2, 4, 8, 12)
WHOLE_RATE = 1.0  # what gpt2.backward.whole takes


class Stages:
    """Milliseconds by stage, and the number of ops in the programs that come out."""

    def __init__(self):
        self.times = dict.fromkeys(STAGES, 0.0)
        self.numpy = 0.0
        self.ops = 0

    def run(self, stage, function, *args, **options):
        begin = time.perf_counter()
        result = function(*args, **options)
        self.times[stage] += (time.perf_counter() - begin) * 1e3
        return result

    def least(self, other):
        """The smaller time of the two, stage by stage."""
        self.times = {k: min(t, other.times[k]) for k, t in self.times.items()}
        self.numpy = min(self.numpy, other.numpy)
        return self


def compiled(f, args, static, rate=NS_PER_BYTE):
    """Stages of making f's forward and backward programs, which gpt2.autodiff.fixed makes in the same way."""
    s = Stages()
    rec = s.run("record", record, f, args, static)
    arrays = [a for a in args if a is not None]
    s.numpy = _milliseconds(lambda: evaluate_graph(rec.graph, [*arrays, *(a for _, a in rec.captures)]))
    graph = Graph(rec.graph.inputs, rec.graph.outputs[:1], rec.graph.name)
    graph = s.run("simplify", passes.simplify, graph)
    wrt = [k for k, a in enumerate(arrays) if a.dtype.kind == "f"]
    joint = s.run("derive", vjp_graph, graph, wrt, (0,))
    joint = s.run("simplify 2", passes.simplify, joint)
    for half in s.run("partition", partition, joint, len(graph.inputs), 1, rate=rate)[:2]:
        half = s.run("simplify 3", passes.simplify, half)
        s.ops += sum(n.op not in ("input", "const") for n in half.nodes)
        scheduling = _milliseconds(functools.partial(_scheduled, half))
        s.run("emit", compile_graph, half, share_inputs=True)
        s.times["emit"] -= scheduling  # emission begins with it
        s.times["schedule"] += scheduling
    return s


def _scheduled(graph):
    return schedule(lower(graph, True))


def _milliseconds(function):
    begin = time.perf_counter()
    function()
    return (time.perf_counter() - begin) * 1e3


def layer_rows():
    for name, case in cases(4, 64).items():
        yield name, (LAYERS[case.layer].forward, case.inputs(np.float32), case.static)


def model_rows(real):
    rng = np.random.default_rng(0)
    for blocks in BLOCKS:
        sizes = (50257, 64, blocks, 12, 768) if real else (512, 16, blocks, 3, 48)
        config = GPT2Config(*sizes)
        model = GPT2(config, backward="whole")
        tokens, targets = rng.integers(0, config.vocab_size, (2, 4, config.block_size))
        args = [*model.params.values(), tokens, targets]
        yield f"{blocks} block{'s' * (blocks > 1)}", (model._whole_loss, args, {}, WHOLE_RATE)


def print_row(name, s):
    record = max(0.0, s.times["record"] - s.numpy)  # a difference of two times, and so within their noise
    times = [record, *list(s.times.values())[1:]]
    figures = [sum(times), sum(times) / s.ops * 1e3, *times, s.numpy]
    print("  ".join([f"{name:<15}", f"{s.ops:>10}", *(f"{x:>10.1f}" for x in figures)]), flush=True)


def print_growth(sizes):
    """A row for each program of bench/growth.py: milliseconds an operation, for each number of operations."""
    print("  ".join([f"{'ms an operation':<15}", *(f"{n:>10}" for n in sizes)]))
    for name, program in PROGRAMS.items():
        figures = []
        for n in sizes:
            f, args = program(n)
            begin = time.process_time()
            autodiff.grad(f)(*args)
            figures.append((time.process_time() - begin) / n * 1e3)
        print("  ".join([f"{name:<15}", *(f"{x:>10.3f}" for x in figures)]), flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m bench.compile_time", description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs (default 3)")
    parser.add_argument("--real", action="store_true", help="models as wide as GPT-2 124M")
    parser.add_argument(
        "--growth", type=int, nargs="*", metavar="N", help="numbers of operations (default 100 to 10000)"
    )
    options = parser.parse_args(arguments)
    if options.growth is not None:
        return print_growth(options.growth or GROWTH)
    heads = ["ops", "total", "us an op", *STAGES, "NumPy"]
    print("  ".join([f"{'':<15}", *(f"{h:>10}" for h in heads)]))
    for name, case in itertools.chain(layer_rows(), model_rows(options.real)):
        runs = [compiled(*case) for _ in range(options.repeat)]
        print_row(name, functools.reduce(Stages.least, runs))


if __name__ == "__main__":
    main()
