"""The model's own forward, a few positions at a time, for generation.

Each layer says how it reads on: by_position, what is computed from each position alone, runs as it is on the
new ones; read, as of attention and of the encoder, is given what it kept of the positions before. A model
with a layer that says neither is run on the whole text each time: slow, and right.

A prompt is read by the layers as they are written. From there it is one position a step, and that step is
compiled: one program for the blocks, and one for the end. What `read` does is no part of them, since it looks
at more positions with every step: the programs call it.
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

# A model with own layers is tried: by pieces it has to give what it gives at once, but for rounding
ROUNDING = {"float32": 1e-3, "float64": 1e-9}  # of the largest logit
PIECE = 1 << 20  # bytes of a weight that a thread takes at a time


class Decoder:
    """A model that reads tokens step by step and remembers what its layers keep of them.

    model   gpt2.model.GPT2; its parameters may change, its layers are those that it has now
    batch   B, sequences read side by side
    length  positions read; 0 starts over

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
        self._ends_alone = all(d.layers[d.calls[place].layer].by_position for place in ("lnf", "head"))
        if not d.standard and not self.slow:
            model.see_changes()
            if model.generation.tried is not d:
                with np.errstate(all="ignore"):
                    try_layers(d)
                model.generation.tried = d
            self._try()

    def read(self, tokens: ArrayLike, last_only: bool = False) -> np.ndarray:
        """Read tokens (B, n) after what was read before; return logits (B, n, V), one row per new token.

        last_only   only the row of the last token is wanted: (B, 1, V); the head is a third of the work

        The logits of a single token may lie in memory that is used again once they are released.
        Raises ValueError where that makes more than block_size positions.
        """
        tokens = np.asarray(tokens)
        t0, t1 = self.length, self.length + tokens.shape[1]
        if t1 > self.config.block_size:
            raise ValueError(f"Decoder.read: {t1} positions, block_size is {self.config.block_size}")
        params = self.model.params
        self.model.see_changes()
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
                # a layer after the blocks that looks back has to be given all that is new
                at_end = last_only and self._ends_alone
                logits = forward_pass(params, tokens, self.description, self._layers, at_end)[0]
                logits = logits[:, -1:] if last_only else logits
        self.length = t1
        return logits

    def _compiled(self):
        """The model's OnePosition; None where that cannot be compiled, or is not to be."""
        if not self.model.compiled:
            return None
        of, program = self.model.generation.programs.get(self.batch, (None, None))
        if of is not self.description:
            made = OnePosition(self.description, self.batch)
            program = made if made.prepare(self.model.params) else None
            self.model.generation.programs[self.batch] = self.description, program
        return program

    def _reading(self) -> Mapping[str, Layer]:
        """The layers as forward_pass calls them, each reading on from `length`."""
        return with_layers(self.description, lambda _, layer: self._reads(layer))

    def _reads(self, layer):
        if layer.forward is LAYERS["matmul"].forward:
            return replace(layer, forward=matmul_on_threads)
        if layer.read is None:
            return layer

        def forward(*inputs, **static):
            # Calls come in the same order each time: what is kept belongs to the first, the second, ...
            self._calls += 1
            return self.called(layer, self._calls - 1, inputs, static), ()

        return replace(layer, forward=forward)

    def called(self, layer: Layer, number: int, inputs: tuple, static: dict) -> np.ndarray:
        """What a layer reads on from `length`; `number` is that of the call within one pass."""
        kept = self._kept.setdefault((layer.name, number), {})
        return layer.read(*inputs, kept=kept, start=self.length, length=self.config.block_size, **static)

    def _try(self):
        """Raise UserError where reading by pieces is not what the forward is."""
        n = min(4, self.config.block_size)
        tokens = np.resize(np.arange(self.config.vocab_size), (self.batch, n))
        cuts = sorted({0, 1, n - 1, n})
        d = self.description
        with np.errstate(all="ignore"):
            whole = forward_pass(self.model.params, tokens, d, d.written)[0]
            for last_only in (False, True):
                self.length = 0
                pieces = [np.array(self.read(tokens[:, a:b], last_only)) for a, b in zip(cuts, cuts[1:])]
                expected = [whole[:, b - 1 if last_only else a : b] for a, b in zip(cuts, cuts[1:])]
                self._compare(np.concatenate(pieces, axis=1), np.concatenate(expected, axis=1))
        self.length = 0

    def _compare(self, found, expected):
        error = np.max(np.abs(found - expected))
        close = error <= ROUNDING[self.config.dtype] * np.max(np.abs(expected))
        if not close and np.isfinite(expected).all():
            raise UserError(
                f"generation: read by pieces, the model ({self.description.summary()}) gives other numbers "
                "than its forward; what an own layer says with by_position or read is not so"
            )


# ---- Whether own layers read on as they say --------------------------------------------------------------


def try_layers(d: Description) -> None:
    """Raise UserError for an own layer, or an own block, that gives other numbers than its forward when it is
    read position by position, or in two pieces, to the end of the context.
    """
    T, rng = d.config.block_size, np.random.default_rng(0)
    there = {None, *(p.name for p in d.table)}
    for slot, layer in d.own.items():
        places = [p for p, s in d.calls.items() if s.layer == slot and there.issuperset(s.tensors)]
        if not places or slot == "crossentropy":
            continue
        static, inputs = d.calls[places[0]].static, d.inputs_at(places[0], 1, T, rng)
        expected = layer_output(layer.forward(*inputs, **static))
        for cuts in (range(T + 1), sorted({0, T // 2, T})):
            found = _by_pieces(layer, inputs, len(DATA[slot]), cuts, static)
            _check_same(f"{slot} ({layer.name})", found, expected, d)
    if d.block is not None:
        _try_block(d, d.inputs_at("block", 1, T, rng))


def layer_output(result: Any) -> np.ndarray:
    """What an own layer's forward computes, which may give what it saved as well."""
    return result[0] if isinstance(result, tuple) else result


def _by_pieces(layer, inputs, count, cuts, static):
    """The layer's result, read from cut to cut. `count` of its inputs have positions, along axis 1."""
    kept, pieces, length = {}, [], inputs[0].shape[1]
    for a, b in zip(cuts, cuts[1:]):
        given = [*(x[:, a:b] for x in inputs[:count]), *inputs[count:]]
        if layer.read is not None:
            out = layer.read(*given, kept=kept, start=a, length=length, **static)
        else:
            out = layer_output(layer.forward(*given, **static))
        pieces.append(np.array(out))
    return np.concatenate(pieces, axis=1)


def _try_block(d, inputs):
    """The own block on all positions at once, and on each as a sequence of its own: there, layers that look
    back give what they gave the first time, as they are tried by themselves.
    """
    given: list[np.ndarray] = []

    def noting(layer):
        def forward(*inputs, **static):
            given.append(layer.forward(*inputs, **static)[0])
            return given[-1], ()

        return forward

    def repeating(layer):
        return lambda *inputs, **static: (np.swapaxes(given.pop(0), 0, 1), ())

    def block(change):
        layers = with_layers(d, lambda _, x: x if x.read is None else replace(x, forward=change(x)))
        return layers["block"].forward

    x, *tensors = inputs
    expected, _ = block(noting)(x, *tensors)
    found, _ = block(repeating)(np.swapaxes(x, 0, 1), *tensors)
    _check_same(f"the block ({d.block.name})", np.swapaxes(found, 0, 1), expected, d)


def _check_same(what, found, expected, d):
    error = np.max(np.abs(found - expected), axis=(0, *range(2, found.ndim)))
    far = np.flatnonzero(error > ROUNDING[d.config.dtype] * np.max(np.abs(expected)))
    if len(far) and np.isfinite(expected).all():
        raise UserError(
            f"generation: {what}, read by pieces, gives other numbers than its forward, first at position "
            f"{far[0]}; what it says with by_position or read is not so"
        )


# ---- One position, compiled ------------------------------------------------------------------------------


class _Here(threading.local):
    """Whose programs run in this thread."""

    decoder: Decoder | None = None  # none while a program is recorded
    first: int = 0  # calls of `read` before this program


_here = _Here()


class OnePosition:
    """One more position of B sequences, compiled: the blocks' program, run for each of them, and the end's.

    Every program allocates nothing once it has run a few times: what it computes lies in memory of its own,
    and its result in memory that is used again. So it is with GPT-2's own `read`; an own layer's does what it
    is written to do.
    """

    def __init__(self, d: Description, batch: int) -> None:
        self.d, self.batch = d, batch
        self.layers = with_layers(d, self._calling)
        self.calls = 0  # of `read`, within the program that is being recorded
        self.names = d.block_tensors
        self.ends = [(place, d.calls[place].tensors) for place in ("lnf", "head")]
        self.programs: dict[str, tuple[Callable, int]] = {}

    def prepare(self, params: Mapping[str, Any]) -> bool:
        """Make the programs; whether that can be done: a model that looks at values, or that the compiler
        does not know all functions of, is read as it is written.
        """
        config = self.d.config
        x = np.zeros((self.batch, 1, config.n_embd), config.dtype)
        try:
            for name, function, arrays in (
                ("block", self._block, self._of_block(params, 0)),
                ("end", self._end, self._of_end(params)),
            ):
                self.calls = 0
                entry, _ = ad.Fixed(function, options_for(), name=f"read_{name}").entry((x, *arrays), {})
                if entry.path.expected:
                    return False
                captured = tuple(entry.captured)
                self.programs[name] = partial_of(entry.program, captured), self.calls
        except ad.AutodiffError:
            return False
        return True

    def logits(self, decoder: Decoder, tokens: np.ndarray) -> np.ndarray:
        """Logits (B, 1, V) after the tokens (B, 1), read by this decoder."""
        params = decoder.model.params
        x, _ = run_layer(self.d, "encoder", decoder._layers, params, ..., tokens)
        _here.decoder, _here.first = decoder, decoder._calls
        try:
            block, calls = self.programs["block"]
            for l in range(self.d.config.n_layer):
                x = block(x, *self._of_block(params, l))
                _here.first += calls
            return self.programs["end"][0](x, *self._of_end(params))
        finally:
            _here.decoder = None

    def _of_block(self, params, l):
        return [params[name][l] for name in self.names]

    def _of_end(self, params):
        return [params[name] for _, names in self.ends for name in names if name is not None]

    def _block(self, x, *tensors):
        given = {name: [tensor] for name, tensor in zip(self.names, tensors)}
        return block_forward(x, given, 0, self.d, self.layers)[0]

    def _end(self, x, *tensors):
        given = iter(tensors)
        for place, names in self.ends:
            s = self.d.calls[place]
            arrays = [None if name is None else next(given) for name in names]
            x, _ = self.layers[s.layer].forward(x, *arrays, **s.static)
        return x

    def _calling(self, slot, layer):
        """The layer as a program has it: its `read` is called, as it is."""
        if layer.read is None:
            return layer

        def forward(*inputs, **static):
            number, self.calls = self.calls, self.calls + 1
            given = [a is not None for a in inputs]
            like = np.zeros(expected_shape(slot, self.d.config, inputs), self.d.config.dtype)

            def read(*arrays):
                if _here.decoder is None:
                    return like
                rest = iter(arrays)
                inputs = tuple(next(rest) if there else None for there in given)
                return _here.decoder.called(layer, _here.first + number, inputs, static)

            return ad.callback(read, like, *(a for a in inputs if a is not None)), ()

        return replace(layer, forward=forward)


def partial_of(program: Callable, captured: tuple) -> Callable:
    """program(*arrays, *captured) -> its one result."""

    def run(*arrays):
        (out,) = program(*arrays, *captured)
        return out

    return run


def with_layers(d: Description, change: Callable[[str, Layer], Layer]) -> dict[str, Layer]:
    """All layers, each as change(its name, it) has it, and the own block made of them."""
    layers = {name: change(name, layer) for name, layer in d.layers.items()}
    if d.block is not None:
        layers["block"] = d.block_layer(layers)
    return layers


def matmul_on_threads(
    inp: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
) -> tuple[np.ndarray, tuple]:
    """matmul_forward on the threads of ad.set_threads, which take rows of the weight in turn.

    Of a single row it is that one's dot product with each row of weight, which takes as long as reading them
    does; BLAS's product of matrix and vector takes twice as long.
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
