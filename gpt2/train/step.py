"""Step: the figures of a training step, and its rates."""

from collections import deque
from dataclasses import dataclass, field

from gpt2.train.run import Run

AVERAGED = 20  # steps over which rates are averaged


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
    epoch       passes over the training text so far: 0.5 is half of it
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
    epoch: float = 0.0
    run: Run | None = field(default=None, repr=False)


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
