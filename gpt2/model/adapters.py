"""Low-rank adapters: add them to a model, and merge them into its weights.

tuned = lora(model, rank=8)     the same model with adapters, the only part that is trained
merged(tuned)                   a model without adapters, merged into its weights

weight + alpha / rank * b @ a   replaces a matrix (OC, C); Hu et al. 2021
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from gpt2.errors import UserError
from gpt2.layers.lora import lengths
from gpt2.model.gpt2 import GPT2
from gpt2.model.lora import EMBEDDINGS
from gpt2.model.parameters import initialise
from gpt2.model.tuning import MODULES, Tuning


def lora(
    model: GPT2,
    rank: int = 8,
    alpha: float = 8.0,
    targets: str = "c_attn",
    seed: int = 0,
    backward: str | None = None,
) -> GPT2:
    """The model with low-rank adapters, which alone are trained. At first it computes the same as the model.

    rank, alpha, targets   as in Tuning, which are peft's r, lora_alpha and target_modules
    seed                   of the adapters' initial values
    backward               as for GPT2

    Its frozen weights are the model's own arrays, not copies: training the model later changes both.

        >>> model = gpt2.GPT2(gpt2.GPT2Config.preset("tiny"))
        >>> tuned = gpt2.lora(model, rank=4)
        >>> model.num_parameters, tuned.flat_params.size  # which are trained
        (120576, 2048)
    """
    tuning = Tuning(f"lora:{rank}", lora_alpha=alpha, lora_targets=targets)
    if model.description.lora is not None:
        raise UserError(
            f"the model has adapters already ({model.description.tuning.summary()}); merge them first"
        )
    options = {**model.description.options, "train": tuning}
    new = GPT2(model.config, backward, seed=None, **options)
    take(new, model.params.items())
    names = {name for name in new.params if name not in model.params}
    initialise(new.params, new.description, seed, names)
    new.use_tokenizer_of(model)
    return new


def take(model: GPT2, tensors: Iterable[tuple[str, Any]]) -> None:
    """Set tensors of a model: (name, array), or (name, arrays of its blocks). The others stay unchanged.

    Trained tensors are copied, one at a time; frozen ones only if their dtype or memory layout does not fit.
    """
    d = model.description
    shapes = dict(d.trained.frozen_shapes)
    frozen = {}
    for name, tensor in tensors:
        if name in shapes:
            blocks = d.trained.frozen_blocks(name)
            if not blocks or (isinstance(tensor, np.ndarray) and len(blocks) == len(tensor)):
                frozen[name] = _fit(tensor, d.config.dtype)
            else:
                frozen[name] = [_fit(tensor[l], d.config.dtype) for l in blocks]
        if name not in d.trained:
            continue
        if name not in d.in_block:
            model.params[name][...] = tensor
            continue
        for l in d.trained[name]:
            model.params[name][l][...] = tensor[l]
    model.freeze(frozen)


def _fit(array, dtype):
    """The array, or a copy if it has another dtype or byte order, or is not aligned."""
    fits = array.dtype == np.dtype(dtype) and array.dtype.isnative and array.flags.aligned
    return array if fits else np.array(array, dtype)


def merged(model: GPT2) -> GPT2:
    """A model with the adapters merged into its matrices. The other tensors are copied.

    >>> tuned = gpt2.lora(gpt2.GPT2(gpt2.GPT2Config.preset("tiny")), rank=4)
    >>> gpt2.merged(tuned).num_parameters
    120576
    """
    d, lora, params = model.description, model.description.lora, model.params
    if lora is None:
        raise UserError("the model has no adapters to merge")
    names = [name for name in params if name not in (*d.adapters, *d.fixed)]
    tensors: dict[str, Any] = {
        name: [*map(np.array, params[name])] if name in d.in_block else params[name] for name in names
    }
    options: dict[str, Any] = {}
    if d.config.tie_word_embeddings and {"wte", "head"} & {*lora.modules}:
        options["tie_word_embeddings"] = False  # their adapters act at one of the two places
        tensors["lmheadw"] = tensors["wte"]
    for place in lora.modules:
        for l in range(d.config.n_layer) if place in MODULES else [...]:
            if (module := lora.at(place, l)) is not None:
                _merge(d, place, l, module[1], params, tensors)
    if lora.tokens:
        tensors["wte"] = np.array(tensors["wte"])
        tensors["wte"][list(lora.tokens)] = params["wte_lora_rows"]
    config = replace(d.config, **options)
    new = GPT2(config, seed=None, **{**d.options, "train": None})
    take(new, tensors.items())
    new.use_tokenizer_of(model)
    return new


def _merge(d, place, l, scale, params, tensors):
    """Merge the adapter of a place, in block l, into the tensors."""
    embedding = place in EMBEDDINGS  # whose matrix is transposed
    weight = "lmheadw" if place == "head" else place if embedding else d.calls[place].tensors[0]
    a, b = (params[f"{place}_lora_{role}"][l] for role in "ab")
    old = tensors[weight] if l is ... else tensors[weight][l]
    new = (old.T if embedding else old) + scale * (b @ a)
    if d.lora.dora:
        new = new * (params[f"{place}_lora_magnitude"][l] / lengths(new))[:, None]
    new = new.T if embedding else new
    if l is ...:
        tensors[weight] = new
    else:
        tensors[weight][l] = new
    if d.lora.bias:
        bias = d.calls[place].tensors[1]
        if bias is None:
            raise UserError(
                f"the adapter of {place} has a bias, and there is none that it could be merged into"
            )
        tensors[bias][l] = tensors[bias][l] + scale * params[f"{place}_lora_bias"][l]
