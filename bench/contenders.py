"""Who takes part: the variants of this engine, and the peers that are installed.

A contender is a module with two functions:

    training(size, variant, threads) -> object with step(tokens, targets) -> loss, a float; see bench/peak.py
                                        for a share of a step that has no loss
    layer(case, variant, threads)    -> object with forward(), backward(), results() -> list of arrays

Those of this engine take settings besides: see `settings`.

Neither is imported here: each contender runs in a process of its own (bench/worker.py).
"""

import importlib.util
from dataclasses import dataclass

from gpt2.errors import UserError


class Missing(Exception):
    """This contender cannot take part; the text says why."""


@dataclass(frozen=True)
class Contender:
    """title: for tables. module, variant: who builds it. needs: the package that it is not without."""

    title: str
    module: str
    variant: str = ""
    needs: str = "numpy"


CONTENDERS = {
    "torch": Contender("PyTorch eager", "bench.peers.pytorch", "eager", "torch"),
    "torch-fused": Contender("PyTorch eager, fused AdamW", "bench.peers.pytorch", "fused", "torch"),
    "torch-compile": Contender("torch.compile", "bench.peers.pytorch", "compile", "torch"),
    "jax": Contender("JAX", "bench.peers.xla", "", "jax"),
    "autograd": Contender("HIPS autograd", "bench.peers.hips", "", "autograd"),
    "written": Contender("gpt2 manual, as written", "bench.engine", "written"),
    "manual": Contender("gpt2 manual", "bench.engine", "manual"),
    "auto": Contender("gpt2 auto", "bench.engine", "auto"),
    "whole": Contender("gpt2 whole", "bench.engine", "whole"),
    "processes": Contender("gpt2 whole, processes", "bench.engine", "processes"),
    "peak": Contender("its products at sgemm peak", "bench.peak"),
}

REFERENCE = "torch"  # what ratios are taken to, where it is installed
PEAK = "peak"  # trains nothing: the others' share of the peak is taken to it
STEP = ("torch", "torch-compile", "jax", "written", "manual", "auto", "whole", "processes", "peak")
LAYER = ("torch", "jax", "written", "manual", "auto")


def find(names, default):
    """The contenders of a comma-separated list; "" stands for `default`. Raises UserError for others."""
    names = [name.strip() for name in names.split(",")] if names else list(default)
    for name in names:
        if name not in CONTENDERS:
            raise UserError(f"--contenders: no contender {name!r}, expected some of {', '.join(CONTENDERS)}")
    return names


def reference(names):
    """Of these contenders the one that ratios are taken to: PyTorch eager, else the first that can run, and
    the peak only where nobody trains."""
    names = [name for name in names if name != PEAK] or names
    installed = [name for name in names if reason_missing(name) is None] or names
    return REFERENCE if REFERENCE in installed else installed[0]


def settings(name, elementwise):
    """What this contender is built with, besides work and threads: the compiled ones of this engine have a
    backend for elementwise operations."""
    contender = CONTENDERS[name]
    compiled = contender.module == "bench.engine" and contender.variant != "written"
    return {"elementwise": elementwise} if compiled else {}


def absence(facts):
    """Why a contender is absent, as text, from the facts of bench.turns.Failed."""
    return f"{'missing' if facts['missing'] else 'failed'}, {facts['reason']}"


def reason_missing(name):
    """Why this contender cannot run here, or None: its package is not installed."""
    needs = CONTENDERS[name].needs
    if importlib.util.find_spec(needs) is None:
        return f"{needs} is not installed (pip install {needs})"
    return None
