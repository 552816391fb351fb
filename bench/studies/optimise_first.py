"""Study: what is gained by optimising a program before it is differentiated?"""

from statistics import geometric_mean

import numpy as np

from bench.harness.engine import output_gradient
from bench.harness.sizes import cases
from bench.studies.layers import plain, study_cases
from bench.studies.measure import interleave
from bench.studies.programs import programs
from bench.studies.study import Result, Study
from gpt2.autodiff import Options
from gpt2.autodiff.derive.differentiate import vjp_graph
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.pipeline import Pipeline
from gpt2.autodiff.record.record import record
from gpt2.model import GPT2, GPT2Config

# Name -> whether the graph is simplified before it is differentiated, and after
STAGES = {"neither": (False, False), "before": (True, False), "after": (False, True), "both": (True, True)}
TOLERANCE = {"float32": 2e-4, "float64": 1e-10}  # of the gradient's norm: sums in different orders
SHARE_OF_STAGES = 0.45  # of the study's time for the table of stages; the rest is for that of passes


def run(options):
    result = Result()
    subjects = all_subjects(options.quick)
    seconds = options.seconds / len(subjects)
    times, sizes, single = {}, {}, {}
    for name, subject in subjects.items():
        gradients = {stage: Gradient(subject, *flags) for stage, flags in STAGES.items()}
        compare(name, gradients)
        sizes[name] = {stage: len(gradient.graph.nodes) for stage, gradient in gradients.items()}
        times[name] = interleave(gradients, seconds * SHARE_OF_STAGES * 0.7)
        single[name] = without_each(name, subject, gradients["both"], seconds * (1 - SHARE_OF_STAGES) * 0.7)
    stage_table(result, times, sizes)
    pass_table(result, single)
    return result


# ---- Subjects ----------------------------------------------------------------------------------------------


class Subject:
    """A recorded function: its graph, its arguments, and the output gradient."""

    def __init__(self, f, args, static=None):
        rec = record(f, args, static or {})
        arrays = [a for a in args if isinstance(a, np.ndarray)]
        self.graph = Graph(rec.graph.inputs, rec.graph.outputs[:1], rec.graph.name)
        self.arrays = [*arrays, *(a for _, a in rec.captures)]
        self.wrt = [k for k, a in enumerate(arrays) if a.dtype.kind == "f"]
        out = self.graph.outputs[0]
        self.dout = output_gradient(np.empty(out.shape, out.dtype)) if out.shape else np.ones((), out.dtype)


def all_subjects(quick):
    """Name -> Subject: the layers, the loss of a small GPT-2, and programs that are not neural networks."""
    subjects = {}
    for name, case in study_cases((2, 8) if quick else (4, 64), quick).items():
        if name == "encoder" and not quick:  # writing a gradient of 154 MB, mostly zeros, would hide the rest
            case = cases(4, 64, V=4096)["encoder"]
        subjects[name] = Subject(plain(case).forward, case.inputs(np.float32), case.static)
    B, T, n_layer, n_embd = (2, 8, 1, 16) if quick else (12, 64, 4, 128)
    config = GPT2Config(vocab_size=65, block_size=64, n_layer=n_layer, n_head=4, n_embd=n_embd)
    model = GPT2(config, "whole")
    tokens = np.random.default_rng(0).integers(0, 65, (2, B, T))
    subjects["GPT-2 4x128"] = Subject(model._whole_loss, (*model.params.values(), *tokens))
    for name, (f, args, wrt) in programs(quick).items():
        subjects[name] = Subject(f, args)
        subjects[name].wrt = list(wrt)
    return subjects


class Gradient:
    """A subject's result and gradients as a compiled program. A call runs it and sets `values`."""

    def __init__(self, subject, before, after, off=()):
        pipeline = Pipeline(subject.graph.name, Options(off=off, before=before, math="fast"))
        joint = pipeline.differentiated(vjp_graph, pipeline.simplified(subject.graph), subject.wrt, (0,))
        again = pipeline if after else Pipeline(pipeline.name, Options(off=Options.PASSES, math="fast"))
        self.graph = again.prepared(joint)
        self.program = pipeline.emitted(self.graph)
        self.arrays = (*subject.arrays, np.asarray(subject.dout))
        self.values = None

    def __call__(self):
        self.values = None
        self.values = self.program(*self.arrays)


def compare(name, gradients):
    """Raise AssertionError unless all give the same gradients."""
    for gradient in gradients.values():
        gradient()
    first = gradients["both"].values
    for stage, gradient in gradients.items():
        for ours, theirs in zip(gradient.values, first, strict=True):
            error = np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), 1e-30)
            assert error <= TOLERANCE[theirs.dtype.name], f"{name}, {stage}: differs by {error:.1e}"


def stage_table(result, times, sizes):
    table = result.table(
        "Time of result and gradients, by when the program was simplified",
        "program",
        *(f"{stage} [s]" for stage in STAGES),
        "neither / both [x] | before / both [x] | after / both [x] | ops, neither | ops, after | ops, both",
        note="neither: recorded, differentiated, compiled. before: simplified, then differentiated. after: "
        "differentiated, then simplified. both: simplified, differentiated, simplified again, which is "
        "what this compiler does. Fusing into blocks of rows and the reuse of buffers belong to "
        "compiling, and are part of all four.",
    )
    ratios = {stage: [] for stage in ("neither", "before", "after")}
    for name, t in times.items():
        over = {stage: t[stage].over(t["both"]) for stage in ratios}
        for stage, ratio in over.items():
            ratios[stage].append(ratio)
        count = sizes[name]
        ops = (count[stage] for stage in ("neither", "after", "both"))
        table.add(name, *(t[stage] for stage in STAGES), *over.values(), *ops)
    means = {stage: geometric_mean([ratio.median for ratio in samples]) for stage, samples in ratios.items()}
    table.add("geometric mean", *[None] * len(STAGES), *means.values(), None, None, None)
    names = list(times)
    result.note(
        f"A gradient that is simplified only after differentiating takes {means['after']:.2f} times as "
        f"long as one simplified before and after (geometric mean over {len(names)} programs); one "
        f"simplified only before {means['before']:.2f} times, not at all {means['neither']:.2f} times."
    )
    result.note(
        "Enzyme reports a factor of 4.2 for optimising before differentiating, in LLVM. Here "
        "recording inlines calls, unrolls loops and makes in-place writes functional before the first "
        "pass runs, and values are whole arrays. The passes before differentiation can do little "
        "that those after it cannot."
    )
    gains = {name: ratio.median for name, ratio in zip(names, ratios["after"])}
    most = max(gains, key=gains.get)
    result.note(f"Simplifying before gains most in {most} ({gains[most]:.2f} times as long without it).")


def without_each(name, subject, best, seconds):
    """Pass -> Sample of the time without it relative to all passes, for passes that change the program."""
    gradients = {p: Gradient(subject, True, True, off=(p,)) for p in Options.PASSES}
    gradients = {p: gradient for p, gradient in gradients.items() if str(gradient.graph) != str(best.graph)}
    compare(name, {"both": best, **gradients})
    times = interleave({"all": best, **gradients}, seconds)
    return {p: times[p].over(times["all"]) for p in gradients}


def pass_table(result, single):
    table = result.table(
        "Time with one pass switched off, relative to all passes",
        "program",
        *(f"{p} [x]" for p in Options.PASSES),
        note="- where the pass had nothing to do: the program without it is the same. In the geometric "
        "means those count as 1.",
    )
    for name, ratios in single.items():
        table.add(name, *(ratios.get(p) for p in Options.PASSES))
    means = {
        p: geometric_mean([ratios[p].median if p in ratios else 1.0 for ratios in single.values()])
        for p in Options.PASSES
    }
    table.add("geometric mean", *means.values())
    order = sorted(Options.PASSES, key=means.get, reverse=True)
    parts = ", ".join(f"{p} {means[p]:.2f}" for p in order if abs(means[p] - 1) > 0.02)
    result.note(
        f"Switching one pass off costs, as a geometric mean: {parts or 'nothing beyond 2 %'}. Passes "
        "overlap, so these factors do not multiply to that of all."
    )


STUDY = Study(
    "optimise-first",
    "How much faster does a derived gradient get if the program is optimised before it is differentiated, "
    "beside optimising the derivative alone? And what does each pass contribute?",
    "Every layer (B=4, T=64, shapes of GPT-2 124M; the encoder with 4096 words, and the naive matmul), the "
    "loss of a GPT-2 of 4 blocks of 128 channels (B=12, T=64), and five programs that have nothing to do "
    "with networks are recorded once. Their result and gradients are compiled as one program, simplified "
    "before and after differentiating, only after, only before, or not at all; then once more for each pass "
    "without it. All programs of a subject give the same gradients, and take turns on one thread.",
    run,
    seconds=75,
)
