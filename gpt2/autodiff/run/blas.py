"""The BLAS library that NumPy uses: its threads, its kernels, and its axpby."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from threadpoolctl import LibController

_NO_BYTES = ctypes.c_byte * 0


@cache
def numpys_blas() -> LibController | None:
    """The BLAS that NumPy has loaded; None for Accelerate, or without threadpoolctl."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    # SciPy's wheel bundles another
    folders = ("numpy.libs", "numpy/.dylibs")
    numpys = [lib for lib in libraries if os.path.dirname(lib.filepath).endswith(folders)]
    return next(iter(numpys or libraries), None)


@cache
def blas_threads() -> int | None:
    """The number of threads that NumPy's BLAS had before limit_blas_threads; None if that cannot be set."""
    library = numpys_blas()
    return None if library is None else library.num_threads


def limit_blas_threads(n: int) -> bool:
    """Set the number of threads of NumPy's BLAS, for the whole process.

    n   at least 1

    Returns False if that is impossible: for Apple's Accelerate, or without threadpoolctl. Then set
    OMP_NUM_THREADS before NumPy is imported. set_threads calls this, as the pool splits products itself.

        >>> limited = ad.limit_blas_threads(1)
    """
    if blas_threads() is None:
        return False
    numpys_blas().set_num_threads(n)
    return True


@cache
def blas_kernels() -> str:
    """The kernels that NumPy's OpenBLAS has loaded, by processor family: "SkylakeX" or "Haswell", say; empty
    for another BLAS.

    OPENBLAS_CORETYPE, set before NumPy is imported, selects others, which may round products differently.

        >>> isinstance(ad.blas_kernels(), str)
        True
    """
    library = numpys_blas()
    return (library.architecture or "") if library is not None and library.internal_api == "openblas" else ""


def axpby(alpha: float, x: np.ndarray, beta: float, y: np.ndarray, scratch: np.ndarray) -> None:
    """y <- alpha x + beta y, in place and in one pass over memory, where NumPy's operators take three.

    x, y      (N,) contiguous, both float32 or both float64, which do not overlap
    scratch   like y; written to where NumPy has another BLAS than OpenBLAS

    An entry is rounded the same way wherever it lies, so that work may be cut at any place.

        >>> y = np.ones(3)
        >>> ad.axpby(2.0, np.arange(3.0), 0.5, y, np.empty(3))
        >>> y
        array([0.5, 2.5, 4.5])
    """
    blas = _axpby_of(y.dtype.char)
    if blas is None:
        np.multiply(x, alpha, out=scratch)
        np.multiply(y, beta, out=y)
        np.add(y, scratch, out=y)
    else:
        blas(y.size, alpha, _address(x), 1, beta, _address(y), 1)


def _address(x: np.ndarray) -> int:
    """Where the array begins in memory: x.ctypes.data, which takes 1.3 us instead of 0.3."""
    return ctypes.addressof(_NO_BYTES.from_buffer(x)) if x.flags.writeable else x.ctypes.data


@cache
def _axpby_of(char: str) -> Callable[..., None] | None:
    """OpenBLAS's saxpby or daxpby; None if missing, or if its rounding depends on an entry's position."""
    library = numpys_blas()
    if library is None or library.internal_api != "openblas" or char not in "fd":
        return None
    kind = "s" if char == "f" else "d"
    # NumPy's wheels have names with 64_ for 64-bit counts, and since 2.0 with scipy_
    for prefix, suffix in itertools.product(("scipy_", ""), ("64_", "_64", "")):
        function = getattr(library.dynlib, f"{prefix}cblas_{kind}axpby{suffix}", None)
        if function is not None:
            break
    else:
        return None
    number = ctypes.c_float if char == "f" else ctypes.c_double
    count = ctypes.c_int64 if suffix else ctypes.c_int
    function.restype = None
    function.argtypes = [count, number, ctypes.c_void_p, count, number, ctypes.c_void_p, count]
    return function if _is_even(function, char) else None


def _is_even(function: Callable[..., None], char: str) -> bool:
    """Whether entries that vector instructions leave over, at either end, are rounded as the others are."""
    x, y = np.sin(np.arange(256.0)).astype(char), np.cos(np.arange(256.0)).astype(char)
    whole = y.copy()
    function(256, 0.3, x.ctypes.data, 1, 0.7, whole.ctypes.data, 1)
    for start in range(32):
        for size in (*range(1, 36), 199):
            part = y[start : start + size].copy()
            function(size, 0.3, x[start:].ctypes.data, 1, 0.7, part.ctypes.data, 1)
            if part.tobytes() != whole[start : start + size].tobytes():
                return False
    return True
