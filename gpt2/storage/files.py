"""Files that appear whole or not at all.

    write_atomically(path, content)    bytes, or an iterable of them
    with replacing(path) as file:      the same, for a writer that goes back and forth

What is written goes into a temporary file in the same folder, which nobody else may read (mode 0600). The
disk confirms it (fsync), then it is renamed over the old file, whose mode it takes. A process that is killed
at any moment leaves the old file or the new one, and may leave a temporary file beside it: `leftovers` finds
these.
"""

import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gpt2.errors import UserError


def _new_mode():
    """The mode that this process gives to new files. umask can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


NEW_MODE = _new_mode()  # read once, before there are threads that create files


def made_folder(path: str | Path) -> Path:
    """The folder, made where it is not there yet. Raises UserError where it cannot be made."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    return path


@contextmanager
def replacing(path: str | Path, alone: bool = False) -> Iterator[BinaryIO]:
    """A file open for writing bytes, which takes the place of `path` at the end of the block.

    alone  nobody else writes `path` at the same time, so its temporary file has a fixed name, PATH.tmp, and
           what a killed process left there goes with the next write. Otherwise the name is drawn at random

    Where the block raises, or the disk refuses, `path` is as it was and the temporary file is gone. OSError
    comes through as it is.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp" if alone else f".{path.name}.{secrets.token_hex(4)}")
    if alone:
        temporary.unlink(missing_ok=True)
    try:
        # x: a link that somebody laid in its place is not followed
        with open(temporary, "xb", opener=_private) as file:
            yield file
            file.flush()
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode_of(path))
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    finally:
        _remove(temporary)  # still there only if something failed


def write_atomically(path: str | Path, content: bytes | Iterable[bytes]) -> None:
    """Write bytes, or an iterable of them, to `path` so that no reader ever sees a part of them.

    Raises UserError where that cannot be done; an older file is then untouched.
    """
    try:
        with replacing(path) as file:
            for part in [content] if isinstance(content, bytes) else content:
                file.write(part)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def leftovers(folder: str | Path, names: Iterable[str]) -> list[Path]:
    """Temporary files in `folder` that a killed process was writing for one of these names."""
    either = "|".join(re.escape(name) for name in names)
    ours = re.compile(rf"\.({either})\.[0-9a-f]{{8}}|({either})\.tmp")
    return [path for path in Path(folder).iterdir() if ours.fullmatch(path.name)]


def _private(path, flags):
    return os.open(path, flags, 0o600)


def mode_of(path: str | Path) -> int:
    """The mode of the file that is replaced, or that of a new one."""
    try:
        return os.stat(path).st_mode & 0o777
    except OSError:
        return NEW_MODE


def _sync_folder(folder):
    """Have the disk confirm the rename. Windows has no such call and needs none."""
    if os.name != "posix":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError:
        pass  # some network file systems refuse; the rename itself has been done


def _remove(path):
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass  # a folder that cannot be written to; the error that led here says so
