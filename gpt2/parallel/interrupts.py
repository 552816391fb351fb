"""Ctrl-C in a rank of an MPI job. Needs no NumPy."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def default_handler(number: int = signal.SIGINT) -> Iterator[None]:
    """Within the block a signal, by default Ctrl-C, ends this process at once, also inside MPI, and mpiexec
    ends the others.

    A KeyboardInterrupt would come after the MPI call returns, or never; and a rank that leaves then may
    deadlock in MPI_Finalize.
    """
    before = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextlib.contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """The system ends this process if the block takes longer; 0: never.

    For MPI_Init, which holds Python's lock until all ranks have started: no thread could check the time.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not (seconds and in_main and hasattr(signal, "setitimer")):
        yield
        return
    with default_handler(signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def die_of_interrupt() -> None:
    """End by SIGINT, like a program without a handler for it.

    mpiexec then ends the others. After an exit status it does not, if they are still in MPI_Init.
    """
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)
