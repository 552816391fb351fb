"""A step of a run in numbers: its loss, how fast it went, and whether its loss stands far above those before.

Such a spike is not an error. Many runs recover, but one that is not noticed is found days later in a plot.
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
FEWEST = 16  # before that many there is nothing to compare with
FACTOR = 8.0  # of the usual distance from the median; of normal noise one step in a million is as far
LEAST = 0.1  # of the median: what is less is no spike however quiet the losses were


@dataclass(frozen=True)
class Rates:
    """How much is done in a second: steps, tokens, operations in matrix products."""

    steps: float
    tokens: float
    flops: float


@dataclass(frozen=True)
class Step:
    """A step that was taken.

    number      counted from 1
    loss        of its batches, before the update, in nats per token
    lr          learning rate
    grad_norm   of the gradient as it came, before it was clipped
    seconds     that it took
    rates       tokens and operations a second, averaged over the last steps
    spike_from  the usual loss, where this one stands far above it
    val_loss    validation loss after the step, in nats per token, where one was due
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
        """The Rates, now that one more step took `seconds`."""
        self.recent.append(seconds)
        steps = len(self.recent) / sum(self.recent)
        return Rates(steps, steps * self.tokens, steps * self.flops)


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
