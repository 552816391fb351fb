"""Ways to do the same thing, of which the fastest is found by timing them on real calls, in turn.

    choice = Choices("rows.json", ("alone", "shared"), ...)
    trials = Trials(choice)
    trials.run(key, lambda way: ...)

All ways have to give the same bits. Each is timed SAMPLES times for a key; what counts is its shortest time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .remembered import Choices

SAMPLES = 5
SURE, DAYS = 3, 30  # processes that have to find the same before it is believed, and for how long it is


class Trials:
    """The times of each way, by key, until there are enough of them."""

    def __init__(self, name: str, ways: tuple[str, ...], software: Callable[[], str] = str):
        self.ways = ways
        self.chosen = Choices(name, ways, software, SURE, DAYS)
        self.times: dict[tuple, dict[str, list[float]]] = {}
        self._lock = threading.Lock()

    def run(self, key: tuple, do: Callable[[str], None]) -> None:
        """do(way), in the way that was chosen for this key, or in the one that has been tried least."""
        way = self.chosen.get(key)
        if way is not None:
            do(way)
            return
        with self._lock:
            times = self.times.setdefault(key, {way: [] for way in self.ways})
            way = min(times, key=lambda way: len(times[way]))
        began = time.perf_counter()
        do(way)
        self._note(key, way, time.perf_counter() - began)

    def _note(self, key: tuple, way: str, seconds: float) -> None:
        """Add a sample, and choose where there are enough."""
        with self._lock:
            times = self.times.get(key)
            if times is None:  # another thread has chosen meanwhile
                return
            times[way].append(seconds)
            if all(len(t) >= SAMPLES for t in times.values()):
                self.chosen.put(key, min(times, key=lambda way: min(times[way])))
                del self.times[key]

    def forget(self) -> None:
        """Drop all samples, and what was chosen."""
        with self._lock:
            self.times.clear()
            self.chosen.clear()
