"""Shares recordings among function objects with the same code, as `grad(lambda w: ...)` in a loop makes one
in each iteration.

Two such functions do the same if their code is the same object, if their globals, defaults and names are, and
if each variable that they close over holds the same object, or an equal one of a kind that cannot change.
Then the guard of the first recording guards the second as well. All other functions are recorded again.

A shared recording keeps what the first function closes over alive. So this is for functions over numbers,
texts, modules, functions, and arrays of at most a MiB; and few recordings are kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from ..record import recorder
from ..same import COMPARED, interchangeable
from .cache import Cache, Store
from .guard import Guard, make_guard
from .kinds import is_own
from .watch import is_watching

SIZE, VARIANTS = 64, 2
BYTES = 1 << 20  # of the arrays that one function reads
MOST_BYTES = 1 << 28  # of all recordings that are kept
LONGEST = 64  # misses between two attempts to keep a recording of one piece of code

_ATOMS = (*COMPARED, type(None), np.generic, np.dtype, ModuleType, BuiltinFunctionType, np.ufunc, type)


class SameCode(NamedTuple):
    """What a function shares with others of its code, and what has to be the same.

    key       the codes and settings of it and of its wrappers
    held      values to compare
    wrappers  objects of this package around it, whose facts hold only in their own call
    """

    key: tuple
    held: tuple
    wrappers: tuple


def same_code_of(f: Callable) -> SameCode | None:
    if recorder.current() is not None or is_watching():
        return None  # a recording or a watch must see f run
    key: list = []
    held: list = []
    wrappers: list = []
    if not _collected(f, key, held, wrappers):
        return None
    room = [BYTES]
    known = all(_may_be_kept(v, room) for v in held)
    return SameCode(tuple(key), tuple(held), tuple(wrappers)) if known else None


def _collected(v: Any, key: list, held: list, wrappers: list) -> bool:
    """Collect key, held and wrappers of the user's function; False if it cannot be shared."""
    if type(v) is FunctionType:
        if v.__kwdefaults__:
            return False
        key.append(id(v.__code__))
        held += [v.__code__, v.__globals__, v.__builtins__, v.__defaults__, v.__name__, v.__qualname__]
        for cell in v.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                return False
            if not is_own(v.__code__):
                held.append(content)
            elif not _collected(content, key, held, wrappers):
                return False
        return True
    outline = getattr(type(v), "_same_code", None)
    parts = None if outline is None else outline(v)
    if parts is None:
        return False
    settings, function, others = parts
    key += [type(v), settings]
    held += others
    wrappers.append(v)
    return _collected(function, key, held, wrappers)


def _may_be_kept(v: Any, room: list, depth: int = 0) -> bool:
    """Whether the value may be kept alive. `room` has the bytes that are left."""
    if isinstance(v, _ATOMS) or type(v) is type(same_code_of.__code__):
        return True
    if type(v) is np.ndarray:
        room[0] -= v.nbytes if v.base is None else BYTES + 1  # a view keeps what it is a view of
        return room[0] >= 0
    if type(v) is tuple:
        return depth < 4 and all(_may_be_kept(x, room, depth + 1) for x in v)
    if type(v) is FunctionType:
        cells = v.__closure__ or ()
        return (depth < 4 or not cells) and all(_may_be_kept(c.cell_contents, room, depth + 1) for c in cells)
    return type(v) is dict and ("__builtins__" in v or v is _BUILTINS)


_BUILTINS = same_code_of.__builtins__


class SharedRecordings:
    """A cache of recordings by what their functions have in common.

    Sharing a recording of one piece of code is tried at its second call; after that less and less often.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records = Cache(SIZE, MOST_BYTES, VARIANTS)  # of (held, record)
        self._attempts = Store(4 * SIZE, 1)  # key -> (calls before the next attempt, those before the last)

    def find(self, key: Hashable, same_code: SameCode, accept: Callable[[Any], bool]) -> Any:
        def fits(entry: tuple) -> bool:
            held, record = entry
            same = len(held) == len(same_code.held) and all(map(interchangeable, same_code.held, held))
            return same and accept(record)

        entry = self._records.find(key, fits)
        if entry is None:
            return None
        self._attempts.discard(key)
        return entry[1]

    def is_time(self, key: Hashable) -> bool:
        """Whether to watch the function this time, so that its recording can be shared."""
        with self._lock:
            wait, before = self._attempts.find(key, (1, 1))
            self._attempts.add(key, (wait - 1, before))
            return wait <= 0

    def add(self, key: Hashable, same_code: SameCode, guard: Guard, record: Any, nbytes: int = 0) -> None:
        """Keep a recording of so many bytes. If its guard cannot be kept, the next attempt comes late."""
        with self._lock:
            wait = min(2 * self._attempts.find(key, (1, 1))[1], LONGEST)
            kept = guard.trouble is None and guard.facts is not None and _nbytes(guard.facts) <= BYTES
            self._attempts.add(key, (wait if kept else LONGEST, wait))
            if not kept:
                return
            own = [fact for fact in guard.facts if not any(fact[1] is w for w in same_code.wrappers)]
            own_guard = guard if len(own) == len(guard.facts) else make_guard(own)
            self._records.add(key, own_guard, (same_code.held, record), nbytes + _nbytes(guard.facts))


def _nbytes(facts: list) -> int:
    """The bytes of the arrays that a guard has copies of."""
    return sum(fact[2].nbytes for fact in facts if fact[0] == "array")


shared_recordings = SharedRecordings()
