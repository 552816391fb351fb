"""Caches of bounded size: Store for what all functions share, Cache for one function's programs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

from .guard import Guard


def drop_oldest(values: dict) -> Any:
    """Pop the first value of a dict, also if its key has changed and is not found."""
    key = next(iter(values))
    try:
        return values.pop(key)
    except KeyError:
        (_, oldest), *others = values.items()
        values.clear()
        values.update(others)
        return oldest


class Store:
    """A cache of `size` values and `most` bytes: the least recently used go, the newest stays."""

    def __init__(self, size: int, most: int):
        self.size, self.most, self.nbytes = size, most, 0
        # key -> (value, bytes). No OrderedDict: it breaks where two keys become equal, as settings change
        self._values: dict = {}
        self._lock = threading.Lock()

    def find(self, key: Hashable, default: Any = None) -> Any:
        with self._lock:
            entry = self._values.pop(key, None)
            if entry is None:
                return default
            self._values[key] = entry  # the newest
            return entry[0]

    def add(self, key: Hashable, value: Any, nbytes: int = 0) -> None:
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._values[key] = value, nbytes
            self.nbytes += nbytes - before
            while len(self._values) > self.size or self.nbytes > self.most and len(self._values) > 1:
                self.nbytes -= drop_oldest(self._values)[1]

    def discard(self, key: Hashable) -> None:
        with self._lock:
            self.nbytes -= self._values.pop(key, (None, 0))[1]

    def __len__(self) -> int:
        return len(self._values)


class Cache:
    """A bounded cache of programs; a few for each key, with different guards.

    `find(key)` gives the entry whose guard holds, or None. The keys that were not used for longest go first
    when there are more than `size`, or they take more than `most` bytes.
    """

    VARIANTS = 4  # of one key: a setting that flips back and forth between a few values keeps its programs
    BYTES = 1 << 30

    def __init__(self, size: int = 64, most: int | None = None, variants: int = VARIANTS):
        self.size, self.variants = size, variants
        # key -> tuple of (guard, entry, bytes), newest first
        self._entries = Store(size, self.BYTES if most is None else most)

    def find(self, key: Hashable, accept: Callable[[Any], bool] | None = None) -> Any:
        for guard, entry, _ in self._entries.find(key, ()):
            if guard.holds() and (accept is None or accept(entry)):
                return entry
        return None

    def add(self, key: Hashable, guard: Guard, entry: Any, nbytes: int = 0) -> None:
        entries = ((guard, entry, nbytes), *self._entries.find(key, ()))[: self.variants]
        self._entries.add(key, entries, sum(nbytes for *_, nbytes in entries))

    @property
    def nbytes(self) -> int:
        return self._entries.nbytes

    def __contains__(self, key) -> bool:
        return self._entries.find(key) is not None

    def __len__(self) -> int:
        return len(self._entries)
