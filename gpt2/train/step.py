"""One step of the optimizer, in numbers: its loss, its learning rate, how long it took."""

from dataclasses import dataclass, field

from gpt2.train.progress import Rates
from gpt2.train.run import Run


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
    run: Run | None = field(default=None, repr=False)
