"""AdamW over one flat buffer, and the learning rate schedule.

Kingma and Ba 2015; decoupled decay from Loshchilov and Hutter 2019; defaults as in nanoGPT.

    m <- beta1 m + (1 - beta1) g            running mean of the gradient
    v <- beta2 v + (1 - beta2) g^2          and of its square; both start at 0 and are corrected for that:
    p <- p - lr * decay * p - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from gpt2.autodiff import axpby, get_threads, in_cache, run_on_threads

# Entries handled at once. The four arrays of a block that are read again stay in cache, so that parameters,
# gradients and moments cross from memory once a step, whatever the number of operations. Smaller blocks are
# slower, as each call takes the interpreter's lock: on two threads of a Zen 4 with 16 MiB of cache a core,
# blocks of 128 thousand take 1.2 times as long as of 256, of 512 thousand 0.96.
BLOCK = in_cache(4 * 4, 32 * 1024, 512 * 1024)
# With fewer parameters the blocks are smaller, so that every thread gets some; at least this many entries.
LEAST_BLOCK, BLOCKS_EACH = 32 * 1024, 4
# Below this, gradients are scaled before squaring: the squared factor could underflow in float32.
LEAST_SCALE = 1e-9
# Entries whose squares are summed in the gradient's own precision.
SUM_BLOCK = 64 * 1024
GRAIN = 1024  # entries: parts of a flat buffer begin at multiples of it, so that no two share a page


class Trainable(Protocol):
    """What AdamW needs of a model."""

    flat_params: np.ndarray
    flat_grads: np.ndarray

    @property
    def decayed(self) -> list[tuple[int, int]]: ...


class AdamW:
    """Updates model.flat_params from model.flat_grads.

    model         anything with flat_params and flat_grads (N,), and decayed: ranges (start, stop) to decay
    lr            learning rate, unless step() gets another
    betas, eps    as above
    weight_decay  share of a decayed entry that is lost per step and unit of lr

    m, v (N,) are the moments, t counts the steps. one_moment names the tensors without v: none.

        >>> config = gpt2.GPT2Config(vocab_size=65, block_size=16, n_layer=1, n_head=2, n_embd=8)
        >>> model = gpt2.GPT2(config, seed=0)
        >>> optimizer = gpt2.AdamW(model, lr=1e-2)
        >>> tokens = np.arange(12).reshape(2, 6)
        >>> losses = []
        >>> for _ in range(20):
        ...     losses.append(model.loss_and_grads(tokens, tokens + 1))
        ...     norm = optimizer.step(clip=1.0)
        >>> losses[-1] < losses[0] and optimizer.t
        20
    """

    name = "adamw"
    one_moment: tuple[str, ...] = ()

    def __init__(
        self,
        model: Trainable,
        lr: float = 6e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ):
        if not isinstance(getattr(model, "flat_params", None), np.ndarray):
            raise TypeError(f"AdamW: model is {model!r}, expected a model with flat_params, such as a GPT2")
        check_number("AdamW: lr", lr)
        check_number("AdamW: weight_decay", weight_decay)
        check_number("AdamW: eps", eps, expected="more than 0")
        two = "two numbers from 0 to below 1"
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise ValueError(f"AdamW: betas is {betas}, expected {two}")
        for beta in betas:
            check_number("AdamW: betas", beta, below=1.0, expected=two)
        # A parameter without a gradient has m = v = 0; this is the divisor in the first step
        least = eps * math.sqrt(1.0 - betas[1])
        if not model.flat_params.dtype.type(least) > 0.0:
            raise ValueError(
                f"AdamW: eps is {eps}, expected more than 0, and not so little that it is 0 in "
                f"{model.flat_params.dtype}: a parameter without a gradient would become nan"
            )
        self.lr, self.betas, self.eps, self.weight_decay = lr, tuple(betas), eps, weight_decay
        self.decayed = model.decayed
        self.apart: list[tuple[int, int]] = []  # ranges that another rule updates: Muon's matrices
        self.t = 0
        # not zeros_like, which touches the memory
        m, v = (np.zeros(model.flat_params.shape, model.flat_params.dtype) for _ in range(2))
        self.use(model.flat_params, model.flat_grads, m, v)

    def __repr__(self) -> str:
        settings = f"lr={self.lr:g}, betas={self.betas}, eps={self.eps:g}, weight_decay={self.weight_decay:g}"
        return f"<AdamW of {self.params.size:,} parameters: {settings}; {self.t} steps taken>"

    def options(self) -> dict[str, Any]:
        """The keywords of AdamW() that make one like this for another model."""
        return {"lr": self.lr, "betas": self.betas, "eps": self.eps, "weight_decay": self.weight_decay}

    def __getstate__(self) -> dict:
        return {**vars(self), "_scratch": []}

    def use(
        self, params: np.ndarray, grads: np.ndarray, m: np.ndarray, v: np.ndarray, first: int = 0
    ) -> None:
        """Use these arrays from now on, with what they hold: for shared memory.

        m, v may cover only a part of the parameters, the entries from `first` on.
        """
        self.params, self.grads, self.m, self.v, self.first = params, grads, m, v, first
        self._scratch = []  # three blocks for each thread

    def grad_norm(self) -> float:
        """Euclidean length of all gradients together. Blocks are summed in float64."""
        return math.sqrt(sum_of_squares(self.grads))

    def step(self, lr: float | None = None, clip: float | None = 1.0) -> float:
        """Update the parameters once. Returns the norm of the gradient before clipping.

        clip  the largest norm: a longer gradient is scaled down to it; None for no clipping

        If the norm is not finite, parameters, moments and t stay unchanged: check the result.
        """
        norm = self.grad_norm()
        if math.isfinite(norm):
            self.update(norm, lr, clip)
        return norm

    def update(
        self,
        norm: float,
        lr: float | None = None,
        clip: float | None = 1.0,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        """step() for the parameters start..stop alone, given the norm of all gradients, which is finite.

        Several workers make one step together: each for its part() if it has the moments of that alone, or
        for its share() of moments that all can reach.
        """
        lr = self.lr if lr is None else lr
        stop = self.params.size if stop is None else stop
        self.t += 1
        scale = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))  # as PyTorch clips
        # next() on the iterator is atomic, so threads can share it
        size = min(BLOCK, max(LEAST_BLOCK, (stop - start) // (BLOCKS_EACH * get_threads())))
        pieces = iter(list(_pieces(start, stop, self.decayed, self.apart, size)))
        while len(self._scratch) < get_threads():
            self._scratch.append(np.empty((3, min(BLOCK, self.m.size)), self.params.dtype))

        def job(thread):
            for first, last, decays in pieces:
                self._update(
                    first, last, lr, scale, self.weight_decay if decays else 0.0, self._scratch[thread]
                )

        run_on_threads(job)

    def part(self, rank: int, size: int) -> tuple[int, int]:
        """(start, stop) for one of `size` workers: consecutive ranges of all parameters."""
        return part(self.params.size, rank, size)

    def share(self, rank: int, size: int) -> tuple:
        """The last arguments of update() for one of `size` workers."""
        return self.part(rank, size)

    def _update(self, start, stop, lr, scale, decay, scratch):
        """The formulas on one piece, in place.

        The corrections for m and v are folded into lr and eps, clipping and decay into the factors of axpby.
        """
        p, g = self.params[start:stop], self.grads[start:stop]
        m, v = self.m[start - self.first : stop - self.first], self.v[start - self.first : stop - self.first]
        a, b, clipped = scratch[:, : p.size]
        beta1, beta2 = self.betas
        root = math.sqrt(1.0 - beta2**self.t)
        if scale < LEAST_SCALE:
            g, scale = np.multiply(g, scale, out=clipped), 1.0
        np.multiply(g, g, out=a)
        axpby((1.0 - beta1) * scale, g, beta1, m, b)
        axpby((1.0 - beta2) * scale**2, a, beta2, v, b)
        np.sqrt(v, out=a)
        a += self.eps * root
        np.divide(m, a, out=a)
        axpby(-lr * root / (1.0 - beta1**self.t), a, 1.0 - lr * decay, p, b)

    def state(self) -> dict:
        """The state for a checkpoint: {"t", "m", "v"}. The arrays are the optimizer's own, not copies."""
        return {"t": self.t, "m": self.m, "v": self.v}

    def load_state(self, state: Mapping) -> None:
        """Restore a state() of an optimizer of the same size. Raises ValueError if it does not fit."""
        for name in ("m", "v"):
            array = np.asarray(state[name])
            if array.shape != self.m.shape:
                raise ValueError(f"AdamW.load_state: {name} has shape {array.shape}, expected {self.m.shape}")
        self.m[...] = state["m"]
        self.v[...] = state["v"]
        self.t = int(state["t"])


def check_number(
    what: str,
    value: Any,
    least: float = 0.0,
    below: float = math.inf,
    expected: str = "at least 0 and finite",
) -> None:
    """Raise TypeError unless it is a number, ValueError unless least <= value < below."""
    if not isinstance(value, int | float | np.number):
        raise TypeError(f"{what} is {value!r}, expected a number")
    if not least <= value < below:
        raise ValueError(f"{what} is {value}, expected {expected}")


def part(n: int, rank: int, size: int) -> tuple[int, int]:
    """(start, stop): the part of n entries that belongs to one of `size` workers, in whole GRAINs."""
    grains = -(-n // GRAIN)
    return min(n, grains * rank // size * GRAIN), min(n, grains * (rank + 1) // size * GRAIN)


def sum_of_squares(flat: np.ndarray, others: Sequence[np.ndarray] = ()) -> float:
    """The sum of squares of a flat array (N,), in float64; the same for any number of threads.

    others   arrays (N,) that are added to `flat` first, block by block: sums are squared while in cache
    """
    starts = range(0, flat.size, SUM_BLOCK)
    sums = [0.0] * len(starts)
    todo = iter(enumerate(starts))

    def job(thread):
        for k, start in todo:
            block = flat[start : start + SUM_BLOCK]
            for other in others:
                block += other[start : start + SUM_BLOCK]
            sums[k] = float(np.dot(block, block))

    run_on_threads(job)
    return math.fsum(sums)


def _pieces(start, stop, decayed, apart, size):
    """Cut start..stop, without the ranges `apart`, into (start, stop, decays), every `size` entries."""
    borders = {edge for pair in (*decayed, *apart) for edge in pair if start < edge < stop}
    edges = sorted({start, stop, *borders})
    for first, last in zip(edges, edges[1:]):
        if any(start <= first < stop for start, stop in apart):
            continue
        decays = any(start <= first < stop for start, stop in decayed)
        for start in range(first, last, size):
            yield start, min(start + size, last), decays


def cosine_lr(step: int, *, lr: float, min_lr: float, warmup: int, steps: int) -> float:
    """Learning rate at step (from 0): a linear rise over warmup steps, then half a cosine down to min_lr.

    Reaches lr at step warmup, min_lr at steps, and stays there. Loshchilov and Hutter 2017, as in nanoGPT.
    """
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    if step >= steps:
        return min_lr
    progress = (step - warmup) / (steps - warmup)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * progress)) * (lr - min_lr)
