"""Step: the figures of a training step, its rates, and detection of loss spikes.

A spike is not an error: many runs recover, but it should be noticed before the end.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt2.train.run import Run

AVERAGED = 20  # steps over which rates are averaged
RECENT = 32  # losses that a new one is compared with
FEWEST = 16  # least number of losses to compare with
FACTOR = 8.0  # of the usual deviation from the median
LEAST = 0.1  # of the median: less is not a spike, however small the deviation


@dataclass(frozen=True)
class Rates:
    """Rates per second: steps, tokens, operations in matrix products."""

    steps: float
    tokens: float
    flops: float


@dataclass(frozen=True)
class Step:
    """The result of a training step.

    number      counted from 1
    loss        of its batches, before the update, in nats per token
    lr          learning rate
    grad_norm   of the gradient before clipping
    seconds     duration
    rates       tokens and operations a second, averaged over the last steps
    spike_from  the usual loss, if this one is far above it
    val_loss    validation loss after the step, in nats per token, if one was due
    run         the Run: its model, tokenizer and folder

        >>> settings = gpt2.train.Settings(data="my.txt", tokenizer="char", n_embd=16, steps=3, warmup=0)
        >>> step = next(gpt2.train.steps(settings, overwrite=True))
        >>> step.number, step.loss > 0, step.grad_norm > 0
        (1, True, True)
    """

    number: int
    loss: float
    lr: float
    grad_norm: float
    seconds: float
    rates: Rates
    spike_from: float | None = None
    val_loss: float | None = None
    run: "Run | None" = field(default=None, repr=False)


class Clock:
    """Turns the seconds of each step into rates.

    tokens, flops  tokens and operations in one step
    recent         steps over which rates are averaged
    """

    def __init__(self, tokens: int, flops: float, recent: int = AVERAGED):
        self.tokens, self.flops = tokens, flops
        self.recent: deque[float] = deque(maxlen=recent)

    def rates(self, seconds: float) -> Rates:
        """The Rates after one more step of `seconds`."""
        self.recent.append(seconds)
        steps = len(self.recent) / sum(self.recent)
        return Rates(steps, steps * self.tokens, steps * self.flops)


class Spikes:
    """Detects steps whose loss is far above the previous ones.

    of(loss)      the median of the recent losses if this one is a spike, else None. A spike is not counted
                  among the recent ones, unless losses stay there: then it is their new level.
    state()       for a checkpoint, so that a resumed run detects the same spikes
    load_state()  restores it; raises ValueError, TypeError, KeyError or OverflowError if it is invalid
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
