"""The contenders: the variants of this engine, and the installed peers.

A contender's module has some of

    training(size, variant, threads) -> a trainer, see bench.harness.worker.training. For models other than
                                        GPT-2 the function has the name in bench.harness.sizes.Size.training
    layer(case, variant, threads)    -> object with forward(), backward(), results() -> list of arrays
    program(name, variant, inputs)   -> function that returns derivatives, see bench/programs

Those of this engine take further settings: see `settings`.

The modules are not imported here: each contender runs in a process of its own (bench/harness/worker.py).
"""

import importlib.util
import sys
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
    """title: in tables. module, variant: what builds it. needs: the package that it requires.
    environment: further variables of its process, beside those that limit threads. python: what starts it, if
    not this Python.
    """

    title: str
    module: str
    variant: str = ""
    needs: str = "numpy"
    environment: Mapping[str, str] = field(default_factory=dict)
    python: tuple[str, ...] = (sys.executable,)


# By default glibc's malloc returns large freed blocks to the system, so that each step pays for page faults:
# on a virtual machine a third to a half of its time. These settings make it keep them.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}


# OpenBLAS's AVX2 kernels. On Zen 4, which splits AVX-512 instructions in halves, large products take 0.93 of
# the time that they take with the AVX-512 kernels, which OpenBLAS chooses there.
HASWELL = {"OPENBLAS_CORETYPE": "Haswell"}


TORCH = "bench.peers.pytorch"
CONTENDERS = {  # in the order of tables
    "torch-tuned": Contender("PyTorch eager, tuned", TORCH, "tuned", "torch", KEEP_MEMORY),
    "torch-compile-tuned": Contender("torch.compile, tuned", TORCH, "compile-tuned", "torch", KEEP_MEMORY),
    "torch": Contender("PyTorch eager, defaults", TORCH, "eager", "torch"),
    "torch-fused": Contender("PyTorch eager, fused AdamW", TORCH, "fused", "torch"),
    "torch-compile": Contender("torch.compile, defaults", TORCH, "compile", "torch"),
    "jax": Contender("JAX", "bench.peers.xla", "", "jax", KEEP_MEMORY),
    "llmc": Contender("llm.c", "bench.peers.llmc"),
    "autograd": Contender("HIPS autograd", "bench.peers.hips", "", "autograd"),
    "written": Contender("gpt2 manual, as written", ENGINE, "written"),
    "manual": Contender("gpt2 manual", ENGINE, "manual"),
    "auto": Contender("gpt2 auto", ENGINE, "auto"),
    "whole": Contender("gpt2 whole", ENGINE, "whole"),
    "shares": Contender("gpt2 whole, shares", ENGINE, "shares"),
    "processes": Contender("gpt2 whole, processes", ENGINE, "processes"),
    "library": Contender("gpt2 whole, no set_threads", ENGINE, "library"),
    "blas": Contender("gpt2 whole, BLAS's threads", ENGINE, "blas"),
    "whole-haswell": Contender("gpt2 whole, Haswell kernels", ENGINE, "whole", "numpy", HASWELL),
    "shares-haswell": Contender("gpt2 shares, Haswell kernels", ENGINE, "shares", "numpy", HASWELL),
    "processes-haswell": Contender("gpt2 processes, Haswell kernels", ENGINE, "processes", "numpy", HASWELL),
    "peak": Contender("its products at sgemm peak", "bench.harness.rates"),
}

PEAK = "peak"  # trains nothing; its rate is the machine's peak
OPTIONAL = ("torch-fused", "torch-compile", "autograd", "library", "blas")
STEP = tuple(name for name in CONTENDERS if name not in OPTIONAL and "haswell" not in name)
# That have single layers, and those of them that bench.layers times by default
LAYERS = ("torch-tuned", "torch-compile-tuned", "torch", "torch-compile", "jax", "autograd")
LAYERS += ("written", "manual", "auto")
LAYERS_SHOWN = tuple(name for name in LAYERS if name in STEP and name != "torch")


def find(names, default, among=CONTENDERS, flag="--contenders"):
    """The names in a comma-separated list; `default` for "". Raises UserError for one not in `among`."""
    names = [name.strip() for name in names.split(",")] if names else list(default)
    for name in names:
        if name not in among:
            raise UserError(f"{flag}: unknown name {name!r}, expected some of {', '.join(among)}")
    return names


def summary(default, among=CONTENDERS):
    """The list for --help: a line for each contender, * marks the defaults."""
    lines = [f"  {name:<20}{'*' * (name in default):<3}{CONTENDERS[name].title}" for name in among]
    return "\n".join(["Contenders, and with * those that take part without --contenders:", "", *lines])


def reference(names):
    """The contender that ratios are taken to until something is timed: tuned PyTorch, else the first that can
    run, and the peak only if no contender trains.
    """
    names = [name for name in names if name != PEAK] or names
    installed = [name for name in names if reason_missing(CONTENDERS[name]) is None] or names
    return "torch-tuned" if "torch-tuned" in installed else installed[0]


def fastest_peer(samples, part="step"):
    """The fastest PyTorch among those timed, by the median of a part; None without one.

    samples  {name: {part: [[seconds, ...] for each round]}}
    """
    peers = [name for name in samples if CONTENDERS[name].module == TORCH]
    medians = {name: ratios.times(samples[name][part])["median"] for name in peers}
    return min(medians, key=medians.get, default=None)


def settings(name, elementwise):
    """Further arguments of the contender's functions: the backend, for this engine's compiled variants."""
    contender = CONTENDERS[name]
    compiled = contender.module == ENGINE and contender.variant != "written"
    return {"elementwise": elementwise} if compiled else {}


def absences(absent):
    """A line for each absent contender: why, from the facts of bench.harness.turns.Failed."""
    return [
        f"{facts['title']}: {'missing' if facts['missing'] else 'failed'}, {facts['reason']}"
        for facts in absent.values()
    ]


def reason_missing(contender):
    """Why this contender cannot run here (its package is not installed), or None."""
    needs = contender.needs
    if importlib.util.find_spec(needs) is None:
        return f"{needs} is not installed ({install(needs)})"
    return None
