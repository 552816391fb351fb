"""Folders of Hugging Face transformers: config.json and model.safetensors.

Tensors are named h.N.attn.c_attn.weight and so on, with or without the prefix `transformer.`. Their linear
layers (Conv1D) store weights as (in, out), ours as (out, in). Attention masks in old files are skipped, and
the heads of classifiers: only the language model is read.

As in transformers, the file decides whether the head is wte: a lm_head.weight of other numbers is a head of
its own, whatever tie_word_embeddings says. GPT-2 has no setting for biases there, so a model without them is
written with zeros, and with "bias": false, which transformers ignores.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpt2.data.huggingface import ALL_IN_ONE, MERGES, VOCAB, json_object
from gpt2.data.huggingface import FILES as TOKENIZER_FILES
from gpt2.data.huggingface import SETTINGS as TOKENIZER_SETTINGS
from gpt2.data.tokenizer import END_OF_TEXT, Tokenizer
from gpt2.data.tokenizer_json import FileTokenizer, of_characters, parts, spell
from gpt2.errors import UserError, reason
from gpt2.model.config import GPT2Config, parameter_table
from gpt2.storage import pickles
from gpt2.storage.files import made_folder, write_together
from gpt2.storage.pickles import StoredTensor
from gpt2.storage.safetensors import header_bytes, read_header
from gpt2.weights.bfloat16 import to_float32

CONFIG = "config.json"
GENERATION = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # for large models in several files
TORCH = "pytorch_model.bin"  # by torch.save; it may have an index, too

# Our name of a tensor, its name there, and whether it is transposed there. {l} is the number of the block.
NAMES = (
    ("wte", "wte.weight", False),
    ("wpe", "wpe.weight", False),
    ("ln1w", "h.{l}.ln_1.weight", False),
    ("ln1b", "h.{l}.ln_1.bias", False),
    ("qkvw", "h.{l}.attn.c_attn.weight", True),
    ("qkvb", "h.{l}.attn.c_attn.bias", False),
    ("attprojw", "h.{l}.attn.c_proj.weight", True),
    ("attprojb", "h.{l}.attn.c_proj.bias", False),
    ("ln2w", "h.{l}.ln_2.weight", False),
    ("ln2b", "h.{l}.ln_2.bias", False),
    ("fcw", "h.{l}.mlp.c_fc.weight", True),
    ("fcb", "h.{l}.mlp.c_fc.bias", False),
    ("fcprojw", "h.{l}.mlp.c_proj.weight", True),
    ("fcprojb", "h.{l}.mlp.c_proj.bias", False),
    ("lnfw", "ln_f.weight", False),
    ("lnfb", "ln_f.bias", False),
    ("lmheadw", "lm_head.weight", False),
)
BUFFERS = (".attn.bias", ".attn.masked_bias")  # causal masks; h.0.attn.c_attn.bias does not end like this
# NumPy has no bfloat16: its bits are read as uint16
TYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2"}
PREFIX = "transformer."
HEAD, EMBEDDING = "lm_head.weight", "wte.weight"
# Heads of GPT2ForSequenceClassification and other classes, and TRL's value head, which transformers' language
# model ignores too
OTHER_HEADS = ("score.", "classifier.", "qa_outputs.", "multiple_choice_head.", "v_head.")

# Our sizes, and their names in config.json: n_ctx in files of 2019, and the aliases that transformers takes
SIZES = {
    "vocab_size": ("vocab_size",),
    "block_size": ("n_positions", "max_position_embeddings", "n_ctx"),
    "n_layer": ("n_layer", "num_hidden_layers"),
    "n_head": ("n_head", "num_attention_heads"),
    "n_embd": ("n_embd", "hidden_size"),
}
# Settings of config.json that are fields of GPT2Config
SETTINGS = (
    "n_inner",
    "activation_function",
    "layer_norm_epsilon",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
)


def read_config(folder: str | Path, dtype: str = "float32") -> GPT2Config:
    """The GPT2Config of a folder. Raises UserError for another kind of model."""
    path = Path(folder) / CONFIG
    fields = json_object(path)
    if fields.get("model_type", "gpt2") != "gpt2":
        raise UserError(f"{path}: model_type is {fields['model_type']!r}, expected 'gpt2'")
    if fields.get("add_cross_attention", False) is not False:
        raise UserError(
            f"{path}: add_cross_attention is {fields['add_cross_attention']!r}; a decoder that attends to an "
            "encoder cannot be read"
        )
    sizes = {name: _size(path, fields, names) for name, names in SIZES.items()}
    settings = {name: fields[name] for name in SETTINGS if name in fields}
    tensors = _stored(folder)
    # There are biases, unless config.json says that there are none, and they are missing or zero
    biases = [t for name, t in tensors.items() if name.endswith(".bias") and not name.startswith(OTHER_HEADS)]
    settings["bias"] = fields.get("bias") is not False or any(np.any(tensor.array()) for tensor in biases)
    settings["tie_word_embeddings"] = _is_tied(path, fields, tensors)
    try:
        return GPT2Config(**sizes, dtype=dtype, **settings)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _size(path, fields, names):
    """The value of the first of these names; UserError if there is none, or if an alias differs."""
    values = {name: fields[name] for name in names if name in fields}
    if not values:
        raise UserError(f"{path}: lacks {names[0]!r}, expected the config.json of a GPT-2")
    name, value = next(iter(values.items()))
    for other in values.keys() - {"n_ctx"}:  # which transformers ignores
        if values[other] != value:
            raise UserError(f"{path}: {name} is {value!r}, and {other} {values[other]!r}; remove one of them")
    return value


def _stored(folder):
    """The folder's tensors by name, without prefix and attention masks; {} if there are none yet."""
    _, files = weight_files(Path(folder))
    return {
        name.removeprefix(PREFIX): tensor
        for file in files
        if file.exists()
        for name, tensor in tensors_of(file).items()
        if not name.endswith(BUFFERS)
    }


def _is_tied(path, fields, tensors):
    """Whether the head is wte: as config.json says, unless the head's numbers are others."""
    tied = fields.get("tie_word_embeddings", True)
    if not isinstance(tied, bool):
        raise UserError(f"{path}: tie_word_embeddings is {tied!r}, expected true or false")
    if not tied and tensors and HEAD not in tensors:
        raise UserError(
            f"{path}: tie_word_embeddings is False, and the weights have no {HEAD}; transformers would draw "
            "one at random"
        )
    if not tied or HEAD not in tensors or EMBEDDING not in tensors:
        return tied
    head, wte = tensors[HEAD].array(), tensors[EMBEDDING].array()
    return head.shape == wte.shape and np.array_equal(head.astype(wte.dtype, copy=False), wte)


def read_views(folder: str | Path, config: GPT2Config) -> Iterator[tuple[str, Any]]:
    """(name, array) of each tensor; of those in the blocks a list of arrays, one a block.

    They are read-only memory maps of the files, in their stored type (bfloat16: float32 copies).

    Raises UserError for tensors that are missing, unknown, of another shape or kind.
    """
    return views_of(weight_files(Path(folder))[0], _stored(folder), config)


def views_of(
    where: Path, tensors: dict[str, "Tensor"], config: GPT2Config, linear: bool = False
) -> Iterator[tuple[str, Any]]:
    """read_views of tensors by transformers' names. linear: their matrices are (out, in), as in torch."""
    if config.tie_word_embeddings and HEAD in tensors:
        tensors.setdefault(EMBEDDING, tensors[HEAD])
    shapes = dict(parameter_table(config))
    names = [row for row in NAMES if row[0] in shapes]
    wanted = {theirs.format(l=l) for _, theirs, _ in names for l in range(config.n_layer)}
    absent = {theirs.format(l=l) for _, theirs, _ in NAMES for l in range(config.n_layer)} - wanted
    blocks = f"GPT-2 of {config.n_layer} blocks"
    if missing := sorted(wanted - tensors.keys()):
        raise UserError(
            f"{where}: {len(missing)} tensors are missing, the first is {missing[0]}; expected a {blocks}"
        )
    unknown = sorted(name for name in tensors.keys() - wanted - absent if not name.startswith(OTHER_HEADS))
    if unknown:
        raise UserError(
            f"{where}: {len(unknown)} tensors do not belong to a {blocks}, the first is {unknown[0]}"
        )

    for name, theirs, transposed in names:
        in_blocks, transposed = "{l}" in theirs, transposed and not linear
        shape, parts = shapes[name][in_blocks:], []
        for l in range(config.n_layer) if in_blocks else [...]:
            tensor = tensors[theirs.format(l=l)]
            if tensor.shape != (expected := shape[::-1] if transposed else shape):
                raise UserError(f"{where}: {tensor.name} has shape {tensor.shape}, expected {expected}")
            parts.append(tensor.array().T if transposed else tensor.array())
        yield name, parts if in_blocks else parts[0]


def write(
    folder: str | Path,
    params: Mapping[str, np.ndarray],
    config: GPT2Config,
    tokenizer: Tokenizer | None = None,
) -> list[Path]:
    """Write a folder that transformers' GPT2LMHeadModel.from_pretrained reads; all tensors as float32.

    tokenizer  a gpt2.data.tokenizer.Tokenizer, written as well if this format can express it

    Returns the paths written. Raises UserError where the folder holds files of another model that would stay.
    """
    end = None if tokenizer is None else tokenizer.end_of_text
    shapes, tensors = dict(parameter_table(replace(config, bias=True))), {}
    for name, theirs, transposed in NAMES:
        if name not in shapes:
            continue
        # biases that the model does not have are zeros
        array = params[name] if name in params else np.zeros(shapes[name], np.float32)
        for l in range(config.n_layer) if "{l}" in theirs else [...]:
            full = theirs if theirs == HEAD else PREFIX + theirs.format(l=l)
            tensors[full] = array[l].T if transposed else array[l]
    text = json.dumps(_config(config, end), indent=2) + "\n"
    contents: dict[str, bytes | Iterator[bytes]] = {WEIGHTS: tensor_parts(tensors), CONFIG: text.encode()}
    if end is not None:  # where a text begins and ends; the other choices are the caller's
        ids = {f"{name}_token_id": end for name in ("bos", "eos", "pad")}
        contents[GENERATION] = (json.dumps(ids, indent=2) + "\n").encode()
    if tokenizer is not None:
        contents |= tokenizer_contents(tokenizer, config.block_size)
    replace_model(folder, contents)
    return sorted(Path(folder) / name for name in contents)


# Files that would make the folder a model of another kind, or with another tokenizer
OTHERS = (WEIGHTS, TORCH, "adapter_config.json", *TOKENIZER_FILES)


def replace_model(folder: str | Path, contents: Mapping[str, bytes | Iterator[bytes]]) -> None:
    """Write the files of a model, all or none; the weights come first.

    Raises UserError where the folder holds files of another model that would stay.
    """
    folder = made_folder(folder)
    for name in OTHERS:
        if name not in contents and (folder / name).exists():
            raise UserError(f"{folder / name}: belongs to other weights; remove it, or give another folder")
    write_together({folder / name: content for name, content in contents.items()})


def _config(config, end_of_text):
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **{theirs[0]: getattr(config, ours) for ours, theirs in SIZES.items()},
        "n_ctx": config.block_size,
        **{name: getattr(config, name) for name in SETTINGS},
        "initializer_range": 0.02,
        "tie_word_embeddings": config.tie_word_embeddings,
        **({} if config.bias else {"bias": False}),
        # this project trains without dropout
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "dtype": "float32",
        "torch_dtype": "float32",  # the name since version 5, and the one before
    }


# ---- Files of tensors ------------------------------------------------------------------------------------

# Not a part of one, such as model.fp16-00001-of-00005.safetensors
VARIANT = re.compile(r"model\.((?!.*-of-)[\w-]+)\.safetensors|model\.safetensors\.index\.([\w-]+)\.json")


def preferred(names: Iterable[str], where: object) -> str:
    """The weights among the names of a folder's files, or their index, as transformers prefers them.

    Without model.safetensors it is that of the only variant, such as model.fp16.safetensors. Raises UserError
    if there are several; where: the folder, for its text.
    """
    names = sorted(names)
    variants = {match[1] or match[2]: match[0] for name in names if (match := VARIANT.fullmatch(name))}
    if len(variants) > 1 and not {WEIGHTS, INDEX} & {*names}:
        raise UserError(
            f"{where}: several variants of the weights, {', '.join(variants)}, and no {WEIGHTS}; leave one"
        )
    order = (WEIGHTS, INDEX, *variants.values(), TORCH, f"{TORCH}.index.json")
    return next((name for name in order if name in names), WEIGHTS)


def weight_files(folder: Path) -> tuple[Path, list[Path]]:
    """The file that says which tensors a folder has, and the files that hold them: itself, or several."""
    path = folder / preferred(os.listdir(folder) if folder.is_dir() else (), folder)
    if path.suffix != ".json":
        return path, [path]
    table = json_object(path).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise UserError(f"{path}: weight_map is missing, expected names of tensors and files")
    names = sorted(set(table.values()))
    for name in names:
        if Path(name).name != name:  # only files beside the index
            raise UserError(f"{path}: weight_map names {name!r}, expected a file in the same folder")
    return path, [folder / name for name in names]


def files_of(folder: str | Path) -> list[Path]:
    """The files of the folder's tensors. Raises UserError unless each is a sound one."""
    _, files = weight_files(Path(folder))
    for file in files:
        tensors_of(file)
    return files


@dataclass(frozen=True)
class Tensor:
    """A tensor in a file, whose bytes are mapped into memory."""

    path: Path
    name: str
    kind: str
    shape: tuple[int, ...]
    stored: Callable[[], np.ndarray]

    @classmethod
    def of_torch(cls, path: Path, name: str, tensor: StoredTensor) -> "Tensor":
        return cls(path, name, tensor.kind, tensor.shape, tensor.array)

    def array(self) -> np.ndarray:
        """A view of the file, of float16, float32 or float64 as stored; bfloat16 as float32."""
        if self.kind not in TYPES:
            raise UserError(
                f"{self.path}: {self.name} is of type {self.kind}, expected F32, F16, BF16 or F64"
            )
        try:
            stored = self.stored()
        except ValueError as error:
            raise UserError(f"{self.path}: {self.name}: {error}") from None
        return to_float32(stored) if self.kind == "BF16" else stored


def tensors_of(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".bin" and path.exists():
        tensors = pickles.load(path)
        pairs = tensors.items() if isinstance(tensors, dict) else [("it", tensors)]
        for name, tensor in pairs:
            if not isinstance(name, str) or not isinstance(tensor, StoredTensor):
                raise UserError(
                    f"{path}: {name} is no tensor; expected those of a model by name, as torch.save"
                )
        return {name: Tensor.of_torch(path, name, tensor) for name, tensor in pairs}
    try:
        with open(path, "rb") as file:
            header = read_header(file)
        content = np.memmap(path, np.uint8, "r").view(np.ndarray)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; expected {WEIGHTS} or {TORCH} in a folder that transformers wrote"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: an impossible file name, too
        raise UserError(f"{path}: no safetensors file, or damaged ({reason(error)})") from None

    def stored(entry):
        return content[entry.begin : entry.end].view(TYPES[entry.dtype]).reshape(entry.shape)

    return {
        name: Tensor(path, name, entry.dtype, entry.shape, partial(stored, entry))
        for name, entry in header.entries.items()
    }


def tensor_parts(tensors: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """The bytes of a safetensors file with these tensors as float32, one tensor at a time."""
    # transformers requires this entry: the framework whose conventions the arrays follow
    yield header_bytes({"format": "pt"}, {name: ("F32", array.shape) for name, array in tensors.items()})
    for array in tensors.values():
        yield np.ascontiguousarray(array, "<f4").tobytes()


def tokenizer_contents(tokenizer: Tokenizer, longest: int) -> dict[str, bytes]:
    """The files of a tokenizer by name. longest: the context of the model, in tokens."""
    settings: dict[str, Any] = {"model_max_length": longest}
    if isinstance(tokenizer, FileTokenizer):
        texts = {ALL_IN_ONE: json.dumps(tokenizer.fields, ensure_ascii=False)}
        clean = {"clean_up_tokenization_spaces": tokenizer.clean}
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast", **clean, **tokenizer.roles}
    elif tokenizer.name == "char":
        texts = {ALL_IN_ONE: json.dumps(of_characters(tokenizer.ranks), ensure_ascii=False)}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    else:
        ids = {spell(token): i for i, token in enumerate(tokenizer.ranks)}
        lines = ["#version: 0.2", *(f"{spell(a)} {spell(b)}" for a, b in merges(tokenizer))]
        texts = {
            VOCAB: json.dumps({**ids, **tokenizer.special}, ensure_ascii=False),
            MERGES: "\n".join(lines) + "\n",
        }
        # without these, transformers adds an end of text, with an id that the model does not have
        end = None if tokenizer.end_of_text is None else END_OF_TEXT
        special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), end)
        settings |= {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, **special}
    texts[TOKENIZER_SETTINGS] = json.dumps(settings, indent=2) + "\n"
    return {name: text.encode() for name, text in texts.items()}


def merges(tokenizer: Tokenizer) -> Iterator[Sequence[bytes]]:
    """Pairs of bytes in the order of merging.

    tiktoken joins whichever two neighbours spell a token, so a tokenizer trained here gets all pairs that do.
    GPT-2's own list has one pair a token, and is reproduced exactly.
    """
    rank = {token: i for i, token in enumerate(tokenizer.ranks)}
    for token, r in rank.items():
        if len(token) == 1:
            continue
        if tokenizer.name == "gpt2":
            yield parts(token, rank)
        else:
            splits = [(token[:i], token[i:]) for i in range(1, len(token))]
            yield from (pair for pair in splits if all(rank.get(part, r) < r for part in pair))
