"""The program of a worker process: it waits for a function, calls it, and sends back what came of it.

Nothing is imported at the top that needs NumPy: which cores this process may use is settled first.
"""

import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Collection, Mapping, Sequence
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from gpt2.errors import UserError

# What a worker can be doing, for the message where it hangs. "waiting" is for other workers: not its fault.
PHASES = ("starting", "idle", "working", "computing", "waiting", "reducing", "updating")


class Worker:
    """What a function that is called in a worker gets as its first argument.

    rank, size  of this worker
    group       pipes.Pipes
    arrays      the shared arrays, by name
    kept        a namespace for what one call leaves for the next
    """

    def __init__(
        self,
        rank: int,
        size: int,
        readers: Sequence[Connection | None],
        writers: Sequence[Connection | None],
        shared: Any,
        layout: Mapping[str, tuple[tuple[int, ...], Any]],
    ):
        from gpt2.parallel.memory import SharedArrays
        from gpt2.parallel.pipes import Pipes

        self.rank, self.size = rank, size
        self.arrays = SharedArrays(layout, shared).arrays
        self.beats = self.arrays["beats"][rank]  # (2,): signs of life so far, and the phase
        self.group = Pipes(rank, size, readers, writers, self.beat)
        self.kept = SimpleNamespace()

    def beat(self, phase: str) -> None:
        """A sign of life, and what comes now."""
        self.beats[1] = PHASES.index(phase)
        self.beats[0] += 1


def main(
    rank: int,
    size: int,
    commands: Connection,
    readers: Sequence[Connection | None],
    writers: Sequence[Connection | None],
    shared: Any,
    layout: Mapping[str, tuple[tuple[int, ...], Any]],
    cores: Collection[int] | None,
) -> None:
    """The life of a worker. Commands are (function, args), or None for the end."""
    _be_quiet_about_signals()
    _end_with_parent()
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        worker = Worker(rank, size, readers, writers, shared, layout)
        commands.send(("ready", None))
    except Exception:
        commands.send(("error", traceback.format_exc()))
        return
    while True:
        worker.beat("idle")
        try:
            message = commands.recv_bytes()
        except (EOFError, OSError):
            return
        if not message:
            return
        worker.beat("working")
        commands.send(_answer(worker, message))


def _answer(worker, message):
    """(kind, content): the result of a command, or what went wrong."""
    from gpt2.parallel.pipes import PeerLost

    try:
        function, args = pickle.loads(message)
        return "result", function(worker, *args)
    except PeerLost:
        return "lost", None
    except UserError as error:
        return "user error", str(error)
    except Exception:
        return "error", traceback.format_exc()


def _be_quiet_about_signals():
    """A Ctrl-C, or a signal to the whole process group, is for the process that started this one: it still
    needs its workers to finish the step and save. It ends them with SIGKILL, or by closing the pipe."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # blocked while this process was started
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=False)  # asked of a worker that hangs


def _end_with_parent():
    """End this process at once when its parent is gone, whatever it is doing."""
    parent = multiprocessing.parent_process()

    def watch():
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="watch parent", daemon=True).start()
