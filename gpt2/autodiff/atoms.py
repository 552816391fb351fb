"""Types of plain values: operations on them run no code of the user's.

They are looked up by type(x), not by isinstance: a subclass may have methods and attributes of its own.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np

SCALARS = (bool, int, float, complex)  # Python's numbers
# NumPy's numbers, texts and times. An np.void may hold objects, and may change.
NUMPY_SCALARS = frozenset(np.sctypeDict.values()) - {np.object_, np.void}
NUMBER_TYPES = frozenset({*SCALARS, *(t for t in NUMPY_SCALARS if issubclass(t, (np.number, np.bool_)))})
_OTHERS = (str, bytes, range, type(None), types.EllipsisType, types.NotImplementedType)
ATOMS = NUMPY_SCALARS.union(SCALARS, _OTHERS)


def is_plain(x: Any) -> bool:
    """Whether x is an atom or an array of numbers, or a list, tuple or slice of such values."""
    kind = type(x)
    if kind in ATOMS:
        return True
    if kind is list or kind is tuple:
        return ATOMS.issuperset(map(type, x)) or all([is_plain(v) for v in x])
    if kind is slice:
        return is_plain((x.start, x.stop, x.step))
    return kind is np.ndarray and not x.dtype.hasobject
