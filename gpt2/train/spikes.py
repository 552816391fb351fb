"""Loss spikes: a step whose loss stands far above those just before it.

A spike is no error. Many runs recover, but one that is not noticed is found days later in a plot.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

RECENT = 32  # losses that a new one is compared with
FEWEST = 16  # before that many there is nothing to compare with
FACTOR = 8.0  # of the usual distance from the median; of normal noise one step in a million is as far
LEAST = 0.1  # of the median: what is less is no spike however quiet the losses were


class Spikes:
    """Says when the loss of a step stands far above those before it.

    of(loss)      the median of the recent losses if this one is a spike, else None. A spike is not counted
                  among the recent ones, unless losses stay there: then it is their new level.
    state()       what a checkpoint keeps, so that a resumed run tells the same spikes
    load_state()  takes it over; a ValueError, TypeError, KeyError or OverflowError where it is something else
    """

    def __init__(self) -> None:
        self.recent = deque(maxlen=RECENT)
        self.above = []  # spikes in a row

    def of(self, loss: float) -> float | None:
        if len(self.recent) >= FEWEST:
            usual = statistics.median(self.recent)
            spread = 1.4826 * statistics.median(abs(x - usual) for x in self.recent)  # a deviation, if normal
            if loss - usual > max(FACTOR * spread, LEAST * abs(usual)):
                self.above.append(loss)
                if len(self.above) >= FEWEST:
                    self.recent.clear()
                    self.recent.extend(self.above)
                    self.above.clear()
                return usual
        self.above.clear()
        self.recent.append(loss)
        return None

    def state(self) -> dict[str, list[float]]:
        return {"recent": list(self.recent), "above": list(self.above)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        recent, above = ([float(loss) for loss in state[name]] for name in ("recent", "above"))
        if len(recent) > RECENT or len(above) >= FEWEST or not all(map(math.isfinite, recent + above)):
            raise ValueError("these are not the losses of a Spikes")
        self.recent = deque(recent, maxlen=RECENT)
        self.above = above
