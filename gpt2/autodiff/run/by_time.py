"""Chooses the fastest of several ways to do the same thing, by timing them on real calls, in turn.

    trials = Trials("rows.json", ("alone", "shared"))
    trials.run(key, lambda way: ...)

All ways have to give the same bits. Each is timed SAMPLES times for a key; its shortest time counts. A caller
of `sample` can report a sample as disturbed, which then does not count. If too few samples are good, the
choice holds for this process and is not written down.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from .remembered import Choices

SAMPLES = 5
ATTEMPTS = 3 * SAMPLES  # of a way, samples that do not count included
SURE, DAYS = 3, 30  # processes that have to agree before a choice is trusted, and for how long it is


class Samples:
    """The times of each way, until there are enough of them."""

    def __init__(self, ways: Iterable[str]):
        self.times: dict[str, list[float]] = {way: [] for way in ways}
        self.disturbed: dict[str, list[float]] = {way: [] for way in self.times}

    def next(self, *args: Any) -> str:
        """The way that has been tried least."""
        return min(self.times, key=lambda way: len(self.times[way]) + len(self.disturbed[way]))

    def add(self, way: str, seconds: float, disturbed: bool) -> None:
        (self.disturbed if disturbed else self.times)[way].append(seconds)

    def best(self) -> tuple[str, bool] | None:
        """The fastest way, and whether that is worth writing down; None while more samples are needed."""
        if len(self.times) == 1:
            return next(iter(self.times)), True
        if all(len(t) >= SAMPLES for t in self.times.values()):
            return min(self.times, key=lambda way: min(self.times[way])), True
        every = {way: self.times[way] + self.disturbed[way] for way in self.times}
        if any(len(t) < ATTEMPTS for t in every.values()):
            return None
        return min(every, key=lambda way: min(every[way])), False


class Trials:
    """The samples of each key, until a way is chosen for it."""

    def __init__(self, name: str, ways: tuple[str, ...], software: Callable[[], str] = str):
        self.ways = ways
        self.chosen = Choices(name, ways, software, SURE, DAYS)
        self.open: dict[tuple, Samples] = {}
        self._lock = threading.Lock()

    def run(self, key: tuple, do: Callable[[str], None]) -> None:
        """do(way), in the way that was chosen for this key, or in the one that has been tried least."""
        way = self.chosen.get(key)
        if way is not None:
            do(way)
        else:
            self.sample(key, lambda: Samples(self.ways), lambda way: (_seconds(do, way), False))

    def sample(
        self,
        key: tuple,
        begin: Callable[..., Samples],
        timed: Callable[..., tuple[float, bool]],
        *args: Any,
    ) -> None:
        """Take one sample, and choose where there are enough.

        begin   begin(*given) makes the samples of a key, whose next(*given) says the way
        timed   timed(way, *given) does it, and says how many seconds it took and whether it was disturbed
        """
        with self._lock:
            samples = self.open.get(key)
            if samples is None:
                samples = self.open[key] = begin(*args)
            way = samples.next(*args)
        took = timed(way, *args)
        with self._lock:
            samples.add(way, *took)
            best = samples.best()
            if best is not None and self.chosen.get(key) is None:  # no other thread has chosen meanwhile
                self.chosen.put(key, *best)
                self.open.pop(key, None)

    def forget(self) -> None:
        """Drop all samples, and what was chosen."""
        with self._lock:
            self.open.clear()
            self.chosen.clear()


def _seconds(do: Callable[[str], None], way: str) -> float:
    began = time.perf_counter()
    do(way)
    return time.perf_counter() - began
