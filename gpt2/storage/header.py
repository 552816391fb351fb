"""The header of a checkpoint and its state, read without NumPy; gpt2/weights/checkpoint.py has the layout."""

import json
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

from gpt2.errors import UserError

FORMAT = "gpt2-numpy checkpoint 1"
LONGEST_HEADER = 64 << 20  # bytes; a header is some kilobytes, plus the settings


def load_state(path: str | Path) -> dict[str, Any]:
    """Only the state, from the header. The checksum is not verified: `load` does that with the arrays."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            _, header = read_header(path, file, os.fstat(file.fileno()).st_size)
    except FileNotFoundError:
        raise UserError(f"{path}: no such checkpoint") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    return parse(path, header["__metadata__"]["state"], "state")


def read_header(path: Path, file: BinaryIO, size: int) -> tuple[bytes, dict[str, Any]]:
    """The raw first bytes of a file of `size` bytes, and the parsed header."""
    foreign = f"{path}: not a checkpoint of this program"
    first = file.read(8)
    if len(first) < 8:
        raise UserError(f"{foreign} (only {size} bytes)")
    length = struct.unpack("<Q", first)[0]
    if length > LONGEST_HEADER:
        raise UserError(f"{foreign} (it does not begin with a header)")
    if 8 + length > size:
        raise UserError(f"{path}: {size} bytes, its header alone {length}: cut short, or not a checkpoint")
    text = file.read(length)
    header = parse(path, text, "header")
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise UserError(f"{foreign}, expected the format {FORMAT!r}")
    if not all(isinstance(metadata.get(key), str) for key in ("sha256", "state")):
        raise UserError(f"{path}: the header lacks its checksum or its state, the file is damaged")
    return first + text, header


def parse(path: Path, text: str | bytes, part: str) -> Any:
    """JSON to objects; whatever is wrong with it is one line."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"{path}: not a checkpoint, or damaged (its {part} is not JSON)") from None
