"""What the program does once its threads are set: train, or say what a run would take."""

from contextlib import closing

from gpt2 import parallel
from gpt2.data import corpora
from gpt2.storage import runs
from gpt2.train import cost, flops
from gpt2.train.build import errors_as_flags, model_config, model_options
from gpt2.train.flags import table
from gpt2.train.loop import Interrupts, loop
from gpt2.train.recipe import new_settings, weights_config
from gpt2.train.reporters import REPORTERS
from gpt2.train.run import Run
from gpt2.train.session import opened, share_out_threads
from gpt2.train.settings import Asked, Settings


def run(asked: Asked, resumed: Settings | None) -> int:
    """Do what was asked for; returns the exit status.

    resumed   the settings of a run that goes on, or None for a new one
    """
    settings = resumed or new_settings(asked.given)
    if asked.dry_run:
        share_out_threads(settings)
        return dry_run(settings)
    peak = flops.matmul_peak(settings.dtype)  # with BLAS' own threads, before they are taken away
    with opened(settings, resume=resumed is not None, overwrite=asked.overwrite) as made:
        if resumed is not None:
            print(f"going on with {made.folder} at step {made.step}")
        return train(made, peak)


def dry_run(s: Settings) -> int:
    """Say what a run with these settings would take. Writes no folder and looks for no weights."""
    V = weights_config(s).vocab_size if s.init else corpora.prepare(s.data, s.tokenizer).tokenizer.vocab_size
    config = model_config(s, V)
    print(table(s))
    with errors_as_flags(s):
        what = cost.estimate(config, s.batch_size, s.block_size, s.accumulate, **model_options(s))
    print("\n".join(cost.lines(what, s.steps, cost.available_memory())))
    return 0


def train(run: Run, peak: float) -> int:
    """Train a run from where it stands to its last step, or to a signal. Returns the exit status.

    peak    operations a second that this machine can do, as gpt2.train.flops measures them
    """
    reporter = REPORTERS[run.settings.lines](peak)
    again = f"{runs.TRAIN} --resume {run.folder}"
    with closing(reporter):
        reporter.begin(run)
        try:
            with Interrupts() as interrupts:
                for _ in loop(run, reporter, interrupts):
                    pass
        except parallel.WorkerError as error:
            saved = (run.folder / runs.LAST).exists()
            advice = (
                f"the last checkpoint is in place; go on from it with: {again}"
                if saved
                else "no checkpoint had been written yet"
            )
            raise parallel.WorkerError(f"{error}\n{advice}") from None
    if run.step < run.settings.steps:
        print(f"stopped and saved at step {run.step}; go on with: {again}")
        return 128 + interrupts.received
    reporter.end(run)
    return 0
