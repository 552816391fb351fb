"""Why a public function of NumPy's has no derivative rule: one reason for each, for docs/coverage.md.

A test fails where NumPy has a function that is neither recorded nor has a reason here.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np

REASONS = {
    "The result is integers, bools or indices, which have no derivative": """
        bitwise_count digitize isin isnat lexsort linalg.matrix_rank nanargmax nanargmin ravel_multi_index
        unravel_index packbits unpackbits ix_ indices diag_indices diag_indices_from tril_indices
        tril_indices_from triu_indices triu_indices_from mask_indices nested_iters
    """,
    "It is asked about shapes and types, and no number enters it": """
        broadcast_shapes einsum_path isdtype isfortran isscalar issubdtype iterable mintypecode promote_types
        typename datetime_data
    """,
    "It takes whole numbers and makes an array of constants": """
        bartlett blackman hamming hanning fft.fftfreq fft.rfftfreq
    """,
    "It calls a function of yours with indices, or once for each element: write the array expression": """
        fromfunction frompyfunc fromiter
    """,
    "What the result holds hangs on which numbers are equal: the least change of one of them empties it": """
        intersect1d
    """,
    "It looks at the bits of a number: takes them apart, or steps from one float to the next": """
        frexp nextafter spacing
    """,
    "It makes a plain array of memory, a file or a text": """
        frombuffer fromfile fromregex fromstring from_dlpack genfromtxt load loadtxt
    """,
    "It writes a file": "save savetxt savez savez_compressed",
    "The result is text": """
        array2string array_repr array_str base_repr binary_repr datetime_as_string format_float_positional
        format_float_scientific get_printoptions info printoptions set_printoptions
    """,
    "It asks for a plain array in C, where nothing can be recorded (np.asarray is recorded)": """
        asarray_chkfinite asmatrix bmat require kaiser
    """,
    "Dates are no real numbers": "busday_count busday_offset is_busday",
    "It sets or shows how NumPy works": """
        getbufsize geterr geterrcall get_include setbufsize seterr seterrcall show_config show_runtime test
    """,
    "Another name, deprecated, of np.vstack, and recorded as that": "row_stack",
}

# Modules of NumPy's that are one matter
MODULES = {
    "np.polynomial": "written in Python, and runs as it is: evaluation, arithmetic, derivatives, integrals, "
    "fits and roots in all six bases, as functions and as classes (`Polynomial`, `Chebyshev`, ...). A "
    "function returns the coefficients of a result, `p.coef`, not the object",
    "np.random": "what an `np.random.Generator` draws is an input of the program; docs/loops.md has the "
    "distributions whose parameters have gradients. Its functions without a generator draw numbers that carry "
    "no derivative, and a recorded value as a parameter of one is an error",
    "np.ma": "masked arrays are not recorded; pass the data and the mask",
    "np.char": "text", "np.strings": "text", "np.rec": "records with fields are not recorded",
    "np.core": "NumPy's private names", "np.ctypeslib": "memory of other libraries",
    "np.dtypes": "classes of types", "np.exceptions": "classes of errors",
    "np.f2py": "makes modules of Fortran",
    "np.lib": "helpers, but for `np.lib.stride_tricks.sliding_window_view`, which is recorded; `as_strided` "
    "makes a plain view of memory", "np.testing": "compares, and raises where there is a difference",
    "np.typing": "classes for annotations",
}  # fmt: skip

# Classes that are called like functions
CLASSES = {
    "np.poly1d": "written in Python, and runs as it is; return its coefficients, `p.coeffs`",
    "np.vectorize": "calls a function of yours for each element: write the array expression",
    "np.float64 and the other scalar types": "make a plain number in C: use `x.astype(np.float64)`",
    "np.matrix, np.memmap, np.recarray": "arrays that compute in a way of their own, or lie in a file: "
    "`np.asarray(x)` first",
    "np.nditer, np.ndenumerate, np.broadcast": "hand out elements one by one, as plain numbers",
}


def reasons() -> dict[str, str]:
    """Name -> reason, names as in `np.linalg.matrix_rank`."""
    return {f"np.{name}": reason for reason, names in REASONS.items() for name in names.split()}


def public_functions() -> Iterator[tuple[str, object]]:
    """(name, function) of all that NumPy offers, its modules np.linalg, np.fft and np.emath included."""
    modules = {"np.": np, "np.linalg.": np.linalg, "np.fft.": np.fft, "np.emath.": np.emath}
    for prefix, module in modules.items():
        for name in module.__all__:
            value = getattr(module, name, None)
            if callable(value) and not isinstance(value, type):
                yield prefix + name, value


def public_modules() -> Iterator[str]:
    """Those modules of NumPy's that are named in it, but for these three."""
    for name in np.__all__:
        value = getattr(np, name, None)
        if isinstance(value, ModuleType) and value not in (np.linalg, np.fft, np.emath):
            yield f"np.{name}"
