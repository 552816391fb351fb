"""Folders of Hugging Face transformers: config.json and model.safetensors.

Tensors are named h.N.attn.c_attn.weight and so on, with or without the prefix `transformer.`. Their linear
layers (Conv1D) store weights as (in, out), ours as (out, in). Attention masks in old files are skipped. The
head is wte; a file may repeat it as lm_head.weight.

Reading needs the safetensors package: pip install 'numpy-gpt2[hf]'.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpt2.data.tokenizer import Tokenizer
from gpt2.errors import UserError
from gpt2.hints import install
from gpt2.model.config import GPT2Config, parameter_table
from gpt2.storage.files import made_folder, write_together
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


def read_into(folder: str | Path, params: Mapping[str, np.ndarray], config: GPT2Config) -> None:
    """Fill the sixteen tensors of `params` from the folder's weights, one tensor at a time.

    Raises UserError for tensors that are missing, unknown, of another shape or kind, and for a head that is
    not tied to the embedding.
    """
    for target, array in _read(Path(folder), _targets(params, config), config):
        target[...] = array


def read_views(folder: str | Path, config: GPT2Config) -> dict[str, Any]:
    """The sixteen tensors without a copy: name -> array, or a list of arrays, one a block.

    They are read-only memory maps of the files, in their stored type (bfloat16: float32 copies).
    Raises the same errors as read_into.
    """
    wanted = {
        name: [_Target(shape[1:]) for _ in range(shape[0])] if "{l}" in theirs else _Target(shape)
        for (name, theirs, _), (_, shape) in zip(NAMES, parameter_table(config))
    }
    for target, array in _read(Path(folder), _targets(wanted, config), config):
        target.array = array
    return {name: [x.array for x in p] if isinstance(p, list) else p.array for name, p in wanted.items()}


class _Target:
    """A tensor of this shape, which gets a view as its array."""

    def __init__(self, shape):
        self.shape, self.array = shape, None


def _read(folder, targets, config):
    """(target, array) of each target, after checking that the files hold exactly these tensors."""
    with _Tensors(folder) as tensors:
        stored = _without_buffers(tensors)
        wanted = dict(targets)
        missing = sorted(wanted.keys() - stored.keys())
        if missing:
            raise UserError(
                f"{tensors.path}: {len(missing)} tensors are missing, the first is {missing[0]}; "
                f"expected a GPT-2 of {config.n_layer} blocks"
            )
        unknown = sorted(stored.keys() - wanted.keys() - {HEAD})
        if unknown:
            raise UserError(
                f"{tensors.path}: {len(unknown)} tensors do not belong to a GPT-2 of "
                f"{config.n_layer} blocks, the first is {unknown[0]}"
            )
        for name, (target, transposed) in wanted.items():
            array = tensors.read(stored[name])
            expected = target.shape[::-1] if transposed else target.shape
            if array.shape != expected:
                raise UserError(
                    f"{tensors.path}: {stored[name]} has shape {array.shape}, expected {expected}"
                )
            yield target, array.T if transposed else array
        wte = "wte.weight"
        if HEAD in stored and not _same(tensors.read(stored[HEAD]), tensors.read(stored[wte])):
            raise UserError(
                f"{tensors.path}: {HEAD} differs from {stored[wte]}; only a head tied "
                "to the embedding can be read"
            )


def files_of(folder: str | Path) -> list[Path]:
    """The files of the folder's tensors."""
    with _Tensors(Path(folder)) as tensors:
        return sorted(tensors.opened)


def write(
    folder: str | Path,
    params: Mapping[str, np.ndarray],
    config: GPT2Config,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write a folder that transformers' GPT2LMHeadModel.from_pretrained reads; all tensors as float32.

    tokenizer  a gpt2.data.tokenizer.Tokenizer, written as well if this format can express it

    Raises UserError where the folder holds files of another model that would stay.
    """
    end = None if tokenizer is None else tokenizer.end_of_text
    tokenizer_files = (
        {} if tokenizer is None else huggingface_tokenizer.contents(tokenizer, config.block_size)
    )
    targets = _targets(params, config)
    tensors = {PREFIX + name: array.T if transposed else array for name, (array, transposed) in targets}
    text = json.dumps(_config(config, end), indent=2) + "\n"
    replace_model(folder, {WEIGHTS: tensor_parts(tensors), CONFIG: text.encode(), **tokenizer_files})


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


def _without_buffers(tensors):
    """Name without prefix -> name in the file, except for masks."""
    return {name.removeprefix(PREFIX): name for name in tensors.names() if not name.endswith(BUFFERS)}


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


# ---- The safetensors package -----------------------------------------------------------------------------


def _package():
    try:
        import safetensors.numpy
    except ImportError:
        raise UserError(
            f"Hugging Face weights need the safetensors package: {install('safetensors')}"
        ) from None
    return safetensors


class _Tensors:
    """The tensors of a folder by name, from one file or several, read on demand."""

    def __init__(self, folder):
        self.path = folder / WEIGHTS
        files = [self.path]
        if not self.path.exists() and (folder / INDEX).exists():
            self.path = folder / INDEX
            files = self._files_of_index(folder)
        self.package = _package()
        self.opened = {}
        self.mapped = {}  # file -> (table, bytes), once something was read
        try:
            for file in files:
                # safe_open checks that the table of tensors fits the size of the file
                self.opened[file] = self.package.safe_open(file, framework="numpy").__enter__()
        except FileNotFoundError as error:
            self.__exit__()
            raise UserError(
                f"{error.filename or file}: no such file; expected {WEIGHTS} in a folder that "
                "transformers wrote (pytorch_model.bin cannot be read safely)"
            ) from None
        except (
            OSError,
            ValueError,
            self.package.SafetensorError,
        ) as error:  # ValueError: an impossible file name
            self.__exit__()
            raise UserError(f"{file}: no safetensors file, or damaged ({_first_line(error)})") from None

    def _files_of_index(self, folder):
        table = json_object(self.path).get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
            raise UserError(f"{self.path}: weight_map is missing, expected names of tensors and files")
        names = sorted(set(table.values()))
        for name in names:
            if Path(name).name != name:  # only files beside the index
                raise UserError(f"{self.path}: weight_map names {name!r}, expected a file in the same folder")
        return [folder / name for name in names]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for handle in self.opened.values():
            handle.__exit__(None, None, None)
        self.opened = {}
        self.mapped = {}

    def names(self):
        return [name for handle in self.opened.values() for name in handle.keys()]

    def read(self, name):
        """A tensor as an array: float16, float32 or float64 as stored, bfloat16 as float32.

        Otherwise a view of the file, mapped into memory.
        """
        file = next(f for f, h in self.opened.items() if name in h.keys())
        if file not in self.mapped:
            self.mapped[file] = _map(file)
        table, content = self.mapped[file]
        return _array(self.path, name, table[name], content)


def read_file(path: Path) -> dict[str, np.ndarray]:
    """All tensors of one file by name, as views of it, or as float32 for bfloat16."""
    package = _package()
    try:
        with package.safe_open(path, framework="numpy"):
            pass  # safe_open checks that the table of tensors fits the size of the file
    except (OSError, ValueError, package.SafetensorError) as error:
        raise UserError(f"{path}: no safetensors file, or damaged ({_first_line(error)})") from None
    table, content = _map(path)
    return {name: _array(path, name, e, content) for name, e in table.items() if name != "__metadata__"}


def _array(path, name, entry, content):
    """A tensor as a view of the file's bytes; bfloat16 as float32."""
    kind, (begin, end) = entry["dtype"], entry["data_offsets"]
    if kind not in TYPES:
        raise UserError(f"{path}: {name} is of type {kind}, expected F32, F16, BF16 or F64")
    stored = content[begin:end].view(TYPES[kind]).reshape(entry["shape"])
    return to_float32(stored) if kind == "BF16" else stored


def _map(file):
    """(table of tensors, bytes after it) of a file that safe_open has checked.

    Eight bytes give the length of the table, which has the offsets of the tensors after it.
    """
    content = np.memmap(file, np.uint8, "r").view(np.ndarray)
    start = 8 + int.from_bytes(content[:8].tobytes(), "little")
    return json.loads(content[8:start].tobytes()), content[start:]


def tensor_parts(tensors: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """The bytes of a safetensors file with these tensors as float32, one tensor at a time."""
    # transformers requires this entry: the framework whose conventions the arrays follow
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in tensors.items():
        begin, end = end, end + 4 * array.size
        table[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for array in tensors.values():
        yield np.ascontiguousarray(array, "<f4").tobytes()


def _first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]
