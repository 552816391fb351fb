"""GPT-2 as a stack of layers: its settings, its sixteen parameter tensors, forward, and the backward by hand.

    tokens -> encoder -> L times [ layernorm, attention, + , layernorm, MLP, + ] -> layernorm -> head -> loss

Radford et al. 2019; the order of layers, tensors and names is llm.c's.
"""

import html
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

import gpt2.backward as seam
from gpt2.autodiff import run_on_threads
from gpt2.errors import UserError
from gpt2.layers import LAYERS, Layer

Tensors = dict[str, np.ndarray]  # llm.c's names -> parameters, or their gradients
Layers = Mapping[str, Layer]

# ---- Settings --------------------------------------------------------------------------------------------

PRESETS = {
    # the four that OpenAI released
    "gpt2": dict(n_layer=12, n_head=12, n_embd=768),  # 124 million parameters
    "gpt2-medium": dict(n_layer=24, n_head=16, n_embd=1024),  # 355 million
    "gpt2-large": dict(n_layer=36, n_head=20, n_embd=1280),  # 774 million
    "gpt2-xl": dict(n_layer=48, n_head=25, n_embd=1600),  # 1558 million
    # small ones, for two cores and a few minutes; the second is nanoGPT's recipe for a CPU
    "small-cpu": dict(n_layer=6, n_head=6, n_embd=384, block_size=256),
    "shakespeare-char-cpu": dict(vocab_size=65, n_layer=4, n_head=4, n_embd=128, block_size=64),
    "tiny": dict(vocab_size=256, n_layer=2, n_head=2, n_embd=64, block_size=64),
}


@dataclass(frozen=True)
class GPT2Config:
    """The shape of a model. Raises UserError where a field makes no sense."""

    vocab_size: int = 50257  # V: distinct tokens
    block_size: int = 1024  # maxT: the longest sequence, in tokens
    n_layer: int = 12  # L: blocks
    n_head: int = 12  # NH: attention heads, a divisor of n_embd
    n_embd: int = 768  # C: channels
    dtype: str = "float32"  # of parameters, activations and gradients: float32 or float64

    def __post_init__(self):
        for field in fields(self)[:5]:
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise UserError(f"GPT2Config: {field.name} is {value!r}, expected a whole number from 1")
            object.__setattr__(self, field.name, int(value))
        if self.n_embd % self.n_head:
            raise UserError(
                f"GPT2Config: n_embd {self.n_embd} is not divisible by n_head {self.n_head}; "
                "heads share the channels equally"
            )
        name = _dtype_name(self.dtype)
        if name not in ("float32", "float64"):
            raise UserError(f"GPT2Config: dtype is {self.dtype!r}, expected float32 or float64")
        object.__setattr__(self, "dtype", name)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "GPT2Config":
        """A named shape, e.g. preset("gpt2"), with fields changed as given, e.g. block_size=64."""
        if name not in PRESETS:
            raise UserError(f"GPT2Config: no preset {name!r}, expected one of {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})

    @property
    def num_parameters(self) -> int:
        """Entries of all sixteen tensors. The head is wte again, so it counts once."""
        return sum(math.prod(shape) for _, shape in parameter_table(self))


def _dtype_name(dtype):
    try:
        return np.dtype(dtype).name
    except TypeError:
        return None


# ---- Parameters ------------------------------------------------------------------------------------------


def parameter_table(config: GPT2Config) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Name and shape of the sixteen tensors, in llm.c's order. A leading L stands for one slice per block."""
    V, maxT, L, C = config.vocab_size, config.block_size, config.n_layer, config.n_embd
    return (
        ("wte", (V, C)),  # token embedding, and the head's weight
        ("wpe", (maxT, C)),  # position embedding
        ("ln1w", (L, C)),  # layernorm before attention
        ("ln1b", (L, C)),
        ("qkvw", (L, 3 * C, C)),  # queries, keys, values
        ("qkvb", (L, 3 * C)),
        ("attprojw", (L, C, C)),  # attention's way back to the residual stream
        ("attprojb", (L, C)),
        ("ln2w", (L, C)),  # layernorm before the MLP
        ("ln2b", (L, C)),
        ("fcw", (L, 4 * C, C)),  # MLP: up, gelu,
        ("fcb", (L, 4 * C)),
        ("fcprojw", (L, C, 4 * C)),  # and down again
        ("fcprojb", (L, C)),
        ("lnfw", (C,)),  # layernorm before the head
        ("lnfb", (C,)),
    )


# Matrices (embeddings included) get weight decay; gains and biases do not.
MATRICES = ("wte", "wpe", "qkvw", "attprojw", "fcw", "fcprojw")


def parameter_ranges(config: GPT2Config) -> dict[str, tuple[int, int]]:
    """Where each tensor stands in the flat buffer: name -> (start, stop), in table order without gaps."""
    ranges, start = {}, 0
    for name, shape in parameter_table(config):
        ranges[name] = (start, start + math.prod(shape))
        start += math.prod(shape)
    return ranges


def unflatten(flat: np.ndarray, config: GPT2Config) -> Tensors:
    """Views of a flat buffer (num_parameters,): a dict from name to tensor."""
    ranges = parameter_ranges(config)
    return {name: flat[slice(*ranges[name])].reshape(shape) for name, shape in parameter_table(config)}


PIECE = 256 * 1024  # entries of a tensor that share a stream of random numbers, and stay in cache


def initialise(params: Tensors, config: GPT2Config, seed: int) -> None:
    """Fill params as GPT-2 was: matrices normal with deviation 0.02, gains 1, biases 0.

    Each block adds two branches to the residual stream. Their projections start smaller by sqrt(2L), so that
    the stream's variance does not grow with depth (Radford et al. 2019, section 2.3).
    Every PIECE entries have a stream of random numbers of their own, which seed, tensor and piece tell from
    all others: threads share the pieces out, and any number of them gives the same model.
    Numbers are float32 for either dtype: the same seed gives the same model.
    """
    drawn = []  # (stream, entries, deviation)
    for number, (name, tensor) in enumerate(params.items()):
        if name in MATRICES:
            residual = name in ("attprojw", "fcprojw")
            deviation = 0.02 / math.sqrt(2 * config.n_layer) if residual else 0.02
            if not tensor.flags.c_contiguous:
                raise ValueError(f"initialise: {name} does not lie in memory in one piece")
            entries = tensor.reshape(-1)
            for k in range(0, entries.size, PIECE):
                drawn.append(((number, k // PIECE), entries[k : k + PIECE], deviation))
        else:
            tensor[...] = 1.0 if name in ("ln1w", "ln2w", "lnfw") else 0.0
    todo = iter(drawn)  # next() on it is atomic: threads share them out

    def job(thread):
        scratch = np.empty(PIECE, np.float32)
        for stream, entries, deviation in todo:
            rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=stream)))
            numbers = scratch[: entries.size]
            rng.standard_normal(out=numbers, dtype=np.float32)
            np.multiply(numbers, np.float32(deviation), out=entries)

    run_on_threads(job)


# ---- Forward: pure functions of the parameters -----------------------------------------------------------


def block_forward(
    x: np.ndarray, params: Tensors, l: int, config: GPT2Config, layers: Layers
) -> tuple[np.ndarray, dict[str, tuple]]:
    """Block l of the stack: x (B, T, C) -> (B, T, C), and what its ten layers saved, by step."""
    layernorm, matmul = layers["layernorm"].forward, layers["matmul"].forward
    attention, gelu, add = layers["attention"].forward, layers["gelu"].forward, layers["residual"].forward
    p, saved = params, {}
    ln1, saved["ln1"] = layernorm(x, p["ln1w"][l], p["ln1b"][l])
    qkv, saved["qkv"] = matmul(ln1, p["qkvw"][l], p["qkvb"][l])  # (B, T, 3C)
    atty, saved["att"] = attention(qkv, num_heads=config.n_head)  # (B, T, C)
    attproj, saved["attproj"] = matmul(atty, p["attprojw"][l], p["attprojb"][l])
    x, saved["residual1"] = add(x, attproj)
    ln2, saved["ln2"] = layernorm(x, p["ln2w"][l], p["ln2b"][l])
    fch, saved["fc"] = matmul(ln2, p["fcw"][l], p["fcb"][l])  # (B, T, 4C)
    fch_gelu, saved["gelu"] = gelu(fch)
    fcproj, saved["fcproj"] = matmul(fch_gelu, p["fcprojw"][l], p["fcprojb"][l])  # (B, T, C)
    x, saved["residual2"] = add(x, fcproj)
    return x, saved


def forward_pass(
    params: Tensors, tokens: np.ndarray, config: GPT2Config, layers: Layers
) -> tuple[np.ndarray, dict]:
    """logits (B, T, V), and what every layer saved: a dict for the ends, a list of dicts for the blocks."""
    saved: dict = {"shape": tokens.shape, "blocks": []}
    x, saved["encoder"] = layers["encoder"].forward(tokens, params["wte"], params["wpe"])  # (B, T, C)
    for l in range(config.n_layer):
        x, block = block_forward(x, params, l, config, layers)
        saved["blocks"].append(block)
    x, saved["lnf"] = layers["layernorm"].forward(x, params["lnfw"], params["lnfb"])
    logits, saved["head"] = layers["matmul"].forward(x, params["wte"], None)  # tied to the embedding
    return logits, saved


def logits_fn(params: Tensors, tokens: np.ndarray, *, config: GPT2Config, layers: Layers) -> np.ndarray:
    """logits (B, T, V) of tokens (B, T) as a pure function of params."""
    return forward_pass(params, tokens, config, layers)[0]


def loss_fn(
    params: Tensors, tokens: np.ndarray, targets: np.ndarray, *, config: GPT2Config, layers: Layers
) -> np.floating:
    """Mean loss in nats per token as a pure function of params: what backward="whole" differentiates."""
    logits = logits_fn(params, tokens, config=config, layers=layers)
    losses, _ = layers["crossentropy"].forward(logits, targets)
    return np.mean(losses)


# ---- The model -------------------------------------------------------------------------------------------


class GPT2:
    """A GPT-2 with parameters, gradients, and the activations of its last forward pass.

    config    GPT2Config
    backward  "manual", "auto", a mix such as "manual,attention=auto", or "whole"; see gpt2.backward
    seed      of the initial parameters; None leaves them zero, for a caller that fills them
    compile   False runs every layer as it is written, for debugging
    detect_anomaly   trace the first nan or infinity of a step to the op and line that made it, as UserError;
                     a step then takes several times as long
    elementwise  "numpy", "numexpr" or "tuned": what computes the compiled elementwise operations

    flat_params, flat_grads (num_parameters,) hold everything; params and grads are views of them by name.
    """

    def __init__(
        self,
        config: GPT2Config,
        backward: str = "manual",
        seed: int | None = 0,
        compile: bool = True,
        detect_anomaly: bool = False,
        elementwise: str = "numpy",
    ):
        if not isinstance(config, GPT2Config):
            named = f"; GPT2Config.preset({config!r}) is one" if str(config) in PRESETS else ""
            raise TypeError(f"GPT2: config is {config!r}, expected a GPT2Config{named}")
        self.config = config
        self.spec = backward
        self.layers = seam.choose(backward, compile, elementwise)
        whole_model = backward.strip() == "whole"
        self.program = seam.whole(self._whole_loss, seam.options_for(elementwise)) if whole_model else None
        self.flat_params = np.zeros(config.num_parameters, config.dtype)
        self.flat_grads = np.zeros(config.num_parameters, config.dtype)
        self.params = unflatten(self.flat_params, config)
        self.grads = unflatten(self.flat_grads, config)
        if seed is not None:
            initialise(self.params, config, seed)
        self._saved: Any = None
        self._traced = partial(seam.traced, compile) if detect_anomaly else nullcontext

    def __repr__(self) -> str:
        c = self.config
        shape = f"{c.n_layer} blocks, {c.n_head} heads, {c.n_embd} channels, {c.vocab_size:,} tokens"
        kind = f"{c.dtype}, backward={self.spec!r}"
        return f"<GPT2: {self.num_parameters:,} parameters; {shape}, context {c.block_size}; {kind}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: a table of the tensors with their shapes and sizes."""
        rows = "".join(
            f"<tr><td>{name}</td><td>{' x '.join(map(str, p.shape))}</td><td>{p.size:,}</td></tr>"
            for name, p in self.params.items()
        )
        head = "<tr><th>tensor</th><th>shape</th><th>numbers</th></tr>"
        return f"<p>{html.escape(repr(self))}</p><table>{head}{rows}</table>"

    def use(self, flat_params: np.ndarray, flat_grads: np.ndarray) -> None:
        """Keep parameters and gradients in these arrays (num_parameters,) from now on, whatever they hold.

        For memory that other processes see. The arrays used before are let go.
        """
        for name, array in (("flat_params", flat_params), ("flat_grads", flat_grads)):
            if array.shape != self.flat_params.shape or array.dtype != self.config.dtype:
                raise ValueError(
                    f"GPT2.use: {name} is {array.dtype} {array.shape}, "
                    f"expected {self.config.dtype} {self.flat_params.shape}"
                )
        self.flat_params, self.flat_grads = flat_params, flat_grads
        self.params = unflatten(flat_params, self.config)
        self.grads = unflatten(flat_grads, self.config)

    def twin(self) -> "GPT2":
        """A model with these very parameters and programs, but gradients and activations of its own.

        Both can be used at the same time, by two threads; programs are compiled once for the two.
        """
        other = copy(self)
        other.use(self.flat_params, np.zeros_like(self.flat_grads))
        other._saved = None
        return other

    @property
    def num_parameters(self) -> int:
        return self.flat_params.size

    @property
    def decayed(self) -> list[tuple[int, int]]:
        """Ranges (start, stop) of the flat buffer that weight decay applies to: the matrices."""
        ranges = parameter_ranges(self.config)
        return [ranges[name] for name in MATRICES]

    @overload
    def forward(self, tokens: ArrayLike, targets: None = None) -> np.ndarray: ...
    @overload
    def forward(self, tokens: ArrayLike, targets: ArrayLike) -> float: ...
    def forward(self, tokens: ArrayLike, targets: ArrayLike | None = None) -> float | np.ndarray:
        """Mean loss in nats per token, a float; or without targets the logits (B, T, V).

        tokens, targets  (B, T) integers in [0, vocab_size), T <= block_size

        With targets, activations are kept for backward() until that or the next call of forward.
        Raises ValueError where the arguments do not fit the model.
        """
        self._saved = None  # first of all, so that two sets of activations never exist at once
        tokens = self._checked("tokens", tokens)
        if targets is None:
            return logits_fn(self.params, tokens, config=self.config, layers=self.layers)
        targets = self._checked_targets(targets, tokens)
        if self.program is not None:
            loss, self._saved = self.program.forward(*self.params.values(), tokens, targets)
            return float(loss)
        logits, saved = forward_pass(self.params, tokens, self.config, self.layers)
        losses, saved["loss"] = self.layers["crossentropy"].forward(logits, targets)
        saved["logits"] = logits
        self._saved = saved
        return float(np.mean(losses))

    def loss(self, tokens: ArrayLike, targets: ArrayLike) -> float:
        """The mean loss as forward gives it, for evaluation: what backward would need is let go."""
        loss = self.forward(tokens, targets)
        self._saved = None
        return loss

    def loss_and_grads(
        self,
        tokens: ArrayLike,
        targets: ArrayLike,
        scale: float = 1.0,
        accumulate: bool = False,
        on_ready: Callable[[int, int], None] | None = None,
    ) -> float:
        """forward(tokens, targets) and backward(scale, accumulate, on_ready) in one call; returns the loss.

        With backward="whole" this is one program, faster and smaller than the two halves.
        """
        with self._traced():
            return self._loss_and_grads(tokens, targets, scale, accumulate, on_ready)

    def _loss_and_grads(self, tokens, targets, scale, accumulate, on_ready):
        if self.program is None:
            loss = self.forward(tokens, targets)
            self.backward(scale, accumulate, on_ready)
            return loss
        tokens = self._checked("tokens", tokens)
        targets = self._checked_targets(targets, tokens)
        self._saved = None
        loss, _ = self.program.both(
            self._scale(scale),
            *self.params.values(),
            tokens,
            targets,
            out=self._grad_buffers(),
            add=accumulate,
        )
        return float(loss)

    def _whole_loss(self, *arrays):
        """loss_fn of the sixteen tensors, tokens and targets: what is recorded."""
        *params, tokens, targets = arrays
        params = dict(zip(self.params, params))
        return loss_fn(params, tokens, targets, config=self.config, layers=LAYERS)

    def _grad_buffers(self):
        return (*self.grads.values(), None, None)

    def _scale(self, scale):
        return np.full((), scale, self.config.dtype)

    def backward(
        self, scale: float = 1.0, accumulate: bool = False, on_ready: Callable[[int, int], None] | None = None
    ) -> None:
        """Fill grads with the gradient of scale * loss, or add it to them if accumulate is set.

        on_ready(start, stop), where given, is called for entries of flat_grads as soon as they are final, so
        that sending them can begin. Ranges that it was not called for are final when this returns.

        Gradient accumulation over n batches: scale=1/n, accumulate on all but the first. The activations of
        the last forward pass are used up on the way, to free memory as early as possible.
        Raises RuntimeError where forward(tokens, targets) did not come first.
        """
        if self._saved is None:
            raise RuntimeError("GPT2.backward: call forward(tokens, targets) first, once for each backward")
        saved, self._saved = self._saved, None
        if self.program is not None:
            self.program.backward(self._scale(scale), saved, self._grad_buffers(), accumulate)
            return
        grads = _Gradients(self.grads, accumulate, on_ready, parameter_ranges(self.config))
        backward_pass(saved, scale, grads, self.config, self.layers)

    def first_non_finite(self, tokens: ArrayLike, targets: ArrayLike = None) -> str | None:
        """Which layer's output first holds a nan or an infinity, such as "block 3 fc (matmul)", or None.

        Runs the forward pass again with an eye on every layer: for finding out after the loss has gone wrong.
        """
        tokens = self._checked("tokens", tokens)
        found = []
        layers = _watched(self.layers, _steps(self.config), found)
        with np.errstate(all="ignore"):
            if targets is None:
                logits_fn(self.params, tokens, config=self.config, layers=layers)
            else:
                targets = self._checked_targets(targets, tokens)
                loss_fn(self.params, tokens, targets, config=self.config, layers=layers)
        return found[0] if found else None

    def _checked_targets(self, targets, tokens):
        targets = self._checked("targets", targets)
        if targets.shape != tokens.shape:
            raise ValueError(
                f"GPT2.forward: targets has shape {targets.shape}, expected {tokens.shape} to match tokens"
            )
        return targets

    def _checked(self, name, ids):
        """ids as an array (B, T) that the model can take, or ValueError."""
        ids = np.asarray(ids)
        if ids.ndim != 2 or ids.size == 0:
            raise ValueError(f"GPT2.forward: {name} has shape {ids.shape}, expected (B, T), not empty")
        if ids.dtype.kind not in "iu":
            raise ValueError(f"GPT2.forward: {name} has dtype {ids.dtype}, expected integers")
        if ids.shape[1] > self.config.block_size:
            raise ValueError(
                f"GPT2.forward: {name} has T={ids.shape[1]} positions, more than "
                f"block_size {self.config.block_size}; pass shorter sequences"
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.config.vocab_size:
            raise ValueError(
                f"GPT2.forward: {name} contains {low if low < 0 else high}, "
                f"expected ids from 0 to {self.config.vocab_size - 1}"
            )
        return ids


# ---- Backward, by hand: the forward pass in reverse ------------------------------------------------------


def backward_pass(saved: dict, scale: float, grads: "_Gradients", config: GPT2Config, layers: Layers) -> None:
    """Gradient of scale * mean loss, handed to grads tensor by tensor. Empties saved on the way."""
    dlogits = _loss_backward(saved, scale, config, layers)
    dx = grads.through(layers["matmul"], dlogits, saved.pop("head"), ("wte", None))
    del dlogits  # (B, T, V), the largest array there is
    dx = grads.through(layers["layernorm"], dx, saved.pop("lnf"), ("lnfw", "lnfb"))
    for l in reversed(range(config.n_layer)):
        dx = block_backward(dx, saved["blocks"].pop(), l, grads, config, layers)
    # wte is used twice, as embedding and as head: its gradients add up
    grads.through(layers["encoder"], dx, saved.pop("encoder"), ("wte", "wpe"), again=("wte",))


def _loss_backward(saved, scale, config, layers):
    """dlogits. Of the mean over B*T losses, each gets its share."""
    B, T = saved["shape"]
    dlosses = np.full((B, T), scale / (B * T), config.dtype)
    logits = saved.pop("logits")  # not needed again, so dlogits may take their memory
    dlogits, _ = layers["crossentropy"].backward(dlosses, saved.pop("loss"), out=(logits, None))
    return dlogits


def block_backward(
    dout: np.ndarray, saved: dict[str, tuple], l: int, grads: "_Gradients", config: GPT2Config, layers: Layers
) -> np.ndarray:
    """Gradient of block_forward with respect to x (B, T, C). Parameter gradients go to slice l of grads."""
    layernorm, matmul, attention = layers["layernorm"], layers["matmul"], layers["attention"]
    gelu, add, plus = layers["gelu"].backward, layers["residual"].backward, layers["residual"].forward

    dx, dfcproj = add(dout, saved["residual2"])
    dfch_gelu = grads.through(matmul, dfcproj, saved["fcproj"], ("fcprojw", "fcprojb"), l)  # (B, T, 4C)
    (dfch,) = gelu(dfch_gelu, saved["gelu"])
    dln2 = grads.through(matmul, dfch, saved["fc"], ("fcw", "fcb"), l)  # (B, T, C)
    dbranch = grads.through(layernorm, dln2, saved["ln2"], ("ln2w", "ln2b"), l)
    dx, _ = plus(dx, dbranch)  # x went two ways, past the MLP and through it

    dx, dattproj = add(dx, saved["residual1"])
    datty = grads.through(matmul, dattproj, saved["attproj"], ("attprojw", "attprojb"), l)
    (dqkv,) = attention.backward(datty, saved["att"], num_heads=config.n_head)  # (B, T, 3C)
    dln1 = grads.through(matmul, dqkv, saved["qkv"], ("qkvw", "qkvb"), l)  # (B, T, C)
    dbranch = grads.through(layernorm, dln1, saved["ln1"], ("ln1w", "ln1b"), l)
    dx, _ = plus(dx, dbranch)  # past attention and through it
    return dx


class _Gradients:
    """Where parameter gradients go: views of the flat buffer, set on the first visit unless accumulating.

    on_ready hears of a block's matrices as they are put. The rest is small, or comes at the end (wte).
    """

    def __init__(self, views, accumulate, on_ready=None, ranges=None):
        self.views = views
        self.accumulate = accumulate
        self.on_ready = on_ready
        self.ranges = ranges  # name -> (start, stop) in the flat buffer

    def through(self, layer, dout, saved, names, l=..., again=()):
        """layer.backward; returns the gradient of its first input and puts those of its parameters.

        names of the layer's parameters, None for an absent one; l of their block; again: names put before, to
        which this adds.
        """
        views = [None if name is None else self.views[name][l] for name in names]
        add = self.accumulate or bool(again)
        for name, view in zip(names, views):
            if add and not self.accumulate and name not in again and view is not None:
                view[...] = 0.0  # its first gradient, added like the others
        dinp, *_ = layer.backward(dout, saved, out=(None, *views), add=add)
        self._announce(names, views, l)
        return dinp

    def _announce(self, names, views, l):
        if self.on_ready is None or l is ...:
            return
        for name, view in zip(names, views):
            if view is not None and view.ndim == 2:
                start = self.ranges[name][0] + l * view.size
                self.on_ready(start, start + view.size)


# ---- Finding the first layer that went wrong -------------------------------------------------------------

BLOCK_STEPS = ("ln1", "qkv", "att", "attproj", "residual1", "ln2", "fc", "gelu", "fcproj", "residual2")


def _steps(config):
    """The layers' places in the order forward_pass visits them."""
    blocks = [f"block {l} {step}" for l in range(config.n_layer) for step in BLOCK_STEPS]
    return iter(["encoder", *blocks, "lnf", "head", "loss"])


def _watched(layers, steps, found):
    """The same layers, each noting in found the step at which its output is not finite."""

    def watch(layer):
        def forward(*inputs, **static):
            out, saved = layer.forward(*inputs, **static)
            step = next(steps)
            if not np.isfinite(out).all():
                found.append(f"{step} ({layer.name})")
            return out, saved

        return type(layer)(layer.name, forward, layer.backward, layer.kind)

    return {name: watch(layer) for name, layer in layers.items()}
