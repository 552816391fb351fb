"""Ctrl-C in a rank of an MPI job. Needs no NumPy."""

import contextlib
import signal
import sys


@contextlib.contextmanager
def mortal():
    """Ctrl-C ends this process at once in the block, also while it is in MPI, and mpiexec ends the others.

    As an exception it would come once MPI has answered, or not at all; a rank that then leaves waits in
    MPI_Finalize for one that waits for it.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def die_of_interrupt():
    """End as Ctrl-C ends a program that has no handler for it."""
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)
