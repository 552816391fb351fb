"""The program: python train.py, python -m gpt2 train and gpt2 train are all `main`.

NumPy takes the number of its threads, and the kernels of its products, from the environment when it is
imported. So this module and those that it imports at the top know no NumPy; the flags are read, threads and
kernels set, and only then comes gpt2.train.console, which imports everything else. Nothing else in gpt2.train
is imported inside a function.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from gpt2 import parallel
from gpt2.errors import UserError, print_error, reason
from gpt2.output import Output, replace_stdout, reserve_standard_descriptors
from gpt2.parallel.cores import launched_rank, launched_ranks, local_ranks, thread_variables, threads_each
from gpt2.parallel.interrupts import default_sigint, die_of_interrupt
from gpt2.storage import runs
from gpt2.train.kernels import Kernels
from gpt2.train.settings import FASTEST, Request, Settings, check_effect, read_settings, resumed_settings


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the arguments say. Returns the exit status: 0, or 2 after one line that says what is wrong."""
    reserve_standard_descriptors()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # '?' where a console lacks a character
    if sys.stdout is None:
        print("note: standard output is closed; the figures are in the run's metrics.jsonl", file=sys.stderr)
    with replace_stdout() as out:
        try:
            status = guarded(sys.argv[1:] if argv is None else argv, out)
        except SystemExit:  # --help
            if lost(out):
                return 1
            raise
        return status or int(lost(out))


def lost(out: Output) -> bool:
    """Whether something that was written did not arrive; reported once."""
    out.flush()
    if out.lost is None or out.reported:
        return False
    out.reported = True
    print_error(f"standard output: {out.lost}")
    return True


def guarded(argv: Sequence[str], out: Output) -> int:
    """Runs the program, and tells in one line what its user can put right."""
    speaks = launched_rank() == 0  # of an MPI job the first one speaks for all
    try:
        asked, resumed = read(argv)
        in_job = (resumed.parallel if resumed else asked.given.get("parallel")) == "mpi"
        speaks = speaks or not in_job
        with default_sigint() if in_job else nullcontext():
            return program(asked, resumed, out)
    except UserError as error:
        if speaks:
            print_error(error.as_flag)
        return 2
    except parallel.WorkerError as error:
        print_error(str(error))
        return 1
    except KeyboardInterrupt:
        if speaks:
            print("stopped at once; what was saved before is in place", file=sys.stderr)
        if launched_ranks() > 1:
            die_of_interrupt()
        return 130
    except MemoryError as error:
        print_error(
            f"not enough memory ({reason(error)}); take a smaller model or batch, "
            "--dry-run says what a run takes"
        )
        return 2


def read(argv: Sequence[str]) -> tuple[Request, Settings | None]:
    """Reads what is asked for, and the settings of the run that is to go on, or None for a new one."""
    asked = read_settings(argv)
    given, resumed = asked.given, None
    if asked.resume is not None:
        out = given.get("out", asked.resume)
        if asked.resume and out != asked.resume:
            raise UserError(f"--out {out}: a resumed run stays in its folder, {asked.resume}")
        resumed = resumed_settings(runs.existing(asked.resume or given.get("out")), given)
    check_effect(asked, resumed)
    return asked, resumed


def program(asked: Request, resumed: Settings | None, out: Output) -> int:
    """Set the threads and the kernels of BLAS, and leave the rest to gpt2.train.console."""
    if resumed is None:
        limit_threads(threads_here(asked.given.get("threads", 0), asked.given.get("parallel", FASTEST)))
    else:
        limit_threads(threads_here(resumed.threads, resumed.parallel))
    kernels = Kernels.of(asked, resumed)
    kernels.load()
    from gpt2.train import console  # imports NumPy, which reads the number of its threads

    return console.run(asked, resumed, kernels, out)


def threads_here(threads: int, kind: str) -> int:
    """Threads of this process: those of --threads, shared with the other MPI ranks of the machine."""
    return threads_each(local_ranks(), threads) if kind == "mpi" else threads


def limit_threads(threads: int) -> None:
    """Tell the libraries under NumPy how many threads to take. Has an effect before NumPy is imported."""
    if threads:
        os.environ.update(thread_variables(threads))
