"""Count NumPy's array allocations through its allocator hook (NEP 49).

    arrays, nbytes = counted(f)

tracemalloc counts bytes, not allocations. NumPy lets C code replace its malloc, calloc and realloc; here
Python functions count and call NumPy's. Its free is kept, so arrays that outlive the count do not depend on
this module.

Only the calling thread is counted, as NumPy keeps the hook in a context variable. Views allocate no elements.
Python numbers that NumPy wraps temporarily (`x + 1`) are not counted.
"""

import ctypes
import functools
import sys

from numpy._core import _multiarray_umath

_VOID, _SIZE = ctypes.c_void_p, ctypes.c_size_t
# PYFUNCTYPE, not CFUNCTYPE: NumPy calls these with the interpreter lock held, and its own functions need it.
_MALLOC = ctypes.PYFUNCTYPE(_VOID, _VOID, _SIZE)
_CALLOC = ctypes.PYFUNCTYPE(_VOID, _VOID, _SIZE, _SIZE)
_REALLOC = ctypes.PYFUNCTYPE(_VOID, _VOID, _VOID, _SIZE)
_SET, _DEFAULT = 304, 306  # places in NumPy's table of C functions, part of its stable ABI since 1.22
_NUMBER = 16  # bytes of one number at most, a complex128


class _Handler(ctypes.Structure):
    """PyDataMem_Handler, version 1."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("ctx", _VOID),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", _REALLOC),
        ("free", _VOID),
    ]


def _pointer(capsule, name, kind):
    """What the capsule holds, as a pointer to this kind."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = _VOID, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.cast(get(capsule, name), ctypes.POINTER(kind))


@functools.cache  # never freed, as arrays allocated under the hook refer to it
def _hook():
    """(what sets a handler, the counting handler, the sizes that it has counted, what must stay alive)"""
    sizes, table = [], _pointer(_multiarray_umath._ARRAY_API, None, _VOID)
    own = ctypes.cast(table[_DEFAULT], ctypes.POINTER(ctypes.py_object))[0]
    default = _pointer(own, b"mem_handler", _Handler)[0]

    def counting(allocate, kind):
        def call(ctx, *arguments):
            # of malloc a size, of calloc two factors, of realloc a pointer and a size
            size = arguments[0] * arguments[1] if kind is _CALLOC else arguments[-1]
            if size > _NUMBER:
                sizes.append(size)
            return allocate(ctx, *arguments)

        return kind(call)

    kinds = {"malloc": _MALLOC, "calloc": _CALLOC, "realloc": _REALLOC}
    calls = [counting(getattr(default, name), kind) for name, kind in kinds.items()]
    handler = _Handler(b"counting", 1, default.ctx, *calls, default.free)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [_VOID, ctypes.c_char_p, _VOID]
    capsule = new(ctypes.addressof(handler), b"mem_handler", None)
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET]), capsule, sizes, handler


def counted(f):
    """(arrays, bytes) that NumPy allocates during f(); (None, None) without CPython, which has the hook."""
    if sys.implementation.name != "cpython":
        f()
        return None, None
    set_handler, capsule, sizes, _ = _hook()
    sizes.clear()
    before = set_handler(capsule)
    try:
        f()
    finally:
        set_handler(before)
    return len(sizes), sum(sizes)
