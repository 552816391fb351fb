"""x.flat of a recorded value."""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import writes
from .value import PROTOCOLS, Recorded, check_apart, check_element, note_conversion, plain_key


class Flat:
    """x.flat, an np.flatiter: the elements one after another, to read, as copies, and to assign."""

    __slots__ = ("base", "index")
    __hash__ = None  # type: ignore[assignment]
    __reversed__ = None
    __class__ = property(lambda self: np.flatiter)  # type: ignore[assignment]
    coords = property(lambda self: tuple(map(int, np.unravel_index(self.index, self.base.shape))))

    def __init__(self, x: Recorded):
        self.base, self.index = x, 0

    def copy(self) -> Recorded:
        return self.base.flatten()

    def __len__(self):
        return self.base.size

    def __iter__(self):
        return self

    def __next__(self):
        if self.index == self.base.size:
            raise StopIteration
        self.index += 1
        return self.base.reshape(-1)[self.index - 1]

    def __getitem__(self, key):
        self.index = 0  # as in NumPy
        self.base.value.flat[plain_key(key)]  # its errors
        item = self.base.reshape(-1)[key]
        return item.copy() if item.is_array else item

    def __setitem__(self, key, value):
        """A value that is too short is repeated, as in NumPy."""
        self.index = 0
        x = self.base
        value = value.copy() if type(value) is Flat else value
        check_apart(x, value, unless_same=key is ... or type(key) is slice and key == slice(None))
        plain, concrete = plain_key(key), plain_key(value)
        note_conversion(x.dtype, value, scalars=isinstance(plain, int | np.integer))
        if not np.size(concrete):
            return
        if np.ndim(concrete):
            check_element(x.value.flat, plain, concrete)
        whole = x.reshape(-1).copy()
        shape = whole[key].shape
        value = np.resize(value, shape) if shape else np.ravel(value)[0] if np.ndim(value) else value
        whole[key] = value
        new = writes.assigned(whole.reshape(x.shape).node, x.shape, x.dtype)
        writes.write(x, new, lambda array: array.flat.__setitem__(plain, concrete))

    def __array__(self, dtype=None, copy=None):
        return self.copy().__array__(dtype)

    def __array_function__(self, function, types, args, kwargs):
        return function(*map(_unrolled, args), **kwargs)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return getattr(ufunc, method)(*map(_unrolled, inputs), **kwargs)


Flat.__name__ = Flat.__qualname__ = "flatiter"
Flat.__module__ = "numpy"
for _short, _ufunc in zip(
    "eq ne lt le gt ge".split(),
    (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal),
):
    setattr(Flat, f"__{_short}__", lambda self, other, ufunc=_ufunc: ufunc(self.copy(), _unrolled(other)))


def _unrolled(x: Any) -> Any:
    return x.copy() if type(x) is Flat else x


PROTOCOLS["flat"] = Flat
