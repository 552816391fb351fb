"""Plain arrays that a function makes while it is recorded: np.zeros(n), a.copy(), np.ones(3) * 2.

Such an array is a `Local`: a view of the one that NumPy made, of a subclass of np.ndarray. Code written in C
sees an ordinary array. NumPy computes with `local.plain`, the same memory without the subclass, so that
results are what they are without it, scalars included; new arrays among them are Local in turn, and so are
views.

The first write of a recorded value promotes an array: it and its views become Promoted (promoted.py), and
stand for a recorded value. No other part of the compiler meets either: where the user's arguments enter,
`unwrapped` gives the plain array or the recorded value.
"""

from __future__ import annotations

import sys
import weakref
from builtins import getattr, hasattr  # noqa: A004  Python's own, also while the names are replaced
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..recorder import NUMBERS, Recorder, current, lost_write
from ..source_lines import is_foreign
from ..unwatched import unwatched

MARK = "recorded values were written into this array"  # in the dtype of a Promoted, and so in NumPy's errors


PROMOTION: dict = {}  # "promoted": the function of promoted.py, which needs the class of recorded values


class SharedMemory:
    """What views of one allocation share: `birth`, the serial of its recording, or 0; the arrays."""

    __slots__ = ("birth", "arrays")

    def __init__(self, rec: Recorder | None):
        self.birth = 0 if rec is None else rec.serial
        self.arrays: list[weakref.ref] = []

    def add(self, array: Local) -> None:
        array._memory = self
        if len(self.arrays) >= 64 and not len(self.arrays) & (len(self.arrays) - 1):
            self.arrays = [r for r in self.arrays if r() is not None]
        self.arrays.append(weakref.ref(array))


_OUTSIDE = SharedMemory(None)


class _LocalType(type):
    """The type of Local, for which `type(x) == np.ndarray` holds, also as a key."""

    def __eq__(cls, other):
        return other is cls or other is np.ndarray

    def __hash__(cls):  # tables of this package and of NumPy's tell them apart
        return type.__hash__(cls if is_foreign(sys._getframe(1).f_code.co_filename) else np.ndarray)

    def __repr__(cls):
        return repr(np.ndarray)


class Local(np.ndarray, metaclass=_LocalType):
    """An array that the recorded function made; see the head of this file."""

    # _plain: the array, or a weak reference where its base is self; recorded: of a Promoted
    __slots__ = ("_memory", "_plain", "recorded")  # no dict, as np.ndarray has none: vars(x)

    @unwatched
    def __array_finalize__(self, parent):
        self._plain, self._memory = None, _OUTSIDE
        if isinstance(parent, Local):  # a view of it, or a new array
            is_view = owner_of(self) is owner_of(parent)
            (parent._memory if is_view else SharedMemory(current())).add(self)

    @property
    def __class__(self):
        return np.ndarray

    @property
    def plain(self) -> np.ndarray:
        """The same elements, as an array of NumPy's own class."""
        plain = self._plain
        plain = plain() if type(plain) is weakref.ref else plain
        if plain is None or plain.shape != self.shape or plain.strides != self.strides:  # x.shape was set
            owner = owner_of(self)
            if owner is self or not owner.flags.forc:
                plain = self.view(np.ndarray)
                self._plain = weakref.ref(plain)  # whose base may be self
            else:  # a view of the owner, not of self: so it can be seen whether others refer to it
                offset = address(self) - address(owner) if self.size else 0
                self._plain = plain = np.ndarray(self.shape, self.dtype, owner, offset, self.strides)
        if plain.flags.writeable and not self.flags.writeable and not self.is_outside:
            plain.flags.writeable = False
        return plain

    @property
    def is_outside(self) -> bool:
        return not self._memory.birth

    def __autodiff_leaf__(self) -> Any:
        return self.plain

    def __setitem__(self, key, value):
        if type(value) in _KNOWN:
            return _assign(self, key, value)
        if not _loses_derivative(value):
            return _assign(self, key, _read(value))
        recorded = PROMOTION["promoted"](self)
        if recorded is None:
            raise lost_write(self)
        recorded[key] = value
        return None

    @property
    def base(self) -> Any:
        """As of the plain array; the user's own object where that is Local."""
        base = self.plain.base
        if base is None:
            return None
        arrays = (r() for r in self._memory.arrays)
        return next((a for a in arrays if a is not None and a._plain is base), base)

    @property
    def flat(self) -> Any:
        return _Flat(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        if _loses_derivative(value):
            _Flat(self)[:] = value
        else:  # NumPy copies what overlaps where it would not in flat[:]
            self.plain.flat = _read(value)

    def fill(self, value: Any) -> None:
        if np.ndim(value):
            np.zeros_like(self.plain).fill(np.zeros(np.shape(value)))  # NumPy's error
        self[...] = value

    def put(self, indices: Any, values: Any, mode: str = "raise") -> None:
        np.put(self, indices, values, mode=mode)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        plain = _plain(inputs)
        if plain is NotImplemented or not kwargs and method == "__call__" and plain is not None:
            return plain if plain is NotImplemented else _new(ufunc(*plain))
        if kwargs and _others((*_outputs(kwargs), kwargs.get("where"))):
            return NotImplemented
        return call(ufunc if method == "__call__" else getattr(ufunc, method), inputs, kwargs)

    def __array_function__(self, function, types, args, kwargs):
        if any([t is not Local and t is not np.ndarray for t in types]):
            return NotImplemented
        recorded = next((x for x in (*args, *kwargs.values()) if _is_recorded(x)), None)
        if recorded is not None:  # NumPy asks only some arguments: of np.fill_diagonal the array
            return recorded.__array_function__(function, types, args, kwargs)
        return call(function, args, kwargs)

    def __repr__(self):
        return repr(self.plain)

    def __str__(self):
        return str(self.plain)

    def __reduce_ex__(self, protocol):
        return self.plain.__reduce_ex__(protocol)


def address(x: np.ndarray) -> int:
    """Where the first element lies in memory."""
    return x.__array_interface__["data"][0]


def _computed(name: str) -> Callable:
    def method(self, *args, **kwargs):
        if not args and not kwargs and name == "copy":
            return _new(self.plain.copy())
        if any(map(_is_recorded, args)) and hasattr(np, name):  # C code would ask for plain arrays
            return getattr(np, name)(self, *args, **kwargs)
        return call(getattr(self.plain, name), args, kwargs, self)

    method.__name__ = name
    return method


for _name in """
    all any argmax argmin argpartition argsort astype byteswap choose clip compress conj conjugate copy
    cumprod cumsum dot flatten max mean min nonzero prod repeat round searchsorted std sum take trace var
    __copy__ __deepcopy__
""".split():
    setattr(Local, _name, _computed(_name))


class _Flat:
    """local.flat, into which recorded values can be written."""

    def __init__(self, array: Local):
        self.array = array

    def __setitem__(self, key, value):
        if not _loses_derivative(value):
            self.array.plain.flat[key] = _read(value)
        elif (recorded := PROMOTION["promoted"](self.array)) is None:
            raise lost_write(self.array)
        else:
            recorded.flat[key] = value

    def __getattr__(self, name):
        return getattr(unwrapped(self.array).flat, name)


for _name in "__getitem__ __iter__ __next__ __len__ __array__ __eq__ __ne__".split():
    setattr(_Flat, _name, lambda self, *args, name=_name: self.__getattr__(name)(*args))


class Promoted(Local):
    """A Local that a recorded value was written into: it stands for `recorded` (promoted.py)."""

    __slots__ = ()

    def __autodiff_leaf__(self) -> Any:
        return self.recorded


for _kind in (Local, Promoted):  # what `type(x).__name__` and repr(type(x)) say of an array
    _kind.__module__, _kind.__name__, _kind.__qualname__ = "numpy", "ndarray", "ndarray"


def _is_recorded(x: Any) -> bool:
    return "__autodiff_node__" in type(x).__dict__


@unwatched
def _plain(operands: Sequence) -> Any:
    """The operands without Local; None if there are lists, NotImplemented if one handles the call itself."""
    if not _KNOWN.issuperset(map(type, operands)):
        return NotImplemented if _others(operands) else None
    return [x.plain if type(x) is Local else x for x in operands]


@unwatched
def _new(result: Any) -> Any:
    """A new array as a Local."""
    return _made(result, SharedMemory(current())) if type(result) is np.ndarray and current() else result


def _others(operands: Sequence) -> bool:
    """Whether one of these handles NumPy's functions itself."""
    for x in operands:
        if type(x) not in _KNOWN and getattr(type(x), "__array_ufunc__", None) not in _PLAIN_UFUNC:
            return True
    return False


_KNOWN = frozenset((Local, np.ndarray, float, int, bool, np.float64, type(None)))
_PLAIN_UFUNC = (None, np.ndarray.__array_ufunc__, Local.__array_ufunc__)


def _loses_derivative(value: Any) -> bool:
    """Whether a recorded value with a derivative is assigned, which a plain array cannot hold."""
    if isinstance(value, (list, tuple)) and not _is_recorded(value):
        return any(map(_loses_derivative, value))
    value = unwrapped(value)
    return _is_recorded(value) and value.dtype.kind in "fc" and value._rec.has_derivative(value.node)


def _read(value: Any) -> Any:
    """What to assign. A recorded number becomes a plain one: NumPy converts numbers otherwise than arrays."""
    value = unwrapped(value)
    if not _is_recorded(value):
        return value
    array = np.asarray(value)
    return array if value.is_array else array.item() if value.weak else array[()]


def is_local(x: Any) -> bool:
    return type(x) is Local or type(x) is Promoted


def unwrapped(x: Any) -> Any:
    """The plain array of a Local, the recorded value of a Promoted, also in lists; anything else as it is."""
    kind = type(x)
    if kind is Local or kind is Promoted:
        return x.__autodiff_leaf__()
    if (kind is list or kind is tuple) and x:
        parts = [unwrapped(v) for v in x]
        if any([a is not b for a, b in zip(parts, x)]):
            return kind(parts)
    return x


@unwatched
def all_unwrapped(operands: Sequence) -> tuple:
    return tuple([unwrapped(x) for x in operands])


def written_to(x: Any) -> Any:
    """The recorded value of an array that is written to; one from outside as it is."""
    if type(x) is tuple:  # of outputs
        return tuple(map(written_to, x))
    recorded = PROMOTION["promoted"](x) if type(x) is Local else None
    return unwrapped(x) if recorded is None else recorded


def call(function: Callable, args: Sequence, kwargs: dict, *sources: Local) -> Any:
    """NumPy's result for plain arrays, in which new arrays and views of a Local are Local."""
    sources = (*sources, *args)
    args = tuple([x.plain if type(x) is Local else x if type(x) in _KNOWN else unwrapped(x) for x in args])
    if not kwargs:
        return adopted(function(*args), sources)
    sources += (*kwargs.values(), *_outputs(kwargs))
    return adopted(function(*args, **{k: unwrapped(v) for k, v in kwargs.items()}), sources)


def _outputs(kwargs: dict) -> tuple:
    out = kwargs.get("out")
    return out if type(out) is tuple else ()


def adopted(result: Any, arguments: Sequence | None = (), extra: int = 0) -> Any:
    """NumPy's result, with new arrays, which nothing else refers to, and views of Local as Local."""
    kind = type(result)
    if kind is np.ndarray:
        return _adopted(result, arguments, extra)
    if kind is list or issubclass(kind, tuple) and (kind is tuple or hasattr(kind, "_fields")):
        parts = [adopted(v, arguments, _IN_LIST) for v in result]
        return parts if kind is list else tuple(parts) if kind is tuple else kind(*parts)
    return result


@unwatched
def _adopted(result: np.ndarray, arguments: Sequence | None, extra: int) -> Any:
    owner = owner_of(result)
    references = sys.getrefcount(owner)
    if arguments is None:
        return references
    if result.dtype.kind not in NUMBERS or current() is None:
        return result
    for x in arguments:
        if type(x) is Local:
            if x.plain is result:
                return x
            if owner_of(x) is owner:
                return _made(result, x._memory)
    is_new = owner.flags.owndata and references <= _ALONE + (extra if owner is result else 0)
    return _made(result, SharedMemory(current())) if is_new else result


def owner_of(x: np.ndarray) -> np.ndarray:
    """The array that owns the memory."""
    while isinstance(base := _base(x), np.ndarray):
        x = base
    return x


_base = np.ndarray.base.__get__
_assign = np.ndarray.__setitem__


def outside(array: np.ndarray) -> Local:
    """The stand-in of an array from outside: copies of it are Local, and writing to it is refused."""
    return _made(array, SharedMemory(None))


def _made(plain: np.ndarray, memory: SharedMemory) -> Local:
    array = plain.view(Local)
    array._plain = plain
    memory.add(array)
    return array


_IN_LIST = 0
_ALONE = adopted(np.empty(1), None)
_IN_LIST = adopted([np.empty(1)], None)[0] - _ALONE
