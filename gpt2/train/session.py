"""Training from your own program or notebook: open a run, train it, close it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from gpt2 import parallel
from gpt2.autodiff import remember, set_threads
from gpt2.errors import UserError
from gpt2.parallel.cores import local_ranks, threads_each
from gpt2.storage.download import cache_folder
from gpt2.train.loop import loop
from gpt2.train.reporters import Reporter, reporter_here
from gpt2.train.resolve import resolve
from gpt2.train.run import Run, Step
from gpt2.train.settings import FASTEST, Settings


def train(
    settings: Settings,
    callbacks: Iterable[Callable[[Step], object]] = (),
    *,
    resume: bool = False,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Train to the last step and return the Run, its folder written and released.

    callbacks  each is called with the Step after every step; step.run.stop() ends the training early
    resume     resume the run in the folder settings.out; settings come from resumed_settings
    overwrite  replace an existing run
    reporter   Reporter() is silent; by default a ProgressReporter in a terminal or notebook, else Reporter()

    Raises UserError if a setting is not possible here, or the loss is not finite.

        >>> settings = gpt2.train.Settings(data="my.txt", tokenizer="char", n_embd=16, steps=3, warmup=0)
        >>> losses = []
        >>> run = gpt2.train.train(settings, [lambda step: losses.append(step.loss)], overwrite=True)
        >>> run.step, len(losses)
        (3, 3)
    """
    reporter, callbacks = reporter or reporter_here(), list(callbacks)
    with opened(settings, resume=resume, overwrite=overwrite) as run, closing(reporter):
        reporter.begin(run)
        for step in loop(run, reporter):
            for callback in callbacks:
                callback(step)
        reporter.end(run)
    return run


def steps(settings: Settings | Run, *, resume: bool = False, overwrite: bool = False) -> Iterator[Step]:
    """Train, and yield the Step after every step: `for step in steps(settings): ...`

    A `break` saves the run. The other arguments and errors are those of `train`.

    If the body of the loop may fail, open the run first: then its folder is released at once, not when
    Python frees the loop. (A notebook keeps the last error and its frames.)

        with opened(settings) as run:
            for step in steps(run): ...

        >>> settings = gpt2.train.Settings(data="my.txt", tokenizer="char", n_embd=16, steps=3, warmup=0)
        >>> for step in gpt2.train.steps(settings, overwrite=True):
        ...     print(step.number, step.loss > 0)
        1 True
        2 True
        3 True
    """
    if isinstance(settings, Run):
        reporter = Reporter()
        reporter.begin(settings)
        yield from loop(settings, reporter)
    else:
        with opened(settings, resume=resume, overwrite=overwrite) as run:
            yield from steps(run)


@contextmanager
def opened(
    settings: Settings, *, resume: bool = False, overwrite: bool = False, spawn: bool = False
) -> Iterator[Run]:
    """A run in its folder, ready for its next step. At the end of the block the folder is released.

    spawn   whether processes may be started for timing: in a script without
            `if __name__ == "__main__":` they would run it again

        >>> settings = gpt2.train.Settings(data="my.txt", tokenizer="char", n_embd=16, steps=3, warmup=0)
        >>> with gpt2.train.opened(settings, overwrite=True) as run:
        ...     numbers = [step.number for step in gpt2.train.steps(run)]
        >>> numbers
        [1, 2, 3]
    """
    set_engine_threads(settings)
    folder = Path(settings.out) if resume else None
    kind = "none" if settings.parallel == FASTEST else settings.parallel
    with parallel.join(kind, settings.worker_timeout) as group:
        run = resolve(settings, group, folder, spawn)
        with closing(run), run.team:
            if folder is None:
                run.begin(run.take(overwrite=overwrite))
            else:
                run.take(folder)
                run.load(folder)
                steps, more = run.settings.steps, f"continue with --steps {2 * run.step}"
                if run.step > steps:
                    raise UserError(f"--steps {steps}: {folder} has done {run.step} steps already; {more}")
                if run.step == steps:
                    raise UserError(f"{folder} has done its {steps} steps; {more}")
                run.begin(folder)
            yield run


def set_engine_threads(s: Settings) -> None:
    """Set the threads of compiled layers; BLAS itself then uses one.

    They split matrix products too. OpenBLAS's threads wait by spinning: with both, a step of the CPU recipe
    took up to ten times as long.
    """
    if s.compile == "on" or s.parallel == "shares":
        with suppress(UserError):  # no home folder: nothing is cached
            remember(cache_folder())
        threads = threads_each(local_ranks() if s.parallel == "mpi" else 1, s.threads)
        try:
            set_threads(threads)
        except RuntimeError as error:
            raise UserError(f"--threads {threads}: {error}; give fewer") from None
