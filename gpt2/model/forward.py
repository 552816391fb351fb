"""The forward of a model: pure functions of its parameters."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpt2.layers import Layer
from gpt2.layers.crossentropy import mean_loss
from gpt2.model.config import BLOCK_PLACES, GPT2Config
from gpt2.model.description import Description
from gpt2.model.fitting import Layers
from gpt2.model.tensors import Tensors


def run_layer(
    d: Description,
    place: str,
    layers: Layers,
    params: Tensors,
    l: Any,
    *inputs: np.ndarray,
    buffer: np.ndarray | None = None,
) -> tuple[np.ndarray, tuple]:
    """Run the layer at a place with its tensors of block l (... outside of the blocks): (out, saved).

    buffer   memory for `out`, if the layer can use it; of its shape and dtype
    """
    s = d.calls[place]
    tensors = [None if name is None else params[name][l] for name in s.tensors]
    layer, wanted = layers[s.layer], d.trained.wanted(place, l)
    layer = layer if wanted is None else layer.wanting(wanted)
    if buffer is not None and (into := getattr(layer, "into", None)) is not None:
        return into(buffer, *inputs, *tensors, **s.static)
    return layer.forward(*inputs, *tensors, **s.static)


def block_forward(
    x: np.ndarray,
    params: Tensors,
    l: int,
    d: Description,
    layers: Layers,
    divisors: tuple[np.ndarray, ...] | None = None,
) -> tuple[np.ndarray, dict[str, tuple]]:
    """Block l of the stack: x (B, T, C) -> (B, T, C), and what its layers saved, by place.

    divisors   by default those of block l
    """
    saved = {}
    if d.block is not None:
        x, saved["block"] = run_layer(d, "block", layers, params, l, x)
        return x, saved

    def run(place, *inputs):
        out, saved[place] = run_layer(d, place, layers, params, l, *inputs)
        return out

    ln1 = run("ln1", x)
    qkv = run("qkv", ln1)  # (B, T, 3C)
    atty = run("att", qkv, *(d.divisors(l) if divisors is None else divisors))  # (B, T, C)
    attproj = run("attproj", atty)
    x = run("residual1", x, attproj)
    ln2 = run("ln2", x)
    fch = run("fc", ln2)  # (B, T, F), F = 4C unless the config has another
    fch_gelu = run("gelu", fch)
    fcproj = run("fcproj", fch_gelu)  # (B, T, C)
    x = run("residual2", x, fcproj)
    return x, saved


def forward_pass(
    params: Tensors,
    tokens: np.ndarray,
    d: Description,
    layers: Layers,
    last_only: bool = False,
    run_block: Callable = block_forward,
    buffer: np.ndarray | None = None,
) -> tuple[np.ndarray, dict]:
    """logits (B, T, V), and what every layer saved: a dict for the ends, a list of dicts for the blocks.

    last_only   the logits of the last position alone, (B, 1, V)
    run_block   computes a block, called as block_forward is
    buffer      memory for the logits
    """
    saved: dict = {"blocks": []}
    x, saved["encoder"] = run_layer(d, "encoder", layers, params, ..., tokens)  # (B, T, C)
    for l in range(d.config.n_layer):
        x, block = run_block(x, params, l, d, layers)
        saved["blocks"].append(block)
    x = x[:, -1:] if last_only else x
    x, saved["lnf"] = run_layer(d, "lnf", layers, params, ..., x)
    logits, saved["head"] = run_layer(d, "head", layers, params, ..., x, buffer=buffer)
    return logits, saved


def loss_fn(
    params: Tensors,
    tokens: np.ndarray,
    targets: np.ndarray,
    *,
    config: GPT2Config,
    layers: Layers,
    description: Description | None = None,
    run_block: Callable = block_forward,
) -> np.floating:
    """Mean loss in nats per target that counts, as a pure function of params: what backward="whole"
    differentiates.
    run_block: see forward_pass.
    """
    d = description or Description(config)
    logits, _ = forward_pass(params, tokens, d, layers, run_block=run_block)
    losses, _ = layers["crossentropy"].forward(logits, targets)
    return mean_loss(losses, targets)


def first_non_finite(
    params: Tensors,
    layers: Mapping[str, Layer],
    d: Description,
    tokens: np.ndarray,
    targets: np.ndarray | None,
) -> str | None:
    """The first layer whose output holds a nan or an infinity, such as "block 3 fc (matmul)", or None."""
    of_block = BLOCK_PLACES if d.block is None else (d.block.name,)
    blocks = [f"block {l} {place}" for l in range(d.config.n_layer) for place in of_block]
    places = iter(["encoder", *blocks, "lnf", "head", "loss"])  # in the order of forward_pass
    found = []

    def checking(layer):
        def forward(*inputs, **static):
            out, saved = layer.forward(*inputs, **static)
            place = next(places)
            if not np.isfinite(out).all():
                found.append(f"{place} ({layer.name})")
            return out, saved

        return Layer(layer.name, forward, None)

    layers = {name: checking(layer) for name, layer in layers.items()}
    with np.errstate(all="ignore"):
        if targets is None:
            forward_pass(params, tokens, d, layers)
        else:
            loss_fn(params, tokens, targets, config=d.config, layers=layers, description=d)
    return found[0] if found else None
