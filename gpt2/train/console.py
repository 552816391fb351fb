"""The training program after threads are set: train, or estimate the cost of a run."""

import dataclasses
import os
import sys
from contextlib import closing

from gpt2 import parallel
from gpt2.cli import fitted
from gpt2.errors import counted, no_overflow_warnings, printable
from gpt2.hints import quoted, typed
from gpt2.machine import free_memory
from gpt2.model.muon import Muon
from gpt2.model.optimizer import AdamW
from gpt2.output import Output
from gpt2.parallel.cores import launched_rank
from gpt2.storage import runs
from gpt2.train import cost, fastest, flops
from gpt2.train.build import backward_errors, model_config, model_options
from gpt2.train.flags import table
from gpt2.train.kernels import Kernels
from gpt2.train.loop import Interrupts, loop
from gpt2.train.recipe import new_settings, weights_config, with_corpus
from gpt2.train.reporters import REPORTERS
from gpt2.train.resolve import prepare
from gpt2.train.run import Run
from gpt2.train.session import opened, set_engine_threads
from gpt2.train.settings import Request, Settings

BROKEN_PIPE = 13  # the number of SIGPIPE, also on systems without it: for a run whose output is lost


def run(request: Request, kernels: Kernels, out: Output) -> int:
    """Carry out a request; returns the exit status.

    kernels   those that OpenBLAS uses
    out       standard output: when it is closed or full, the run is saved and ends
    """
    no_overflow_warnings()
    settings, notes = request.resumed, [kernels.note]
    if settings is None:
        settings, corpus_notes = with_corpus(new_settings(request.given), request.given)
        for note in corpus_notes if launched_rank() == 0 else ():  # first, as all else depends on it
            stream = sys.stderr if settings.lines == "llm.c" else sys.stdout
            print(fitted(f"note: {printable(note)}"), file=stream, flush=True)
        if request.overwrite and not os.path.exists(settings.out):
            notes.append(f"--overwrite: there is no folder {settings.out} yet, so nothing is replaced")
    settings = dataclasses.replace(settings, kernels=kernels.name)
    if request.dry_run:
        set_engine_threads(settings)
        return dry_run(fastest.ways(settings, 1)[0].applied(settings))  # the default way
    peak = flops.matmul_peak(settings.dtype)  # with BLAS' own threads, before they are taken away
    with opened(settings, resume=request.resumed is not None, overwrite=request.overwrite, spawn=True) as run:
        run.notes += filter(None, notes)
        if request.resumed is not None:
            print(f"resuming {printable(run.folder)} at step {run.step}")
        return train(run, peak, out)


def dry_run(s: Settings) -> int:
    """Print the memory and time that a run with these settings takes. Writes nothing and reads no weights."""
    words = None if s.init else prepare(s, None, resumed=False).tokenizer
    V = weights_config(s).vocab_size if words is None else words.vocab_size
    config = model_config(s, V)
    print(table(s))
    with backward_errors(s):
        options = {"optimizer": Muon if s.optimizer == "muon" else AdamW, **model_options(s)}
        estimate = cost.estimate(config, s.batch_size, s.block_size, s.accumulate, **options)
    print("\n".join(cost.lines(estimate, s.steps, free_memory())))
    return 0


def train(run: Run, peak: flops.Peak, out: Output) -> int:
    """Train a run until its last step, a signal, or the loss of standard output.

    Returns the exit status.

    peak    of this machine, as measured by gpt2.train.flops
    """
    reporter = REPORTERS[run.settings.lines](peak)
    resume = typed(f"gpt2 train --resume {quoted(run.folder)}")
    with closing(reporter):
        reporter.begin(run)
        try:
            with Interrupts() as interrupts:
                for _ in loop(run, reporter, interrupts):
                    if out.lost:
                        interrupts.received = interrupts.received or BROKEN_PIPE
        except parallel.WorkerError as error:
            saved = (run.folder / runs.LAST).exists()
            advice = (
                f"the last checkpoint is intact; resume it with: {resume}"
                if saved
                else "no checkpoint had been written yet"
            )
            raise parallel.WorkerError(f"{error}\n{advice}") from None
    done = run.step >= run.settings.steps or run.exhausted
    if done:
        reporter.end(run)
        out.flush()
    end = f"stopped and saved at step {run.step}; resume with: {resume}"
    if out.lost:
        out.reported = True
        end = f"done and saved: {counted(run.step, 'step')}, all in {printable(run.folder)}" if done else end
        print(f"error: standard output: {out.lost}; {end}", file=sys.stderr)
    elif not done:
        print(end)
    if done:
        return 1 if out.lost and not out.lost.reader_closed else 0
    return 128 + (interrupts.received or 0)
