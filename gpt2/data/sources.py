"""Texts in files: which files a name stands for, and the documents in each.

    my.txt                 UTF-8 text, one document
    my.jsonl               a JSON object a line; its field `text` is a document
    my.txt.gz, my.jsonl.gz the same, compressed by gzip
    my.parquet             the column `text`, a document a row; needs pyarrow
    texts/                 all of these in a folder and those below it, in the order of their names
    'texts/*.txt'          a pattern
    a.txt,b.txt            several of them, in this order

A document is read in pieces: str, with None between two documents.
"""

import codecs
import glob
import gzip
import json
import os
import shlex
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from gpt2.errors import UserError, option_error, os_errors, reason, suggestion
from gpt2.hints import install

CHUNK = 1 << 18  # bytes of a text that are read at once

KINDS = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".parquet")  # those that are taken from a folder


def names_of(data: str) -> list[str]:
    """The names that --data gives, which commas separate unless the whole is the name of a file."""
    return [data] if os.path.exists(data) else [name for name in data.split(",") if name]


def files_of(data: str, flag: str = "--data") -> list[Path]:
    """The files that some names stand for, in order. Raises UserError for a name that stands for none."""
    files = []
    for name in names_of(data):
        if os.path.isdir(name):
            below = (Path(at) / file for at, _, found in os.walk(name) for file in found)
            files += (found := sorted(path for path in below if path.name.endswith(KINDS)))
            problem = f"this folder has no texts ({', '.join(KINDS)})"
        elif glob.has_magic(name) and not os.path.exists(name):
            files += (found := [Path(path) for path in sorted(glob.glob(name, recursive=True))])
            problem = "no file has a name of this pattern"
        else:
            files += (found := [Path(name)])
        if not found:
            raise UserError(f"{flag} {name}: {problem}")
    return files


def absolute(data: str) -> str:
    """The same names, from the root of the file system."""
    names = names_of(data)
    paths = [os.path.join(os.path.realpath(os.path.dirname(n) or "."), os.path.basename(n)) for n in names]
    paths = [os.path.realpath(path) if os.path.exists(path) else path for path in paths]
    if len(paths) > 1 and any("," in path for path in paths):
        raise option_error("data", "a name among several has a comma in it; give a folder or a pattern")
    return ",".join(paths)


def documents(path: Path) -> Iterator[str | None]:
    """The documents of a file in pieces. Raises UserError with file and line for content that is none."""
    if path.name.endswith(".parquet"):
        yield from _column(path)
    elif is_jsonl(path):
        for number, fields in enumerate(lines(path)):
            if number:
                yield None
            yield field_of(fields, "text")
    else:
        yield from pieces(path)


def pieces(path: str | Path) -> Iterator[str]:
    """The UTF-8 text of a file in parts, without a byte-order mark, line ends as they are.

    Raises UserError for a file that is missing, empty, or not text.
    """
    path, decoder = Path(path), codecs.getincrementaldecoder("utf-8")()
    size, blank = 0, True
    for content in chain(contents(path, CHUNK), [b""]):  # which flushes the decoder
        if (zero := content.find(0)) >= 0:
            place = f"a zero byte at {size + zero}"
            raise UserError(f"--data {path}: a binary file ({place}), expected UTF-8 text")
        pending = len(decoder.getstate()[0])  # the beginning of a character
        try:
            text = decoder.decode(content, final=not content)
        except UnicodeDecodeError as error:
            raise UserError(
                f"--data {path}: not UTF-8 text (byte {size - pending + error.start} is "
                f"0x{error.object[error.start]:02x}); convert it, for example: "
                f"iconv -f latin1 -t utf8 {shlex.quote(str(path))} > utf8.txt"
            ) from None
        yield text if size else text.removeprefix("\ufeff")
        size += len(content)
        blank = blank and not content.strip()
    if blank:
        raise UserError(f"--data {path}: the file is empty ({size} bytes), expected text")


def is_jsonl(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.gz"))


class JsonLine(dict):
    """The object of a line; `place` says where it is, for errors."""

    place = ""


def lines(path: Path) -> Iterator[JsonLine]:
    """The objects of a .jsonl file, without blank lines."""
    count = 0
    for number, content in enumerate(contents(path), 1):
        if not content.strip():
            continue
        place = f"--data {path}:{number}"
        try:
            fields = json.loads(content.strip())
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}: this line is not JSON ({reason(error)})") from None
        if not isinstance(fields, dict):
            raise UserError(f"{place}: expected an object, {{...}}, and this line is {kind_of(fields)}")
        fields = JsonLine(fields)
        fields.place = place
        count += 1
        yield fields
    if not count:
        raise UserError(f"--data {path}: the file is empty, expected a JSON object a line")


def contents(path: Path, size: int = 0) -> Iterator[bytes]:
    """The lines of a file, or parts of `size` bytes, decompressed."""
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else open(path, "rb") as file:
            yield from iter(partial(file.read, size), b"") if size else file
    except (EOFError, zlib.error) as error:
        raise UserError(f"--data {path}: damaged or cut short ({reason(error)})") from None
    except (OSError, ValueError) as error:  # ValueError: an impossible file name
        if os.path.isdir(path):  # Windows says that a folder may not be read
            raise UserError(f"--data {path}: this is a folder, expected a text file") from None
        raise UserError(f"--data {path}: {reason(error)}") from None


def field_of(fields: JsonLine, name: str) -> str:
    """A text in a line's object. Raises UserError if it is missing, or no text."""
    if name not in fields:
        known = ", ".join(fields) or "none"
        raise UserError(f"{fields.place}: no field {name!r} (it has {known}){suggestion(name, fields)}")
    if not isinstance(fields[name], str):
        raise UserError(f"{fields.place}: the field {name!r} is {kind_of(fields[name])}, expected a text")
    return fields[name]


def kind_of(value: Any) -> str:
    kinds = {str: "a text", bool: "a truth value", dict: "an object", list: "a list", type(None): "null"}
    return kinds.get(type(value), "a number")


def _column(path):
    """The rows of the column `text` of a parquet file."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UserError(f"--data {path}: parquet is read with pyarrow: {install('pyarrow')}") from None
    row = 0
    try:
        with os_errors(f"--data {path}"):
            file = parquet.ParquetFile(path)
            if "text" not in (names := file.schema_arrow.names):  # pyarrow would leave it out in silence
                raise UserError(f"--data {path}: no column 'text' (it has {', '.join(names)})")
            for batch in file.iter_batches(1024, columns=["text"]):
                for text in batch.column(0).to_pylist():
                    if not isinstance(text, str):
                        raise UserError(f"--data {path}: row {row} has no text, but {text!r}")
                    if row:
                        yield None
                    yield text
                    row += 1
    except ArrowException as error:
        raise UserError(f"--data {path}: not a parquet file ({reason(error)})") from None
    if not row:
        raise UserError(f"--data {path}: it has no rows")
