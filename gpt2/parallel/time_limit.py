"""A time limit for calls that wait for other processes, and that no signal or error ends.

limit = TimeLimit(300.0, late)
with limit:
    ...               a call that may block; if it takes longer, late() is called on another thread
with limit.patient():
    ...               the same with LONGER times as long
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

LOOK = 0.5  # seconds between looks at the clock
LONGER = 10  # factor for work that one process does alone while the others wait: saving, sampling


class TimeLimit:
    """Limits the seconds that a block takes. Nested blocks count as one.

    limit   seconds; 0: none
    late    called once, when a block has taken longer

    Time in which this process was stopped, by Ctrl-Z with all the others, does not count.
    """

    def __init__(self, limit: float, late: Callable[[], object]):
        self.limit, self.late = limit or math.inf, late
        self.depth, self.allowed, self.waited = 0, self.limit, 0.0
        if limit:
            threading.Thread(target=self._look, name="watch", daemon=True).start()

    def __enter__(self):
        if self.depth == 0:
            self.waited = 0.0
        self.depth += 1
        return self

    def __exit__(self, *error):
        self.depth -= 1

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """A block that may take LONGER times as long."""
        self.allowed = self.limit * LONGER
        try:
            with self:
                yield
        finally:
            self.allowed = self.limit

    def _look(self):
        looked = time.monotonic()
        while True:
            time.sleep(min(LOOK, self.limit / 4))
            now = time.monotonic()
            passed, looked = min(now - looked, 4 * LOOK), now
            if self.depth:
                self.waited += passed
                if self.waited > self.allowed:
                    return self.late()
