"""Folders of Hugging Face transformers: config.json and model.safetensors.

Tensors are named h.N.attn.c_attn.weight and so on, with or without the prefix `transformer.`. Their linear
layers (Conv1D) store weights as (in, out), ours as (out, in). Attention masks in old files are skipped. The
head is wte; a file may repeat it as lm_head.weight.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpt2.data.tokenizer import Tokenizer
from gpt2.errors import UserError, reason
from gpt2.model.config import GPT2Config, parameter_table
from gpt2.storage.files import made_folder, write_together
from gpt2.storage.safetensors import StoredArray, header_bytes, read_header
from gpt2.weights import huggingface_tokenizer
from gpt2.weights.bfloat16 import to_float32

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # for large models in several files

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
)
BUFFERS = (".attn.bias", ".attn.masked_bias")  # causal masks; h.0.attn.c_attn.bias does not end like this
# NumPy has no bfloat16: its bits are read as uint16
TYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2"}
PREFIX = "transformer."
HEAD = "lm_head.weight"

# Values in config.json for which the model is the one that this project computes. Any other value is an
# error: the weights would load, and the text would be nonsense.
EXPECTED = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # both the tanh form
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}


def read_config(folder: str | Path, dtype: str = "float32") -> GPT2Config:
    """The GPT2Config of config.json. Raises UserError for another kind of model."""
    path = Path(folder) / CONFIG
    fields = json_object(path)
    for name, allowed in EXPECTED.items():
        value = fields.get(name, allowed[0])  # the default is GPT-2's
        if value not in allowed:
            raise UserError(
                f"{path}: {name} is {value!r}, expected {allowed[0]!r}; only GPT-2 as it was "
                "released can be read"
            )
    try:
        C = fields["n_embd"]
        # n_ctx: the name in files of 2019
        block_size = fields["n_positions"] if "n_positions" in fields else fields["n_ctx"]
        config = GPT2Config(fields["vocab_size"], block_size, fields["n_layer"], fields["n_head"], C, dtype)
    except KeyError as missing:
        raise UserError(f"{path}: lacks {missing}, expected the config.json of a GPT-2") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if fields.get("n_inner") not in (None, 4 * C):
        raise UserError(f"{path}: n_inner is {fields['n_inner']!r}, expected {4 * C}: four times n_embd")
    return config


def read_views(folder: str | Path, config: GPT2Config) -> Iterator[tuple[str, Any]]:
    """(name, array) of each of the sixteen tensors; of those in the blocks a list of arrays, one a block.

    They are read-only memory maps of the files, in their stored type (bfloat16: float32 copies).

    Raises UserError for tensors that are missing, unknown, of another shape or kind, and for a head that is
    not tied to the embedding.
    """
    where, files = weight_files(Path(folder))
    tensors = {
        name.removeprefix(PREFIX): tensor
        for file in files
        for name, tensor in tensors_of(file).items()
        if not name.endswith(BUFFERS)
    }
    wanted = {theirs.format(l=l) for _, theirs, _ in NAMES for l in range(config.n_layer)}
    blocks = f"GPT-2 of {config.n_layer} blocks"
    if missing := sorted(wanted - tensors.keys()):
        raise UserError(
            f"{where}: {len(missing)} tensors are missing, the first is {missing[0]}; expected a {blocks}"
        )
    if unknown := sorted(tensors.keys() - wanted - {HEAD}):
        raise UserError(
            f"{where}: {len(unknown)} tensors do not belong to a {blocks}, the first is {unknown[0]}"
        )

    def read(name, shape, transposed):
        tensor = tensors[name]
        expected = shape[::-1] if transposed else shape
        if tensor.entry.shape != expected:
            raise UserError(f"{where}: {tensor.name} has shape {tensor.entry.shape}, expected {expected}")
        return tensor.array().T if transposed else tensor.array()

    for (name, theirs, transposed), (_, shape) in zip(NAMES, parameter_table(config)):
        if "{l}" in theirs:
            yield name, [read(theirs.format(l=l), shape[1:], transposed) for l in range(config.n_layer)]
        else:
            yield name, read(theirs, shape, transposed)
    wte = tensors["wte.weight"]
    if HEAD in tensors and not _same(tensors[HEAD].array(), wte.array()):
        raise UserError(
            f"{where}: {HEAD} differs from {wte.name}; only a head tied to the embedding can be read"
        )


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
    tokenizer_files = (
        {} if tokenizer is None else huggingface_tokenizer.contents(tokenizer, config.block_size)
    )
    targets = _targets(params, config)
    tensors = {PREFIX + name: array.T if transposed else array for name, (array, transposed) in targets}
    text = json.dumps(_config(config, end), indent=2) + "\n"
    contents: dict[str, bytes | Iterator[bytes]] = {WEIGHTS: tensor_parts(tensors), CONFIG: text.encode()}
    contents |= tokenizer_files
    replace_model(folder, contents)
    return sorted(Path(folder) / name for name in contents)


# Files that would make the folder a model of another kind, or with another tokenizer
OTHERS = (WEIGHTS, "adapter_config.json", *huggingface_tokenizer.VOCABULARIES)


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
    """The content of config.json."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "vocab_size": config.vocab_size,
        "n_positions": config.block_size,
        "n_ctx": config.block_size,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": None,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        # this project trains without dropout
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "dtype": "float32",
        "torch_dtype": "float32",  # the name since version 5, and the one before
    }


def _targets(params, config):
    """(transformers' name, (our array, whether it is transposed there)) of every tensor, block by block."""
    for name, theirs, transposed in NAMES:
        if "{l}" in theirs:
            for l in range(config.n_layer):
                yield theirs.format(l=l), (params[name][l], transposed)
        else:
            yield theirs, (params[name], transposed)


def _same(a, b):
    return a.shape == b.shape and np.array_equal(a.astype(b.dtype, copy=False), b)


def json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file of transformers that holds one object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror or error}; expected a folder that transformers wrote"
        ) from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: not JSON") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


# ---- Files of tensors ------------------------------------------------------------------------------------


def weight_files(folder: Path) -> tuple[Path, list[Path]]:
    """The file that says which tensors a folder has, and the files that hold them: itself, or several."""
    path = folder / WEIGHTS
    if path.exists() or not (folder / INDEX).exists():
        return path, [path]
    path = folder / INDEX
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
    entry: StoredArray
    content: np.ndarray

    def array(self) -> np.ndarray:
        """A view of the file, of float16, float32 or float64 as stored; bfloat16 as float32."""
        kind, shape, begin, end = self.entry
        if kind not in TYPES:
            raise UserError(f"{self.path}: {self.name} is of type {kind}, expected F32, F16, BF16 or F64")
        stored = self.content[begin:end].view(TYPES[kind]).reshape(shape)
        return to_float32(stored) if kind == "BF16" else stored


def tensors_of(path: Path) -> dict[str, Tensor]:
    """All tensors of a file by name."""
    try:
        with open(path, "rb") as file:
            header = read_header(file)
        content = np.memmap(path, np.uint8, "r").view(np.ndarray)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; expected {WEIGHTS} in a folder that transformers wrote "
            "(pytorch_model.bin cannot be read safely)"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: an impossible file name, too
        raise UserError(f"{path}: no safetensors file, or damaged ({reason(error)})") from None
    return {name: Tensor(path, name, entry, content) for name, entry in header.entries.items()}


def tensor_parts(tensors: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """The bytes of a safetensors file with these tensors as float32, one tensor at a time."""
    # transformers requires this entry: the framework whose conventions the arrays follow
    yield header_bytes({"format": "pt"}, {name: ("F32", array.shape) for name, array in tensors.items()})
    for array in tensors.values():
        yield np.ascontiguousarray(array, "<f4").tobytes()
