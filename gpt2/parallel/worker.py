"""The main loop of a worker process: receive a function, call it, send the result."""

import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from types import SimpleNamespace

from gpt2.errors import UserError
from gpt2.parallel.memory import SharedArrays

# What a worker is doing, for the message if it hangs
PHASES = ("starting", "idle", "working", "computing", "reducing", "updating")


class Worker:
    """The first argument of functions that are called in a worker.

    rank, size  of this worker
    arrays      the shared arrays, by name
    kept        a namespace for values from one call to the next
    """

    def __init__(self, rank: int, size: int, memory: SharedArrays):
        self.rank, self.size, self.arrays = rank, size, memory.arrays
        self.beats = self.arrays["beats"][rank]  # (2,): number of heartbeats, and the phase
        self.kept = SimpleNamespace()

    def beat(self, phase: str) -> None:
        """Heartbeat, with the phase that begins now."""
        self.beats[1] = PHASES.index(phase)
        self.beats[0] += 1


def main(rank: int, size: int, commands: Connection, memory: SharedArrays) -> None:
    """Run a worker. Commands are pickled (function, args); an empty one ends it."""
    _ignore_signals()
    _end_with_parent()
    worker = Worker(rank, size, memory)
    commands.send(("result", None))
    while True:
        worker.beat("idle")
        try:
            message = commands.recv_bytes()
        except (EOFError, OSError):
            return
        if not message:
            return
        worker.beat("working")
        try:
            function, args = pickle.loads(message)
            answer = "result", function(worker, *args)
        except UserError as error:
            answer = "user error", error.as_flag
        except Exception:
            answer = "error", traceback.format_exc()
        commands.send(answer)


def _ignore_signals():
    """Leave Ctrl-C and signals to the process group to the parent process: it still needs its workers to
    finish the step and save, and ends them with SIGKILL, or by closing the pipe."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # blocked while this process was started
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=False)  # sent to a worker that hangs


def _end_with_parent():
    """End this process at once when its parent is gone."""
    parent = multiprocessing.parent_process()

    def watch():
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="watch parent", daemon=True).start()
