"""The training loop: validations, samples, steps and checkpoints in their order."""

import math
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

from gpt2.errors import UserError, counted
from gpt2.train.reporters import Reporter
from gpt2.train.run import Run, Step


class Interrupts:
    """Catches SIGINT, SIGTERM and SIGHUP to stop after the current step; a second one stops at once.

    SIGHUP comes twice when a terminal is closed, from the system and from the shell, and counts once.

    received   the signal's number, or None. Signals are caught only within `with Interrupts() as ...`
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.before: dict = {}

    def __enter__(self) -> "Interrupts":
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):  # the last one is Windows' Ctrl-Break
            if not hasattr(signal, name):
                continue
            number = getattr(signal, name)
            if name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup: the run outlives its terminal
            self.before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number, frame):
        if self.received in self.before and number != getattr(signal, "SIGHUP", None):
            raise KeyboardInterrupt
        self.received = number

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def loop(run: Run, reporter: Reporter, interrupts: Interrupts | None = None) -> Iterator[Step]:
    """Train until the last step, run.stop() or a signal; yields each Step, its validation included.

    Unless it ends by an error, the run is saved, also if the caller leaves its `for` early.
    """
    s, interrupts = run.settings, interrupts or Interrupts()
    taken = None
    while True:
        last = run.step >= s.steps
        if run.validated != run.step and (last or due(run.step, s.eval_every)):
            loss = validate(run, reporter)
            taken = taken and replace(taken, val_loss=loss)
            last = last or run.exhausted
        if taken is not None:
            try:
                yield taken
            except GeneratorExit:  # the caller leaves its `for` here
                run.save()
                raise
        # if one rank is to stop, all stop
        stop = run.team.group.highest(interrupts.received or 0.5 * run.stopping)  # signals have whole numbers
        if stop >= 1:
            interrupts.received = int(stop)
        if last and reporter.sample_at_end:
            show_sample(run, reporter, last=True)
        if last or stop:
            run.save()  # after all records: resuming cuts off records after the save
            return
        if run.step > 0 and due(run.step, s.sample_every):
            show_sample(run, reporter, last=False)
        taken = take_step(run, reporter)
        if due(run.step, s.save_every) and run.step < s.steps:
            run.save()


def due(step: int, every: int) -> bool:
    """Whether an action due every `every` steps is due at this one; 0: never."""
    return every > 0 and step % every == 0


def take_step(run: Run, reporter: Reporter) -> Step:
    """Train one step, report it and record it."""
    begin = time.perf_counter()
    metrics = run.train_step()
    seconds = time.perf_counter() - begin
    rates = reporter.rates(seconds)
    usual = run.spikes.of(metrics["loss"])
    epoch = run.epochs(run.step)
    step = Step(run.step, **metrics, seconds=seconds, rates=rates, spike_from=usual, epoch=epoch, run=run)
    reporter.step(step)
    if usual is not None:
        metrics["spike_from"] = usual
    run.record(
        step=run.step,
        **metrics,
        epoch=round(epoch, 4),
        seconds=round(seconds, 6),
        tokens_per_second=round(rates.tokens, 1),
        gflops=round(rates.flops / 1e9, 3),
    )
    return step


def validate(run: Run, reporter: Reporter) -> float:
    """Measure the validation loss, report it, and save the weights if they are the best so far."""
    loss = run.validation_loss()
    if not math.isfinite(loss):
        raise UserError(
            f"step {run.step}: the validation loss is {loss}; the weights of the last checkpoint "
            "are intact. Resume from it with a lower --lr"
        )
    counts = run.step > 0 or bool(run.settings.init)  # weights that nothing has trained do not count
    best = counts and (run.best is None or loss < run.best)
    run.validated = run.step
    run.worse = run.worse + 1 if counts and not best else 0
    run.record(step=run.step, val_loss=loss)
    reporter.validated(run, loss, best)
    if best:
        run.best = loss
        run.save_best()
    elif run.exhausted and run.step < run.settings.steps:
        worse = counted(run.worse, "validation")
        reporter.noted(run, f"{worse} no better than the best: the run ends (--patience)")
    return loss


def show_sample(run: Run, reporter: Reporter, last: bool) -> None:
    """Report and record a sample from the current model, if the settings ask for samples."""
    if not run.settings.sample_tokens:
        return
    if run.team.root:
        text = reporter.sample(run)
        run.record(step=run.step, sample=text)
        reporter.sampled(run, text, last)
    run.team.group.wait_for_root()
