"""Worker processes: started, watched while they work, and always ended.

    workers = Workers(2, {"x": ((1000,), "float32")}, threads=1)
    with workers:
        results = workers.call(function, argument)      function(worker, argument) in each; results by rank

`function` must be importable by a new process. Processes are spawned, not forked: a fork copies the locks of
the BLAS's threads, but not the threads. As always with spawning, a script must start them under
`if __name__ == "__main__":`.
"""

import atexit
import contextlib
import errno
import math
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from typing import Any

from gpt2.errors import UserError
from gpt2.parallel import worker
from gpt2.parallel.cores import thread_variables
from gpt2.parallel.group import WorkerError
from gpt2.parallel.memory import SharedArrays

START = 120.0  # seconds that a process may take to start and import NumPy
LOOK = 0.5  # seconds between checks of heartbeats
ENDING = 3.0  # seconds to wait for the exit status of a process that ends
SMALL = 32 * 1024  # bytes that fit into a pipe's buffer


class Workers:
    """`size` processes with shared arrays.

    arrays   name -> (shape, dtype): shared by all workers and this process, initially zero
    threads  of NumPy's BLAS in each worker, set before NumPy is imported there
    timeout  seconds without a heartbeat after which a worker counts as hung; 0: never

    Any error in a worker ends all of them and is raised here: as WorkerError, or as its UserError.
    """

    def __init__(
        self,
        size: int,
        arrays: Mapping[str, tuple[tuple[int, ...], Any]] | None = None,
        *,
        threads: int = 1,
        timeout: float = 300.0,
    ):
        self.size = size
        self.timeout = timeout or math.inf
        self.memory: SharedArrays | None = SharedArrays({**(arrays or {}), "beats": ((size, 2), "int64")})
        self.arrays = self.memory.arrays
        self.processes, self.connections = [], []
        atexit.register(self.kill)  # runs before multiprocessing's handler, which waits for them
        try:
            self._start(threads)
        except BaseException as error:
            self.kill()
            if not isinstance(error, OSError):
                raise
            limits = {errno.EMFILE: "open files (ulimit -n)", errno.EAGAIN: "processes (ulimit -u)"}
            advice = f"allow more {limits[error.errno]}, take" if error.errno in limits else "take"
            raise UserError(
                f"{size} worker processes cannot be started: {error.strerror or error}; {advice} fewer "
                "--workers, or --parallel none, which uses threads"
            ) from None

    def _start(self, threads):
        context = multiprocessing.get_context("spawn")
        theirs = []
        with _to_start(thread_variables(threads)):
            for r in range(self.size):
                mine, commands = context.Pipe()
                args = (r, self.size, commands, self.memory)
                process = context.Process(target=worker.main, args=args, name=f"worker {r}", daemon=True)
                process.start()
                self.processes.append(process)
                self.connections.append(mine)
                theirs.append(commands)
        for end in theirs:  # copies in this process would hide that a worker's own end is gone
            end.close()

    def wait_until_ready(self) -> None:
        """Return once every worker is ready, and has mapped the shared memory."""
        if self.memory is not None:
            self._collect(START)
            self.memory = None

    def call(self, function: Callable, *args: Any, each: Sequence[tuple] | None = None) -> list:
        """Call function(worker, *args) in every worker at once; return the results by rank.

        each  a list of further arguments, a tuple for each worker
        """
        self.wait_until_ready()
        if not self.processes:
            raise RuntimeError("Workers.call: these workers have ended")
        messages = [pickle.dumps((function, (*args, *(each[r] if each else ())))) for r in range(self.size)]

        def send():
            for end, message in zip(self.connections, messages):
                with contextlib.suppress(OSError):  # _collect reports one that died
                    end.send_bytes(message)

        if max(map(len, messages)) <= SMALL:
            send()
        else:  # a worker that hangs would block this, and the time limit would not be checked
            threading.Thread(target=send, daemon=True).start()
        return self._collect(self.timeout)

    # -- watching

    def _collect(self, limit):
        """One answer per worker, by rank. One that died, failed or hung for `limit` seconds ends all."""
        answers = {}
        heartbeats = _Heartbeats(self.arrays["beats"])
        try:
            while len(answers) < self.size:
                ends = {end: r for r, end in enumerate(self.connections) if r not in answers}
                sentinels = {process.sentinel: r for r, process in enumerate(self.processes)}
                ready = connection.wait([*ends, *sentinels], timeout=min(LOOK, limit / 4))
                for r in sorted(ends[end] for end in ready if end in ends):
                    self._take_answer(r, answers)
                for r in sorted(sentinels[s] for s in ready if s in sentinels):
                    raise WorkerError(f"{self._name(r)} {self._how_it_ended(r)}")
                silence = heartbeats.silence() if not ready else []
                for r, seconds in enumerate(silence):
                    if seconds > limit and r not in answers:
                        raise WorkerError(f"{self._name(r)} {self._how_it_hung(r, limit)}")
        except (UserError, WorkerError):
            self.kill()
            raise
        return [answers[r] for r in range(self.size)]

    def _take_answer(self, r, answers):
        """Receive an answer of worker r into `answers`, or raise the error that it is."""
        try:
            kind, content = self.connections[r].recv()
        except (EOFError, OSError):
            return  # it is ending; _how_it_ended reports how
        if kind == "user error":
            raise UserError(content)
        if kind == "error":
            raise WorkerError(f"worker {r} of {self.size} failed:\n{content.rstrip()}")
        answers[r] = content

    def _how_it_hung(self, r, limit):
        if hasattr(signal, "SIGUSR1"):  # its traceback, on stderr
            with contextlib.suppress(OSError):
                os.kill(self.processes[r].pid, signal.SIGUSR1)
                time.sleep(0.2)
        phase = worker.PHASES[int(self.arrays["beats"][r, 1])]
        return f"hung: no heartbeat for {limit:g} seconds, last seen {phase}; --worker-timeout sets the limit"

    def _name(self, r):
        return f"worker {r} of {self.size} (process {self.processes[r].pid})"

    def _how_it_ended(self, r):
        process = self.processes[r]
        process.join(ENDING)
        code = process.exitcode
        if code is None or code >= 0:
            return f"ended with exit status {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = "; the kernel does this when memory runs out, see dmesg" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"

    # -- ending

    def close(self) -> None:
        """Ask the workers to end, and kill those that do not. The arrays stay valid."""
        with contextlib.suppress(OSError):
            for end in self.connections:
                end.send_bytes(b"")
        deadline = time.monotonic() + 2.0
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End all workers at once. Idempotent."""
        atexit.unregister(self.kill)
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
            process.close()
        for end in self.connections:
            end.close()
        self.processes, self.connections, self.memory = [], [], None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.close()
        else:
            self.kill()


class _Heartbeats:
    """How long each worker has been silent.

    Time in which this process was stopped, by Ctrl-Z with all the others, does not count.
    """

    def __init__(self, beats):
        self.beats = beats
        self.count = beats[:, 0].copy()
        self.silent = [0.0] * len(beats)
        self.looked = time.monotonic()

    def silence(self):
        """Seconds for which each worker has been silent, by rank. Called every LOOK seconds or so."""
        now = time.monotonic()
        passed, self.looked = min(now - self.looked, 4 * LOOK), now
        for r in range(len(self.beats)):
            heard = self.beats[r, 0] != self.count[r]
            self.count[r] = self.beats[r, 0]
            self.silent[r] = 0.0 if heard else self.silent[r] + passed
        return self.silent


@contextlib.contextmanager
def _to_start(variables):
    """For processes started in the block: environment variables, and signals to stop that are blocked until
    they set their handlers.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    if hasattr(signal, "pthread_sigmask"):
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
