"""Study: manual and derived backward of every layer and of the whole model."""

import inspect
from functools import partial
from statistics import geometric_mean

import numpy as np

from bench.harness.engine import LayerRun, check_results, output_gradient
from bench.harness.sizes import SIZES, Size, batches, cases
from bench.studies.measure import interleave, memory, peak_bytes, threads
from bench.studies.study import Result, Study
from gpt2 import backward
from gpt2.errors import counted
from gpt2.layers import LAYERS, Layer
from gpt2.layers.cases import Case
from gpt2.model import GPT2, GPT2Config

BATCHES = ((1, 64), (4, 64), (4, 256))  # B, T; the second is that of the tables
MODELS = ("4x128-B12T64", "124M-B4T64")
NAMES = ("encoder", "layernorm", "matmul-naive", "matmul-fc", "attention", "gelu", "residual", "crossentropy")
# Shares of the study's time for timing layers and models. The rest goes into random inputs, compiling, and
# the minimum number of rounds for calls that take a second.
SHARE_OF_LAYERS, SHARE_OF_MODELS = 0.2, 0.15


def run(options):
    result = Result()
    sizes = [(1, 8), (2, 8)] if options.quick else BATCHES
    shown = sizes[min(1, len(sizes) - 1)]
    counts = sorted({1, options.threads})
    turns = len(NAMES) * (len(sizes) + len(counts) - 1)
    seconds = options.seconds * SHARE_OF_LAYERS / turns
    times = {}
    for batch in sizes:
        for n in counts if batch == shown else [1]:
            with threads(n):
                times[batch, n] = {
                    name: layer_times(case, plain(case), seconds, n == 1)
                    for name, case in study_cases(batch, options.quick).items()
                }
    for n in counts:
        time_table(result, times[shown, n], shown, n)
    memory_table(result, shown, options.quick)
    growth(result, {batch: times[batch, 1] for batch in sizes}, sizes)
    models(result, options, counts)
    for n in counts:
        ratios = {name: t["derived", "both"].over(t["manual", "both"]) for name, t in times[shown, n].items()}
        mean = geometric_mean([ratio.median for ratio in ratios.values()])
        slower = [f"{name} ({ratio.median:.2f})" for name, ratio in ratios.items() if ratio.q1 > 1.02]
        loses = f"The derived code loses in {', '.join(slower)}."
        result.note(
            f"Forward and backward, derived / manual, {counted(n, 'thread')}: geometric mean {mean:.2f}. "
            + (loses if slower else "In no layer is the lower quartile above 1.02.")
        )
    return result


# ---- What is measured --------------------------------------------------------------------------------------


def naive_forward(inp, weight, bias):
    """matmul without BLAS: all products, (N, OC, C), are stored and then summed. inp (N, C)."""
    return np.sum(inp[:, None, :] * weight, axis=-1) + bias, (inp, weight)


def naive_backward(dout, saved):
    inp, weight = saved
    dinp = np.sum(dout[:, :, None] * weight, axis=1)
    dweight = np.sum(dout[:, :, None] * inp[:, None, :], axis=0)
    return dinp, dweight, np.sum(dout, axis=0)


NAIVE = Layer("matmul_naive", naive_forward, naive_backward)


def plain(case):
    return NAIVE if case.layer == NAIVE.name else LAYERS[case.layer]


def study_cases(batch, quick):
    """Name -> Case: layers of GPT-2 124M, and a naive matmul of 64 channels, as it stores all products."""
    B, T = batch
    rows = cases(B, T, C=48, NH=3, V=97) if quick else cases(B, T)
    rows["matmul-naive"] = Case("matmul-naive", "matmul_naive", ((B * T, 64), (64, 64), (64,)))
    return {name: rows[name] for name in NAMES}


def variants(layer):
    """Name -> Layer: uncompiled, compiled with the manual backward, and with the derived one."""
    return {"written": layer, "manual": backward.compiled(layer), "derived": backward.auto(layer)}


def layer_times(case, layer, seconds, written):
    """(variant, part) -> Sample, for the parts forward, backward and both. Gradients are compared first.

    written   whether to time the uncompiled layer too
    """
    players = layer_players(case, layer)
    if not written:
        del players["written"]
    parts = ("both", "forward", "backward")
    calls = {(name, part): getattr(run, part) for name, run in players.items() for part in parts}
    return interleave(calls, seconds)


def layer_players(case, layer):
    """Variant -> LayerRun, after a first call, whose results and gradients must agree."""
    players = {name: LayerRun(case, variant) for name, variant in variants(layer).items()}
    for name, player in players.items():
        player.both()
        check_results(name, player.results(), players["written"].results())
    return players


# ---- Tables of layers --------------------------------------------------------------------------------------


def time_table(result, times, batch, n):
    B, T = batch
    written = ["backward, as written [s]"] if n == 1 else []
    table = result.table(
        f"Layers, B={B}, T={T}, {counted(n, 'thread')}",
        "layer | forward [s]",
        *written,
        "backward, manual [s] | backward, derived [s] | forward that goes with it [s]",
        "forward and backward, derived / manual [x]",
        "gradient / forward, manual [x] | gradient / forward, derived [x]",
        note="manual and derived both run as compiled programs. A derived backward chooses what its forward "
        "saves or computes ahead, so compare forward and backward together. The last two columns are "
        "the time of forward and backward relative to that of the manual variant's forward.",
    )
    for name, t in times.items():
        row = [name, t["manual", "forward"]]
        row += [t["written", "backward"]] if n == 1 else []
        row += [t["manual", "backward"], t["derived", "backward"], t["derived", "forward"]]
        row.append(t["derived", "both"].over(t["manual", "both"]))
        row += [t[variant, "both"].over(t["manual", "forward"]) for variant in ("manual", "derived")]
        table.add(*row)


def memory_table(result, batch, quick):
    B, T = batch
    table = result.table(
        f"Memory of a forward and a backward, B={B}, T={T}",
        "layer | peak, written [B] | peak, manual [B] | peak, derived [B]",
        "saved, written [B] | saved, manual [B] | saved, derived [B]",
        "arrays, written | arrays, manual | arrays, derived",
        note="Peak: the most that one forward and backward held beyond its inputs, working memory and "
        "results included, in the first call of programs compiled before. Saved: what the backward is "
        "handed beyond the layer's inputs and result. Arrays: allocated by a later call.",
    )
    for name, case in study_cases(batch, quick).items():
        rows = [footprint(case, layer) for layer in variants(plain(case)).values()]
        table.add(name, *(cell for column in zip(*rows) for cell in column))


def footprint(case, layer):
    """(peak bytes, saved bytes, arrays) of a forward and backward."""
    inputs = case.inputs(np.float32)
    out, saved = plain(case).forward(*inputs, **case.static)
    dout = output_gradient(out)
    # The programs of the layer are compiled here, without running them
    if layer.kind == "auto":
        entry, _ = layer.forward.__self__.entry(inputs, case.static)
        entry.forward, entry.backward  # noqa: B018  compiles on first access
    elif hasattr(layer.forward, "entry"):
        layer.forward.entry(inputs, case.static)
        gradients = inspect.getclosurevars(layer.backward).nonlocals["gradients"]
        gradients.entry((dout, *saved), case.static)
    del out, saved

    def once():
        out, saved = layer.forward(*inputs, **case.static)
        return out, saved, layer.backward(dout, saved, **case.static)

    used = memory(once)
    out, saved, _ = once()
    # Of saved values the distinct buffers, without those of the inputs and the result
    roots = {id(root): root for root in map(root_of, saved) if isinstance(root, np.ndarray)}
    held = {id(root_of(array)) for array in (*inputs, out)}
    kept = sum(root.nbytes for key, root in roots.items() if key not in held)
    return used.peak_bytes, kept, used.arrays


def root_of(array):
    while isinstance(getattr(array, "base", None), np.ndarray):
        array = array.base
    return array


def growth(result, times, sizes):
    """Time of forward and backward relative to the forward, over the number of rows."""
    rows = [B * T for B, T in sizes]
    table = result.table(
        "Derived gradient / forward over the number of rows, 1 thread",
        "layer",
        *(f"{n} rows [x]" for n in rows),
        "largest / smallest [x]",
    )
    for name in NAMES:
        of_batch = [times[batch][name] for batch in sizes]
        samples = [t["derived", "both"].over(t["manual", "forward"]) for t in of_batch]
        medians = [sample.median for sample in samples]
        table.add(name, *samples, max(medians) / min(medians))
    spread = {row[0]: row[-1] for row in table.rows if row[0] != "encoder"}
    worst = max(spread, key=spread.get)
    result.note(
        f"From {rows[0]} to {rows[-1]} rows the time of a derived gradient relative to the forward "
        f"changes by at most a factor of {spread[worst]:.2f} ({worst}). The encoder is not counted: "
        "its gradient is a whole table of V x C numbers, nearly all of them zeros, for any number "
        "of rows; so it is for the backward by hand."
    )


def models(result, options, counts):
    """Time and memory of the loss, and of the loss with gradients in three ways, at several sizes."""
    sizes = [Size("2x24", GPT2Config(vocab_size=97, block_size=16, n_layer=2, n_head=3, n_embd=24), 2, 8)]
    sizes = sizes if options.quick else [SIZES[name] for name in MODELS]
    seconds = options.seconds * SHARE_OF_MODELS / len(sizes) / len(counts)
    table = result.table(
        "The whole model: loss, and loss with all gradients",
        "size, threads | forward [s] | manual [s] | auto [s] | whole [s] | auto / manual [x] | "
        "whole / manual [x] | whole / forward [x] | peak, manual [B] | peak, auto [B] | peak, whole "
        "[B]",
        note="auto derives layer by layer, whole differentiates the loss as one program. Peak: beyond "
        "parameters and gradients, at the first step after compiling.",
    )
    whole = {}
    for size in sizes:
        players = model_players(size)
        batch = next(batches(size))
        calls = {spec: partial(model.loss_and_grads, *batch) for spec, model in players.items()}
        peaks = []
        for spec, call in calls.items():
            if players[spec].program is not None:  # compiled before: under tracemalloc it would take minutes
                entry, _ = players[spec].program.entry((*players[spec].params.values(), *batch), {})
                entry.joint  # noqa: B018  compiles on first access
            peaks.append(peak_bytes(call))
        calls = {"forward": partial(players["manual"].loss, *batch), **calls}
        for n in counts:
            with threads(n):
                times = interleave(calls, seconds, turn_s=0.02)
            whole[size.name, n] = times["whole"].over(times["manual"])
            auto, forward = times["auto"].over(times["manual"]), times["whole"].over(times["forward"])
            ratios = auto, whole[size.name, n], forward
            table.add(f"{size.name}, {n}", *times.values(), *ratios, *peaks)
    parts = [f"{ratio.median:.2f} ({name}, {counted(n, 'thread')})" for (name, n), ratio in whole.items()]
    result.note(
        f"The whole model differentiated as one program takes, as a part of the time of the "
        f"backward by hand: {', '.join(parts)}."
    )


def model_players(size):
    """Backward -> GPT2. The models share parameters and gradients, so that three large ones fit."""
    players = {spec: GPT2(size.config, spec, seed=None) for spec in ("manual", "auto", "whole")}
    first = GPT2(size.config, seed=0)
    for model in players.values():
        model.use(first.flat_params, first.flat_grads)
    return players


STUDY = Study(
    "layers",
    "Does a derived backward keep up with one written by hand, layer by layer and in the whole model, and "
    "does the cost of differentiating stay in proportion as the layer grows? The paper 'Performance of "
    "Enzyme AD in Real World High-Complexity Deep Learning Models' asks this of Enzyme and llm.c.",
    "Every layer of GPT-2 124M (768 channels, 12 heads, vocabulary 50257; matmul is the product from C to "
    "4C), and a naive matmul without BLAS (64 channels), in float32 on random inputs, with random output "
    "gradients. Gradients are compared with those of the layer as written before they are timed. All "
    "variants of a layer take turns in one process; a figure is the median over rounds, a ratio the "
    "median of the ratios within a round. `python -m bench.layers` has PyTorch and JAX beside them, "
    "`gpt2 explain all` the sources.",
    run,
    seconds=150,
)
