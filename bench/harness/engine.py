"""This engine's contenders: its variants `written`, `manual`, `auto`, `whole`, `shares` and `processes`.

`library` and `blas` are `whole` with other threads: those a program gets that sets none, and BLAS's own.
elementwise is the backend for elementwise operations of compiled programs: numpy, numexpr or tuned.
"""

import numpy as np

from bench.harness.contenders import Missing
from bench.harness.sizes import BETAS, CLIP, EPS, LR, TOLERANCE, WEIGHT_DECAY
from gpt2 import autodiff as ad
from gpt2 import backward, parallel
from gpt2.layers import LAYERS
from gpt2.model import GPT2
from gpt2.model.optimizer import AdamW
from gpt2.parallel.shares import Shares
from gpt2.storage.download import cache_folder


class Training:
    """Forward, backward, clipping and AdamW, as train.py runs them.

    team   of gpt2.parallel
    """

    def __init__(self, team):
        self.team = team
        workers = getattr(team, "workers", None)  # of processes
        self.pids = [process.pid for process in workers.processes] if workers else []
        self.shared_bytes = sum(array.nbytes for array in workers.arrays.values()) if workers else 0

    def step(self, tokens, targets):
        return self.team.step([(tokens, targets)], LR, CLIP)[0]

    def close(self):
        self.team.close()


class Trainer:
    """A model and its optimizer, without a team."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def step(self, tokens, targets):
        loss = self.model.loss_and_grads(tokens, targets)
        self.optimizer.step(clip=CLIP)
        return loss


def adamw(model):
    return AdamW(model, lr=LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY)


def check_shares(size, threads):
    """Raise Missing if the batch cannot be split evenly over the threads."""
    if threads == 1:
        raise Missing("with one thread it is the same as `whole`")
    if size.B % threads:
        raise Missing(f"{size.B} sequences cannot be split into {threads} equal shares")


def training(size, variant, threads, elementwise="numpy"):
    kind = variant if variant in ("shares", "processes") else "none"
    backward = variant if variant in ("manual", "auto") else "whole"
    options = {"backward": backward, "elementwise": elementwise}
    if kind != "none":
        check_shares(size, threads)
    set_threads(variant, threads if kind != "processes" else 1)
    if variant == "written":
        model = GPT2(size.config, backward="manual", compile=False)
    else:
        model = GPT2(size.config, **options)
    sizes = {"workers": threads, "threads": threads, "options": options}
    return Training(parallel.start(kind, model, adamw(model), parallel.join("none"), **sizes))


def llama(size, variant, threads, elementwise="numpy"):
    """Training of examples/llama.py, whose loss and gradients are one program."""
    from examples.llama import Llama

    if variant not in ("whole", "shares") or elementwise != "numpy":
        raise Missing("examples/llama.py is one program, with elementwise numpy")
    if variant == "shares":
        check_shares(size, threads)
    set_threads(variant, threads)
    model = Llama(size.config, seed=0)
    return Training(Shares(model, adamw(model), threads if variant == "shares" else 1))


def set_threads(variant, threads):
    """Set the thread pool of compiled programs. BLAS has as many threads from the environment."""
    if variant != "written":
        ad.remember(cache_folder())
    if variant == "blas":
        ad.set_threads(1, blas="restore")
    elif variant not in ("written", "library"):
        ad.set_threads(threads)


# ---- Single layers -----------------------------------------------------------------------------------------


class LayerRun:
    """One layer's forward and backward on a case's inputs, float32."""

    def __init__(self, case, layer):
        self.layer, self.static = layer, case.static
        self.inputs = case.inputs(np.float32)
        self.forward()
        self.dout = output_gradient(self.out)

    def forward(self):
        self.out = self.saved = None  # freed first, as in training
        self.out, self.saved = self.layer.forward(*self.inputs, **self.static)

    def backward(self):
        self.gradients = None
        self.gradients = self.layer.backward(self.dout, self.saved, **self.static)

    def both(self):
        self.forward()
        self.backward()

    def results(self):
        return [self.out, *(g for g in self.gradients if g is not None)]


def check_results(name, results, expected):
    """Raise AssertionError if an array differs from the expected one by more than TOLERANCE of its norm."""
    for ours, theirs in zip(results, expected, strict=True):
        error = np.linalg.norm(np.ravel(ours) - np.ravel(theirs)) / max(np.linalg.norm(theirs), 1e-30)
        assert error <= TOLERANCE, f"{name}: a result differs by {error:.1e}"


def layer(case, variant, threads, elementwise="numpy"):
    """The LayerRun of this variant of the backward: written, manual or auto."""
    set_threads(variant, threads)
    chosen = LAYERS[case.layer]
    if variant != "written":
        make = {"manual": backward.compiled, "auto": backward.auto}[variant]
        chosen = make(chosen, backward.options_for(elementwise))
    return LayerRun(case, chosen)


def output_gradient(out, seed=2):
    """A random gradient of the shape and dtype of out, the same for every contender."""
    return np.random.default_rng(seed).standard_normal(out.shape).astype(out.dtype)
