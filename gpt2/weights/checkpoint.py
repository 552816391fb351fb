"""Checkpoints: arrays and plain settings in one file, which is either whole or not there.

Layout (that of the safetensors format, so its tools can read the arrays):

    8 bytes     length of the header, unsigned little-endian
    header      JSON: {"__metadata__": {"format", "sha256", "state"},
                       NAME: {"dtype", "shape", "data_offsets"}, ...}
    arrays      one after the other, little-endian, row-major, nothing between them

`state` is JSON in a string: step, settings, loader position and the like. `sha256` is that of the whole file
with the 64 digits themselves replaced by zeros. Nothing is ever unpickled or executed.

A save writes a temporary file in the same folder, has the disk confirm it (fsync), and renames it over the
old one (gpt2/storage/files.py). A process killed at any moment leaves the old file or the new one.

`save` and `load` know nothing of models; `model_arrays` and `model_state` say what of a GPT2 is kept.
"""

import errno
import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gpt2.data import tokenizer
from gpt2.data.tokenizer import Tokenizer
from gpt2.errors import UserError
from gpt2.model.config import GPT2Config
from gpt2.model.description import Description, described
from gpt2.model.gpt2 import GPT2, unflatten
from gpt2.model.tensors import slices_of
from gpt2.storage.files import replacing
from gpt2.storage.header import FORMAT, parse, read_header
from gpt2.storage.header import load_state as load_state

NO_DIGEST = "0" * 64
DTYPES = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "|u1", "U16": "<u2"}
CODES = {np.dtype(dtype): code for code, dtype in DTYPES.items()}
CHUNK = 16 << 20  # bytes hashed and written at a time


def save(path: str | Path, arrays: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
    """Write `arrays` (name -> NumPy array) and `state` (what JSON can hold) to `path`, atomically.

    Raises UserError where the disk is full or the folder cannot be written; an older file at `path` is then
    untouched.
    """
    path = Path(path)
    header, digest_at = _header(arrays, state)
    try:
        with replacing(path) as file:
            file.write(header)
            digest = hashlib.sha256(header)
            for array in arrays.values():
                for chunk in _chunks(array):
                    digest.update(chunk)
                    file.write(chunk)
            file.seek(digest_at)
            file.write(digest.hexdigest().encode())
    except OSError as error:
        before = "; the checkpoint written before is untouched" if path.exists() else ""
        hint = ", free some space" if error.errno == errno.ENOSPC else ""
        raise UserError(f"cannot write {path}: {error.strerror or error}{hint}{before}") from None


def load(path: str | Path, mapped: bool = False) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `save` wrote: (arrays, state). Arrays are new, writable, and in the order they were saved in.

    mapped   they are views of the file instead, mapped into memory, that can only be read

    Raises UserError for a file that is missing, cut short, damaged, or of another kind. Nothing larger than
    the file is allocated.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            raw, header = read_header(path, file, size)
            entries = _entries(path, header, size - len(raw))
            digest = hashlib.sha256(_without_digest(path, raw, header))
            arrays = {}
            content = np.memmap(path, np.uint8, "r").view(np.ndarray) if mapped else None
            for name, (dtype, shape) in entries.items():
                arrays[name] = (
                    _read_array(file, dtype, shape)
                    if content is None
                    else _view(content, len(raw) + header[name]["data_offsets"][0], dtype, shape)
                )
                for chunk in _chunks(arrays[name]):
                    digest.update(chunk)
    except FileNotFoundError:
        raise UserError(f"{path}: no such checkpoint") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, MemoryError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: damaged: an array of an impossible shape") from None
    metadata = header["__metadata__"]
    if digest.hexdigest() != metadata["sha256"]:
        raise UserError(f"{path}: the checksum does not match, the file is damaged; use another checkpoint")
    return arrays, parse(path, metadata["state"], "state")


TOKENIZER = "tokenizer"  # in the state its name and SHA-256, among the arrays its JSON


def kept_tokenizer(words: Tokenizer | None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the part of the state by which a checkpoint knows its tokenizer; None: it has none."""
    if words is None:
        return {}, {TOKENIZER: None}
    content = words.to_json().encode()
    note = {"name": words.name, "sha256": hashlib.sha256(content).hexdigest()}
    return {TOKENIZER: np.frombuffer(content, np.uint8)}, {TOKENIZER: note}


def load_tokenizer(path: str | Path, state: Mapping[str, Any]) -> Tokenizer | None:
    """The Tokenizer in a checkpoint with this state, or None where it says that it has none."""
    note, path = state[TOKENIZER], Path(path)
    if note is None:
        return None
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            raw, header = read_header(path, file, size)
            dtype, shape = _entries(path, header, size - len(raw))[TOKENIZER]
            file.seek(len(raw) + header[TOKENIZER]["data_offsets"][0])
            content = _read_array(file, dtype, shape).tobytes()
        if hashlib.sha256(content).hexdigest() != note["sha256"]:
            raise KeyError
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (KeyError, TypeError):
        raise UserError(
            f"{path}: its tokenizer is not the one that it was saved with; it is damaged"
        ) from None
    return tokenizer.from_json(path, content)


def model_arrays(model: GPT2, trained: bool = False) -> dict[str, np.ndarray]:
    """The tensors of a GPT2 under the names a checkpoint gives them, as views: "params.wte", ...

    trained   those alone that are trained: of the blocks, those that are
    """
    tensors = unflatten(model.flat_params, model.description) if trained else model.params
    return {f"params.{name}": array for name, array in tensors.items()}


def model_state(model: GPT2, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The part of a checkpoint's state from which the model is made again.

    base   where the rest lies, of a checkpoint that holds what was trained alone
    """
    rest = {} if base is None else {"base": dict(base)}
    return {"model": asdict(model.config), **model.description.state(), **rest}


def description_of(
    path: str | Path, state: Mapping[str, Any], given: Mapping[str, Any] | None = None, **sizes: Any
) -> Description:
    """The description of the model in a checkpoint, by its state.

    given    own layers and block, where the checkpoint cannot find them by itself
    sizes    of GPT2Config, to change
    """
    try:
        config = GPT2Config(**{**state["model"], **sizes})
    except (KeyError, TypeError):
        raise UserError(f"{path}: holds no model") from None
    return described(config, state, path, given)


def check_shapes(
    path: str | Path, arrays: Mapping[str, np.ndarray], d: Description, prefix: str, trained: bool = False
) -> None:
    """Raise UserError unless `arrays` has the tensors of `d` under `prefix`, and no others.

    trained   what is trained of them alone
    """
    dtype = d.config.dtype
    shapes = d.trained.shapes if trained else d.shapes
    for name, shape in shapes:
        array = arrays.get(prefix + name)
        if array is None or array.shape != shape or array.dtype != dtype:
            found = "nothing" if array is None else f"{array.dtype} {array.shape}"
            raise UserError(f"{path}: {prefix}{name}: expected {dtype} {shape}, found {found}")
    expected = {prefix + name for name, _ in shapes}
    more = [name for name in arrays if name.startswith(prefix) and name not in expected]
    if more:
        raise UserError(f"{path}: {more[0]} belongs to no tensor of this model; it is one of other layers")


def check_finite(path: str | Path, params: Mapping[str, np.ndarray]) -> None:
    """Raise UserError where a weight is infinite or nan."""
    if found := not_finite(params):
        raise UserError(
            f"{path}: {found}, expected finite numbers; the weights are damaged, or training had gone wrong "
            "before they were saved"
        )


def not_finite(params: Mapping[str, np.ndarray]) -> str:
    """The first number that is infinite or none, as in "wte[0, 3] is nan"; "" where all are finite."""
    for name, array in ((name, part) for name, tensor in params.items() for part in slices_of(tensor)):
        # nan is the least and the greatest of all numbers that it is among, so no array of flags is needed
        if not (math.isfinite(array.min()) and math.isfinite(array.max())):
            at = tuple(map(int, np.argwhere(~np.isfinite(array))[0]))
            return f"{name}{list(at)} is {array[at]}"
    return ""


def fill(views: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray], prefix: str) -> None:
    """Copy arrays[prefix + name] into views[name] for every name, in place."""
    for name, view in views.items():
        view[...] = arrays[prefix + name]


def _header(arrays, state):
    """The first bytes of a file, with zeros for the checksum, and where the checksum lies in them."""
    metadata = {"format": FORMAT, "sha256": NO_DIGEST, "state": json.dumps(state, allow_nan=False)}
    entries = {}
    offset = 0
    for name, array in arrays.items():
        code = CODES.get(array.dtype.newbyteorder("<"))
        if code is None:
            raise TypeError(
                f"checkpoint.save: {name} has dtype {array.dtype}, "
                f"expected one of {', '.join(map(str, CODES))}"
            )
        entries[name] = {
            "dtype": code,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps({"__metadata__": metadata, **entries}).encode()
    text += b" " * (-len(text) % 8)  # arrays begin at a multiple of 8
    return struct.pack("<Q", len(text)) + text, 8 + text.index(NO_DIGEST.encode())


def _entries(path, header, data_bytes):
    """Name -> (dtype, shape) in file order, once the table has been found to describe exactly these bytes."""
    damaged = UserError(
        f"{path}: the table of arrays does not fit the file ({data_bytes} bytes of arrays): "
        "cut short, or damaged"
    )
    entries = {}
    offset = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = np.dtype(DTYPES[entry["dtype"]]), entry["shape"]
            begin, end = entry["data_offsets"]
            if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
                raise damaged
            nbytes = math.prod(shape) * dtype.itemsize
        except (KeyError, TypeError, ValueError):
            raise damaged from None
        if begin != offset or end != begin + nbytes or end > data_bytes:
            raise damaged
        entries[name] = dtype, tuple(shape)
        offset = end
    if offset != data_bytes:
        raise damaged
    return entries


def _without_digest(path, raw, header):
    """The raw header as it was when the checksum was taken."""
    digest = header["__metadata__"]["sha256"].encode()
    if len(digest) != 64 or raw.count(digest) != 1:
        raise UserError(f"{path}: the checksum in the header is malformed, the file is damaged")
    return raw.replace(digest, NO_DIGEST.encode())


def _read_array(file, dtype, shape):
    """The next array of the file."""
    array = np.empty(shape, dtype)
    view = memoryview(array.reshape(-1).view(np.uint8))
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise OSError(errno.EIO, "the file ended early")
        done += count
    return array


def _view(content, start, dtype, shape):
    """An array in the bytes of a file."""
    return content[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _chunks(array):
    """The bytes of an array, little-endian and row-major, as memory views of at most CHUNK bytes; no copy
    where the array is laid out like this already."""
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    view = memoryview(array.reshape(-1).view(np.uint8))
    for first in range(0, len(view), CHUNK):
        yield view[first : first + CHUNK]
