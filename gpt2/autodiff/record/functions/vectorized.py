"""np.vectorize: a function of numbers is called for each element, as by NumPy, with recorded numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import source_lines
from ..interception import INTERCEPTED, OfClass, replace
from ..local.arrays import adopted, unwrapped
from ..recorder import current
from ..value import PROTOCOLS, Recorded, value_of

_call = np.vectorize._vectorize_call
_ARRAY = np.array  # its name is replaced while something is recorded


def _vectorize_call(self: np.vectorize, func: Callable, args: Sequence) -> Any:
    """np.vectorize._vectorize_call: `func` has the arguments left that are not excluded."""
    of_library = source_lines.is_of_compiled(source_lines.user_frame().f_code.co_filename)
    if current() is None or of_library or self.signature is not None or not args:
        return _call(self, func, args)
    as_array = INTERCEPTED[id(_ARRAY)].call_always
    arrays = [x if type(x) is Recorded else as_array(x, copy=None) for x in map(unwrapped, args)]
    shape = np.broadcast_shapes(*[x.shape for x in arrays])
    if 0 in shape:
        return _call(self, func, [value_of(x) for x in arrays])
    columns = [np.broadcast_to(x, shape).reshape(-1) for x in arrays]
    rows = zip(*[x.tolist() for x in columns])
    results = []
    if self.otypes is None:  # NumPy calls the function once more, for the types
        first = func(*[x[0] for x in columns])
        results += [first] if self.cache and next(rows) else []
        types = [np.asarray(value_of(v)).dtype for v in (first if isinstance(first, tuple) else (first,))]
    else:
        types = list(map(np.dtype, self.otypes))
    results += [func(*row) for row in rows]
    if len(types) == 1:
        return _joined(results, types[0], shape)
    return tuple([_joined(part, dtype, shape) for part, dtype in zip(zip(*results), types, strict=True)])


def _joined(numbers: Sequence, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    numbers = [unwrapped(v) for v in numbers]
    if any(type(v) is Recorded for v in numbers):
        return PROTOCOLS["function"](_ARRAY, (numbers,), {}).astype(dtype).reshape(shape)
    return adopted(np.array(numbers, dtype).reshape(shape))


def intercept_vectorize() -> None:
    """Have np.vectorize loop over recorded numbers while something is recorded."""
    replace(OfClass(np.vectorize), _vectorize_call=_vectorize_call)
