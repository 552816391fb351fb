"""The contenders: the variants of this engine, and the installed peers.

A contender is a module with two functions:

    training(size, variant, threads) -> object with step(tokens, targets) -> loss, a float; see peak.py
                                        for a share of a step that has no loss. Of another model than GPT-2
                                        the function is called as bench.harness.sizes.Size.training says
    layer(case, variant, threads)    -> object with forward(), backward(), results() -> list of arrays

Those of this engine take settings besides: see `settings`.

Neither is imported here: each contender runs in a process of its own (bench/harness/worker.py).
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.harness import ratios
from gpt2.errors import UserError
from gpt2.hints import install


class Missing(Exception):
    """This contender cannot run; the text says why."""


ENGINE = "bench.harness.engine"


@dataclass(frozen=True)
class Contender:
    """title: for tables. module, variant: what builds it. needs: the package that it requires.
    environment: variables that its process has besides those that limit threads.
    """

    title: str
    module: str
    variant: str = ""
    needs: str = "numpy"
    environment: Mapping[str, str] = field(default_factory=dict)


# glibc's malloc by default hands large blocks back to the system when they are freed, so that each step pays
# for touching its memory anew: on a virtual machine a third to a half of the step. With these it keeps them.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}


# The kernels of OpenBLAS that have AVX2 alone. For a Zen 4, which does wide instructions in two halves,
# OpenBLAS picks those with AVX-512, though large products take 0.93 of the time with these.
HASWELL = {"OPENBLAS_CORETYPE": "Haswell"}


CONTENDERS = {
    "torch": Contender("PyTorch eager, defaults", "bench.peers.pytorch", "eager", "torch"),
    "torch-fused": Contender("PyTorch eager, fused AdamW", "bench.peers.pytorch", "fused", "torch"),
    "torch-tuned": Contender("PyTorch eager, tuned", "bench.peers.pytorch", "tuned", "torch", KEEP_MEMORY),
    "torch-compile": Contender("torch.compile, defaults", "bench.peers.pytorch", "compile", "torch"),
    "torch-compile-tuned": Contender(
        "torch.compile, tuned", "bench.peers.pytorch", "compile-tuned", "torch", KEEP_MEMORY
    ),
    "jax": Contender("JAX", "bench.peers.xla", "", "jax", KEEP_MEMORY),
    "llmc": Contender("llm.c", "bench.peers.llmc"),
    "autograd": Contender("HIPS autograd", "bench.peers.hips", "", "autograd"),
    "written": Contender("gpt2 manual, as written", ENGINE, "written"),
    "manual": Contender("gpt2 manual", ENGINE, "manual"),
    "auto": Contender("gpt2 auto", ENGINE, "auto"),
    "whole": Contender("gpt2 whole", ENGINE, "whole"),
    "shares": Contender("gpt2 whole, shares", ENGINE, "shares"),
    "processes": Contender("gpt2 whole, processes", ENGINE, "processes"),
    "whole-haswell": Contender("gpt2 whole, Haswell kernels", ENGINE, "whole", environment=HASWELL),
    "shares-haswell": Contender("gpt2 shares, Haswell kernels", ENGINE, "shares", environment=HASWELL),
    "processes-haswell": Contender(
        "gpt2 processes, Haswell kernels", ENGINE, "processes", environment=HASWELL
    ),
    "peak": Contender("its products at sgemm peak", "bench.harness.peak"),
    # Of bench.programs: these have no training, but `program(name, variant, inputs)`
    "programs-own": Contender("derived", "bench.programs.own", "", "numpy", KEEP_MEMORY),
    "programs-jax": Contender("JAX, jit", "bench.programs.xla", "", "jax", KEEP_MEMORY),
    "programs-torch": Contender("PyTorch, eager", "bench.programs.pytorch", "eager", "torch", KEEP_MEMORY),
    "programs-torch-compile": Contender(
        "PyTorch, compiled", "bench.programs.pytorch", "compile", "torch", KEEP_MEMORY
    ),
    "programs-autograd": Contender("HIPS autograd", "bench.programs.hips", "", "autograd", KEEP_MEMORY),
    # Of bench.generate and bench.finetune, which have functions of their own
    "generate-gpt2": Contender("gpt2", "bench.generate", "gpt2"),
    "generate-transformers": Contender("transformers", "bench.generate", "transformers", "transformers"),
    "generate-copy": Contender("as many bytes moved by a copy", "bench.generate", "copy"),
    "finetune-full": Contender("full", "bench.finetune", "full"),
    "finetune-lora": Contender("lora", "bench.finetune", "lora"),
    "finetune-lora-manual": Contender("lora-manual", "bench.finetune", "lora-manual"),
    "finetune-peft": Contender("peft", "bench.finetune", "peft", "peft", KEEP_MEMORY),
    "finetune-peft-compile": Contender("peft-compile", "bench.finetune", "peft-compile", "peft", KEEP_MEMORY),
}

# PyTorch at its fastest. Ratios are to the faster of the two in the run.
BEST_PEERS = ("torch-tuned", "torch-compile-tuned")
REFERENCE = "torch-tuned"  # the denominator of ratios before anything is timed
PEAK = "peak"  # not trained: the denominator of the others' share of the peak
STEP = (
    "torch-tuned",
    "torch-compile-tuned",
    "torch",
    "jax",
    "llmc",
    "written",
    "manual",
    "auto",
    "whole",
    "shares",
    "processes",
    "peak",
)
LAYER = ("torch-tuned", "jax", "written", "manual", "auto")
# Contenders that can train, and those that have single layers
ELSEWHERE = ("programs-", "generate-", "finetune-")  # prefixes of other benchmarks' contenders
TRAINING = tuple(name for name in CONTENDERS if not name.startswith(ELSEWHERE))
LAYERS = (*(name for name in TRAINING if CONTENDERS[name].module == "bench.peers.pytorch"), "jax", "autograd")
LAYERS += ("written", "manual", "auto")


def find(names, default, among=TRAINING):
    """The contenders of a comma-separated list; "" stands for `default`. Raises UserError for those that are
    not `among` them."""
    names = [name.strip() for name in names.split(",")] if names else list(default)
    for name in names:
        if name not in among:
            raise UserError(f"--contenders: no contender {name!r}, expected some of {', '.join(among)}")
    return names


def summary(default, among=TRAINING):
    """The text for --help: a line each, * marks the defaults."""
    lines = [f"  {name:<20}{'*' * (name in default):<3}{CONTENDERS[name].title}" for name in among]
    return "\n".join(["Contenders, and with * those that take part without --contenders:", "", *lines])


def reference(names):
    """Of these contenders the one that ratios are taken to before anything is timed: tuned PyTorch, else the
    first that can run, and the peak only if no contender trains.
    """
    names = [name for name in names if name != PEAK] or names
    installed = [name for name in names if reason_missing(name) is None] or names
    return REFERENCE if REFERENCE in installed else installed[0]


def fastest_peer(samples):
    """The fastest PyTorch among those timed, by the median step; None without one.

    samples  {name: {"step": [[seconds, ...] for each round]}}
    """
    peers = [name for name in samples if CONTENDERS[name].module == "bench.peers.pytorch"]
    medians = {name: ratios.times(samples[name]["step"])["median"] for name in peers}
    return min(medians, key=medians.get, default=None)


def settings(name, elementwise):
    """What this contender is built with, besides work and threads: the compiled ones of this engine have a
    backend for elementwise operations."""
    contender = CONTENDERS[name]
    compiled = contender.module == ENGINE and contender.variant != "written"
    return {"elementwise": elementwise} if compiled else {}


def absence(facts):
    """Why a contender is absent, as text, from the facts of bench.harness.turns.Failed."""
    return f"{'missing' if facts['missing'] else 'failed'}, {facts['reason']}"


def absences(absent):
    """A line for each contender that is absent."""
    return [f"{CONTENDERS[name].title}: {absence(facts)}" for name, facts in absent.items()]


def reason_missing(name):
    """Why this contender cannot run here, or None: its package is not installed."""
    needs = CONTENDERS[name].needs
    if importlib.util.find_spec(needs) is None:
        return f"{needs} is not installed ({install(needs)})"
    return None
