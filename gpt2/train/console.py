"""What the program does once its threads are set: train, or say what a run would take."""

import dataclasses
import os
import sys
from contextlib import closing

from gpt2 import parallel
from gpt2.data import corpora
from gpt2.errors import counted, no_overflow_warnings, printable
from gpt2.hints import quoted, typed
from gpt2.machine import free_memory
from gpt2.output import Output
from gpt2.storage import runs
from gpt2.train import cost, fastest, flops
from gpt2.train.build import errors_as_flags, model_config, model_options
from gpt2.train.flags import table
from gpt2.train.kernels import Kernels
from gpt2.train.loop import Interrupts, loop
from gpt2.train.recipe import new_settings, weights_config, with_corpus
from gpt2.train.reporters import REPORTERS
from gpt2.train.run import Run
from gpt2.train.session import opened, share_out_threads
from gpt2.train.settings import Request, Settings

NOBODY_READS = (
    13  # SIGPIPE's number, also where there is no such signal: a run ends so when its output is lost
)


def run(asked: Request, resumed: Settings | None, kernels: Kernels, out: Output) -> int:
    """Do what was asked for; returns the exit status.

    resumed   the settings of a run that goes on, or None for a new one
    kernels   those that BLAS was asked to take
    out       standard output: when it is closed or full, the run is saved and ends
    """
    no_overflow_warnings()
    settings, notes = resumed, [kernels.note]
    if settings is None:
        settings, why = with_corpus(new_settings(asked.given), asked.given)
        notes = [*why, *notes]
        if asked.overwrite and not os.path.exists(settings.out):
            notes.append(f"--overwrite: there is no folder {settings.out} yet, so nothing is replaced")
    settings = dataclasses.replace(settings, kernels=kernels.name)
    if asked.dry_run:
        share_out_threads(settings)
        return dry_run(fastest.unmeasured(settings))
    peak = flops.matmul_peak(settings.dtype)  # with BLAS' own threads, before they are taken away
    with opened(settings, resume=resumed is not None, overwrite=asked.overwrite, spawn=True) as made:
        made.notes += filter(None, notes)
        if resumed is not None:
            print(f"going on with {printable(made.folder)} at step {made.step}")
        return train(made, peak, out)


def dry_run(s: Settings) -> int:
    """Say what a run with these settings would take. Writes no folder and looks for no weights."""
    V = weights_config(s).vocab_size if s.init else corpora.prepare(s.data, s.tokenizer).tokenizer.vocab_size
    config = model_config(s, V)
    print(table(s))
    with errors_as_flags(s):
        what = cost.estimate(config, s.batch_size, s.block_size, s.accumulate, **model_options(s))
    print("\n".join(cost.lines(what, s.steps, free_memory())))
    return 0


def train(run: Run, peak: flops.Peak, out: Output) -> int:
    """Train a run from where it stands to its last step, to a signal, or to the end of standard output.

    Returns the exit status.

    peak    what this machine can do, as gpt2.train.flops measures it
    """
    reporter = REPORTERS[run.settings.lines](peak)
    again = typed(f"gpt2 train --resume {quoted(run.folder)}")
    with closing(reporter):
        reporter.begin(run)
        try:
            with Interrupts() as interrupts:
                for _ in loop(run, reporter, interrupts):
                    if out.lost:
                        interrupts.received = interrupts.received or NOBODY_READS
        except parallel.WorkerError as error:
            saved = (run.folder / runs.LAST).exists()
            advice = (
                f"the last checkpoint is in place; go on from it with: {again}"
                if saved
                else "no checkpoint had been written yet"
            )
            raise parallel.WorkerError(f"{error}\n{advice}") from None
    done = run.step >= run.settings.steps
    if done:
        reporter.end(run)
        out.flush()
    end = f"stopped and saved at step {run.step}; go on with: {again}"
    if out.lost:
        out.reported = True
        end = f"done and saved: {counted(run.step, 'step')}, all in {printable(run.folder)}" if done else end
        print(f"error: standard output: {out.lost}; {end}", file=sys.stderr)
    elif not done:
        print(end)
    if done:
        return 1 if out.lost and not out.lost.reader_closed else 0
    return 128 + (interrupts.received or 0)
