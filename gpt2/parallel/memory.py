"""Arrays in shared memory, which leave no files behind.

On Linux the memory is an anonymous file (memfd_create), passed to the workers as they start: nothing is left
behind if processes are killed, and the size of /dev/shm does not matter. Other systems use one block of
multiprocessing.shared_memory. Its name, for this user alone (mode 0600), is removed as soon as every process
is attached; until then the standard library's resource tracker takes care of it.
"""

import math
import mmap
import os
from collections.abc import Mapping
from multiprocessing import reduction
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from gpt2.errors import UserError
from gpt2.machine import free_memory, size

FOLDER = "/dev/shm"  # named shared memory on Linux, with limited space
ALIGN = 4096  # bytes; arrays begin on a page of their own


class TooLittleMemory(UserError):
    """Not enough shared memory. Fewer workers need less."""


class SharedArrays:
    """Named arrays in a block of shared memory.

    layout  name -> (shape, dtype)
    shared  result of share() of another process's block with the same layout; None makes a new one, of zeros

    arrays  name -> array, valid also after unlink()
    name    of the block in FOLDER, or None
    """

    def __init__(self, layout: Mapping[str, tuple[tuple[int, ...], Any]], shared: Any = None):
        self.layout = layout
        offsets, size = _offsets(layout)
        if shared is None:
            _check_space(size)
            shared = _new_block(size)
        self._shared, self.name = shared, shared.name
        buffer = shared.map(size)
        self.arrays = {
            key: np.ndarray(shape, dtype, buffer, offsets[key]) for key, (shape, dtype) in layout.items()
        }

    def share(self) -> Any:
        """The argument `shared` for a process that is being started."""
        return self._shared

    def unlink(self) -> None:
        """Remove the name, so that no further process can attach. Idempotent."""
        self._shared.unlink()


def _new_block(size):
    """A new block of shared memory, anonymous if the system supports it."""
    try:
        if hasattr(os, "memfd_create"):
            try:
                return _Anonymous(os.memfd_create("gpt2"), size)
            except (PermissionError, NotImplementedError):
                pass  # a sandbox forbids it
        return _Named(size)
    except OSError as error:
        raise TooLittleMemory(
            f"no shared memory for worker processes: {error.strerror or error}; "
            "take --parallel none, which uses threads"
        ) from None


class _Anonymous:
    """An anonymous file in memory; pickled for a process that is being started, it is open there too."""

    name = None

    def __init__(self, handle, size=None):
        self.handle = handle
        if size is not None:
            os.ftruncate(handle, size)

    def __reduce__(self):
        return _attached, (reduction.DupFd(self.handle),)

    def map(self, size):
        return mmap.mmap(self.handle, size)

    def unlink(self):
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)


def _attached(sent):
    return _Anonymous(sent.detach())


class _Named:
    """A block of multiprocessing.shared_memory, identified by its name."""

    def __init__(self, size=None, name=None):
        self._memory = _Mapping(name=name, create=name is None, size=size or 0)
        self._ours, self.name = name is None, self._memory.name

    def __reduce__(self):
        return _Named, (None, self.name)

    def map(self, size):
        return self._memory.buf

    def unlink(self):
        if self._ours:
            self._ours = False
            self._memory.unlink()


class _Mapping(SharedMemory):
    """Shared memory that is unmapped with the last array in it: close() would fail before, and the standard
    library's destructor would report that at exit."""

    def __del__(self):
        handle, self._fd = getattr(self, "_fd", -1), -1
        if handle >= 0:
            os.close(handle)


def _offsets(layout):
    """Byte at which each array begins, and bytes in all."""
    offsets, size = {}, 0
    for key, (shape, dtype) in layout.items():
        offsets[key] = size
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        size += -(-nbytes // ALIGN) * ALIGN
    return offsets, max(size, ALIGN)


def space() -> tuple[str, int | None]:
    """The place of shared memory, and its free bytes; None if unknown."""
    if hasattr(os, "memfd_create"):
        return "memory", free_memory(swap=True)
    try:
        status = os.statvfs(FOLDER)
    except (AttributeError, OSError):
        return FOLDER, None  # not Linux
    return FOLDER, status.f_bavail * status.f_frsize


def _check_space(needed):
    """Raise TooLittleMemory if less than `needed` is free: writing would end in a signal."""
    where, free = space()
    if free is not None and needed > free:
        raise TooLittleMemory(
            f"{size(needed)} of shared memory are needed, {where} has {size(free)} free; "
            "take fewer --workers, or give the container more"
            + (f" (docker run --shm-size={math.ceil(needed / 1e9)}g)" if where == FOLDER else "")
        )
