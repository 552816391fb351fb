"""The BLAS library that NumPy uses, and its number of threads."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import LibController


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
