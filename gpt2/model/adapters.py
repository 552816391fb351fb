"""Low-rank adapters: add them to a model, and merge them into its weights.

tuned = lora(model, rank=8)     the same model with adapters, the only part that is trained
merged(tuned)                   a model without adapters, merged into its weights

weight + alpha / rank * b @ a   replaces a matrix (OC, C); Hu et al. 2021
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from gpt2.errors import UserError
from gpt2.model.gpt2 import GPT2, initialise
from gpt2.model.tuning import Tuning


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
    return retuned(model, tuning, seed, backward)


def retuned(model: GPT2, tuning: Tuning, seed: int = 0, backward: str | None = None) -> GPT2:
    """The model with another Tuning. Frozen tensors are the model's own arrays, not copies."""
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
            frozen[name] = _as_wanted(tensor, shapes[name], d.config.dtype)
        if name not in d.trained:
            continue
        if name not in d.in_block:
            model.params[name][...] = tensor
            continue
        for l in range(d.trained[name], d.config.n_layer):
            model.params[name][l][...] = tensor[l]
    model.freeze(frozen)


def _as_wanted(tensor, shape, dtype):
    """An array, or a list of arrays per block, in this dtype: copied only if needed.

    Only the first shape[0] blocks.
    """
    if isinstance(tensor, np.ndarray):
        return _fit(tensor[: shape[0]], dtype)
    return [_fit(part, dtype) for part in list(tensor)[: shape[0]]]


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
    d = model.description
    if d.lora is None:
        raise UserError("the model has no adapters to merge")
    new = GPT2(model.config, seed=None, **{**d.options, "train": None})
    for name, tensor in new.params.items():
        for l in range(d.config.n_layer) if name in d.in_block else [...]:
            tensor[l] = model.params[name][l] if l is not ... else model.params[name]
    for place in d.lora.places:
        weight = d.calls[place].tensors[0]
        for l in range(d.config.n_layer):
            a, b = (model.params[f"{place}_lora_{letter}"][l] for letter in "ab")
            new.params[weight][l] += d.lora.scale * (b @ a)
    new.use_tokenizer_of(model)
    return new
