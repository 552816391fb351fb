"""Operations of a training step, and the peak rate of this machine.

Only matrix products are counted, as is customary: a product of (n, k) and (k, m) is 2nkm operations. The
backward pass has two products for each one of the forward pass.
"""

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from gpt2 import autodiff as ad
from gpt2.machine import watched
from gpt2.model.config import BLOCK_PLACES, GPT2Config
from gpt2.model.description import Description
from gpt2.model.forward import forward_pass


def _recorded_flops(d, B, T):
    """Operations in the products of a forward, recorded with one block and with two: each further block adds
    as much as the second.
    """

    def products(blocks):
        smaller = d.changed(replace(d.config, n_layer=blocks))
        params = {name: np.zeros(shape, d.config.dtype) for name, shape in smaller.shapes}

        def logits(*tensors):
            tokens = np.zeros((1, T), np.int64)
            return forward_pass(dict(zip(params, tensors)), tokens, smaller, smaller.written)[0]

        return ad.flops(logits, *params.values())

    one, two = products(1), products(2)
    return B * round(one + (two - one) * (d.config.n_layer - 1))


def training_flops(model: GPT2Config | Description, B: int, T: int) -> int:
    """Operations of forward and backward on B sequences of T tokens, without those for gradients that are not
    needed.

    For GPT-2 they follow from its sizes: a token is multiplied with every weight once, 12 C^2 weights a
    block, V C in the head. Attention adds two products of (T, HS) and (HS, T) a head, counted in full
    although half is masked. For own layers they are three times those of the products in the recorded
    forward, as if all of it were trained.
    """
    d = model if isinstance(model, Description) else Description(model)
    if not d.gpt2:
        return 3 * _recorded_flops(d, B, T)
    return B * T * sum(forward + backward for forward, backward in _by_place(d, T))


def _by_place(d, T):
    """(forward, backward) of each layer with products, in operations per token, for sequences of T."""
    shapes = {p.name: p.shape for p in d.table}
    all_places = [(place, l) for l in range(d.config.n_layer) for place in BLOCK_PLACES]
    for place, l in [*all_places, ("head", ...)]:
        s = d.calls[place]
        wanted = d.trained.wanted(place, l) or (True,) * (1 + len(s.tensors))
        if s.layer == "attention":  # of both factors of each product, or of none
            work = 4 * d.config.n_embd * T
            yield work, 2 * work * wanted[0]
        elif s.layer in ("matmul", "lora", "lora_tokens"):
            work = 2 * math.prod(shapes[s.tensors[0]])
            yield work, work * (wanted[0] + wanted[1])
        if s.layer == "lora":
            a, b = (2 * math.prod(shapes[name]) for name in s.tensors[2:4])
            # the gradients of inp and a, of a's output and b
            yield a + b, a * (wanted[0] + wanted[3]) + b * (wanted[3] + wanted[4])


def gflop(operations: float) -> str:
    """Operations as text: 190.53 GFLOP, 0.0049 GFLOP."""
    count = operations / 1e9
    return f"{count:.2f} GFLOP" if count >= 0.1 else f"{count:.2g} GFLOP"


@dataclass(frozen=True)
class Peak:
    """The peak rate of this machine.

    rate    operations per second in products of large matrices
    quiet   whether the machine was otherwise idle; if not, the rate is too low
    """

    rate: float
    quiet: bool = True

    def __str__(self) -> str:
        note = "" if self.quiet else ", measured on a busy machine"
        return f"{self.rate / 1e9:.0f} GFLOP/s in matrix products{note}"

    def share(self, rate: float) -> str | None:
        """A rate as a share of the peak, as "37%"; None if the peak was measured too low: on a busy machine,
        or below this rate."""
        share = f"{rate / self.rate:.0%}" if self.quiet and rate < self.rate else "100%"
        return share if share != "100%" else None  # a step is never products alone


TRIES = 3  # measurements of the peak on a busy machine


def matmul_peak(dtype: str = "float32", n: int = 1024, seconds: float = 0.4) -> Peak:
    """This machine's best rate for a product of two (n, n) matrices.

    NumPy's own product with its threads: an upper bound for the engine.
    Takes about `seconds`, and up to three times that on a busy machine.
    """
    rng = np.random.default_rng(0)
    a = rng.standard_normal((n, n)).astype(dtype)
    b = rng.standard_normal((n, n)).astype(dtype)
    out = np.empty_like(a)
    np.matmul(a, b, out=out)  # the first call starts the threads
    best = float("inf")
    for _ in range(TRIES):
        with watched() as quiet:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                begin = time.perf_counter()
                np.matmul(a, b, out=out)
                best = min(best, time.perf_counter() - begin)
        if quiet():
            break
    return Peak(2 * n**3 / best if best < float("inf") else float("nan"), quiet())
