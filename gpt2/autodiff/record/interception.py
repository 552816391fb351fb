"""Replaces functions of NumPy's that its protocols leave out while a function is recorded: np.asarray(x),
np.array([a, b]), np.full(3, x), np.sum([a, b]), np.arange(n).

NumPy's protocols are not asked when an array is made, and do not find recorded numbers in a list. So while
any recording runs, these names in NumPy's modules refer to objects of Intercepted. In a thread that records
they look at the arguments first; in others, and for the compiler's own code, they pass the call on. A name
that someone else has replaced is left alone, and so is one that may be compared by `is` (type_tests.py).

`from numpy import array` gets NumPy's own function, which asks the recorded value for a plain array: that
stays an error.
"""

from __future__ import annotations

import abc
import builtins
import itertools
import math
import operator
import os
import sys
import threading
import typing
from collections.abc import Callable, Collection, Iterable
from types import ModuleType
from typing import Any

import numpy as np

from ..atoms import is_plain
from .draws import plain_generator
from .local.arrays import Local, adopted, outside, unwrapped
from .recorder import NUMBERS, current
from .source_lines import is_inside, is_of_compiled, is_of_scipy, is_own, is_standard
from .unwatched import unwatched
from .value import PROTOCOLS, Flat, Recorded, as_node, note_conversion, recorded_in, value_of
from .value_type import check_type_not_asked

_SEQUENCES: dict[Callable, tuple] = {  # arguments that are sequences of arrays, by position and by name
    np.concatenate: (0, "arrays"),
    np.stack: (0, "arrays"),
    np.hstack: (0, "tup"),
    np.vstack: (0, "tup"),
    np.dstack: (0, "tup"),
    np.column_stack: (0, "tup"),
    np.linalg.multi_dot: (0, "arrays"),
    np.select: (0, "condlist", 1, "choicelist"),
    np.choose: (1, "choices"),
}
_CONVERTING = (np.put, np.insert, np.place, np.putmask)  # what is third to the dtype of the first
_HASATTR = hasattr  # Python's own, also while the name is replaced
_NESTED = (np.piecewise, np.trim_zeros)  # lists of another meaning
# They make arrays of plain numbers, which the recorded function may then write to (local/). Not those that
# read files or buffers: the guard has to see these calls (reuse/)
_MAKING = tuple(
    getattr(np, name)
    for name in """
        bartlett blackman diag_indices fromfunction fromiter fromstring hamming hanning indices ix_ kaiser
        lexsort mask_indices require tril_indices triu_indices unpackbits unravel_index
    """.split()
) + (np.fft.fftfreq, np.fft.rfftfreq)


class Intercepted:
    # A function of NumPy's, replaced while something is recorded. `handler` gets the calls of a thread that
    # records. Its docstring is the function's: numpy.ma reads that when it is imported.
    __slots__ = ("function", "handler")
    __doc__ = property(lambda self: self.function.__doc__)  # type: ignore[assignment]
    __module__ = property(lambda self: self.function.__module__)  # type: ignore[assignment]
    __class__ = property(lambda self: type(self.function))  # type: ignore[assignment]

    def __init__(self, function: Callable, handler: Callable):
        self.function = function
        self.handler = handler

    def __call__(self, *args, **kwargs):
        file = sys._getframe(1).f_code.co_filename
        if current() is None or "like" in kwargs or is_own(file):
            return self.function(*args, **kwargs)
        if is_inside(file) or is_of_compiled(file):
            return self.handler(self.function, args, kwargs)
        if args and (
            type(args[0]) is Recorded and self.handler is _lists or is_plain((args, *kwargs.values()))
        ):
            return adopted(self.function(*args, **kwargs), args)  # nothing to be done for lists
        return adopted(self.handler(self.function, args, kwargs), args)

    def call_always(self, *args: Any, **kwargs: Any) -> Any:
        """The call, also for the compiler's own code."""
        if current() is None:
            return self.function(*args, **kwargs)
        return self.handler(self.function, args, kwargs)

    def __getattr__(self, name):
        return getattr(self.function, name)

    def __repr__(self):
        return repr(self.function)

    def __eq__(self, other):
        return plain(other) == self.function

    def __hash__(self):
        return hash(self.function)

    def __reduce__(self):
        return plain, (self.function,)


def plain(value: Any) -> Any:
    """The function, generator or array from outside that this stands in for; anything else as it is."""
    if isinstance(value, Intercepted):
        return value.function
    return value.plain if type(value) is Local and value.is_outside else plain_generator(value)


def local_stand_in(held: Any, spared: Collection[int] = ()) -> tuple | None:
    """(object, its stand-in) for arrays from outside, and NumPy's functions imported by name."""
    held = plain(held)
    if type(held) is np.ndarray and held.dtype.kind in NUMBERS:
        return held, outside(held)
    return (held, INTERCEPTED[id(held)]) if id(held) in INTERCEPTED and id(held) not in spared else None


class OfClass:
    """The namespace of a class, whose methods can be replaced."""

    def __init__(self, kind: type):
        self.kind = kind

    def __getitem__(self, name):
        return getattr(self.kind, name)

    get = __getitem__

    def __setitem__(self, name, value):
        setattr(self.kind, name, value)


INTERCEPTED: dict[int, Intercepted] = {}  # by the id of NumPy's function
# (namespace, its own values, those that replace them while something is recorded)
_names: list[tuple[Any, dict, dict]] = []
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # no other thread is halfway through an exchange then
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
running: set = set()  # recordings in all threads
_standing_in: bool | None = False  # None: an exception came while names were exchanged


def intercept(functions: Iterable[Callable]) -> None:
    """Intercept these functions of NumPy's under all names in its modules."""
    for function in (*functions, *_MAKING):
        if function not in _NESTED and not isinstance(function, (np.ufunc, type)):
            INTERCEPTED[id(function)] = Intercepted(function, _HANDLERS.get(function, _lists))
    for holder in (np.r_, np.c_, np.mgrid, np.ogrid):
        INTERCEPTED[id(holder)] = _Indexed(holder)
    for module in (np, np.linalg, np.fft, np.emath):
        names = module.__dict__
        replace(names, **{k: INTERCEPTED[id(v)] for k, v in names.items() if id(v) in INTERCEPTED})
    behind = sys.modules[type(np.r_).__module__].__dict__  # np.r_ and np.c_ say `array` in there
    if behind.get("array") is np.array:
        replace(behind, array=INTERCEPTED[id(np.array)])


class _Indexed(Intercepted):
    """np.r_ and the like: arrays that are made by an index."""

    def __init__(self, holder: Any):
        super().__init__(holder, _as_it_is)

    def __getitem__(self, key):
        return adopted(self.function[key], ()) if current() is not None else self.function[key]


class _Question(Intercepted):
    """hasattr, getattr and issubclass, which NumPy asks at each operation, mostly of other objects."""

    def __call__(self, *args, **kwargs):
        asked = args and (args[0] if self.handler is _is_subclass else type(args[0]))
        if asked is not Recorded or current() is None:
            return self.function(*args, **kwargs)
        return self.handler(self.function, args, kwargs)


class _Extremum(Intercepted):
    """Python's min or max, which return one of their arguments: never a new array."""

    def __call__(self, *args, **kwargs):
        if current() is None or is_own(sys._getframe(1).f_code.co_filename):
            return self.function(*args, **kwargs)
        return self.handler(self.function, args, kwargs)


def intercepted_in(module: ModuleType) -> dict:
    """The public names of a NumPy module with their replacements, for a module that is used in its place."""
    return {k: INTERCEPTED.get(id(v), v) for k, v in vars(module).items() if not k.startswith("_")}


def replace(namespace: dict | OfClass, **stand_ins: Any) -> None:
    """Replace these names of the namespace while anything is recorded."""
    _names.append((namespace, {name: namespace[name] for name in stand_ins}, stand_ins))


def begin(rec: Any, spared: Collection[int] = ()) -> None:
    """A recording begins. `spared`: ids of functions that are not replaced until no recording runs."""
    with _lock:
        running.add(rec)
        _exchange_names()
        for namespace, _, stand_ins in _names if spared else ():
            for name, v in stand_ins.items():
                if isinstance(v, Intercepted) and id(v.function) in spared and namespace.get(name) is v:
                    namespace[name] = v.function


def end(rec: Any) -> None:
    """A recording has ended, if it ever began."""
    with _lock:
        running.discard(rec)
        _exchange_names()


@unwatched
def _exchange_names() -> None:
    """Replace the names while anything is recorded, and restore them after."""
    global _standing_in
    wanted = bool(running)
    if _standing_in is wanted:
        return
    _standing_in = None
    for namespace, own, stand_ins in _names:
        these, those = (own, stand_ins) if wanted else (stand_ins, own)
        for name, value in those.items():
            if namespace.get(name) is these[name]:  # nobody else has replaced it
                namespace[name] = value
    _standing_in = wanted


# handlers of calls


def _array(function, args, kwargs):
    """np.asarray(x), np.array([x[0], x[1]])"""
    for name in ("object", "a"):
        if name in kwargs and not args:
            args, kwargs = (kwargs[name],), {k: v for k, v in kwargs.items() if k != name}
    first = unwrapped(args[0]) if args else None
    args = (first, *args[1:]) if args else ()
    if type(first) is Flat:
        return first.copy().astype(kwargs.get("dtype", first.base.dtype))
    if type(first) is not Recorded and not _holds_numbers(first):
        return function(*args, **kwargs)
    dtype = args[1] if len(args) > 1 else kwargs.get("dtype")
    if dtype is not None:
        note_conversion(np.dtype(dtype), first, scalars=False)
    return PROTOCOLS["function"](function, args, kwargs)


def _full(function, args, kwargs):
    """np.full(3, x)"""
    arguments = dict(zip(("shape", "fill_value", "dtype", "order"), args), **kwargs)
    value = unwrapped(arguments.get("fill_value"))
    if type(value) is not Recorded and not _holds_numbers(value) or "shape" not in arguments:
        return function(*args, **kwargs)
    shape = _whole(arguments.pop("shape"))
    return PROTOCOLS["function"](function, (shape, arguments.pop("fill_value")), arguments)


def _arange(function, args, kwargs):
    """np.arange(n)"""
    args, kwargs = unwrapped(args), {k: unwrapped(v) for k, v in kwargs.items()}
    recorded = [v for v in (*args, *kwargs.values()) if type(v) is Recorded]
    if any(v.dtype.kind in "fc" for v in recorded):
        return PROTOCOLS["function"](function, args, kwargs)
    return function(*map(_whole, args), **{k: _whole(v) for k, v in kwargs.items()})


def _as_it_is(function, args, kwargs):
    return function(*args, **kwargs)


def _from_iter(function, args, kwargs):
    """np.fromiter(numbers, float)"""
    iterable, *rest = args
    count = kwargs.get("count", rest[1] if len(rest) > 1 else -1)
    items = list(iterable if count < 0 else itertools.islice(iterable, count))
    if not _holds_numbers(items):
        return function(items, *rest, **kwargs)
    plain = function([value_of(v) for v in items], *rest, **kwargs)  # the dtype, and errors
    return PROTOCOLS["function"](np.array, (items,), {"dtype": plain.dtype})


def _pad(function, args, kwargs):
    """np.pad(a, 1, constant_values=x), where NumPy asks the array alone"""
    if "array" in kwargs:
        args, kwargs = (kwargs["array"],), {k: v for k, v in kwargs.items() if k != "array"}
    first = unwrapped(args[0]) if args else None
    if not recorded_in(first) and recorded_in(list(kwargs.values())):
        rec, array = current(), np.array(first)
        args = (Recorded(rec, as_node(rec, array), array), *args[1:])
    return _lists(function, args, kwargs)


def _lists(function, args, kwargs):
    """np.sum([a, b])"""
    if any(type(v) is Recorded for v in args):
        return function(*args, **kwargs)
    if function in _CONVERTING and len(args) > 2 and hasattr(args[0], "dtype"):
        note_conversion(args[0].dtype, args[2], scalars=False)
    positions = _SEQUENCES.get(function, ())
    joined = [_joined(v, i in positions) for i, v in enumerate(args)]
    return function(*joined, **{k: _joined(v, k in positions) for k, v in kwargs.items()})


def _joined(value, is_sequence):
    """A list of recorded numbers as an array; of a sequence of lists each one."""
    value = unwrapped(value) if type(value) in (list, tuple) else value
    if not _holds_numbers(value):
        return value
    if is_sequence:
        return [_joined(v, False) for v in value]
    return PROTOCOLS["function"](np.array, (value,), {})


def _holds_numbers(value) -> bool:
    """Whether there is a real or complex recorded number in this list."""
    if type(value) not in (list, tuple):
        return False
    kinds = set(map(type, value))
    if Recorded in kinds and any(v.dtype.kind in "fc" for v in value if type(v) is Recorded):
        return True
    return not kinds.isdisjoint((list, tuple)) and any(map(_holds_numbers, value))


def _extremum(function, args, kwargs):
    """min(x, y): value and derivative of the one chosen. A comparison would decide the path."""
    if kwargs or not args:
        return function(*args, **kwargs)
    items = args if len(args) > 1 else list(unwrapped(args[0]))
    recorded = [v for v in items if type(v) is Recorded]
    weak = all([v.weak for v in recorded])
    kind = float if weak else recorded[0].dtype.type

    def fits(v):
        """Whether v is of that dtype, or a plain number that stays the same as one of its type."""
        if type(v) is Recorded:
            return not v.shape and v.dtype.kind == "f" and v.dtype == recorded[0].dtype
        return type(v) in (int, float, kind) and (abs(v) <= 2**53 or abs(v) == math.inf)

    if not recorded or not all([fits(v) for v in items]):
        return function(items)
    best, *others = [v if type(v) is Recorded else kind(v) for v in items]
    for x in others:
        replaces = x < best if function.__name__ == "min" else x > best
        if type(replaces) is Recorded:
            best = PROTOCOLS["function"](np.where, (replaces, x, best), {})
            best = best.item() if weak else best[()]
        elif replaces:
            best = x
    return best


def _asked(function, args, kwargs):
    """hasattr(x, name), getattr(x, name, default) as of x's value; in libraries recorded as written of x."""
    file = sys._getframe(2).f_code.co_filename
    if len(args) < 2 or is_inside(file) or is_of_scipy(file):
        return function(*args, **kwargs)
    x, *rest = args
    has = _HASATTR(x._value, rest[0])
    if function is _HASATTR or rest[0] == "__hash__":  # None for arrays
        return function(x._value, *rest)
    return function(x, *rest[: 2 if is_standard(file) else 1]) if has else function(x._value, *rest)


def _is_subclass(function, args, kwargs):
    """issubclass(type(x), float)"""
    if not is_own(sys._getframe(2).f_code.co_filename):
        check_type_not_asked(sys._getframe(2))
    return function(*args, **kwargs)


def _is_instance(function, args, kwargs):
    """isinstance(x, Iterable), of the abstract class's own check"""
    kind, x = args
    return function(kind, x._value if type(x) is Recorded else x)


def _protocols_look(function, args, kwargs):
    """isinstance(x, typing.SupportsRound): from Python 3.12 on methods are looked for by what this returns"""
    static = function()
    return lambda x, name: static(x._value if type(x) is Recorded else x, name)


def intercept_questions() -> None:
    """Have questions about a recorded value answered as of the value that it stands for."""
    asked = {"hasattr": _asked, "getattr": _asked, "issubclass": _is_subclass}
    replace(vars(builtins), **{k: _Question(vars(builtins)[k], f) for k, f in asked.items()})
    extrema = {f.__name__: _Extremum(f, _extremum) for f in (min, max)}
    INTERCEPTED.update((id(v.function), v) for v in extrema.values())
    replace(vars(builtins), **extrema)
    look = "_lazy_load_getattr_static"
    if look in vars(typing):
        replace(vars(typing), **{look: Intercepted(vars(typing)[look], _protocols_look)})
    replace(vars(abc), _abc_instancecheck=Intercepted(vars(abc)["_abc_instancecheck"], _is_instance))


def _whole(value):
    """Recorded integers as plain ones."""
    if type(value) in (tuple, list):
        return tuple(map(_whole, value))
    return operator.index(value) if type(value) is Recorded and not value.shape else value


_HANDLERS: dict[Callable, Callable] = {
    **dict.fromkeys((np.array, np.asarray, np.asanyarray, np.ascontiguousarray, np.asfortranarray), _array),
    np.full: _full,
    np.arange: _arange,
    np.block: _as_it_is,
    **dict.fromkeys(_MAKING, _as_it_is),
    np.fromiter: _from_iter,
    np.pad: _pad,
}
