"""Ctrl-C in a rank of an MPI job. Needs no NumPy."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def default_sigint() -> Iterator[None]:
    """Within the block Ctrl-C ends this process at once, also inside MPI, and mpiexec ends the others.

    A KeyboardInterrupt would come after the MPI call returns, or never; and a rank that leaves then may
    deadlock in MPI_Finalize.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """The system ends this process if the block takes longer; 0: never.

    For MPI_Init, which holds Python's lock until all ranks have started: no thread could check the time.
    """
    limited = (
        seconds and hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    )
    if not limited:
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
    """End by SIGINT, like a program without a handler for it.

    mpiexec then ends the others. After an exit status it does not, if they are still in MPI_Init.
    """
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)
