"""Atomic writes of one file, or of several that belong together.

Content goes to temporary files in the same folder, readable by their owner alone (mode 0600), is synced to
the disk (fsync), and then renamed over the old files, whose modes it keeps. A process that is killed at any
moment leaves the old file or the new one. For several files, either all are old or all are new, or a marker
beside the first says that the renames were interrupted, which `check_whole` reports.

A process holds a lock on each temporary file that it writes. Those of a killed process are removed by the
next one that writes to the folder.
"""

import errno
import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gpt2.errors import UserError, os_errors
from gpt2.storage.lock import lock_file, locked, remove

HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
TEMPORARY = re.compile(r"\.gpt2-([0-9a-f]{8})-[0-9a-f]{16}\.tmp")  # machine, and a random number
IDLE = 86400.0  # seconds without a write after which a temporary file of another machine is a leftover


_umask = os.umask(0o077)  # can only be read by setting it: once, before there are threads that create files
os.umask(_umask)
NEW_MODE = 0o666 & ~_umask  # of new files of this process


def made_folder(path: str | Path) -> Path:
    """Create the folder if needed, and return it. Raises UserError if it cannot be created."""
    path = Path(path)
    with os_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file open for writing bytes, which replaces `path` at the end of the block.

    If the block raises, or the disk fails, `path` is unchanged and the temporary file is removed. OSError is
    not converted.
    """
    with replacing_together([Path(path)]) as (file,):
        yield file


@contextmanager
def replacing_together(paths: Sequence[Path]) -> Iterator[list[BinaryIO]]:
    """Files open for writing bytes, which replace `paths` at the end of the block.

    paths   in one folder; the first identifies the set for `check_whole`

    Nothing is renamed until all are written and synced. Raises as `replacing` does.
    """
    for path in paths:
        if path.exists() and not (path.is_file() or path.is_dir()):  # /dev/null, which root could replace
            raise OSError(errno.EINVAL, "not a regular file")
    folder = paths[0].parent
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    staged: list[Path] = []
    try:
        with ExitStack() as stack:
            opened = [_temporary(folder, staged, stack) for _ in paths]
            yield opened
            for file, path in zip(opened, paths):
                file.flush()
                with suppress(AttributeError, PermissionError):  # Windows; shares that have no modes
                    os.fchmod(file.fileno(), mode_of(path))
                os.fsync(file.fileno())
            if os.name != "posix":
                stack.close()  # Windows renames no open file; elsewhere they stay locked until renamed
            mark = _mark(paths[0])
            if len(paths) > 1:
                _rename_marked(staged, paths, mark)
            else:
                os.replace(staged[0], paths[0])
                remove(mark)
            _sync_folder(folder)
    finally:
        for temporary in staged:
            remove(temporary)  # still there only if something failed


def _temporary(folder, staged, stack):
    """A new temporary file, open and locked; its path is added to `staged`."""
    while True:
        path = folder / f".gpt2-{HOST}-{secrets.token_hex(8)}.tmp"
        # x: does not follow a link
        file = open(path, "xb", opener=_private)
        staged.append(path)
        stack.enter_context(file)
        if lock_file(file) and path.exists():
            return file
        staged.pop()  # swept by another process before it was locked


def _rename_marked(staged, paths, mark):
    """Rename files, one process at a time. The marker stays if this fails between two of them."""
    with locked(mark, _private) as file:
        renamed = os.fstat(file.fileno()).st_size  # not 0: left by a process that was killed
        try:
            file.write(b"unfinished")
            file.flush()
            os.fsync(file.fileno())
            _sync_folder(mark.parent)
            for temporary, path in zip(staged, paths):
                os.replace(temporary, path)
                renamed += 1
            _sync_folder(mark.parent)
            renamed = 0
        finally:
            if not renamed:
                remove(mark)


def _mark(path):
    return path.with_name(f".{path.name}.unfinished")


def check_whole(path: str | Path) -> None:
    """Raise UserError if replacing `path`, and the files that belong to it, was interrupted."""
    mark = _mark(Path(path))
    if mark.exists():
        raise UserError(
            f"{path}: replacing it and the files that belong to it was interrupted, so they may be of two "
            f"models; write them again, or remove {mark} if you know that they are of one"
        )


def write_together(contents: Mapping[Path, bytes | Iterable[bytes]]) -> None:
    """Write several files of one folder, each as bytes or an iterable of them; the first identifies the set.

    Raises UserError on failure; older files are then unchanged, or `check_whole` raises.
    """
    what = f"cannot write {next(iter(contents))}"
    with os_errors(what), replacing_together(list(contents)) as files:
        for file, content in zip(files, contents.values()):
            for part in [content] if isinstance(content, bytes) else content:
                file.write(part)


def write_atomically(path: str | Path, content: bytes | Iterable[bytes]) -> None:
    """Write bytes, or an iterable of them, to `path`, atomically. Raises UserError as `write_together`."""
    write_together({Path(path): content})


def sweep(folder: str | Path) -> None:
    """Remove the temporary files in `folder` that killed processes left, as far as possible."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in list(entries):
            if match := TEMPORARY.fullmatch(entry.name):
                with suppress(OSError):
                    _sweep_file(entry.path, here=match[1] == HOST)


def sweep_below(folder: str | Path) -> None:
    for path in Path(folder).glob("*"):
        sweep(path)


def _sweep_file(path, here):
    """Remove a temporary file that no process has locked.

    here   it was written on this machine. The locks of another may not be seen on a shared disk, and some
           file systems have none: there a file is removed only once it has been idle for long
    """
    with _opened(path) as file, _opened(path) as again:
        if not lock_file(file):
            return
        seen = here and not lock_file(again)  # getting a second lock means that locks have no effect
        idle = time.time() - os.fstat(file.fileno()).st_mtime > IDLE
        if os.name == "posix" and (seen or idle):
            os.unlink(path)
    if os.name != "posix" and (seen or idle):
        os.unlink(path)  # Windows removes no open file


def _opened(path):
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.fdopen(os.open(path, flags), "r+b", buffering=0)


def _private(path, flags):
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def mode_of(path: str | Path) -> int:
    """The mode of the file that is replaced, or of a new one."""
    try:
        return os.stat(path).st_mode & 0o777
    except OSError:
        return NEW_MODE


def _sync_folder(folder):
    """Sync the rename to the disk. Windows has no such call and needs none."""
    with suppress(OSError):  # some network file systems refuse; the rename itself has been done
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
