"""Study: bytes kept for the backward against time to recompute them, along the whole model's minimum cut."""

import gc

import numpy as np

from bench.harness.sizes import Size, batches
from bench.studies.measure import interleave, peak_bytes, threads
from bench.studies.study import Result, Study
from gpt2 import autodiff as ad
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import cost
from gpt2.autodiff.pipeline import Pipeline
from gpt2.autodiff.record.record import record
from gpt2.backward import options_for
from gpt2.model import GPT2, GPT2Config

# Prices of a kept byte in nanoseconds, from keeping everything that saves work to keeping nothing
RATES = (0.0, 0.1, cost.NS_PER_BYTE, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 100.0)
MEASURED = (cost.NS_PER_BYTE, 1.0, 5.0, 100.0)
TOLERANCE = 1e-4  # of the gradient's norm, relative: float32 sums in different orders


def run(options):
    result = Result()
    planned = measured = [SMALL]
    if not options.quick:
        planned = [gpt2(256), gpt2(1024)]
        # At T=1024 a step of 12 blocks takes five seconds; 3 blocks and a small vocabulary have the same cut
        measured = [gpt2(256), gpt2(1024, n_layer=3, vocab_size=8192)]
    for size in planned:
        plan_table(result, size, *plans(GPT2(size.config, "whole"), size))
    for size in measured:
        model = GPT2(size.config, "whole")
        times = measure(model, size, 0.3 * options.seconds / len(measured), options.threads)
        measured_table(result, size, *plans(model, size, MEASURED), times)
        del model
        gc.collect()
    return result


SMALL = Size("2x24, T=16", GPT2Config(vocab_size=97, block_size=16, n_layer=2, n_head=3, n_embd=24), 1, 16)


def gpt2(T, **smaller):
    config = GPT2Config.preset("gpt2", block_size=T, **smaller)
    changes = f", {config.n_layer} blocks, vocabulary {config.vocab_size}" if smaller else ""
    return Size(f"GPT-2 124M, T={T}{changes}", config, 1, T)


def total_ns(graph):
    return sum(map(cost.nanoseconds, graph.nodes))


def arguments(model, size):
    return (*model.params.values(), *next(batches(size)))


def plans(model, size, rates=RATES):
    """(ns of a step that keeps everything, rate -> (bytes kept, estimated seconds of recomputation)).

    The whole loss and its gradients are one graph, which is cut at each rate.
    """
    recorded = record(model._whole_loss, arguments(model, size)).graph
    wrt = [k for k, x in enumerate(recorded.inputs) if x.dtype.kind == "f"]
    pipeline = Pipeline("loss", options_for())
    joint = pipeline.joint(Graph(recorded.inputs, recorded.outputs[:1], "loss"), wrt, (0,))
    once, cuts = total_ns(joint), {}
    for rate in rates:
        halves = pipeline.split(joint, len(recorded.inputs), 1, rate=rate)
        kept = sum(node.nbytes for node in halves.forward.outputs[1:] if node.op != "input")
        again = total_ns(halves.forward) + total_ns(halves.backward) - once
        cuts[rate] = kept, max(round(again), 0) * 1e-9
    return once, cuts


def measure(model, size, seconds, most):
    """rate -> (Sample of seconds of a step, peak bytes); forward and backward are one program."""
    calls, peaks, norms = {}, {}, {}
    for rate in MEASURED:  # on one thread, as with more the first products also time how to split themselves
        calls[rate] = step = step_of(model, size, rate)
        peaks[rate] = peak_bytes(step)
        norms[rate] = float(np.linalg.norm(model.flat_grads))
    spread = max(norms.values()) - min(norms.values())
    assert spread <= TOLERANCE * min(norms.values()), f"gradients differ in norm: {norms}"
    with threads(most):
        times = interleave(calls, seconds)
    return {rate: (times[rate], peaks[rate]) for rate in MEASURED}


def step_of(model, size, rate):
    """A function that runs forward and backward, compiled at this rate, and writes the model's gradients."""
    args = arguments(model, size)
    pair = ad.FixedPair(model._whole_loss, options_for(), name="loss", rate=rate)
    dloss = np.ones((), size.config.dtype)
    out = (*model.grads.values(), None, None)
    pair.entry(args, {})[0].joint  # noqa: B018  compiles now, before memory is measured

    def step():
        pair.both(dloss, *args, out=out)

    return step


def plan_table(result, size, once, cuts):
    table = result.table(
        f"{size.name}: what the cut chooses",
        "ns a kept byte | kept [B] | recomputed, estimated [s] | of the step [x]",
        note="Estimated by the compiler's table of costs, on one core. The rates that the "
        f"engine uses are {cost.NS_PER_BYTE} for single layers and 1 for the whole "
        "model.",
    )
    for rate, (kept, again) in cuts.items():
        table.add(f"{rate:g}", kept, again, again * 1e9 / once)


def measured_table(result, size, once, cuts, measurements):
    usual = measurements[cost.NS_PER_BYTE][0]
    table = result.table(
        f"{size.name}: measured steps",
        "ns a kept byte | kept [B] | forward and backward [s] | time, relative to 0.18 [x] | "
        "estimated [x] | peak [B]",
        note="Peak: working memory of the step beyond parameters and gradients. The logits "
        "and their gradient are in it, which no choice of the cut avoids. It can be "
        "less than what is kept: values are kept in the memory of gradients that are "
        "not written yet. What is computed again late finds less of that.",
    )
    base = once + cuts[cost.NS_PER_BYTE][1] * 1e9
    for rate, (times, peak) in measurements.items():
        kept, again = cuts[rate]
        table.add(f"{rate:g}", kept, times, times.over(usual), (once + again * 1e9) / base, peak)
    rates = ((1.0, "at the rate of the engine, 1 ns a byte"), (MEASURED[-1], "keeping hardly anything"))
    for rate, description in rates:
        times, peak = measurements[rate]
        result.note(
            f"{size.name}: {description}, a step takes {times.over(usual).median:.2f} times as long as at "
            f"{cost.NS_PER_BYTE}, with {cuts[rate][0] / cuts[cost.NS_PER_BYTE][0]:.0%} of the kept "
            f"bytes and a peak of {peak / measurements[cost.NS_PER_BYTE][1]:.0%}."
        )


STUDY = Study(
    "memory",
    "What the backward needs can be kept from the forward, or computed again. How much time does a kept "
    "byte save, along the whole range from keeping everything to keeping nothing?",
    "The loss of GPT-2 124M with all gradients, for one sequence of 256 and of 1024 tokens, is one program. "
    "Where to cut it between forward and backward is a minimum cut for a price of a kept byte; 15 prices "
    "are planned. For four of them the step is compiled, and timed in turns on all cores: 12 blocks at "
    "T=256, 3 blocks and a vocabulary of 8192 at T=1024, where a whole step takes five seconds. Peak memory "
    "is what the first step allocates beyond parameters and gradients.",
    run,
    seconds=95,
)
