"""This engine as contenders: the layers as written, the compiled manual ones, auto, whole, and whole
in shares of the batch on threads and in processes.

elementwise says what computes the elementwise operations of compiled programs: numpy, numexpr or tuned.
"""

import numpy as np

from bench.harness.cases import TOLERANCE
from bench.harness.contenders import Missing
from bench.harness.sizes import BETAS, CLIP, EPS, LR, WEIGHT_DECAY
from gpt2 import autodiff as ad
from gpt2 import backward
from gpt2.layers import LAYERS
from gpt2.model import GPT2
from gpt2.model.optimizer import AdamW
from gpt2.parallel.shares import Shares
from gpt2.storage.download import cache_folder


class Training:
    """forward, backward, clip and AdamW, as train.py runs them."""

    def __init__(self, size, variant, threads, elementwise="numpy"):
        set_threads(variant, threads)
        self.model = model(size.config, variant, elementwise)
        self.optimizer = AdamW(self.model, lr=LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY)

    def step(self, tokens, targets):
        loss = self.model.loss_and_grads(tokens, targets)
        self.optimizer.step(clip=CLIP)
        return loss


def check_shares(size, threads):
    """Raise Missing where the batch cannot be cut into a share for each thread."""
    if threads == 1:
        raise Missing("one thread is `whole`")
    if size.B % threads:
        raise Missing(f"{size.B} sequences cannot be cut into {threads} equal shares")


class SharesTraining(Training):
    """The same step with a share of the batch for each thread: `--parallel shares`."""

    def __init__(self, size, threads, elementwise="numpy"):
        check_shares(size, threads)
        super().__init__(size, "whole", threads, elementwise)
        self.team = Shares(self.model, self.optimizer, threads)

    def step(self, tokens, targets):
        return self.team.step([(tokens, targets)], LR, CLIP)[0]


class TeamTraining:
    """The same step by one process a thread, the loss as one program in each: `--parallel processes`."""

    def __init__(self, size, threads, elementwise="numpy"):
        from gpt2.parallel.processes import Processes

        check_shares(size, threads)
        whole = model(size.config, "whole", elementwise)
        optimizer = AdamW(whole, lr=LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY)
        self.team = Processes(
            whole,
            optimizer,
            threads,
            threads=threads,
            options={"backward": "whole", "elementwise": elementwise},
        )

    @property
    def pids(self):
        return [process.pid for process in self.team.workers.processes]

    @property
    def shared_bytes(self):
        return sum(array.nbytes for array in self.team.workers.arrays.values())

    def step(self, tokens, targets):
        loss, _ = self.team.step([(tokens, targets)], LR, CLIP)
        return loss

    def close(self):
        self.team.close()


def training(size, variant, threads, elementwise="numpy"):
    if variant in ("processes", "shares"):
        return {"processes": TeamTraining, "shares": SharesTraining}[variant](size, threads, elementwise)
    return Training(size, variant, threads, elementwise)


class LlamaTraining:
    """examples/llama.py: its loss and gradients as one program, of the whole batch or of a share each."""

    def __init__(self, size, threads, shares):
        from examples.llama import Llama

        set_threads("whole", threads)
        model = Llama(size.config, seed=0)
        optimizer = AdamW(model, lr=LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY)
        self.team = Shares(model, optimizer, shares)

    def step(self, tokens, targets):
        return self.team.step([(tokens, targets)], LR, CLIP)[0]


def llama(size, variant, threads, elementwise="numpy"):
    if variant not in ("whole", "shares") or elementwise != "numpy":
        raise Missing("examples/llama.py is one program, with elementwise numpy")
    if variant == "shares":
        check_shares(size, threads)
    return LlamaTraining(size, threads, threads if variant == "shares" else 1)


def model(config, variant, elementwise="numpy"):
    """GPT2 in one of the variants."""
    if variant == "written":
        return GPT2(config, backward="manual", compile=False)
    return GPT2(config, backward=variant, elementwise=elementwise)


def set_threads(variant, threads):
    """BLAS has its threads from the environment already; compiled programs bring a pool of their own."""
    if variant != "written":
        ad.remember(cache_folder())
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
        self.out = self.saved = None  # as in training: the last step's activations are gone
        self.out, self.saved = self.layer.forward(*self.inputs, **self.static)

    def backward(self):
        self.gradients = None
        self.gradients = self.layer.backward(self.dout, self.saved, **self.static)

    def both(self):
        self.forward()
        self.backward()

    def results(self):
        return [self.out, *(g for g in self.gradients if g is not None)]


def check_results(name, results, wanted):
    """Raise AssertionError where an array differs from the wanted one."""
    for ours, theirs in zip(results, wanted, strict=True):
        error = np.linalg.norm(np.ravel(ours) - np.ravel(theirs)) / max(np.linalg.norm(theirs), 1e-30)
        assert error <= TOLERANCE, f"{name}: a result differs by {error:.1e}"


def layer(case, variant, threads, elementwise="numpy"):
    set_threads(variant, threads)
    return LayerRun(case, variant_layer(case.layer, variant, elementwise))


def variant_layer(name, variant, elementwise="numpy"):
    """The Layer of this name in one of the variants. Raises Missing for those of whole models."""
    if variant == "written":
        return LAYERS[name]
    if variant in ("whole", "shares", "processes"):
        raise Missing(f"{variant} is a way to run the whole model; single layers have manual and auto")
    make = backward.auto if variant == "auto" else backward.compiled
    return make(LAYERS[name], backward.options_for(elementwise))


def output_gradient(out, seed=2):
    """A seeded random gradient for out, of its shape and dtype: the same for every contender."""
    return np.random.default_rng(seed).standard_normal(out.shape).astype(out.dtype)
