"""The corpus of a text file that the user names."""

import codecs
import os
import shlex
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from gpt2.errors import UserError

CHUNK = 1 << 18  # bytes that are read at once


def pieces(path: str | Path, opened: Callable = lambda path: open(path, "rb")) -> Iterator[str]:
    """The text of the UTF-8 file at `path` in parts, without a byte-order mark, line ends as they are.

    opened   opens the file for reading bytes; another one may decompress them

    Raises UserError for a file that is missing, empty, or not text.
    """
    path = Path(path)
    decoder = codecs.getincrementaldecoder("utf-8")()
    size, blank = 0, True
    for content in _chunks(path, opened):
        text = _decoded(path, decoder, content, size)
        yield text if size else text.removeprefix("\ufeff")
        size += len(content)
        blank = blank and not content.strip()
    if blank:
        raise UserError(f"--data {path}: the file is empty ({size} bytes), expected text")


def _chunks(path, opened):
    """The bytes of a file, and b"" as the last part."""
    try:
        with opened(path) as file:
            while content := file.read(CHUNK):
                yield content
    except (OSError, ValueError) as error:  # ValueError: an impossible file name
        if os.path.isdir(path):  # Windows says that a folder may not be read
            raise UserError(f"--data {path}: this is a folder, expected a text file") from None
        raise UserError(f"--data {path}: {getattr(error, 'strerror', None) or error}") from None
    except (EOFError, zlib.error) as error:
        raise UserError(f"--data {path}: damaged or cut short ({error})") from None
    yield b""


def _decoded(path, decoder, content, start):
    """The text of `content`, which begins at byte `start`; empty content flushes the decoder."""
    if (zero := content.find(0)) >= 0:
        raise UserError(f"--data {path}: a binary file (a zero byte at {start + zero}), expected UTF-8 text")
    pending = len(decoder.getstate()[0])  # the beginning of a character
    try:
        return decoder.decode(content, final=not content)
    except UnicodeDecodeError as error:
        raise UserError(
            f"--data {path}: not UTF-8 text (byte {start - pending + error.start} is "
            f"0x{error.object[error.start]:02x}); convert it, for example: "
            f"iconv -f latin1 -t utf8 {shlex.quote(str(path))} > utf8.txt"
        ) from None


def read(path: str | Path) -> str:
    """The whole text, which `pieces` gives in parts."""
    return "".join(pieces(path))
