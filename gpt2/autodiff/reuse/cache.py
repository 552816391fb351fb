"""The programs of one derived function, kept by the shapes, dtypes and static values of its arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

from .guard import Guard


class Cache:
    """A bounded store of programs under keys; for each key a few, told apart by their guards.

    Reading takes no lock: a reader sees a tuple that is never changed. `find(key)` gives the entry whose
    guard holds, or None. The least recently made keys go first when there are more than `size`.
    """

    VARIANTS = 4  # of one key: a setting that flips back and forth between a few values keeps its programs

    def __init__(self, size: int = 64):
        self.size = size
        self._entries: dict = {}  # key -> tuple of (guard, entry), newest first
        self._lock = threading.Lock()

    def find(self, key: Hashable, accept: Callable[[Any], bool] | None = None) -> Any:
        for guard, entry in self._entries.get(key, ()):
            if guard.holds() and (accept is None or accept(entry)):
                return entry
        return None

    def add(self, key: Hashable, guard: Guard, entry: Any) -> None:
        with self._lock:
            others = self._entries.pop(key, ())
            self._entries[key] = ((guard, entry), *others)[: self.VARIANTS]
            while len(self._entries) > self.size:
                del self._entries[next(iter(self._entries))]

    def __contains__(self, key) -> bool:
        return key in self._entries

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
