"""The model's own forward, a few positions at a time, for generation.

Each layer says how it reads on: by_position, what is computed from each position alone, runs as it is on the
new ones; read, as of attention and of the encoder, is given what it kept of the positions before. A model
with a layer that says neither is run on the whole text each time: slow, and right.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from gpt2.description import Description
from gpt2.errors import UserError
from gpt2.forward import forward_pass
from gpt2.layers import LAYERS, Layer
from gpt2.layers.matmul import check_shapes
from gpt2.model import GPT2

# A model with own layers is tried: by pieces it has to give what it gives at once, but for rounding
ROUNDING = {"float32": 1e-3, "float64": 1e-9}  # of the largest logit


class Decoder:
    """A model that reads tokens step by step and remembers what its layers keep of them.

    model   gpt2.model.GPT2; its parameters may change, its layers are those that it has now
    batch   B, sequences read side by side
    length  positions read; 0 begins anew

    slow    which layers do not say how they read on, in words, or ""; then every position is computed again
            for each token

    Raises UserError where an own layer says how it reads on, and that gives other numbers than its forward.
    """

    def __init__(self, model: GPT2, batch: int = 1) -> None:
        self.model = model
        self.config = model.config
        self.description = d = model.description
        self.batch = batch
        self.length = 0
        self.slow = unread(d)
        self._tokens = np.empty((batch, self.config.block_size), np.int64)  # read so far, for the slow way
        self._kept: dict[tuple[str, int], dict] = {}
        self._calls = 0
        self._layers = self._reading()
        if not d.standard and not self.slow:
            self._try()

    def read(self, tokens: ArrayLike, last_only: bool = False) -> np.ndarray:
        """Read tokens (B, n) after what was read before; return logits (B, n, V), one row per new token.

        last_only   only the row of the last token is wanted: (B, 1, V); the head is a third of the work

        Raises ValueError where that makes more than block_size positions.
        """
        tokens = np.asarray(tokens)
        t0, t1 = self.length, self.length + tokens.shape[1]
        if t1 > self.config.block_size:
            raise ValueError(f"Decoder.read: {t1} positions, block_size is {self.config.block_size}")
        params = self.model.params
        if self.slow:
            self._tokens[:, t0:t1] = tokens
            logits = forward_pass(params, self._tokens[:, :t1], self.description, self.description.written)[0]
            logits = logits[:, -1:] if last_only else logits[:, t0:]
        else:
            self._calls = 0
            logits = forward_pass(params, tokens, self.description, self._layers, last_only)[0]
        self.length = t1
        return logits

    def _reading(self) -> Mapping[str, Layer]:
        """The layers as forward_pass calls them, each reading on from `length`."""
        layers = {name: self._reads(layer) for name, layer in self.description.layers.items()}
        if self.description.block is not None:
            layers["block"] = self.description.block_layer(layers)
        return layers

    def _reads(self, layer):
        if layer.forward is LAYERS["matmul"].forward:
            return replace(layer, forward=matmul_of_one_row)
        if layer.read is None:
            return layer
        length = self.config.block_size

        def forward(*inputs, **static):
            # Calls come in the same order each time: what is kept belongs to the first, the second, ...
            kept = self._kept.setdefault((layer.name, self._calls), {})
            self._calls += 1
            return layer.read(*inputs, kept=kept, start=self.length, length=length, **static), ()

        return replace(layer, forward=forward)

    def _try(self):
        """Raise UserError where reading by pieces is not what the forward is."""
        n = min(4, self.config.block_size)
        tokens = np.resize(np.arange(self.config.vocab_size), (self.batch, n))
        cuts = sorted({0, 1, n - 1, n})
        d = self.description
        with np.errstate(all="ignore"):
            whole = forward_pass(self.model.params, tokens, d, d.written)[0]
            pieces = [self.read(tokens[:, a:b]) for a, b in zip(cuts, cuts[1:])]
        self.length = 0
        error = np.max(np.abs(np.concatenate(pieces, axis=1) - whole))
        if not error <= ROUNDING[self.config.dtype] * np.max(np.abs(whole)) and np.isfinite(whole).all():
            raise UserError(
                f"generation: read by pieces, the model ({d.told()}) gives other numbers than its forward; "
                "what an own layer says with by_position or read is not so"
            )


def matmul_of_one_row(
    inp: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
) -> tuple[np.ndarray, tuple]:
    """matmul_forward; of a single row as its dot product with each row of weight.

    That takes as long as reading weight does, BLAS's product of matrix and vector twice as long: all of
    GPT-2's matrices, 494 MB, 19.4 ms and 32.9 on one core of a machine that copies 26 GB/s. A second core
    brings nothing there: one takes all that the memory gives.
    """
    if inp.size != inp.shape[-1]:
        return LAYERS["matmul"].forward(inp, weight, bias)
    check_shapes("matmul_forward", inp, weight, bias)
    out = np.vecdot(weight, inp.reshape(-1)).reshape(*inp.shape[:-1], -1)
    if bias is not None:
        out += bias
    return out, ()


def unread(d: Description) -> str:
    """The own layers that do not say how they read on, in words; "" where all do."""
    names = [
        f"{slot} ({d.own[slot].name})"
        for slot in d.own
        if slot != "crossentropy" and not (d.own[slot].by_position or d.own[slot].read)
    ]
    if d.block is not None and not d.block.by_position:
        names.append(f"the block ({d.block.name})")
    return ", ".join(names)


class SlowGeneration(UserWarning):
    """Generation computes the whole text again for each token."""


def slowness(slow: str) -> str:
    """What there is to say of generation with layers that do not say how they read on."""
    return (
        f"generation computes the whole text again for each token: {slow} does not say how it reads on "
        "(by_position=True, or read=...; docs/adding-a-layer.md)"
    )
