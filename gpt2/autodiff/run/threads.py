"""A small pool of threads, for the regions and products of emitted programs.

Threads pay off because NumPy releases the interpreter lock inside ufuncs and products. `set_threads(n)`
limits BLAS itself to one thread, and every product and row region is split over this pool instead: OpenBLAS's
own workers spin between calls, and would fight the pool and other programs for the cores.
(Measured on two cores: two halves of a product on two Python threads run as fast as OpenBLAS's two threads
from about 30 million multiply-adds.)

Work is cut the same way however many threads there are, so results do not depend on their number, to the
last bit.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import methodcaller
from typing import Literal

from .blas import blas_threads, limit_blas_threads

_acquire, _release = methodcaller("acquire"), methodcaller("release")

count = 1  # threads in use; set_threads changes it, so it is read as threads.count
chosen = False  # by set_threads or prefer_threads
_pool: list[_Worker] = []
_pool_lock = threading.Lock()  # held while the pool runs a job: a second caller does its work alone
_pool_pid = os.getpid()


class _Worker(threading.Thread):
    """Runs jobs handed over through a pair of locks: the cheapest hand-over in Python (some 30 us)."""

    def __init__(self, index: int):
        super().__init__(name=f"autodiff-{index}", daemon=True)
        self.index = index
        self.go, self.done = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.done.acquire()
        self.job: Callable[[int], None] | None = None
        self.context: contextvars.Context | None = None  # a copy of the caller's: np.errstate is part of it
        self.error: BaseException | None = None
        self.start()

    def run(self):
        while True:
            self.go.acquire()
            job, context = self.job, self.context
            if job is None or context is None:
                return
            try:
                context.run(job, self.index)
            except BaseException as error:  # handed to the caller, who raises it
                self.error = error
            self.job = self.context = job = context = None  # keep no reference to the caller's arrays
            self.done.release()


def set_threads(n: int, blas: int | Literal["restore"] = 1) -> None:
    """Use n threads for regions and products: the caller's, and n - 1 others.

    n     at least 1
    blas  threads that NumPy's BLAS uses for a product, in the whole process; "restore": as many as before
          this library first changed them

    If a program does not call this, work runs on the caller's thread, with BLAS as it is, or as a library
    prefers it (prefer_threads).

        >>> ad.set_threads(2)
        >>> ad.get_threads()
        2
        >>> ad.set_threads(1)
    """
    global count, chosen
    if n < 1:
        raise ValueError(f"set_threads: n is {n}, expected at least 1")
    if blas != "restore" and (isinstance(blas, str) or blas < 1):
        raise ValueError(f"set_threads: blas is {blas!r}, expected at least 1, or 'restore'")
    with _pool_lock:
        _start(n)
        count, chosen = n, True
        limit_blas_threads((blas_threads() or 1) if blas == "restore" else blas)


def prefer_threads(n: int) -> None:
    """set_threads(n), for a library: nothing if the program has set them. At most as many as BLAS had.

    Nothing changes where the threads of BLAS cannot be set, or where none can be started.

        >>> ad.set_threads(1)
        >>> ad.prefer_threads(2)
        >>> ad.get_threads()
        1
    """
    if not chosen and (most := blas_threads()) is not None:
        with suppress(RuntimeError):
            set_threads(min(n, most))


def get_threads() -> int:
    """The number of threads that regions and products use; see set_threads.

    >>> ad.set_threads(1)
    >>> ad.get_threads()
    1
    """
    return count


def _start(n: int) -> None:
    global _pool_pid
    if _pool_pid != os.getpid():  # after a fork the threads are gone
        _pool.clear()
        _pool_pid = os.getpid()
    while len(_pool) < n - 1:
        _pool.append(_Worker(len(_pool) + 1))
    while len(_pool) > n - 1:
        worker = _pool.pop()
        worker.job = None
        worker.go.release()


def run_on_threads(job: Callable[[int], None]) -> None:
    """Run job(index) once on each of the threads that set_threads asked for, at the same time; wait for all.

    job   called with the thread's index, from 0 (the caller's own thread) to get_threads() - 1. What it has
          to do it takes from something shared, such as one iterator of pieces: where the pool is busy with
          another job, or has one thread, job(0) runs alone and has to do all of it

    Context variables (np.errstate is one) are those of the caller. What a job raises is raised here, after
    all have ended.

        >>> pieces, sums = iter(range(4)), []
        >>> def job(index):
        ...     for k in pieces:
        ...         sums.append(k * k)
        >>> ad.run_on_threads(job)
        >>> sorted(sums)
        [0, 1, 4, 9]
    """
    _run(job)


def run_apart(job: Callable[[int], None]) -> None:
    """run_on_threads(job) for large jobs: products and regions inside a job stay on its thread.

    Meanwhile get_threads() is 1 in the whole process, so that no region or product inside is shared out. That
    changes no bit of what they compute, as the module's text says.

        >>> indices = []
        >>> ad.run_apart(indices.append)
        >>> sorted(indices) == list(range(ad.get_threads()))
        True
    """
    _run(job, apart=True)


def _run(job: Callable[[int], None], apart: bool = False) -> None:
    """job(0) here and job(w.index) on each of the workers; returns, or raises, when all have ended."""
    global count
    if count == 1 or not _pool_lock.acquire(blocking=False):
        job(0)
        return
    n = count
    started: list[None] = []
    try:
        if _pool_pid != os.getpid():
            _start(n)
        workers = _pool[: n - 1]
        for w in workers:
            w.job, w.context, w.error = job, contextvars.copy_context(), None
        if apart:
            count = 1
        try:
            started.extend(map(_release, [w.go for w in workers]))
            job(0)
        finally:
            _wait_for(workers[: len(started)])
            errors = [w.error for w in workers if w.error is not None]
            for w in workers:
                w.error = None
        if errors:
            raise errors[0]
    finally:
        count = n
        _pool_lock.release()


def _wait_for(workers: Sequence[_Worker]) -> None:
    """Return, or raise a Ctrl-C, when all have ended: they write to memory of the next job."""
    ended: list[bool] = []  # extended in C, which no signal interrupts between a lock and its note
    interrupt = None
    while len(ended) < len(workers):
        try:
            ended.extend(map(_acquire, [w.done for w in workers[len(ended) :]]))
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
