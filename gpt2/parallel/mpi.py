"""A group of MPI ranks: mpiexec -n 4 python train.py --parallel mpi. Needs mpi4py: pip install '.[mpi]'.

The sum of a gradient begins as soon as it is final (Iallreduce), so that communication overlaps with the
backward of earlier blocks. Every rank runs the whole program; only rank 0 prints and writes files.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt2.errors import UserError, reason
from gpt2.hints import install
from gpt2.model.optimizer import part, sum_of_squares
from gpt2.parallel.cores import launched_rank
from gpt2.parallel.group import Group
from gpt2.parallel.interrupts import die_of_interrupt, ended_after

LARGEST = 1 << 28  # entries in one message; older MPIs count bytes in 31 bits
TOGETHER = 3.0  # seconds within which all ranks fail if they fail for the same reason
LOOK = 0.5  # seconds between looks at the clock
LONGER = 10  # factor for work that one process does alone while the others wait: saving, sampling
REPORT_DELAY = 1.0  # seconds by which each rank reports a timeout later than the one before it


class MPIGroup(Group):
    """The ranks of the job that this process belongs to; without mpiexec, a group of one.

    timeout   seconds that a rank waits for the others before it ends the job; 0: for ever
    """

    def __init__(self, timeout: float = 0.0):
        self.rank = launched_rank()  # for messages before MPI is initialised
        self.timeout = timeout
        self.watch = TimeLimit(timeout, self._on_timeout)
        with self.watch:
            self._start()

    def _start(self):
        with ended_after(self.timeout):
            try:
                from mpi4py import MPI
            except ImportError as error:
                missing = "mpi4py" if "mpi4py" in str(error) else f"MPI ({reason(error)})"
                raise UserError(f"--parallel mpi needs {missing}: {install('mpi4py', 'mpich')}") from None
            except RuntimeError as error:  # mpi4py without an MPI library
                raise UserError(f"--parallel mpi: {reason(error)}; {install('mpich')}") from None
        self.MPI = MPI
        self.comm = self.MPI.COMM_WORLD.Dup()
        self.failures = self.MPI.COMM_WORLD.Dup()  # for agreement among failed ranks
        self.rank, self.size = self.comm.rank, self.comm.size
        self.comm.Barrier()  # all ranks have mapped the memory that ranks of one machine share
        # mpich leaves the names of this memory, 2 MB in /dev/shm, if a rank is killed or the job aborted
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/maps").read_text().splitlines():
                path = Path(line.split()[-1])
                if path.name.startswith("mpich_shm_"):
                    path.unlink(missing_ok=True)

    # -- the group's methods, in MPI's own

    def wait_for_root(self) -> None:
        with self.watch.patient():
            self.comm.Barrier()

    def broadcast(self, array: np.ndarray, root: int = 0) -> None:
        with self.watch:
            for piece in _pieces(array):
                self.comm.Bcast(piece, root)

    def reduction(self, grads: np.ndarray) -> MPIReduction:
        return MPIReduction(self, grads)

    def total(self, *values: float) -> list[float]:
        with self.watch:
            return [sum(column) for column in zip(*self.comm.allgather(values))]

    def highest(self, value: float) -> float:
        with self.watch:
            return max(self.comm.allgather(value))

    def all_gather(self, array: np.ndarray, parts: Sequence[tuple[int, int]]) -> None:
        for rank, (start, stop) in enumerate(parts):
            self.broadcast(array[start:stop], root=rank)

    def from_root(self, function: Callable[[], Any]) -> Any:
        result = error = None
        if self.rank == 0:
            try:
                result = function()
            except UserError as raised:
                error = str(raised)
        with self.watch.patient():
            result, error = self.comm.bcast((result, error))
        if error is not None:
            raise UserError(error)
        return result

    # -- the beginning and the end

    def __enter__(self):
        if self.rank:
            self._stdout, sys.stdout = sys.stdout, open(os.devnull, "w")  # only rank 0 prints
        return self

    def __exit__(self, kind, error, trace):
        if self.rank:
            sys.stdout.close()
            sys.stdout = self._stdout
        if kind is None or self.size == 1:
            return
        if issubclass(kind, KeyboardInterrupt):
            die_of_interrupt()
        if self._all_failed():
            if self.rank and issubclass(kind, UserError):
                raise SystemExit(2) from None  # rank 0 reports the same
            return
        # The others wait for this rank in some call, for ever
        if issubclass(kind, UserError):
            print(f"error: rank {self.rank}: {error.as_flag}", file=sys.stderr, flush=True)
        else:
            print(f"rank {self.rank} of {self.size} failed:", file=sys.stderr)
            traceback.print_exception(kind, error, trace)
        sys.stderr.flush()
        self.comm.Abort(2 if issubclass(kind, UserError) else 1)

    def _on_timeout(self):
        """End the job: this process is in an MPI call that does not return. The first of the waiting ranks
        reports it, and mpiexec ends the others before they do."""
        time.sleep(min(self.rank, 10) * REPORT_DELAY)
        print(
            f"error: rank {self.rank} has waited {self.watch.allowed:g} seconds for another rank, which does "
            "not answer; the saved checkpoints are intact. --worker-timeout sets the limit",
            file=sys.stderr,
            flush=True,
        )
        # After an exit status mpiexec may keep waiting for the other ranks; after a signal it ends them.
        # Python's handlers of other signals would not run inside MPI.
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    def _all_failed(self):
        """Whether every rank calls this within TOGETHER seconds."""
        request = self.failures.Ibarrier()
        end = time.monotonic() + TOGETHER
        while time.monotonic() < end:
            if request.Test():
                return True
            time.sleep(0.01)
        return False


class TimeLimit:
    """Limits the seconds that a call may wait for other processes, which no signal or error ends.

        with limit:              nested blocks count as one
        with limit.patient():    LONGER times as long

    limit   seconds; 0: none
    late    called once, on another thread, when a block has taken longer

    Time in which this process was stopped, by Ctrl-Z with all the others, does not count.
    """

    def __init__(self, limit: float, late: Callable[[], object]):
        self.limit, self.late = limit or math.inf, late
        self.depth, self.allowed, self.waited = 0, self.limit, 0.0
        if limit:
            threading.Thread(target=self._look, name="watch", daemon=True).start()

    def __enter__(self):
        if self.depth == 0:
            self.waited = 0.0
        self.depth += 1
        return self

    def __exit__(self, *error):
        self.depth -= 1

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        self.allowed = self.limit * LONGER
        try:
            with self:
                yield
        finally:
            self.allowed = self.limit

    def _look(self):
        looked = time.monotonic()
        while True:
            time.sleep(min(LOOK, self.limit / 4))
            now = time.monotonic()
            passed, looked = min(now - looked, 4 * LOOK), now
            if self.depth:
                self.waited += passed
                if self.waited > self.allowed:
                    return self.late()


class MPIReduction:
    """The sum of gradients over all ranks, taken while they are computed.

    model.backward calls it with (start, stop) when these entries are final in this rank, which begins their
    sum. wait() does the rest, and returns the sum of squares of its part. Many MPIs make progress only inside
    calls, hence Testall.
    """

    def __init__(self, group: MPIGroup, grads: np.ndarray):
        self.group, self.grads = group, grads
        self.begun = []  # (start, stop), in the order of the backward pass, the same on every rank
        self.requests = []

    def __call__(self, start: int, stop: int) -> None:
        self.begun.append((start, stop))
        self._start(start, stop)
        self.group.MPI.Request.Testall(self.requests)

    def wait(self) -> float:
        edges = [0, *(edge for begun in sorted(self.begun) for edge in begun), self.grads.size]
        for start, stop in zip(edges[::2], edges[1::2]):  # the gaps between them
            self._start(start, stop)
        with self.group.watch:
            self.group.MPI.Request.Waitall(self.requests)
        start, stop = part(self.grads.size, self.group.rank, self.group.size)
        return sum_of_squares(self.grads[start:stop])

    def _start(self, start, stop):
        group = self.group
        for piece in _pieces(self.grads[start:stop]):
            self.requests.append(group.comm.Iallreduce(group.MPI.IN_PLACE, piece))


def _pieces(array):
    if array.ndim != 1:
        raise ValueError(f"expected a flat array, got shape {array.shape}; pass array.reshape(-1)")
    return [array[start : start + LARGEST] for start in range(0, array.size, LARGEST)]
