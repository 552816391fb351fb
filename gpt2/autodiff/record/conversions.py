"""What NumPy's protocols do not show, seen while a function is recorded: np.asarray(x), np.array([a, b]),
np.full(3, x), np.sum([a, b]), np.arange(n).

NumPy asks an argument how a function is to run. It does not ask when it makes an array, and it does not look
for recorded numbers in a list. So as long as any recording runs, these names of NumPy's modules stand for
objects of Seen. In a thread that records they look at the arguments first; in any other they only pass the
call on, and so they do for the compiler's own code. No name is replaced that stands for something else than
it did at the start, and none is put back that was replaced in the meantime.

Who has imported such a function by itself (`from numpy import array`) has NumPy's own, which asks the
recorded value for a plain array: that stays an error.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np

from .draws import plain_generator
from .recording import current
from .source_lines import is_own
from .value import ANSWERS, Recorded

_SEQUENCES: dict[Callable, tuple] = {  # what holds arrays rather than being one, by position and by name
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
_NESTED = (np.block, np.piecewise, np.trim_zeros)  # lists of another meaning


class Seen:
    # A function of NumPy's as it stands in NumPy while something is recorded. `takes` has the calls of a
    # thread that records. Its docstring is the function's: numpy.ma reads that when it is imported.
    __slots__ = ("function", "takes")
    __doc__ = property(lambda self: self.function.__doc__)  # type: ignore[assignment]

    def __init__(self, function: Callable, takes: Callable):
        self.function = function
        self.takes = takes

    def __call__(self, *args, **kwargs):
        if current() is None or "like" in kwargs or is_own(sys._getframe(1).f_code.co_filename):
            return self.function(*args, **kwargs)
        return self.takes(self.function, args, kwargs)

    def asked(self, *args: Any, **kwargs: Any) -> Any:
        """The call, whoever makes it."""
        if current() is None:
            return self.function(*args, **kwargs)
        return self.takes(self.function, args, kwargs)

    def __getattr__(self, name):
        return getattr(self.function, name)

    def __eq__(self, other):
        return plain(other) == self.function

    def __hash__(self):
        return hash(self.function)

    def __reduce__(self):
        return plain, (self.function,)


def plain(value: Any) -> Any:
    """The function that an object of Seen or of Drawing stands in for; anything else as it is."""
    return value.function if type(value) is Seen else plain_generator(value)


class Namespace:
    """A namespace: what stands there, and what stands in for it while something is recorded."""

    def __init__(self, namespace: dict, stand_ins: dict):
        self.namespace = namespace
        self.stand_ins = stand_ins
        self.own = {name: namespace[name] for name in stand_ins}
        self.now = operator.itemgetter(*stand_ins, "__name__")  # gives a tuple, also of one

    def exchange(self, these: dict, those: dict) -> None:
        """Put those where these are."""
        try:
            untouched = all(map(operator.is_, self.now(self.namespace), these.values()))
        except KeyError:  # a name was deleted
            untouched = False
        if not untouched:
            those = {k: v for k, v in those.items() if self.namespace.get(k) is these[k]}
        self.namespace.update(those)


SEEN: dict[int, Seen] = {}  # by the id of NumPy's function
_names: list[Namespace] = []
_lock = threading.Lock()
_running: set = set()  # recordings in all threads
_standing_in: bool | None = False  # None: some of the names were exchanged when something struck


def see(functions: Iterable[Callable]) -> None:
    """Have these functions of NumPy's seen wherever they stand in its modules."""
    for function in functions:
        if function not in _NESTED and not isinstance(function, (np.ufunc, type)):
            SEEN[id(function)] = Seen(function, _TAKERS.get(function, _lists))
    for module in (np, np.linalg, np.fft, np.emath):
        found = module.__dict__
        _names.append(Namespace(found, {k: SEEN[id(v)] for k, v in found.items() if id(v) in SEEN}))
    behind = sys.modules[type(np.r_).__module__].__dict__  # np.r_ and np.c_ say `array` in there
    if behind.get("array") is np.array:
        replace(behind, array=SEEN[id(np.array)])


def seen_in(module: ModuleType) -> dict:
    """The public names of a NumPy module, with what stands in for them: for a module that takes its place and
    keeps these objects, whether anything is recorded or not.
    """
    return {k: SEEN.get(id(v), v) for k, v in vars(module).items() if not k.startswith("_")}


def replace(namespace: dict, **stand_ins: Any) -> None:
    """Have something stand in for what the namespace holds, as long as anything is recorded."""
    _names.append(Namespace(namespace, stand_ins))


def begin(rec: Any) -> None:
    """A recording begins."""
    with _lock:
        _running.add(rec)
        _settle()


def end(rec: Any) -> None:
    """A recording has ended, if it ever began."""
    with _lock:
        _running.discard(rec)
        _settle()


def _settle() -> None:
    """Exchange the names, if that is not done: for their stand-ins while anything is recorded."""
    global _standing_in
    wanted = bool(_running)
    if _standing_in is wanted:
        return
    _standing_in = None
    for names in _names:
        names.exchange(*(names.own, names.stand_ins) if wanted else (names.stand_ins, names.own))
    _standing_in = wanted


# what is looked for in a call


def _array(function, args, kwargs):
    """np.asarray(x), np.array([x[0], x[1]])"""
    name = next((n for n in ("object", "a") if n in kwargs), None)
    first = args[0] if args else kwargs.get(name)
    if type(first) is not Recorded and not _holds_numbers(first):
        return function(*args, **kwargs)
    rest = {k: v for k, v in kwargs.items() if args or k != name}
    return ANSWERS["function"](function, args or (first,), rest)


def _full(function, args, kwargs):
    """np.full(3, x)"""
    given = dict(zip(("shape", "fill_value", "dtype", "order"), args), **kwargs)
    value = given.get("fill_value")
    if type(value) is not Recorded and not _holds_numbers(value) or "shape" not in given:
        return function(*args, **kwargs)
    shape = _whole(given.pop("shape"))
    return ANSWERS["function"](function, (shape, given.pop("fill_value")), given)


def _arange(function, args, kwargs):
    """np.arange(n)"""
    recorded = [v for v in (*args, *kwargs.values()) if type(v) is Recorded]
    if any(v.dtype.kind in "fc" for v in recorded):
        return ANSWERS["function"](function, args, kwargs)
    if not recorded:
        return function(*args, **kwargs)
    return function(*map(_whole, args), **{k: _whole(v) for k, v in kwargs.items()})


def _lists(function, args, kwargs):
    """np.sum([a, b])"""
    if any(type(v) is Recorded for v in args):
        return function(*args, **kwargs)
    positions = _SEQUENCES.get(function, ())
    joined = [_joined(v, i in positions) for i, v in enumerate(args)]
    return function(*joined, **{k: _joined(v, k in positions) for k, v in kwargs.items()})


def _joined(value, is_sequence):
    """A list of recorded numbers as an array; of a sequence of lists each one."""
    if not _holds_numbers(value):
        return value
    return [_joined(v, False) for v in value] if is_sequence else ANSWERS["function"](np.array, (value,), {})


def _holds_numbers(value) -> bool:
    """Is there a real or complex recorded number in this list?"""
    if type(value) not in (list, tuple):
        return False
    kinds = set(map(type, value))
    if Recorded in kinds and any(v.dtype.kind in "fc" for v in value if type(v) is Recorded):
        return True
    return not kinds.isdisjoint((list, tuple)) and any(map(_holds_numbers, value))


def _whole(value):
    """Recorded integers as plain ones."""
    if type(value) in (tuple, list):
        return tuple(map(_whole, value))
    return operator.index(value) if type(value) is Recorded and not value.shape else value


_TAKERS: dict[Callable, Callable] = {
    **dict.fromkeys((np.array, np.asarray, np.asanyarray, np.ascontiguousarray, np.asfortranarray), _array),
    np.full: _full,
    np.arange: _arange,
}
