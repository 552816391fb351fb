"""Chooses the fastest of several ways to do the same thing, by timing them on real calls, in turn.

    trials = Trials()
    trials.run(key, lambda way: ..., lambda: ("alone", "shared"))

All ways have to give the same bits. Each is timed SAMPLES times for a key; its shortest time counts. Choices
hold for the process: one that was made while the machine was busy is not there in the next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable

SAMPLES = 5


class Trials:
    """The times of each key's ways, until one is chosen."""

    def __init__(self) -> None:
        self.chosen: dict[Hashable, str] = {}
        self.open: dict[Hashable, dict[str, list[float]]] = {}
        self._lock = threading.Lock()

    def run(self, key: Hashable, do: Callable[[str], object], ways: Callable[[], Iterable[str]]) -> None:
        """do(way), in the way that was chosen for this key, or in the one that has been tried least.

        ways   called once for a key: the ways to choose from
        """
        way = self.chosen.get(key)
        if way is not None:
            do(way)
            return
        with self._lock:
            times = self.open.get(key)
            if times is None:
                times = self.open[key] = {way: [] for way in ways()}
            way = min(times, key=lambda way: len(times[way]))
        began = time.perf_counter()
        do(way)
        took = time.perf_counter() - began
        with self._lock:
            times[way].append(took)
            if len(times) == 1 or all(len(t) >= SAMPLES for t in times.values()):
                self.chosen[key] = min(times, key=lambda way: min(times[way]))
                self.open.pop(key, None)
