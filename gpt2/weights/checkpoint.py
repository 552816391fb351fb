"""Checkpoints: arrays and JSON state in one file, written atomically.

The format is safetensors (gpt2/storage/safetensors.py), so its tools can read the arrays. The metadata are
`format`, `sha256` and `state`: JSON in a string, with step, settings, loader position and so on. `sha256` is
that of the whole file with the 64 digits themselves replaced by zeros. Nothing is ever unpickled or executed.

`save` and `load` know nothing of models; `model_arrays` and `model_state` give the contents for a GPT2.
"""

import errno
import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gpt2.data import stored as stored_tokenizers
from gpt2.data.tokenizer import Tokenizer
from gpt2.errors import UserError, os_errors
from gpt2.model.config import SIZES, GPT2Config
from gpt2.model.description import Description, described
from gpt2.model.gpt2 import GPT2
from gpt2.model.parameters import unflatten
from gpt2.model.tensors import slices_of
from gpt2.storage.files import replacing
from gpt2.storage.safetensors import FORMAT, checkpoint_header, header_bytes
from gpt2.storage.safetensors import load_state as load_state

NO_DIGEST = "0" * 64
DTYPES = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "|u1", "U16": "<u2"}
CODES = {np.dtype(dtype): code for code, dtype in DTYPES.items()}
CHUNK = 16 << 20  # bytes hashed and written at a time


def save(path: str | Path, arrays: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
    """Write `arrays` (name -> NumPy array) and `state` (for JSON) to `path`, atomically.

    Raises UserError on failure; an older file at `path` is then unchanged.
    """
    path = Path(path)
    metadata = {"format": FORMAT, "sha256": NO_DIGEST, "state": json.dumps(state, allow_nan=False)}
    kinds = {}
    for name, array in arrays.items():
        code = CODES.get(array.dtype.newbyteorder("<"))
        if code is None:
            known = ", ".join(map(str, CODES))
            raise TypeError(f"checkpoint.save: {name} has dtype {array.dtype}, expected one of {known}")
        kinds[name] = code, array.shape
    header = header_bytes(metadata, kinds)
    try:
        with replacing(path) as file:
            file.write(header)
            digest = hashlib.sha256(header)
            for array in arrays.values():
                for chunk in _chunks(array):
                    digest.update(chunk)
                    file.write(chunk)
            file.seek(header.index(NO_DIGEST.encode()))
            file.write(digest.hexdigest().encode())
    except OSError as error:
        before = "; the previous checkpoint is intact" if path.exists() else ""
        hint = ", free some space" if error.errno == errno.ENOSPC else ""
        raise UserError(f"cannot write {path}: {error.strerror or error}{hint}{before}") from None


def load(path: str | Path, mapped: bool = False) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read a checkpoint: (arrays, state). Arrays are new, writable, and in the order they were saved in.

    mapped   return read-only views of the file instead, mapped into memory

    Raises UserError for a file that is missing, cut short, damaged, or of another kind. Nothing larger than
    the file is allocated.
    """
    path = Path(path)
    with os_errors(f"{path}: cannot be read"):
        with open(path, "rb") as file:
            header, state = checkpoint_header(path, file)
        content = np.memmap(path, np.uint8, "r").view(np.ndarray)
    expected = header.metadata["sha256"].encode()
    if len(expected) != 64 or header.raw.count(expected) != 1:
        raise UserError(f"{path}: the checksum in the header is malformed, the file is damaged")
    digest = hashlib.sha256(header.raw.replace(expected, NO_DIGEST.encode()))
    arrays = {}
    for name, entry in header.entries.items():
        if entry.dtype not in DTYPES:
            raise UserError(f"{path}: {name} is of type {entry.dtype}, expected {', '.join(DTYPES)}")
        view = content[entry.begin : entry.end].view(DTYPES[entry.dtype]).reshape(entry.shape)
        arrays[name] = view if mapped else view.copy()
        for chunk in _chunks(arrays[name]):
            digest.update(chunk)
    if digest.hexdigest().encode() != expected:
        raise UserError(f"{path}: the checksum does not match, the file is damaged; use another checkpoint")
    return arrays, state


TOKENIZER = "tokenizer"  # state: its name and SHA-256; arrays: its JSON


def tokenizer_contents(tokenizer: Tokenizer | None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the part of the state of a checkpoint for its tokenizer, which may be None."""
    if tokenizer is None:
        return {}, {TOKENIZER: None}
    content = tokenizer.to_json().encode()
    note = {"name": tokenizer.name, "sha256": hashlib.sha256(content).hexdigest()}
    return {TOKENIZER: np.frombuffer(content, np.uint8)}, {TOKENIZER: note}


def load_tokenizer(path: str | Path, state: Mapping[str, Any]) -> Tokenizer | None:
    """The Tokenizer in a checkpoint with this state, or None if it has none."""
    note, path = state[TOKENIZER], Path(path)
    if note is None:
        return None
    try:
        with os_errors(f"{path}: cannot be read"), open(path, "rb") as file:
            entry = checkpoint_header(path, file)[0].entries[TOKENIZER]
            file.seek(entry.begin)
            content = file.read(entry.end - entry.begin)
        if hashlib.sha256(content).hexdigest() != note["sha256"]:
            raise KeyError
    except (KeyError, TypeError):
        raise UserError(f"{path}: its tokenizer does not match its checksum; the file is damaged") from None
    return stored_tokenizers.from_json(path, content)


def model_arrays(model: GPT2, trained: bool = False) -> dict[str, np.ndarray]:
    """The tensors of a GPT2, or its trained ones, as views, by their names in a checkpoint: "params.wte"."""
    tensors = unflatten(model.flat_params, model.description) if trained else model.params
    return {f"params.{name}": array for name, array in tensors.items()}


def model_state(model: GPT2, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The part of a checkpoint's state that describes the model.

    base   the note about the frozen base weights, for a checkpoint with only the trained ones
    """
    config, rest = model.config, {} if base is None else {"base": dict(base)}
    # the sizes, and those settings that are not as released
    fields = {k: v for k, v in asdict(config).items() if k in SIZES or k in config.settings}
    return {"model": fields, **model.description.state(), **rest}


def description_of(
    path: str | Path, state: Mapping[str, Any], given: Mapping[str, Any] | None = None, **sizes: Any
) -> Description:
    """The description of the model in a checkpoint, by its state.

    given    own layers and block, if the checkpoint cannot find them by itself
    sizes    of GPT2Config, to change
    """
    try:
        config = GPT2Config(**{**state["model"], **sizes})
    except (KeyError, TypeError):
        raise UserError(f"{path}: holds no model") from None
    return described(config, state, path, given)


def check_shapes(
    path: str | Path,
    arrays: Mapping[str, np.ndarray],
    d: Description,
    prefix: str,
    trained: bool = False,
    without: Collection[str] = (),
) -> None:
    """Raise UserError unless `arrays` has the tensors of `d` under `prefix`, and no others.

    trained   only the trained ones
    without   names of tensors that are not in it
    """
    dtype = d.config.dtype
    shapes = [row for row in (d.trained.shapes if trained else d.shapes) if row[0] not in without]
    for name, shape in shapes:
        array = arrays.get(prefix + name)
        if array is None or array.shape != shape or array.dtype != dtype:
            actual = "nothing" if array is None else f"{array.dtype} {array.shape}"
            raise UserError(f"{path}: {prefix}{name}: expected {dtype} {shape}, found {actual}")
    expected = {prefix + name for name, _ in shapes}
    more = [name for name in arrays if name.startswith(prefix) and name not in expected]
    if more:
        raise UserError(f"{path}: {more[0]} is not a tensor of this model, but of other layers")


def check_finite(path: str | Path, params: Mapping[str, np.ndarray]) -> None:
    """Raise UserError if a weight is infinite or nan."""
    if problem := not_finite(params):
        raise UserError(
            f"{path}: {problem}, expected finite numbers; the weights are damaged, or training diverged "
            "before they were saved"
        )


def not_finite(params: Mapping[str, np.ndarray]) -> str:
    """The first entry that is not finite, such as "wte[0, 3] is nan"; "" if all are finite."""
    for name, array in ((name, part) for name, tensor in params.items() for part in slices_of(tensor)):
        # min and max propagate nan, so no array of flags is needed
        if array.size and not (math.isfinite(array.min()) and math.isfinite(array.max())):
            at = tuple(map(int, np.argwhere(~np.isfinite(array))[0]))
            return f"{name}{list(at)} is {array[at]}"
    return ""


def fill(views: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray], prefix: str) -> None:
    for name, view in views.items():
        view[...] = arrays[prefix + name]


def _chunks(array):
    """The bytes of an array, little-endian and row-major, as memory views of at most CHUNK bytes; no copy if
    the array has this layout already."""
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    view = memoryview(array.reshape(-1).view(np.uint8))
    for first in range(0, len(view), CHUNK):
        yield view[first : first + CHUNK]
