"""The training program: python train.py, python -m gpt2 train and gpt2 train all call `main`.

NumPy reads the number of its threads, and the kernels of its products, from the environment when it is
imported. So this module and those that it imports at the top do not import NumPy; it reads the flags, sets
threads and kernels, and then imports gpt2.train.console, which imports everything else. Nothing else in
gpt2.train is imported inside a function.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from gpt2 import parallel
from gpt2.errors import NO_FOLDER, UserError, print_error, reason
from gpt2.output import Output, replace_stdout, reserve_standard_descriptors
from gpt2.parallel.cores import launched_rank, launched_ranks, local_ranks, thread_variables, threads_each
from gpt2.parallel.interrupts import default_handler, die_of_interrupt
from gpt2.storage import runs
from gpt2.train.kernels import Kernels
from gpt2.train.settings import Request, check_effect, read_settings, resumed_settings


def main(argv: Sequence[str] | None = None) -> int:
    """Train with these arguments. Returns the exit status: 0, or 2 after one line with the error."""
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
    """Whether output was lost; reported once."""
    out.flush()
    if out.lost is None or out.reported:
        return False
    out.reported = True
    print_error(f"standard output: {out.lost}")
    return True


def guarded(argv: Sequence[str], out: Output) -> int:
    """Run the program, and report errors that the user can correct in one line."""
    prints = launched_rank() == 0  # only rank 0 of an MPI job prints
    try:
        request = read(argv)
        in_job = request.setting("parallel") == "mpi"
        prints = prints or not in_job
        with default_handler() if in_job else nullcontext():
            return program(request, out)
    except UserError as error:
        if prints:
            print_error(error.as_flag)
        return 2
    except parallel.WorkerError as error:
        print_error(str(error))
        return 1
    except KeyboardInterrupt:
        if prints:
            print("stopped at once; saved checkpoints are intact", file=sys.stderr)
        if launched_ranks() > 1:
            die_of_interrupt()
        return 130
    except FileNotFoundError as error:
        if error.filename is not None:
            raise
        print_error(NO_FOLDER)
        return 2
    except MemoryError as error:
        print_error(
            f"not enough memory ({reason(error)}); take a smaller model or batch, --dry-run estimates a run"
        )
        return 2


def read(argv: Sequence[str]) -> Request:
    """Read the command line, and the settings of the run to resume."""
    request = read_settings(argv)
    if request.resume is not None:
        out = request.given.get("out", request.resume)
        if request.resume and out != request.resume:
            raise UserError(f"--out {out}: a resumed run stays in its folder, {request.resume}")
        resumed = resumed_settings(runs.existing(out), request.given)
        request = request._replace(resumed=resumed)
    check_effect(request)
    return request


def program(request: Request, out: Output) -> int:
    """Set the threads and the kernels of BLAS, and hand over to gpt2.train.console."""
    threads = request.setting("threads")
    if request.setting("parallel") == "mpi":  # divided among the ranks of the machine
        threads = threads_each(local_ranks(), threads)
    limit_threads(threads)
    kernels = Kernels.of(request)
    kernels.load()
    from gpt2.train import console  # imports NumPy, which reads the number of its threads

    return console.run(request, kernels, out)


def limit_threads(threads: int) -> None:
    """Set the number of threads of the libraries under NumPy. Only works before NumPy is imported."""
    if threads:
        os.environ.update(thread_variables(threads))
