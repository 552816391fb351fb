"""Arrays in shared memory, which leave no files behind.

The memory is an Arena of multiprocessing: a file that has no name any more when processes map it, so nothing
is left behind if they are killed. On Linux it is a file in memory (memfd_create), and the size of /dev/shm
does not matter.
"""

import math
import os
from collections.abc import Mapping
from multiprocessing.heap import Arena
from typing import Any
from weakref import finalize

import numpy as np

from gpt2.errors import UserError
from gpt2.machine import free_memory, size

ALIGN = 4096  # bytes; arrays begin on a page of their own


class TooLittleMemory(UserError):
    """Not enough shared memory. Fewer workers need less."""


class SharedArrays:
    """Named arrays in a block of shared memory.

    layout  name -> (shape, dtype)
    arena   the block of another process; None makes a new one, of zeros

    arrays  name -> array
    """

    def __init__(self, layout: Mapping[str, tuple[tuple[int, ...], Any]], arena: Any = None):
        self.layout = layout
        offsets, end = {}, 0
        for name, (shape, dtype) in layout.items():
            offsets[name] = end
            end += -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGN) * ALIGN
        self.arena = _new_arena(max(end, ALIGN)) if arena is None else arena
        self.arrays = {
            name: np.ndarray(shape, dtype, self.arena.buffer, offsets[name])
            for name, (shape, dtype) in layout.items()
        }

    def __reduce__(self) -> tuple:
        """For a process that is being started, which gets the same memory."""
        return SharedArrays, (self.layout, self.arena)


def _new_arena(needed):
    """A new block of shared memory. Raises TooLittleMemory: writing to it would end in a signal."""
    free = free_memory(swap=True)
    if free is not None and needed > free:
        raise TooLittleMemory(
            f"{size(needed)} of shared memory are needed, and {size(free)} are free; take fewer --workers"
        )
    try:
        if not hasattr(os, "memfd_create"):
            return Arena(needed)
        try:
            handle = os.memfd_create("gpt2")
        except (PermissionError, NotImplementedError):  # a sandbox forbids it
            return Arena(needed)
        os.ftruncate(handle, needed)
        arena = Arena(needed, handle)
        finalize(arena, os.close, handle)
        return arena
    except OSError as error:
        raise TooLittleMemory(
            f"no shared memory for worker processes: {error.strerror or error}; "
            "take --parallel none, which uses threads"
        ) from None
