"""Arrays in shared memory, and no name left behind.

One block of multiprocessing.shared_memory holds all of them. Its name, for this user alone (mode 0600), is
removed as soon as every process is attached: from then on the memory goes with the last process that has it,
however that one ends. Until then the standard library's resource tracker would remove it.
"""

import math
import os
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from gpt2.errors import UserError

FOLDER = "/dev/shm"  # where Linux keeps shared memory, and limits it: half of the memory; 64 MB in docker
ALIGN = 4096  # bytes; arrays begin on a page of their own


class SharedArrays:
    """Named arrays in a block of shared memory.

    layout  name -> (shape, dtype)
    name    of a block that another process made with the same layout; None makes one, filled with zeros

    arrays  name -> array. They may be used as long as they exist, also after release() and unlink().
    """

    def __init__(self, layout, name=None):
        self.layout = layout
        places, size = _places(layout)
        if name is None:
            _check_room(size)
        self._memory = _Mapping(name=name, create=name is None, size=size)
        self.name = self._memory.name
        self.arrays = {
            key: np.ndarray(shape, dtype, self._memory.buf, places[key])
            for key, (shape, dtype) in layout.items()
        }
        self._named = name is None

    def unlink(self):
        """Remove the name. Nobody can attach from now on; who is attached stays so. May be called again."""
        if self._named:
            self._named = False
            self._memory.unlink()


class _Mapping(SharedMemory):
    """Shared memory that is unmapped with the last array in it, not before: close() would refuse, and
    the standard library's destructor would say so at the end of every program."""

    def __del__(self):
        handle, self._fd = getattr(self, "_fd", -1), -1
        if handle >= 0:
            os.close(handle)


def _places(layout):
    """Byte at which each array begins, and bytes in all."""
    places, size = {}, 0
    for key, (shape, dtype) in layout.items():
        places[key] = size
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        size += -(-nbytes // ALIGN) * ALIGN
    return places, max(size, ALIGN)


def _check_room(size):
    """Raise UserError where there is less room than `size`: writing would end in SIGBUS, without a word."""
    try:
        status = os.statvfs(FOLDER)
    except (AttributeError, OSError):
        return  # another system, which limits it elsewhere
    room = status.f_bavail * status.f_frsize
    if size > room:
        raise UserError(
            f"{size / 1e9:.2f} GB of shared memory are needed, {FOLDER} has room for {room / 1e9:.2f} GB; "
            "take fewer --workers, or give the container more "
            f"(docker run --shm-size={math.ceil(size / 1e9)}g)"
        )
