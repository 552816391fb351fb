"""Estimate a training step: memory by kind, arithmetic, time.

Parameters, gradients and moments are counted. The other memory of a step, and its time, are measured
on models of the same width with one and with two blocks: every further block adds as much as the second.
"""

import dataclasses
import timeit
import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpt2.errors import UserError
from gpt2.machine import free_memory, size
from gpt2.model.config import GPT2Config
from gpt2.model.description import Description
from gpt2.model.gpt2 import GPT2
from gpt2.model.muon import Muon, matrices_of
from gpt2.model.optimizer import AdamW
from gpt2.model.parameters import scratch_range
from gpt2.train.flops import gflop, training_flops

LINE = 16  # most numbers in a cache line
REPEATS = 2  # timed steps, after one that compiles; the faster counts


@dataclass(frozen=True)
class Cost:
    """The cost of training with one process.

    parameters    their number
    bytes         kind -> bytes: parameters, gradients, moments, activations (including all temporary memory
                  of a step, at its peak)
    flops         operations in a step's matrix products
    seconds       per step; None if not even two blocks fit in memory, so that no step could be run:
                  activations then count only the largest array, the attention scores or the logits
    """

    parameters: int
    bytes: dict
    flops: int
    seconds: float | None


def estimate(
    config: GPT2Config,
    B: int,
    T: int,
    accumulate: int = 1,
    optimizer: type[AdamW] = AdamW,
    **options: Any,
) -> Cost:
    """The Cost of a step of `accumulate` batches of B sequences of T tokens.

    optimizer  AdamW or Muon
    options    for GPT2: backward, compile, layers, train

    Takes a few steps of a model with two blocks, and its memory, if that much is free.
    """
    d = Description(config, options.get("layers"), options.get("block"), options.get("train"))
    L, item = config.n_layer, np.dtype(config.dtype).itemsize
    scores = max(B * config.n_head * T * T * item, logits(config, B, T))
    trained = d.trained.count * item
    sizes = {"parameters": d.num_parameters * item, "gradients": trained, "moments": 2 * trained}
    if optimizer is Muon:
        sizes["moments"] -= sum(m.rows * m.columns for m in sum(matrices_of(d).values(), [])) * item
    flops = accumulate * training_flops(d, B, T)
    unmeasured = Cost(d.num_parameters, sizes | {"activations": scores}, flops, None)
    two = Description(dataclasses.replace(config, n_layer=2)).num_parameters * item
    free = free_memory()
    if free is not None and 4 * two + scores > free:
        return unmeasured
    start, stop = scratch_range(d)
    shared = accumulate == 1 and stop - start >= B * T * config.vocab_size
    last = d.tuning.number if d.tuning.kind == "last" else L  # trained blocks

    def model(blocks: int, top: int) -> GPT2:
        """A model in which at most the `top` last blocks are trained."""
        train = {}
        if d.tuning.kind == "last":
            train["train"] = dataclasses.replace(d.tuning, train=f"last:{min(top, last)}")
        return GPT2(dataclasses.replace(config, n_layer=blocks), seed=None, **{**options, **train})

    def measure(blocks: int, top: int) -> tuple[float, float, float]:
        return _measure(model(blocks, top), B, T, shared, optimizer)

    tokens = np.zeros((B, T), np.int64)
    model(1, 1).loss_and_grads(tokens, tokens)  # compiling takes memory as well, but only once
    first, second = measure(1, 1), measure(2, 2)
    frozen = first if last == L else measure(2, 1)
    # a further block cannot cost less than nothing, whatever the clock says
    work, step, update = (
        one + max(more - one, 0) * (last - 1) + max(below - one, 0) * (L - last)
        for one, more, below in zip(first, second, frozen)
    )
    seconds = accumulate * step + update
    return dataclasses.replace(unmeasured, bytes=sizes | {"activations": int(work)}, seconds=seconds)


def _measure(model, B, T, shared, optimizer):
    """(bytes of the first step, seconds of loss and gradients, seconds of the update) of a model.

    shared   whether logits use the memory of gradients, as in the deeper model
    """
    config = model.config
    model.flat_params.fill(0.02)  # zeros would make some arithmetic faster
    model.freeze(np.full(model.num_parameters - model.flat_params.size, 0.02, config.dtype))
    model.use_scratch(np.empty(B * T * config.vocab_size + LINE if shared else 0, config.dtype))
    optimizer = optimizer(model)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (B, T + 1))
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    model.loss_and_grads(tokens[:, :-1], tokens[:, 1:])
    work = tracemalloc.get_traced_memory()[1] - before
    if not tracing:
        tracemalloc.stop()
    steps = timeit.repeat(
        lambda: model.loss_and_grads(tokens[:, :-1], tokens[:, 1:]), number=1, repeat=REPEATS
    )
    updates = timeit.repeat(lambda: optimizer.step(lr=0.0), number=1, repeat=REPEATS)
    return work, min(steps), min(updates)


def lines(cost: Cost, steps: int, available: int | None = None) -> list[str]:
    """A Cost as lines of text.

    steps       of the run
    available   bytes of free memory, if known
    """
    total = sum(cost.bytes.values())
    more = "more than " if cost.seconds is None else ""
    free = "" if available is None else f" of {size(available)} free"
    seconds = "not measured: two blocks do not fit in the free memory"
    if cost.seconds is not None:
        seconds = (
            f"about {duration(cost.seconds)} a step ({cost.flops / cost.seconds / 1e9:.0f} GFLOP/s), "
            f"{duration(steps * cost.seconds)} for {steps:,} steps, without validation and samples"
        )
    rows = [
        ("parameters", f"{cost.parameters:,}"),
        *((f"memory: {kind}", size(count)) for kind, count in cost.bytes.items()),
        ("memory in all", f"{more}{size(total)}{free}"),
        ("arithmetic", f"{gflop(cost.flops)} a step"),
        ("time", seconds),
    ]
    if available is not None and total > available:
        rows.append(("note", "this does not fit; smaller: --batch-size, --block-size, or a smaller model"))
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {text}" for name, text in rows]


def duration(seconds: float) -> str:
    """Seconds as text."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def logits(config: GPT2Config, B: int, T: int) -> int:
    """Bytes of the logits of a batch."""
    return B * T * config.vocab_size * np.dtype(config.dtype).itemsize


def check_memory(config: GPT2Config, B: int, T: int, trained: int, ranks: int = 0) -> None:
    """Raise UserError if a step does not fit in memory: the system would kill this program, or others.

    B         sequences of a batch on this machine
    trained   number of trained parameters, each with a gradient and two moments
    ranks     MPI ranks on this machine, each with separate parameters and gradients and at least a part of
              the moments; 0: no MPI
    """
    item = np.dtype(config.dtype).itemsize
    stored = trained * item * (2 * ranks + 2 if ranks > 1 else 4)
    scores = logits(config, B, T)
    free = free_memory(swap=True)
    if free is not None and stored + scores > free:
        batch = (
            f", the scores of a batch {size(scores)} ({B} x {T} x {config.vocab_size} numbers)" if B else ""
        )
        raise UserError(
            f"not enough memory: parameters, gradients and moments take {size(stored)}{batch}, "
            f"and {size(free)} are free; "
            "take a smaller model, batch size or block size"
        )
