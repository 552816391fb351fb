"""Lock a folder: only one program at a time writes to it.

    with Lock(folder):
        ...                 a second Lock on the folder is a UserError that says who has it

The operating system holds the lock, on the open file FOLDER/lock, and releases it when the process ends.
After kill -9 or a power cut the file still exists, but is not locked. Its text names the holder; nothing
depends on it. The package filelock does not name the holder, nor spare a user's file of this name.
"""

import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from gpt2.errors import UserError, os_errors

NAME = "lock"
FAR = 1 << 30  # Windows locks bytes against reading: so lock a byte far behind the text
LONGEST = 200  # bytes of text that are shown
POLL = 0.02  # seconds between attempts to lock
# Errors of file systems without locks, such as some network ones; locking is skipped there.
WITHOUT = {errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


class Lock:
    """The lock of `folder`, acquired at once; freed by release(), or at the end of a with block.

    Raises UserError if another program, or another Lock here, has it, or if the folder is not writable.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / NAME
        self._file = self._take()
        holder = f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
        with suppress(OSError):  # a full disk; the lock works without text
            self._file.truncate(0)
            self._file.write(holder.encode())

    def release(self) -> None:
        """Release the lock and remove its file. Idempotent."""
        file, self._file = self._file, None
        if file is None:
            return
        # Remove first, then release: a program that opens it in between sees that its file is not the one in
        # the folder, and tries again. Windows cannot remove an open file, so there the order is reversed, and
        # removing fails if another program has the file open by then.
        if sys.platform != "win32":
            remove(self.path)
        file.close()
        if sys.platform == "win32":
            remove(self.path)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.release()

    def _take(self):
        while True:
            try:
                file = open(self.path, "a+b", buffering=0)
            except OSError as error:
                raise UserError(
                    f"{self.path.parent}: cannot be written to: {error.strerror or error}; a run "
                    "keeps its checkpoints there, so give another folder with --out"
                ) from None
            file.seek(0)
            holder = file.read(LONGEST).decode(errors="replace")
            if holder and not holder.startswith("process "):
                file.close()
                raise UserError(
                    f"{self.path}: not the lock of a run; a run needs this name, so move the file, or give "
                    "another folder with --out"
                )
            if not lock_file(file):
                holder = holder or "another program"
                file.close()
                raise UserError(
                    f"{self.path.parent} is in use by {holder}; two runs in one folder would "
                    "overwrite each other. Wait for it to end, or give another folder with --out"
                )
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
                    return file
            file.close()  # the previous holder removed the file after it was opened here


@contextmanager
def turn(path: str | Path) -> Iterator[None]:
    """Wait for the lock of the file `path`, which is created for it, and hold it in the block.

    For work that one of several programs does for all: each first checks whether it is done. Raises UserError
    if the file cannot be written.
    """
    with os_errors(f"cannot write {path}"):
        file = locked(path)
    with file:
        try:
            yield
        finally:
            remove(Path(path))


def locked(path: str | Path, opener: Callable[[str, int], int] | None = None) -> IO:
    """Open or create the file at `path`, and wait until this process has its lock.

    Its holder may remove the file before releasing it; whoever has it open then tries again.
    """
    while True:
        file = open(path, "ab", opener=opener)
        with suppress(FileNotFoundError):
            if lock_file(file) and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        file.close()
        time.sleep(POLL)


def remove(path: Path) -> None:
    """Remove a file if that can be done: a leftover is harmless."""
    with suppress(OSError):
        path.unlink()


def lock_file(file: IO) -> bool:
    """Lock an open file until it is closed, without waiting; False: another program has locked it.

    Also True on a file system without locks.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(FAR)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in WITHOUT
    return True
