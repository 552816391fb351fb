"""Ctrl-C in a rank of an MPI job. Needs no NumPy."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def default_sigint() -> Iterator[None]:
    """Ctrl-C ends this process at once in the block, also while it is in MPI, and mpiexec ends the others.

    As an exception it would come once MPI has answered, or not at all; a rank that then leaves waits in
    MPI_Finalize for one that waits for it.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """The system ends this process where the block takes longer; 0: never.

    For the start of MPI: until all ranks are there it lets no thread of Python look at the clock.
    """
    in_time = (
        seconds and hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    )
    if not in_time:
        yield
        return
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def die_of_interrupt() -> None:
    """End as Ctrl-C ends a program that has no handler for it.

    mpiexec then ends the others. After an exit with a status it does not, if they wait for MPI to start.
    """
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)
