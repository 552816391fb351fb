"""Time a training step on this machine, with each kind of backward."""

import math
import statistics
import time
from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from gpt2 import cli
from gpt2.commands.bench import machine
from gpt2.errors import UserError
from gpt2.model import PRESETS
from gpt2.model.config import GPT2Config
from gpt2.model.gpt2 import GPT2
from gpt2.model.optimizer import AdamW
from gpt2.train.cost import check_memory
from gpt2.train.flops import Peak, matmul_peak, training_flops

BAR = "{n:.0f} of {total:.0f} s {bar:20} {desc}"  # shown in a terminal alone
QUIET = 0.85  # least ratio of two measurements of the peak on a quiet machine


def measure(
    config: GPT2Config, kinds: Sequence[str], B: int, T: int, seconds: float
) -> dict[str, list[float]]:
    """Kind of backward -> seconds of its steps; the kinds take turns, for `seconds` seconds each."""
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, config.vocab_size, (2, B, T))
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    steps = {}
    for kind in kinds:
        model = GPT2(config, kind)
        steps[kind] = model, AdamW(model, lr=1e-4)
        begin = time.perf_counter()
        _step(*steps[kind], tokens, targets)  # compiles
        cli.tell(f"{kind}: the first step took {time.perf_counter() - begin:.1f} s, with compilation")
    with tqdm(total=seconds * len(kinds), unit="s", leave=False, disable=None, bar_format=BAR) as bar:
        while min(map(sum, times.values())) < seconds:
            for kind in kinds:
                begin = time.perf_counter()
                _step(*steps[kind], tokens, targets)
                times[kind].append(time.perf_counter() - begin)
                bar.set_description_str(f"{kind} {1e3 * statistics.median(times[kind]):.1f} ms")
                bar.update(times[kind][-1])
    return times


def _step(model, optimizer, tokens, targets):
    model.loss_and_grads(tokens, targets)
    optimizer.step()


EXAMPLES = (
    ("gpt2 bench", "a small model: manual, derived by layers, derived as a whole"),
    ("gpt2 bench --size gpt2 --batch-size 4 --block-size 64", "the smallest released GPT-2"),
    ("gpt2 bench --backward manual auto --seconds 20", "two kinds, measured for longer"),
    ("gpt2 bench --machine", "the machine itself, in half a minute"),
)
ABOUT = """Time a training step on this machine, with each kind of backward.

A step is forward, backward and AdamW, in float32. The kinds take turns, so that other load on the machine
affects all of them; the median step is shown. For a comparison with PyTorch and JAX run `python -m
bench.step` in a checkout of the project."""


def parser() -> cli.Parser:
    command = cli.Parser("bench", ABOUT, EXAMPLES)
    add = command.add_argument
    size, about = "shakespeare-char-cpu", ", ".join(PRESETS)
    add("--size", default=size, choices=list(PRESETS), metavar="NAME", help=about)
    about = "as --backward of train (default: manual auto whole)"
    add("--backward", nargs="+", default=["manual", "auto", "whole"], metavar="KIND", help=about)
    add("--batch-size", type=int, default=4, metavar="B", help="sequences in a batch (default: %(default)s)")
    add("--block-size", type=int, default=64, metavar="T", help="tokens in a sequence (default: %(default)s)")
    about = "measure the machine instead: products, copies, AdamW, short calls, threads"
    add("--machine", action="store_true", help=about)
    add("--seconds", type=float, default=5.0, help="of each kind (default: %(default)s)")
    return command


def _run(args):
    if args.machine:
        for line in machine.lines():
            print(line, flush=True)
        return 0
    for flag, value in (("--batch-size", args.batch_size), ("--block-size", args.block_size)):
        if value < 1:
            raise UserError(f"{flag} {value}: expected 1 or more")
    if not (args.seconds > 0 and math.isfinite(args.seconds)):
        raise UserError(f"--seconds {args.seconds}: expected more than 0")
    config = GPT2Config.preset(args.size, block_size=args.block_size)
    check_memory(config, args.batch_size, args.block_size, config.num_parameters)
    tokens = args.batch_size * args.block_size
    shape = f"{args.batch_size} x {args.block_size} tokens"
    print(f"{args.size}: {config.num_parameters:,} parameters, {shape}", flush=True)
    before = matmul_peak()
    results = measure(config, args.backward, args.batch_size, args.block_size, args.seconds)
    after = matmul_peak()
    best = max(before.rate, after.rate)
    # if the two differ much, even the better one may have been disturbed
    peak = Peak(best, before.quiet and after.quiet and min(before.rate, after.rate) >= QUIET * best)
    flops = training_flops(config, args.batch_size, args.block_size)
    print(f"\n{'backward':10} {'ms/step':>9} {'tokens/s':>10} {'GFLOP/s':>9} {'of peak':>8} {'steps':>6}")
    for kind, times in results.items():
        middle = statistics.median(times)
        rate = flops / middle
        share = peak.share(rate) or "?"
        speed = f"{tokens / middle:10,.0f} {rate / 1e9:9.1f}"
        print(f"{kind:10} {1e3 * middle:9.1f} {speed} {share:>8} {len(times):6}")
    print(f"\npeak: {best / 1e9:.0f} GFLOP/s in products of 1024 x 1024 matrices, before and after")
    if not peak.quiet:
        print("note: the machine was busy with other work; no step is compared with this peak")
    return 0


main = cli.command(parser, _run)
