"""Files in the safetensors format, which checkpoints have, and weights of transformers and peft.

    8 bytes     length of the header, unsigned little-endian
    header      JSON: {"__metadata__": {...}, NAME: {"dtype", "shape", "data_offsets"}, ...}
    arrays      one after the other, little-endian, row-major, nothing between them

Files may come from anybody. What is wrong with one is a ValueError of one line; a header that is accepted
describes exactly the bytes of the file. NumPy is not needed: the state of a checkpoint is read without it.
"""

import json
import math
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from gpt2.errors import UserError, os_errors

METADATA = "__metadata__"
LONGEST_HEADER = 64 << 20  # bytes; a header is some kilobytes, plus the settings
MOST_AXES = 32
# Bytes of a number of each type that this program reads or writes
SIZES = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8, "I32": 4, "I64": 8, "U8": 1, "U16": 2}


class StoredArray(NamedTuple):
    """An array of a file: its type, its shape, and the position of its bytes in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class FileHeader(NamedTuple):
    """The first bytes of a file, its metadata, and its arrays by name, in the order of their bytes."""

    raw: bytes
    metadata: dict[str, Any]
    entries: dict[str, StoredArray]


def read_header(file: BinaryIO) -> FileHeader:
    """The FileHeader of a file open at its start. Raises ValueError if it does not fit the file."""
    size = os.fstat(file.fileno()).st_size
    first = file.read(8)
    if len(first) < 8:
        raise ValueError(f"only {size} bytes")
    length = struct.unpack("<Q", first)[0]
    if length > LONGEST_HEADER:
        raise ValueError("it does not begin with a header")
    if 8 + length > size:
        raise ValueError(f"{size} bytes, its header alone {length}: cut short")
    raw = first + file.read(length)
    table = parse(raw[8:], "header")
    if not isinstance(table, dict):
        raise ValueError("its header is not a table")
    metadata = table.pop(METADATA, {})
    if not isinstance(metadata, dict):
        raise ValueError("its metadata are not a table")
    return FileHeader(raw, metadata, _entries(table, len(raw), size))


def _entries(table, start, size):
    """Name -> StoredArray, after checking that the table describes exactly the bytes from start to size."""
    damaged = ValueError(
        f"the table of arrays does not fit the file ({size - start} bytes of arrays): cut short, or damaged"
    )
    entries = {}
    for name, entry in table.items():
        try:
            dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
            nbytes = math.prod(shape) * SIZES.get(dtype, 0)
        except (KeyError, TypeError, ValueError):
            raise damaged from None
        if not whole or len(shape) > MOST_AXES or math.prod(n or 1 for n in shape) > sys.maxsize // 8:
            raise damaged
        if dtype in SIZES and end - begin != nbytes:
            raise damaged
        entries[name] = StoredArray(dtype, tuple(shape), start + begin, start + end)
    entries = dict(sorted(entries.items(), key=lambda item: item[1][2:]))
    at = start
    for entry in entries.values():
        if entry.begin != at or entry.end < at:
            raise damaged
        at = entry.end
    if at != size:
        raise damaged
    return entries


def header_bytes(metadata: Mapping[str, Any], arrays: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """The first bytes of a file with arrays of these types and shapes, which are to follow in this order."""
    table: dict[str, Any] = {METADATA: metadata}
    end = 0
    for name, (dtype, shape) in arrays.items():
        begin, end = end, end + math.prod(shape) * SIZES[dtype]
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)  # arrays begin at a multiple of 8
    return struct.pack("<Q", len(text)) + text


def parse(text: str | bytes, part: str) -> Any:
    """JSON to objects. Raises ValueError if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"its {part} is not JSON") from None


FORMAT = "gpt2-numpy checkpoint 1"


def checkpoint_header(path: Path, file: BinaryIO) -> tuple[FileHeader, Any]:
    """The FileHeader and the state of a checkpoint. The checksum is not verified."""
    try:
        header = read_header(file)
        metadata = header.metadata
        if metadata.get("format") != FORMAT:
            raise UserError(f"{path}: not a checkpoint of this program, expected the format {FORMAT!r}")
        if not all(isinstance(metadata.get(key), str) for key in ("sha256", "state")):
            raise UserError(f"{path}: the header lacks its checksum or its state, the file is damaged")
        return header, parse(metadata["state"], "state")
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path}: not a checkpoint, or damaged ({error})") from None


def load_state(path: str | Path) -> dict[str, Any]:
    """Only the state of a checkpoint. The checksum is not verified: `checkpoint.load` does that."""
    path = Path(path)
    with os_errors(f"{path}: cannot be read"), open(path, "rb") as file:
        return checkpoint_header(path, file)[1]
