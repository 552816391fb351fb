"""A group of processes on one machine: messages go through pipes, the model's arrays are in shared memory.

A barrier is a message to and from each. Measured for two workers that arrive 0.3 ms apart, overhead beyond
that: multiprocessing.Barrier 27 us; semaphores 9; these pipes 7 to 30, depending on what else runs; a count
in shared memory 6 with sched_yield, which burns a core while it waits, and 130 with sleeps of 50 us. A step
has two, so any of these will do. Pipes also carry numbers, leave nothing behind in /dev/shm, and report at
once that another worker has died.
"""

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import numpy as np

from gpt2.parallel.group import Group, Reduction, add_up


class PeerLost(Exception):
    """Another worker is gone. The process that watches both will report which."""


class Pipes(Group):
    """The group, for worker `rank`.

    readers, writers  connections from and to each worker, by rank; None at its own rank
    beat              called with a phase as a heartbeat
    """

    def __init__(
        self,
        rank: int,
        size: int,
        readers: Sequence[Connection | None],
        writers: Sequence[Connection | None],
        beat: Callable[[str], None],
    ):
        self.rank, self.size = rank, size
        self.readers, self.writers = readers, writers
        self.note = beat  # type: ignore[method-assign, assignment]
        # the gradients of all workers, by rank, after share_gradients
        self.peers: Sequence[np.ndarray] | None = None

    def exchange(self, payload: bytes) -> list[bytes]:
        if self.size == 1:
            return [payload]
        self.note("waiting")
        try:
            for step in range(1, self.size):
                self.writers[(self.rank + step) % self.size].send_bytes(payload)
            parts = [payload if r == self.rank else self.readers[r].recv_bytes() for r in range(self.size)]
        except (EOFError, OSError):
            raise PeerLost from None
        self.note("working")
        return parts

    def share_gradients(self, arrays: Sequence[np.ndarray]) -> None:
        """Set the gradients of all workers: arrays by rank, in shared memory. Sums go to the first one."""
        self.peers = arrays

    def reduction(self, grads: np.ndarray) -> Reduction:
        if self.peers is None or grads is not self.peers[self.rank]:
            return Reduction(self, grads)
        return SharedReduction(self)


class SharedReduction(Reduction):
    """Each worker sums its part of all workers' gradients in place, in the order of ranks.

    The sum goes to the first worker's array: no other worker uses that part of it until the next step.
    """

    group: Pipes

    def __init__(self, group: Pipes):
        super().__init__(group, group.peers[group.rank])

    def wait(self) -> float:
        group = self.group
        group.barrier()  # everyone's gradients are complete
        group.note("reducing")
        return add_up(group.peers, *group.part(self.grads.size))
