"""The BLAS library that NumPy uses, and its number of threads."""

from __future__ import annotations

import ctypes
import itertools
import os
from functools import cache

import numpy as np


def blas_library() -> tuple[ctypes.CDLL, str, str] | None:
    """The OpenBLAS of NumPy's wheel, prefix and suffix of its names; None for another BLAS."""
    paths = []
    try:
        with open("/proc/self/maps") as maps:
            paths = sorted({line.split()[-1] for line in maps if "openblas" in line and ".so" in line})
    except OSError:
        root = os.path.dirname(np.__file__)
        for folder in (os.path.join(os.path.dirname(root), "numpy.libs"), os.path.join(root, ".dylibs")):
            if os.path.isdir(folder):
                paths += [os.path.join(folder, f) for f in sorted(os.listdir(folder)) if "openblas" in f]
    for path in paths:
        try:
            lib = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix, suffix in itertools.product(("scipy_openblas", "openblas"), ("64_", "_64", "")):
            if hasattr(lib, f"{prefix}_set_num_threads{suffix}"):
                return lib, prefix, suffix
    return None


def limit_blas_threads(n: int) -> bool:
    """Set the number of threads that NumPy's own BLAS takes for a product, for the whole process.

    n   at least 1

    Returns whether that could be done: it is for the OpenBLAS of NumPy's wheels. Where it is False, set
    OMP_NUM_THREADS before NumPy is imported. set_threads(n) calls this with 1: the pool shares out products.

        >>> limited = ad.limit_blas_threads(1)
    """
    library = blas_library()
    if library is None:
        return False
    lib, prefix, suffix = library
    getattr(lib, f"{prefix}_set_num_threads{suffix}")(ctypes.c_int(n))
    return True


@cache
def blas_kernels() -> str:
    """The family of processors whose kernels NumPy's OpenBLAS has loaded, "SkylakeX" or "Haswell" say; empty
    for another BLAS.

    OPENBLAS_CORETYPE, set before NumPy is imported, chooses others, which may round products differently.

        >>> isinstance(ad.blas_kernels(), str)
        True
    """
    library = blas_library()
    if library is None:
        return ""
    lib, prefix, suffix = library
    name = getattr(lib, f"{prefix}_get_corename{suffix}", None)
    if name is None:
        return ""
    name.restype = ctypes.c_char_p
    return name().decode()
