"""Time the compiler stage by stage: each layer, and the whole loss of models of 1 to 12 blocks.

Milliseconds, for each stage the least of N compilations, as the compiler itself reports them
(GPT2_AD_DEBUG=1 prints the same). Layers are those of GPT-2 124M at B=4, T=64; models are narrow (C=48,
V=512), or with --real as wide as 124M. --growth prints milliseconds per operation for programs of n
operations (bench/growth.py): the CPU time of the first gradients less that of later ones, recording
included. It should not rise with n.
"""

import itertools
import statistics
import time

import numpy as np

from bench.growth import PROGRAMS
from bench.harness import program
from bench.harness.sizes import cases
from gpt2 import autodiff as ad
from gpt2.backward import options_for
from gpt2.layers import LAYERS
from gpt2.model import GPT2, GPT2Config

# Stage in ad.stages -> column
TITLES = {
    "recorded": "record",
    "simplified": "simplify",
    "differentiated": "derive",
    "simplified again": "simplify 2",
    "forward": "split",
    "backward": "split",
    "forward, emitted": "emit",
    "backward, emitted": "emit",
}
STAGES = tuple(dict.fromkeys(TITLES.values()))
GROWTH = (100, 1000, 10_000)
SHORT = 1000  # operations; for programs up to this length the median of five is taken
MOST = {"large_chain": 10_000}  # longest program in operations, where arrays of longer ones take gigabytes
BLOCKS = (1, 2, 4, 8, 12)
WHOLE_RATE = 1.0  # as in gpt2.backward.whole


def compiled(f, args, static, options=None):
    """(milliseconds by stage, number of ops) of compiling f's forward and backward programs with
    gpt2.backward's options.
    """
    times, sizes = dict.fromkeys(STAGES, 0.0), []

    def on_stage(title, result, seconds):
        if title in TITLES:
            times[TITLES[title]] += seconds * 1e3
        if title in ("forward", "backward"):
            sizes.append(sum(n.op not in ("input", "const") for n in result.nodes))

    ad.FixedPair(f, options_for(), **(options or {})).build(args, static, on_stage)
    return times, sum(sizes)


def layer_rows():
    for name, case in cases(4, 64).items():
        yield name, (LAYERS[case.layer].forward, case.inputs(np.float32), case.static)


def model_rows(real, numbers=BLOCKS):
    rng = np.random.default_rng(0)
    for blocks in numbers:
        sizes = (50257, 64, blocks, 12, 768) if real else (512, 16, blocks, 3, 48)
        config = GPT2Config(*sizes)
        model = GPT2(config, backward="whole", seed=None)
        tokens, targets = rng.integers(0, config.vocab_size, (2, 4, config.block_size))
        args = [*model.params.values(), tokens, targets]
        yield f"{blocks} block{'s' * (blocks > 1)}", (model._whole_loss, args, {}, {"rate": WHOLE_RATE})


def print_growth(sizes):
    """Print milliseconds per operation: a row for each program of bench/growth.py, a column for each size."""
    print("  ".join([f"{'ms an operation':<15}", *(f"{n:>10}" for n in sizes)]))
    for name, program_at in PROGRAMS.items():
        compiling(*program_at(50))  # imports what the compiler loads lazily
        figures = [growth(program_at, n) for n in sizes if n <= MOST.get(name, n)]
        texts = [f"{x:>10.3f}" for x in figures] + [f"{'-':>10}"] * (len(sizes) - len(figures))
        print("  ".join([f"{name:<15}", *texts]), flush=True)


def growth(program, n):
    """Milliseconds per operation; for short programs the median of five, as one varies by a factor of 2."""
    # Of different lengths, or the later ones would be cache hits
    lengths = [n + k * n * 3 // 20 for k in range(5 if n <= SHORT else 1)]
    return statistics.median(compiling(*program(length)) / length for length in lengths)


def compiling(f, args):
    """CPU milliseconds of the first three gradients less those of the next three.

    Three, because the first call may run uncompiled, if the code was seen before with other values.
    """
    g, times = ad.grad(f), []
    for _ in range(6):
        begin = time.process_time()
        g(*args)
        times.append(time.process_time() - begin)
    return (sum(times[:3]) - sum(times[3:])) * 1e3


def main(arguments):
    parser = program.plain_parser("bench.compile_time", __doc__.split("\n")[0])
    program.number(parser, "--repeat", 3, "compilations of each program, of which the fastest counts")
    add = parser.add_argument
    add("--real", action="store_true", help="models as wide as GPT-2 124M")
    blocks = "blocks of the models (default 1 2 4 8 12)"
    add("--blocks", type=int, nargs="+", metavar="N", default=BLOCKS, help=blocks)
    growth = "measure programs written out in so many operations instead (default 100 1000 10000)"
    add("--growth", type=int, nargs="*", metavar="N", help=growth)
    options = parser.parse_args(arguments)
    if options.growth is not None:
        return print_growth(options.growth or GROWTH)
    heads = ["ops", "total", "us an op", *STAGES]
    print("  ".join([f"{'':<15}", *(f"{h:>10}" for h in heads)]))
    for name, case in itertools.chain(layer_rows(), model_rows(options.real, options.blocks)):
        runs = [compiled(*case) for _ in range(options.repeat)]
        least, ops = [min(times[stage] for times, _ in runs) for stage in STAGES], runs[0][1]
        figures = [sum(least), sum(least) / ops * 1e3, *least]
        print("  ".join([f"{name:<15}", f"{ops:>10}", *(f"{x:>10.1f}" for x in figures)]), flush=True)
    return None


if __name__ == "__main__":
    program.run(main)
