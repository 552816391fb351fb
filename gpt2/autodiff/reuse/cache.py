"""Stores of bounded size: those that all share, and that of one derived function, which keeps its programs by
the shapes, dtypes and static values of its arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

from .guard import Guard


class Store:
    """Values under keys, the least recently used first to go where there are more than `size`, or they take
    more than `most` bytes. The newest stays, whatever its size.
    """

    def __init__(self, size: int, most: int):
        self.size, self.most, self.nbytes = size, most, 0
        # key -> (value, bytes). No OrderedDict: it breaks where two keys become equal, as settings change
        self._values: dict = {}
        self._lock = threading.Lock()

    def find(self, key: Hashable, default: Any = None) -> Any:
        with self._lock:
            found = self._values.pop(key, None)
            if found is None:
                return default
            self._values[key] = found  # the newest
            return found[0]

    def add(self, key: Hashable, value: Any, nbytes: int = 0) -> None:
        """Keep a value that takes so many bytes."""
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._values[key] = value, nbytes
            self.nbytes += nbytes - before
            while len(self._values) > self.size or self.nbytes > self.most and len(self._values) > 1:
                _, freed = self._values.pop(next(iter(self._values)))
                self.nbytes -= freed

    def discard(self, key: Hashable) -> None:
        with self._lock:
            self.nbytes -= self._values.pop(key, (None, 0))[1]


class Cache:
    """A bounded store of programs under keys; for each key a few, told apart by their guards.

    Reading takes no lock: a reader sees a tuple that is never changed. `find(key)` gives the entry whose
    guard holds, or None. The least recently made keys go first when there are more than `size`, or they take
    more than BYTES.
    """

    VARIANTS = 4  # of one key: a setting that flips back and forth between a few values keeps its programs

    BYTES = 1 << 30

    def __init__(self, size: int = 64):
        self.size = size
        self._entries: dict = {}  # key -> tuple of (guard, entry), newest first
        self._nbytes: dict = {}  # key -> the bytes of its newest entry, for each that may be there
        self._lock = threading.Lock()

    def find(self, key: Hashable, accept: Callable[[Any], bool] | None = None) -> Any:
        for guard, entry in self._entries.get(key, ()):
            if guard.holds() and (accept is None or accept(entry)):
                return entry
        return None

    def add(self, key: Hashable, guard: Guard, entry: Any, nbytes: int = 0) -> None:
        """Keep an entry that takes so many bytes."""
        with self._lock:
            others = self._entries.pop(key, ())
            self._entries[key] = ((guard, entry), *others)[: self.VARIANTS]
            self._nbytes[key] = nbytes * len(self._entries[key])
            while len(self._entries) > self.size or (
                sum(self._nbytes.values()) > self.BYTES and len(self._entries) > 1
            ):
                oldest = next(iter(self._entries))
                self._entries.pop(oldest, None)  # keys may have become equal
                self._nbytes.pop(oldest, None)

    def __contains__(self, key) -> bool:
        return key in self._entries

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._nbytes.clear()

    def __len__(self) -> int:
        return len(self._entries)
