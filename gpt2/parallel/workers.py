"""Processes that call functions together: started, watched while they work, and never left behind.

    workers = Workers(2, {"x": ((1000,), "float32")}, threads=1)
    with workers:
        results = workers.call(function, argument)      function(worker, argument) in each; results by rank

`function` has to be one that a new process can import. Processes are spawned, not forked: a fork copies
the locks of the BLAS's threads, but not the threads. As always with spawning, a script that starts them does
so under `if __name__ == "__main__":`.
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
from gpt2.parallel.cores import shares_of_cores, thread_variables
from gpt2.parallel.errors import WorkerError
from gpt2.parallel.memory import SharedArrays

START = 120.0  # seconds that a process may take to start and import NumPy
LOOK = 0.5  # seconds between looks at signs of life
LOST = 3.0  # seconds in which the cause must show after a worker has missed another one
SMALL = 32 * 1024  # bytes that fit into a pipe, whatever the other end does


class Workers:
    """`size` processes with arrays in common.

    arrays   name -> (shape, dtype): shared by all workers and this process, at first zeros
    threads  of NumPy's BLAS in each worker, set before NumPy is imported there
    timeout  seconds without a sign of life after which a worker counts as hung; 0: never
    pin      keep each worker to cores of its own

    Whatever goes wrong in a worker ends all of them and is raised here: WorkerError, or its own UserError.
    """

    def __init__(
        self,
        size: int,
        arrays: Mapping[str, tuple[tuple[int, ...], Any]] | None = None,
        *,
        threads: int = 1,
        timeout: float = 300.0,
        pin: bool = False,
    ):
        self.size = size
        self.timeout = timeout or math.inf
        self.memory = SharedArrays({**(arrays or {}), "beats": ((size, 2), "int64")})
        self.arrays = self.memory.arrays
        self.processes, self.connections = [], []
        atexit.register(self.kill)  # before multiprocessing's own, which would wait for them
        try:
            self._start(threads, shares_of_cores(size) if pin else [None] * size)
        except OSError as error:
            self.kill()
            raise UserError(cannot_start(size, error)) from None
        except BaseException:
            self.kill()
            raise

    def _start(self, threads, cores):
        context = multiprocessing.get_context("spawn")
        ranks = range(self.size)
        pipes = {(a, b): context.Pipe(duplex=False) for a in ranks for b in ranks if a != b}
        theirs = []
        with _signals_blocked(), _environment(thread_variables(threads)):
            for r in ranks:
                mine, commands = context.Pipe()
                readers = [pipes[a, r][0] if a != r else None for a in ranks]
                writers = [pipes[r, b][1] if b != r else None for b in ranks]
                args = (
                    r,
                    self.size,
                    commands,
                    readers,
                    writers,
                    self.memory.share(),
                    self.memory.layout,
                    cores[r],
                )
                process = context.Process(target=worker.main, args=args, name=f"worker {r}", daemon=True)
                process.start()
                self.processes.append(process)
                self.connections.append(mine)
                theirs.append(commands)
        # Copies of their ends held here would hide from a worker that the other end is gone
        for end in [*theirs, *(end for pipe in pipes.values() for end in pipe)]:
            end.close()

    def wait_until_ready(self) -> None:
        """Return once every worker stands by. The shared memory then has no name any more."""
        if self.memory is not None:
            self._collect(START)
            self.memory.unlink()
            self.memory = None

    def call(self, function: Callable, *args: Any, each: Sequence[tuple] | None = None) -> list:
        """Call function(worker, *args) in every worker at once; return what each returned, by rank.

        each  a list of further arguments, a tuple for each worker
        """
        self.wait_until_ready()
        if not self.processes:
            raise RuntimeError("Workers.call: these workers have ended")
        self._send([pickle.dumps((function, (*args, *(each[r] if each else ())))) for r in range(self.size)])
        return self._collect(self.timeout)

    def _send(self, messages):
        def send():
            for end, message in zip(self.connections, messages):
                with contextlib.suppress(OSError):  # one that died is noticed by _collect, and named there
                    end.send_bytes(message)

        if max(map(len, messages)) <= SMALL:
            send()
        else:  # a worker that hangs would not take it, and the time limit would not be checked
            threading.Thread(target=send, daemon=True).start()

    # -- watching

    def _collect(self, limit):
        """One answer of each worker, by rank. One that died, failed or hung for `limit` seconds ends all."""
        answers, lost = {}, math.inf
        signs = _Signs(self.arrays["beats"])
        while len(answers) < self.size:
            waiting = [r for r in range(self.size) if r not in answers]
            ends = {self.connections[r]: r for r in waiting}
            sentinels = {self.processes[r].sentinel: r for r in range(self.size)}
            ready = connection.wait([*ends, *sentinels], timeout=min(LOOK, limit / 4))
            for r in sorted(ends[end] for end in ready if end in ends):
                if self._take_answer(r, answers) == "lost":
                    lost = min(lost, time.monotonic() + LOST)
            for r in sorted(sentinels[s] for s in ready if s in sentinels):
                self._end(f"{self._name(r)} {self._how_it_ended(r)}")
            if not ready:
                self._look(signs, waiting, limit)
            if time.monotonic() > lost or (lost < math.inf and len(answers) == self.size):
                self._name_the_lost()
        return [answers[r] for r in range(self.size)]

    def _take_answer(self, r, answers):
        """What kind of answer worker r gave; its content is put into `answers`."""
        kind, content = self._receive(r)
        if kind in ("ready", "result", "lost"):
            answers[r] = None if kind == "lost" else content
        elif kind is not None:
            self._fail(r, kind, content)
        return kind

    def _receive(self, r):
        try:
            return self.connections[r].recv()
        except (EOFError, OSError):
            return None, None  # it is ending; its sentinel will say how

    def _look(self, signs, waiting, limit):
        """Raise where a worker that owes an answer has been silent for `limit` seconds."""
        silent = [r for r, seconds in enumerate(signs.silence()) if seconds > limit and r in waiting]
        at_fault = [r for r in silent if signs.phase(r) != "waiting"]
        if not at_fault and len(silent) < len(waiting):
            return  # these wait for one that has been silent for a little less long, or is still at work
        r = (at_fault or silent)[0]
        if hasattr(signal, "SIGUSR1"):  # its traceback, on stderr
            with contextlib.suppress(OSError):
                os.kill(self.processes[r].pid, signal.SIGUSR1)
                time.sleep(0.2)
        self._end(
            f"{self._name(r)} hung: no sign of life for {limit:g} seconds, last seen {signs.phase(r)}; "
            "a longer --worker-timeout gives it more time"
        )

    def _fail(self, r, kind, content):
        self.kill()
        if kind == "user error":
            raise UserError(content)
        raise WorkerError(f"worker {r} of {self.size} failed:\n{content.rstrip()}")

    def _name(self, r):
        return f"worker {r} of {self.size} (process {self.processes[r].pid})"

    def _name_the_lost(self):
        """Workers missed one that seems to be alive: its death was noticed by them first. Find it."""
        connection.wait([process.sentinel for process in self.processes], timeout=LOST)
        for r, process in enumerate(self.processes):
            if process.exitcode is not None:
                self._end(f"{self._name(r)} {self._how_it_ended(r)}")
        self._end("a worker lost its connection to another one")

    def _how_it_ended(self, r):
        process = self.processes[r]
        process.join(LOST)
        code = process.exitcode
        if code is None or code >= 0:
            return f"ended with exit status {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = {
            "SIGKILL": "; the kernel does this where memory runs out, see dmesg",
            "SIGBUS": "; is /dev/shm full?",
        }.get(name, "")
        return f"was killed by {name}{hint}"

    # -- ending

    def _end(self, message):
        self.kill()
        raise WorkerError(message)

    def close(self) -> None:
        """Let the workers end, and see to it that they did. The arrays stay as they are."""
        with contextlib.suppress(OSError):
            for end in self.connections:
                end.send_bytes(b"")
        deadline = time.monotonic() + 2.0
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End all workers at once. May be called again."""
        atexit.unregister(self.kill)
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
            process.close()
        for end in self.connections:
            end.close()
        self.processes, self.connections = [], []
        if self.memory is not None:
            self.memory.unlink()
            self.memory = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.close()
        else:
            self.kill()


def cannot_start(size: int, error: OSError) -> str:
    """The error to raise where the system refuses to start `size` workers."""
    limit = {errno.EMFILE: "open files (ulimit -n)", errno.EAGAIN: "processes (ulimit -u)"}.get(error.errno)
    advice = f"allow more {limit}, take" if limit else "take"
    return (
        f"{size} worker processes cannot be started: {error.strerror or error}; {advice} fewer --workers, "
        "or --parallel none, which uses threads"
    )


class _Signs:
    """How long each worker has given no sign of life.

    Time in which this process stood still itself, stopped by Ctrl-Z with all the others, does not count.
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

    def phase(self, r):
        return worker.PHASES[int(self.beats[r, 1])]


@contextlib.contextmanager
def _environment(variables):
    """os.environ with these variables, for processes started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _signals_blocked():
    """Signals to stop put off; also for processes started meanwhile, until they have said what to do."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
