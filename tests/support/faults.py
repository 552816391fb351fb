"""A disk that fails, or a process that dies, at a chosen call: what tests put under gpt2.storage.files.

    with Faults(at=3, act=full):       the third thing that is asked of the disk meets a full one
        checkpoint.save(...)

Counted are: opening the temporary file, each write, fsync, the rename, and the moment after it. A write is
cut in half first, so that the file holds a part of what was to be written.
"""

import builtins
import errno
import os
import signal

from gpt2.storage import files


def full():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_only():
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


class Faults:
    """Calls `act` at call number `at`, counted from 1; with at=0 only counts. calls: their names."""

    def __init__(self, at=0, act=full):
        self.at, self.act = at, act
        self.calls = []

    def __enter__(self):
        files.open, files.os = self._open, _Os(self)
        return self

    def __exit__(self, *error):
        del files.open
        files.os = os

    def happens(self, name):
        self.calls.append(name)
        return len(self.calls) == self.at

    def _open(self, path, mode, **options):
        if self.happens("open"):
            self.act()
        return _File(builtins.open(path, mode, **options), self)


class _Os:
    """The module os, with the counted functions replaced."""

    def __init__(self, faults):
        self.faults = faults

    def __getattr__(self, name):
        return getattr(os, name)

    def fsync(self, handle):
        if self.faults.happens("fsync"):
            self.faults.act()
        os.fsync(handle)

    def replace(self, source, target):
        if self.faults.happens("replace"):
            self.faults.act()
        os.replace(source, target)
        if self.faults.happens("replaced") and self.faults.act is kill:
            kill()


class _File:
    """A file whose writes are counted. It is not buffered, as a part of a write is to be in the file."""

    def __init__(self, file, faults):
        self.file, self.faults = file, faults

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, content):
        if self.faults.happens("write"):
            self.file.write(memoryview(content)[: len(content) // 2])
            self.file.flush()
            self.faults.act()
        return self.file.write(content)
