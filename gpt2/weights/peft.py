"""Adapters of the peft package: adapter_config.json and adapter_model.safetensors in a folder.

Tensors have the names of transformers' modules, behind base_model.model:

    transformer.h.{l}.attn.c_attn.lora_A.weight             a (rank, C)
    transformer.h.{l}.attn.c_attn.lora_B.weight             b (OC, rank); .bias (OC,)
    transformer.h.{l}.attn.c_attn.lora_magnitude_vector     (OC,), of DoRA
    transformer.wte.lora_embedding_A, _B                    a (rank, V), b (C, rank)
    transformer.wte.token_adapter.trainable_tokens_delta    (n, C), rows in place of some of wte
    transformer.h.{l}.attn.c_attn.base_layer.bias           what is trained beside an adapter

`fan_in_fan_out` means that transformers stores the matrix beside them as (in, out).
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpt2.data.huggingface import json_object
from gpt2.errors import UserError
from gpt2.layers.lora import lengths
from gpt2.model.config import GPT2Config, gpt2_tensors
from gpt2.model.gpt2 import GPT2
from gpt2.model.lora import EMBEDDINGS, LoRA
from gpt2.model.tuning import MODULES, Tuning
from gpt2.weights import huggingface

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
FRONT = "base_model.model."
# peft's name of a tensor of an adapter, and ours
ROLES = {
    "lora_A.weight": "a",
    "lora_B.weight": "b",
    "lora_B.bias": "bias",
    "lora_magnitude_vector": "magnitude",
    "lora_embedding_A": "a",
    "lora_embedding_B": "b",
    "token_adapter.trainable_tokens_delta": "rows",
}
NAME = re.compile(
    r"base_model\.model\.(?:transformer\.)?(?:h\.(\d{1,6})\.)?([\w.]+?)(?:\.token_adapter)?(?:\.base_layer)?\.("
    + "|".join(map(re.escape, ROLES))
    + r"|weight|bias)"
)
PLACES = {place: f"transformer.h.{{l}}.{module}" for place, module in MODULES.items()} | {
    "wte": "transformer.wte",
    "wpe": "transformer.wpe",
    "head": "lm_head",
}
# Our tensor -> its module, its name there, and whether it is transposed there
PLAIN = {
    name: (f"transformer.{theirs.rpartition('.')[0]}", theirs.rpartition(".")[2], transposed)
    for name, theirs, transposed in huggingface.NAMES
}
PLAIN["lmheadw"] = ("lm_head", "weight", False)
# Fields that do not change the result, or that are read. All others must be off
KNOWN = {
    *"alpha_pattern auto_mapping base_model_name_or_path bias ensure_weight_tying exclude_modules r".split(),
    *"fan_in_fan_out inference_mode init_lora_weights layers_pattern layers_to_transform lora_alpha".split(),
    *"lora_bias lora_dropout megatron_core modules_to_save peft_type peft_version rank_pattern".split(),
    *"qalora_group_size revision target_modules task_type trainable_token_indices use_dora".split(),
    *"corda_config eva_config loftq_config lora_ga_config use_rslora".split(),
}


@dataclass(frozen=True)
class Adapter:
    """An adapter of peft beside base weights of a GPT2Config.

    path     of its tensors
    config   of the model: the base's, with another vocabulary, or a head of its own
    tuning   Tuning: what it trains
    arrays   (our name, block or ...) -> array
    """

    path: Path
    config: GPT2Config
    tuning: Tuning
    arrays: Mapping[tuple[str, Any], np.ndarray]

    def views(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of the model, given those of the base."""
        lora, blocks = self.tuning.lora, range(self.config.n_layer)
        tensors = dict(base)
        if not self.config.tie_word_embeddings:
            tensors.setdefault("lmheadw", base["wte"])
        for (name, l), array in self.arrays.items():
            if l is ...:
                tensors[name] = array
            elif "_lora_" not in name:
                tensors[name] = [*tensors[name]]
                tensors[name][l] = array
        start = RESIDUALS.get(lora.fields.get("init_lora_weights"))
        for place in filter(MODULES.__contains__, lora.modules):
            weights = tensors[f"{place}w"]
            if start is not None:
                modules = [lora.at(place, l) for l in blocks]
                weights = [start(np.asarray(w, np.float32), *m) if m else w for w, m in zip(weights, modules)]
                tensors[f"{place}w"] = weights
            for role in ["a", "b", *["magnitude"] * lora.dora, *["bias"] * lora.bias]:
                name = f"{place}_lora_{role}"
                known = {l: array for (other, l), array in self.arrays.items() if other == name}
                shape = tuple(np.array([array.shape for array in known.values()]).max(0))
                tensors[name] = [np.zeros(shape, np.float32) for _ in blocks]
                for l in blocks:
                    if l in known:  # perhaps of a lower rank than others
                        tensors[name][l] = np.zeros(shape, known[l].dtype)
                        tensors[name][l][tuple(map(slice, known[l].shape))] = known[l]
                    elif role == "magnitude":  # an adapter of zeros changes nothing
                        tensors[name][l] = lengths(np.asarray(weights[l], np.float64))
        return tensors


# What is left of a weight (OC, C) float32 beside adapters that start as a part of it: of this rank, counted
# scale times. peft computes it again when such an adapter is loaded.


def without_singular_values(weight: np.ndarray, rank: int, scale: float) -> np.ndarray:
    """PiSSA's: without its `rank` largest singular values. Meng et al. 2024."""
    u, s, v = np.linalg.svd(weight, full_matrices=False)
    return weight - (u[:, :rank] * s[:rank]) @ v[:rank]


def without_columns(weight: np.ndarray, rank: int, scale: float) -> np.ndarray:
    """OLoRA's: without columns of Q and rows of R of its transpose, scale times. Buyukakyuz 2024."""
    q, r = np.linalg.qr(weight.T)
    return weight - (scale * q[:, :rank] @ r[:rank]).T


RESIDUALS = {"pissa": without_singular_values, "olora": without_columns}
STARTS = (True, False, None, "gaussian", "orthogonal", "eva", *RESIDUALS)
CONVERT = (
    "save it with peft's path_initial_model_for_weight_conversion; or save and name the changed base too, "
    "and set init_lora_weights to true"
)


# ---- Reading ---------------------------------------------------------------------------------------------


def is_adapter(folder: Path) -> bool:
    return os.path.exists(folder / CONFIG)  # False for an impossible name


def base_of(folder: Path) -> tuple[str, str]:
    path = folder / CONFIG
    fields = json_object(path)
    texts = [fields.get(name) or "" for name in ("base_model_name_or_path", "revision")]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(
            f"{path}: base_model_name_or_path is {texts[0]!r}, revision {texts[1]!r}, expected text"
        )
    if not texts[0]:
        raise UserError(f"{path}: base_model_name_or_path is empty; enter the base weights")
    return texts[0], texts[1]


def read(folder: str | Path, base: GPT2Config) -> Adapter:
    """The Adapter in a folder, for base weights of this config.

    Raises UserError for one that this program computes differently, or of another model.
    """
    folder = Path(folder)
    fields = _checked(folder / CONFIG)
    return _Reading(folder / WEIGHTS, fields, base).adapter()


def _checked(path):
    """The fields of adapter_config.json, after checking that the formula is the same."""
    fields = json_object(path)

    def expect(name, text, good):
        if not good:
            raise UserError(f"{path}: {name} is {fields.get(name)!r}, {text}")

    def number(value):
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6

    expect("peft_type", "only LORA can be read", fields.get("peft_type") == "LORA")
    start = fields.get("init_lora_weights", True)
    expect(
        "init_lora_weights",
        f"which cannot be read; {CONVERT}",
        start in STARTS if isinstance(start, str | bool) else start is None,
    )
    for name, value in fields.items():
        off = name in KNOWN or value in (None, False, "none", {}, [])
        expect(name, "which this program does not know; merge it with peft", off)
    rank, alpha = fields.get("r"), fields.get("lora_alpha")
    if not number(rank) or not isinstance(rank, int) or not number(alpha):
        raise UserError(f"{path}: r is {rank!r} and lora_alpha {alpha!r}, expected numbers above 0")
    for name in ("rank_pattern", "alpha_pattern"):
        pattern = fields.get(name) or {}
        good = isinstance(pattern, dict) and all(number(n) for n in pattern.values())
        expect(name, "expected patterns with numbers above 0", good and all(map(_is_pattern, pattern)))
    expect(
        "bias", "expected none, all or lora_only", fields.get("bias", "none") in ("none", "all", "lora_only")
    )
    saved = fields.get("modules_to_save") or []
    good = isinstance(saved, list) and all(isinstance(name, str) for name in saved)
    expect("modules_to_save", "expected names of modules", good)
    tokens = _tokens(fields)
    good = isinstance(tokens, list) and all(type(id) is int and 0 <= id < 1 << 31 for id in tokens)
    expect("trainable_token_indices", "expected ids, or those of wte", good)
    return fields


def _tokens(fields):
    """The ids in trainable_token_indices: a list, or {"wte": a list}."""
    tokens = fields.get("trainable_token_indices") or []
    return tokens["wte"] if isinstance(tokens, dict) and [*tokens] == ["wte"] else tokens


def _is_pattern(text):
    try:
        re.compile(rf"(.*\.)?({text})$")
    except re.error:
        return False
    return True


class _Reading:
    """An adapter's file while it is read.

    arrays   (our name, block or ...) -> array
    keys     peft's names of the tensors that are not adapters
    """

    def __init__(self, path: Path, fields: Mapping[str, Any], base: GPT2Config):
        self.path, self.fields, self.base = path, fields, base
        self.arrays: dict[tuple[str, Any], np.ndarray] = {}
        self.keys: list[str] = []
        for name, tensor in huggingface.tensors_of(path).items():
            if ".modules_to_save." in name or ".original_module." in name:
                continue  # with bias="all" peft repeats those of modules_to_save, and adds the base's
            key, transposed = parsed(name)
            if key is None:
                raise UserError(f"{path}: {name} is not an adapter of a matrix of GPT-2")
            if key[1] is not ... and key[1] >= base.n_layer:
                raise self._of_another(name, f"in a model of {base.n_layer} blocks")
            self.arrays[key] = tensor.array().T if transposed else tensor.array()
            if "_lora_" not in key[0]:
                self.keys.append(name)
        if not self.arrays:
            raise UserError(f"{path}: holds no adapter")

    def _of_another(self, name, text):
        return UserError(f"{self.path}: an adapter of another model: {name} {text}")

    def adapter(self) -> Adapter:
        fields, L = self.fields, self.base.n_layer
        trained = self._trained()
        config = self._config(trained)
        shapes = {name: p.shape for name, p in gpt2_tensors(config).items()}
        modules = {}
        for place in PLACES:
            found = [self._module(place, l, shapes) for l in (range(L) if place in MODULES else [...])]
            if any(module is not None for module in found):
                modules[place] = tuple(found) if len(set(found)) > 1 else (found[0],)
        for (name, _), array in self.arrays.items():
            if "_lora_" not in name and array.shape != shapes[name]:
                raise self._of_another(name, f"has shape {array.shape}, expected {shapes[name]}")
        tensors = {name: tuple(l for n, l in trained if n == name and l is not ...) for name, _ in trained}
        lora = LoRA(
            modules,
            {name: tuple(sorted(blocks)) for name, blocks in tensors.items()},
            self._tokens(modules, trained, shapes),
            bool(fields.get("use_dora")),
            bool(fields.get("lora_bias")),
            {name: value for name, value in fields.items() if name in KNOWN},
            tuple(self.keys),
        )
        rank = max((module[0] for found in modules.values() for module in found if module), default=1)
        tuning = Tuning(f"lora:{rank}", lora_alpha=fields["lora_alpha"], adapter=lora.to_json())
        return Adapter(self.path, config, tuning, self.arrays)

    def _trained(self):
        """(name, block or ...) of the tensors that are trained beside adapters, by the fields."""
        saved, bias = self.fields.get("modules_to_save") or [], self.fields.get("bias", "none")
        adapted = {(name.partition("_lora_")[0] + "b", l) for name, l in self.arrays if "_lora_" in name}
        trained = set()
        for name in [*gpt2_tensors(self.base), "lmheadw"]:
            module, leaf, _ = PLAIN[name]
            for l in range(self.base.n_layer) if "{l}" in module else [...]:
                with_bias = leaf == "bias" and (
                    bias == "all" or (bias == "lora_only" and (name, l) in adapted)
                )
                if with_bias or _saves(module.format(l=l), saved):
                    trained.add((name, l))
        plain = {key for key in self.arrays if "_lora_" not in key[0]}
        if wrong := sorted(trained - plain, key=str) or sorted(plain - trained - EMBEDDED, key=str):
            module, leaf, _ = PLAIN[wrong[0][0]]
            text = "which it trains, is missing" if wrong[0] in trained else "is not trained by its fields"
            raise UserError(f"{self.path}: {module.format(l=wrong[0][1])}.{leaf}, {text}")
        return trained

    def _config(self, trained):
        """The config of the model: as many tokens as the file has rows, and a head of its own if needed."""
        wte, head = (self.arrays.get((name, ...)) for name in ("wte", "lmheadw"))
        config = self.base
        for array in (wte, head):
            if array is not None and array.ndim == 2:
                config = replace(config, vocab_size=len(array))
        if not config.tie_word_embeddings:
            return config
        if EMBEDDED & trained:  # ensure_weight_tying has no effect once peft has saved it
            return replace(config, tie_word_embeddings=False)
        if head is not None:
            del self.arrays["lmheadw", ...]
            if wte is not None and not np.array_equal(wte, head):
                raise UserError(f"{self.path}: its head is not its wte, and neither is trained")
            self.arrays["wte", ...] = head
        return config

    def _module(self, place, l, shapes):
        """(rank, scale) of the adapter of a place in block l, or None."""
        fields, full = self.fields, PLACES[place].format(l=l)
        names = [name.split("_lora_") for name, at in self.arrays if at == l and "_lora_" in name]
        roles = {role for owner, role in names if owner == place} - {"rows"}
        if not roles:
            return None
        expected = {"a", "b"} | ({"magnitude"} if fields.get("use_dora") else set())
        expected |= {"bias"} if fields.get("lora_bias") else set()
        for role in sorted(roles ^ expected):
            name = next(theirs for theirs, ours in ROLES.items() if ours == role).removesuffix(".weight")
            module, where = (full, "") if l is ... else (MODULES[place], f" in block {l}")
            text = f"is missing{where}" if role in expected else f"is there{where}, and not by its fields"
            raise UserError(f"{self.path}: {name} of {module} {text}")
        rank, alpha = (
            next(
                (n for key, n in (fields.get(name) or {}).items() if re.match(rf"(.*\.)?({key})$", full)),
                fields[default],
            )
            for name, default in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha"))
        )
        start, text = fields.get("init_lora_weights"), ""
        if start == "olora" and place != "attproj":  # which it does not transpose
            text = "which peft's own forward cannot compute; start from pissa"
        elif start in RESIDUALS and place not in MODULES:
            text = f"which cannot be read; {CONVERT}"
        if text:
            raise UserError(
                f"{self.path.with_name(CONFIG)}: init_lora_weights is {start!r} for {full}, {text}"
            )
        head = "lmheadw" if "lmheadw" in shapes else "wte"
        weight = head if place == "head" else place if place in EMBEDDINGS else f"{place}w"
        OC, C = shapes[weight][:: -1 if place in EMBEDDINGS else 1]
        shape = {"a": (rank, C), "b": (OC, rank), "bias": (OC,), "magnitude": (OC,)}
        for role in sorted(expected):
            array = self.arrays[f"{place}_lora_{role}", l]
            if array.shape != shape[role]:
                other = f"has shape {array.shape}, expected {shape[role]} for r={rank}"
                raise self._of_another(f"{role} of {full}", other)
        if place not in MODULES and fields.get("ensure_weight_tying"):
            raise UserError(f"{self.path}: ensure_weight_tying is true for {full}, which cannot be read")
        return int(rank), alpha / (math.sqrt(rank) if fields.get("use_rslora") else rank)

    def _tokens(self, modules, trained, shapes):
        """The rows of wte that are trained apart."""
        tokens, rows = _tokens(self.fields), self.arrays.get(("wte_lora_rows", ...))
        V, C = shapes["wte"]
        if not tokens and rows is None:
            return ()
        if rows is None or rows.shape != (len(tokens), C) or max(tokens, default=V) >= V:
            raise UserError(
                f"{self.path}: trainable_token_indices are {tokens}, and its rows of wte do not fit"
            )
        if {"wte", "head"} & {*modules} or EMBEDDED & trained:
            raise UserError(
                f"{self.path}: trainable_token_indices with adapters of wte or lm_head cannot be read"
            )
        return tuple(tokens)


EMBEDDED = {("wte", ...), ("lmheadw", ...)}  # the matrix with a row a token, at its two places


def _saves(module, names):
    """Whether modules_to_save has a module, or one that holds it; peft compares the ends of names."""
    parts = module.split(".")
    return any(".".join(parts[:n]).endswith(name) for n in range(1, len(parts) + 1) for name in names)


def parsed(name: str) -> tuple[tuple[str, Any] | None, bool]:
    """((our name, block or ...), transposed) of peft's name of a tensor; (None, False) if there is none."""
    match = NAME.fullmatch(name)
    if match is None:
        return None, False
    l = ... if match[1] is None else int(match[1])
    module = match[2] if match[2] == "lm_head" else f"transformer.{'' if l is ... else 'h.{l}.'}{match[2]}"
    if match[3] in ROLES:
        place = next((place for place, theirs in PLACES.items() if theirs == module), None)
        return (None if place is None else (f"{place}_lora_{ROLES[match[3]]}", l)), False
    for ours, (theirs, leaf, transposed) in PLAIN.items():
        if (theirs, leaf) == (module, match[3]):
            return (ours, l), transposed
    return None, False


# ---- Writing ---------------------------------------------------------------------------------------------


def write(folder: str | Path, model: GPT2, base: str | None = None) -> list[Path]:
    """Write the adapters of a model for peft, and what is trained beside them. base: name of the base."""
    lora = model.description.lora
    if lora is None:
        raise UserError(f"{folder}: the model has no adapters to save")
    folder, fields = Path(folder), lora.fields or _config(model.description.tuning, lora)
    base = base or model.origin or fields.get("base_model_name_or_path")
    text = json.dumps({**fields, "base_model_name_or_path": base}, indent=2, sort_keys=True) + "\n"
    tensors = huggingface.tensor_parts(dict(contents(model)))
    huggingface.replace_model(folder, {WEIGHTS: tensors, CONFIG: text.encode()})
    return [folder / CONFIG, folder / WEIGHTS]


def contents(model: GPT2) -> Iterator[tuple[str, np.ndarray]]:
    """(peft's name, array) of the adapters of a model, and of what is trained with them."""
    lora, params = model.description.lora, model.params
    for place in filter(lora.modules.__contains__, PLACES):
        for theirs, role in ROLES.items():
            name, of_embedding = f"{place}_lora_{role}", place in EMBEDDINGS and role in "ab"
            if name not in params or theirs.startswith("lora_embedding") != of_embedding:
                continue
            for l in range(model.config.n_layer) if place in MODULES else [...]:
                if (module := lora.at(place, l)) is None:
                    continue
                array = params[name][l]
                array = array[: module[0]] if role == "a" else array[:, : module[0]] if role == "b" else array
                yield f"{FRONT}{PLACES[place].format(l=l)}.{theirs}", array
    if lora.tokens:
        yield f"{FRONT}transformer.wte.token_adapter.trainable_tokens_delta", params["wte_lora_rows"]
    for key in lora.keys:
        (name, l), transposed = parsed(key)
        array = params[name if name in params else "wte"][l]
        yield key, array.T if transposed else array


def _config(tuning: Tuning, lora: LoRA) -> dict[str, Any]:
    """The content of adapter_config.json, without the base, for adapters that are alike in all blocks."""
    alpha = tuning.lora_alpha
    return {
        "bias": "none",
        "fan_in_fan_out": True,  # transformers stores the matrices beside them as (in, out)
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": tuning.number,
        "target_modules": [MODULES[place] for place in lora.modules],
        "task_type": "CAUSAL_LM",
    }
