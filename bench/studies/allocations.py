"""Count NumPy's array allocations through its allocator hook (NEP 49).

    arrays, nbytes = counted(f)

tracemalloc counts bytes, not allocations. NumPy lets C code replace its malloc, calloc and realloc; here
Python functions count and call NumPy's. Its free is kept, so arrays that outlive the count do not depend on
this module.

Only the calling thread is counted, as NumPy keeps the hook in a context variable. Views allocate no elements.
Python numbers that NumPy wraps temporarily (`x + 1`) are not counted.
"""

import ctypes
import sys
from contextlib import contextmanager

# PYFUNCTYPE, not CFUNCTYPE: NumPy calls these with the interpreter lock held, and its own functions need it.
_MALLOC = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CALLOC = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_REALLOC = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_SET, _DEFAULT = 304, 306  # places in NumPy's table of C functions, part of its stable ABI since 1.22
_CAPSULE = b"mem_handler"
_NUMBER = 16  # bytes of one number at most, a complex128


class _Handler(ctypes.Structure):
    """PyDataMem_Handler, version 1."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("ctx", ctypes.c_void_p),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", _REALLOC),
        ("free", ctypes.c_void_p),
    ]


class _Counter:
    """The hook. One per process and never freed, as arrays allocated under it refer to it."""

    def __init__(self):
        self.arrays = self.nbytes = 0
        table = _api_table()
        self.set = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET])
        own = ctypes.cast(table[_DEFAULT], ctypes.POINTER(ctypes.py_object))[0]
        default = ctypes.cast(_pointer(own, _CAPSULE), ctypes.POINTER(_Handler))[0]
        self.malloc, self.calloc, self.realloc = default.malloc, default.calloc, default.realloc
        self.handler = _Handler(
            b"counting",
            1,
            default.ctx,
            _MALLOC(self._malloc),
            _CALLOC(self._calloc),
            _REALLOC(self._realloc),
            default.free,
        )
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.capsule = new(ctypes.addressof(self.handler), _CAPSULE, None)

    def _count(self, nbytes):
        if nbytes > _NUMBER:
            self.arrays += 1
            self.nbytes += nbytes

    def _malloc(self, ctx, size):
        self._count(size)
        return self.malloc(ctx, size)

    def _calloc(self, ctx, count, size):
        self._count(count * size)
        return self.calloc(ctx, count, size)

    def _realloc(self, ctx, pointer, size):
        self._count(size)
        return self.realloc(ctx, pointer, size)

    @contextmanager
    def counting(self):
        self.arrays = self.nbytes = 0
        before = self.set(self.capsule)
        try:
            yield self
        finally:
            self.set(before)


def _pointer(capsule, name):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, name)


def _api_table():
    from numpy._core import _multiarray_umath

    return ctypes.cast(_pointer(_multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))


_counter: _Counter | None = None


def counted(f):
    """(arrays, bytes) that NumPy allocates during f(); (None, None) without CPython, which has the hook."""
    global _counter
    if sys.implementation.name != "cpython":
        f()
        return None, None
    if _counter is None:
        _counter = _Counter()
    with _counter.counting() as counter:
        f()
        return counter.arrays, counter.nbytes
