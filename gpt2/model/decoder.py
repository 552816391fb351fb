"""The model's own forward, a few positions at a time, for generation.

A layer declares how it reads new positions: with by_position its forward runs on them alone; with `read`, as
in attention and the encoder, it gets a cache of the earlier ones. A model with a layer that declares neither
is run on the whole text each time: slow, but right.

A prompt is read by the layers as they are written. From there it is one position a step, and that step is
compiled: one program for the blocks, and one for the end. `read` is not part of them, since it looks at more
positions with every step: the programs call it.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpt2 import autodiff as ad
from gpt2.backward import options_for
from gpt2.errors import UserError
from gpt2.layers import LAYERS, Layer
from gpt2.layers.matmul import check_shapes
from gpt2.model.config import DATA
from gpt2.model.description import Description
from gpt2.model.fitting import expected_shape
from gpt2.model.forward import block_forward, forward_pass, run_layer
from gpt2.model.gpt2 import GPT2

# Own layers are checked: read in pieces they must give the same as at once, up to rounding
ROUNDING = {"float32": 1e-3, "float64": 1e-9}  # of the largest number
PIECE = 1 << 20  # bytes of a weight that a thread takes at a time


class Decoder:
    """Reads tokens step by step, with a cache per layer.

    model   gpt2.model.GPT2; its parameters may change, its layers may not
    batch   B, sequences read together
    length  positions read; 0 starts over

    slow    the layers that declare neither by_position nor read, as text, or ""; with one, every position is
            computed again for each token

    Raises UserError if an own layer's by_position or read gives other numbers than its forward.
    """

    def __init__(self, model: GPT2, batch: int = 1) -> None:
        self.model = model
        self.config = model.config
        self.description = d = model.description
        self.batch = batch
        self.length = 0
        self.slow = unread(d)
        self._tokens = np.empty((batch, self.config.block_size), np.int64)  # read so far, if slow
        self._kept: dict[tuple[str, int], dict] = {}
        self._calls = 0
        # for forward_pass, each reading from `length` on
        self._layers = with_layers(d, lambda _, layer: self._reads(layer))
        self._ends_alone = all(d.layers[d.calls[place].layer].by_position for place in ("lnf", "head"))
        if not d.standard and not self.slow:
            model.drop_stale_programs()
            if d not in model.checked_to_read:
                with np.errstate(all="ignore"):
                    self._check_own()
                model.checked_to_read.add(d)

    def read(self, tokens: ArrayLike, last_only: bool = False) -> np.ndarray:
        """Read tokens (B, n) after what was read before; return logits (B, n, V), one row per new token.

        last_only   only the row of the last token: (B, 1, V); the head is a third of the work

        The logits of a single token may be in memory that is reused once they are released.
        Raises ValueError for more than block_size positions in all.
        """
        tokens = np.asarray(tokens)
        t0, t1 = self.length, self.length + tokens.shape[1]
        if t1 > self.config.block_size:
            raise ValueError(f"Decoder.read: {t1} positions, block_size is {self.config.block_size}")
        params = self.model.params
        self.model.drop_stale_programs()
        if self.slow:
            self._tokens[:, t0:t1] = tokens
            logits = forward_pass(params, self._tokens[:, :t1], self.description, self.description.written)[0]
            logits = logits[:, -1:] if last_only else logits[:, t0:]
        else:
            self._calls = 0
            program = self._compiled() if tokens.shape == (self.batch, 1) else None
            if program is not None:
                logits = program.logits(self, tokens)
            else:
                # a layer after the blocks that looks back needs all new positions
                at_end = last_only and self._ends_alone
                logits = forward_pass(params, tokens, self.description, self._layers, at_end)[0]
                logits = logits[:, -1:] if last_only else logits
        self.length = t1
        return logits

    def _compiled(self):
        """The model's OnePosition; None if the model is not compiled, or cannot be."""
        if not self.model.compiled:
            return None
        description, program = self.model.one_position.get(self.batch, (None, None))
        if description is not self.description:
            candidate = OnePosition(self.description, self.batch)
            program = candidate if candidate.prepare(self.model.params) else None
            self.model.one_position[self.batch] = self.description, program
        return program

    def _reads(self, layer):
        if layer.forward is LAYERS["matmul"].forward:
            return replace(layer, forward=matmul_on_threads)
        if layer.read is None:
            return layer

        def forward(*inputs, **static):
            # Calls come in the same order each time, so the number of the call identifies its cache
            self._calls += 1
            return self.called(layer, self._calls - 1, inputs, static), ()

        return replace(layer, forward=forward)

    def called(self, layer: Layer, number: int, inputs: tuple, static: dict) -> np.ndarray:
        """Call a layer's `read` from `length` on; `number` is that of the call within one pass."""
        kept = self._kept.setdefault((layer.name, number), {})
        return layer.read(*inputs, kept=kept, start=self.length, length=self.config.block_size, **static)

    def _check_own(self):
        """Raise UserError for an own layer or block that gives other numbers than its forward when it is
        read to the end of the context: in two pieces, or position by position, at both ends of a long one.
        """
        d, T, rng = self.description, self.config.block_size, np.random.default_rng(0)
        for slot in d.own:
            for place in d.places_of(slot)[:1] if slot != "crossentropy" else ():
                inputs = d.inputs_at(place, 1, T, rng)
                text = f"{slot} ({d.own[slot].name})"
                self._check_pieces(slot, text, inputs, len(DATA[slot]), d.calls[place].static)
        if d.block is not None:
            self._check_pieces("block", f"the block ({d.block.name})", d.inputs_at("block", 1, T, rng), 1, {})
        self.length = 0
        self._kept.clear()

    def _check_pieces(self, name, text, inputs, count, static):
        """_check_own for one layer. The first `count` inputs have positions, along axis 1."""
        T = self.config.block_size
        expected, _ = self.description.written[name].forward(*inputs, **static)
        ends = {*range(min(32, T)), *range(max(0, T - 32), T + 1)}
        for cuts in (sorted(ends), sorted({0, T // 2, T})):
            self._kept.clear()
            pieces = []
            for start, stop in zip(cuts, cuts[1:]):
                self.length, self._calls = start, 0
                part = [x[:, start:stop] for x in inputs[:count]]
                out, _ = self._layers[name].forward(*part, *inputs[count:], **static)
                pieces.append(np.array(out))
            error = np.abs(np.concatenate(pieces, axis=1) - expected)
            error = np.max(error, axis=(0, *range(2, error.ndim)))
            far = np.flatnonzero(error > ROUNDING[self.config.dtype] * np.max(np.abs(expected)))
            if len(far) and np.isfinite(expected).all():
                raise UserError(
                    f"generation: {text}, read in pieces, gives other numbers than its forward, first at "
                    f"position {far[0]}; its by_position or read is wrong"
                )


# ---- One position, compiled ------------------------------------------------------------------------------


class _Current(threading.local):
    """The Decoder whose program runs in this thread."""

    decoder: Decoder | None = None  # none while a program is recorded
    first: int = 0  # calls of `read` before this program


_current = _Current()


class OnePosition:
    """One more position of B sequences, compiled: the blocks' program, run for each of them, and the end's.

    After a few runs a program allocates nothing: values and results are in buffers that it reuses. The same
    holds for GPT-2's own `read`, but not necessarily for that of an own layer.
    """

    def __init__(self, d: Description, batch: int) -> None:
        self.d, self.batch = d, batch
        self.layers = with_layers(d, self._calling)
        self.calls = 0  # of `read`, within the program that is being recorded
        self.names = d.block_tensors
        self.ends = [(place, d.calls[place].tensors) for place in ("lnf", "head")]
        self.programs: dict[str, tuple[Callable, tuple, int]] = {}

    def prepare(self, params: Mapping[str, Any]) -> bool:
        """Compile the programs; returns whether that is possible. A model that looks at values, or that uses
        functions unknown to the compiler, is read as it is written.
        """
        config = self.d.config
        x = np.zeros((self.batch, 1, config.n_embd), config.dtype)
        try:
            for name, function, arrays in (
                ("block", self._block, self._of_block(params, 0)),
                ("end", self._end, self._of_end(params)),
            ):
                entry, _ = ad.Fixed(function, options_for(), name=f"read_{name}").entry((x, *arrays), {})
                if entry.path.expected:
                    return False
                self.programs[name] = entry.program, tuple(entry.captured), self.calls
        except ad.AutodiffError:
            return False
        return True

    def logits(self, decoder: Decoder, tokens: np.ndarray) -> np.ndarray:
        """Logits (B, 1, V) after the tokens (B, 1), read with this decoder's caches."""
        params = decoder.model.params
        x, _ = run_layer(self.d, "encoder", decoder._layers, params, ..., tokens)
        _current.decoder, _current.first = decoder, decoder._calls
        try:
            block, captured, calls = self.programs["block"]
            for l in range(self.d.config.n_layer):
                (x,) = block(x, *self._of_block(params, l), *captured)
                _current.first += calls
            end, captured, _ = self.programs["end"]
            (logits,) = end(x, *self._of_end(params), *captured)
            return logits
        finally:
            _current.decoder = None

    def _of_block(self, params, l):
        return [*(params[name][l] for name in self.names), *self.d.divisors(l)]

    def _of_end(self, params):
        return [params[name] for _, names in self.ends for name in names if name is not None]

    def _block(self, x, *arrays):
        self.calls = 0  # here, as it may be run twice to be recorded
        params = {name: [tensor] for name, tensor in zip(self.names, arrays)}
        return block_forward(x, params, 0, self.d, self.layers, arrays[len(self.names) :])[0]

    def _end(self, x, *tensors):
        self.calls = 0
        arrays = iter(tensors)
        for place, names in self.ends:
            s = self.d.calls[place]
            inputs = [None if name is None else next(arrays) for name in names]
            x, _ = self.layers[s.layer].forward(x, *inputs, **s.static)
        return x

    def _calling(self, slot, layer):
        """The layer for use in a program, which calls its `read` unchanged."""
        if layer.read is None:
            return layer

        def forward(*inputs, **static):
            number, self.calls = self.calls, self.calls + 1
            present = [a is not None for a in inputs]
            like = np.zeros(expected_shape(slot, self.d.config, inputs), self.d.config.dtype)

            def read(*arrays):
                if _current.decoder is None:
                    return like
                rest = iter(arrays)
                inputs = tuple(next(rest) if is_present else None for is_present in present)
                return _current.decoder.called(layer, _current.first + number, inputs, static)

            return ad.callback(read, like, *(a for a in inputs if a is not None)), ()

        return replace(layer, forward=forward)


def with_layers(d: Description, change: Callable[[str, Layer], Layer]) -> dict[str, Layer]:
    """All layers, each replaced by change(name, layer), and the own block that calls them."""
    layers = {name: change(name, layer) for name, layer in d.layers.items()}
    if d.block is not None:
        layers["block"] = d.block_layer(layers)
    return layers


def matmul_on_threads(
    inp: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
) -> tuple[np.ndarray, tuple]:
    """matmul_forward on several threads (ad.set_threads), which take rows of the weight in turn.

    For a single row it is the dot product with each row of weight, at the speed of reading them; BLAS's
    product of matrix and vector takes twice as long.
    """
    check_shapes("matmul_forward", inp, weight, bias)
    OC, C = weight.shape
    rows = inp.reshape(-1, C)
    out = np.empty((len(rows), OC), np.result_type(inp, weight))
    step = max(1, PIECE * OC // weight.nbytes)
    starts = range(0, OC, step)
    todo = iter(starts)  # next() on it is atomic

    def job(thread):
        for i in todo:
            if len(rows) == 1:
                np.vecdot(weight[i : i + step], rows[0], out=out[0, i : i + step])
            else:
                np.matmul(rows, weight[i : i + step].T, out=out[:, i : i + step])

    if len(starts) == 1:  # waking another thread takes longer
        job(0)
    else:
        ad.run_on_threads(job)
    if bias is not None:
        out += bias
    return out.reshape(*inp.shape[:-1], OC), ()


def unread(d: Description) -> str:
    """The own layers that declare neither by_position nor read, as text; "" if all do."""
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
    """The warning for layers that declare neither by_position nor read."""
    return (
        f"generation computes the whole text again for each token: {slow} does not declare how it reads on "
        "(by_position=True, or read=...; docs/adding-a-layer.md)"
    )
