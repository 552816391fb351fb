"""Adapters of the peft package: adapter_config.json and adapter_model.safetensors in a folder.

Each matrix with an adapter has two tensors, stored as here except for their names:

    base_model.model.transformer.h.{l}.attn.c_attn.lora_A.weight    a (rank, C)
    base_model.model.transformer.h.{l}.attn.c_attn.lora_B.weight    b (OC, rank)

`fan_in_fan_out` means that transformers stores the matrix beside them as (in, out).

    write(folder, model, base)      base: for base_model_name_or_path
    read(folder)                    an Adapter: its base, its Tuning, its tensors
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpt2.errors import UserError
from gpt2.model.description import Description
from gpt2.model.gpt2 import GPT2
from gpt2.model.tuning import MODULES, LoRA, Tuning
from gpt2.weights import huggingface

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
NAME = re.compile(r"base_model\.model\.(?:transformer\.)?h\.(\d{1,6})\.(\w+\.\w+)\.lora_(A|B)\.weight")
# Fields that do not change the result. All others must be off
HARMLESS = (
    "auto_mapping",
    "base_model_name_or_path",
    "fan_in_fan_out",
    "inference_mode",
    "lora_alpha",
    "lora_dropout",  # nothing is dropped here, in training neither
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "target_modules",
    "task_type",
    "use_rslora",
)


@dataclass(frozen=True)
class Adapter:
    """An adapter of peft.

    path     of its tensors
    base     base_model_name_or_path, or ""
    tuning   Tuning: rank, alpha, matrices
    tensors  our name -> a list of its arrays, one a block
    """

    path: Path
    base: str
    tuning: Tuning
    tensors: Mapping[str, list[np.ndarray]]

    def check(self, d: Description) -> None:
        """Raise UserError if the adapter does not fit a model of this description with its tuning."""
        for name, shape in d.trained.shapes:
            slices = self.tensors[name]
            if (len(slices), *slices[0].shape) != shape:
                raise UserError(
                    f"{self.path}: an adapter of another model: {name} is {(len(slices), *slices[0].shape)}, "
                    f"expected {shape} for {d.config.n_layer} blocks of {d.config.n_embd} channels"
                )


def is_adapter(folder: Path) -> bool:
    """Whether this is a folder of peft."""
    return os.path.exists(folder / CONFIG)  # False for an impossible name


def read(folder: str | Path) -> Adapter:
    """The Adapter in a folder. Raises UserError for one that this program computes differently."""
    folder = Path(folder)
    path = folder / CONFIG
    fields = huggingface.json_object(path)
    rank, alpha = _numbers(path, fields)
    slices = _tensors(folder / WEIGHTS)
    places = tuple(place for place in MODULES if any(place == key[0] for key in slices))
    if not places:
        raise UserError(f"{folder / WEIGHTS}: holds no adapter")
    count = 1 + max(l for _, _, l in slices)
    tensors = {}
    for place in places:
        for letter in "ab":
            missing = [l for l in range(count) if (place, letter, l) not in slices]
            if missing:
                raise UserError(
                    f"{folder / WEIGHTS}: lora_{letter.upper()} of {MODULES[place]} is missing in block "
                    f"{missing[0]}; only adapters in all blocks can be read"
                )
            tensors[f"{place}_lora_{letter}"] = parts = [slices[place, letter, l] for l in range(count)]
            if len({part.shape for part in parts}) > 1 or parts[0].shape["ba".index(letter) - 1] != rank:
                raise UserError(f"{folder / WEIGHTS}: {MODULES[place]} has other shapes than r={rank} makes")
    tuning = Tuning(f"lora:{rank}", lora_alpha=alpha, lora_targets=",".join(places))
    base = fields.get("base_model_name_or_path") or ""
    if not isinstance(base, str):
        raise UserError(f"{path}: base_model_name_or_path is {base!r}, expected text")
    return Adapter(folder / WEIGHTS, base, tuning, tensors)


def _numbers(path, fields):
    """rank and alpha, after checking that the formula is the same."""
    if fields.get("peft_type") != "LORA":
        raise UserError(f"{path}: peft_type is {fields.get('peft_type')!r}, only LORA can be read")
    # others change the base model's weights first
    starts = (True, False, None, "gaussian", "orthogonal")
    if fields.get("init_lora_weights", True) not in starts:
        raise UserError(f"{path}: init_lora_weights is {fields['init_lora_weights']!r}, which cannot be read")
    for name, value in fields.items():
        if name not in (*HARMLESS, "init_lora_weights") and value not in (None, False, "none", {}, []):
            raise UserError(
                f"{path}: {name} is {value!r}, which this program does not know; merge it with peft"
            )
    rank, alpha = fields.get("r"), fields.get("lora_alpha")
    whole = isinstance(rank, int) and not isinstance(rank, bool) and 1 <= rank < 1 << 31
    if not whole or not isinstance(alpha, int | float) or not 0 < alpha < 1e6:
        raise UserError(f"{path}: r is {rank!r} and lora_alpha {alpha!r}, expected numbers above 0")
    return rank, float(alpha) * (math.sqrt(rank) if fields.get("use_rslora") else 1.0)


def _tensors(path):
    """(place, "a" or "b", block) -> array."""
    places = {module: place for place, module in MODULES.items()}
    arrays = {}
    for name, tensor in huggingface.tensors_of(path).items():
        array = tensor.array()
        match = NAME.fullmatch(name)
        if match is None or match[2] not in places:
            raise UserError(f"{path}: {name} is not an adapter of a matrix of GPT-2")
        if array.ndim != 2:
            raise UserError(f"{path}: {name} has shape {array.shape}, expected two axes")
        arrays[places[match[2]], match[3].lower(), int(match[1])] = array
    return arrays


def write(folder: str | Path, model: GPT2, base: str | None) -> list[Path]:
    """Write the adapters of a model for peft; returns the paths.

    base   the folder or name of the base model for transformers, or None
    """
    lora = model.description.lora
    if lora is None:
        raise UserError(f"{folder}: the model has no adapters to save")
    folder, tensors = Path(folder), {}
    for place in lora.places:
        for l in range(model.config.n_layer):
            front = f"base_model.model.transformer.h.{l}.{MODULES[place]}"
            for letter in "ab":
                array = model.params[f"{place}_lora_{letter}"][l]
                tensors[f"{front}.lora_{letter.upper()}.weight"] = array
    text = json.dumps(_config(lora, base), indent=2, sort_keys=True) + "\n"
    huggingface.replace_model(folder, {WEIGHTS: huggingface.tensor_parts(tensors), CONFIG: text.encode()})
    return [folder / CONFIG, folder / WEIGHTS]


def _config(lora: LoRA, base: str | None) -> dict[str, Any]:
    """The content of adapter_config.json."""
    return {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": True,  # transformers stores the matrices beside them as (in, out)
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": lora.rank,
        "target_modules": [MODULES[place] for place in lora.places],
        "task_type": "CAUSAL_LM",
    }
