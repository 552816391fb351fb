"""Group: how the processes that train one model communicate; this one alone, or the ranks of mpi.MPIGroup.

Every method is called by all workers, in the same order. Sums depend only on the number of workers: a run can
be repeated bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpt2.errors import UserError

if TYPE_CHECKING:
    import numpy as np


class Group:
    """A process that trains alone. `size` workers have a `rank` from 0; rank 0 is the root."""

    rank = 0
    size = 1

    def wait_for_root(self) -> None:
        """Return once every worker has called this. Its time limit allows for work of the root alone."""

    def broadcast(self, array: np.ndarray, root: int = 0) -> None:
        """Fill a flat array with that of worker `root`."""

    def reduction(self, grads: np.ndarray) -> Any:
        """Sums the workers' gradients, grads (n,), while they are computed: an mpi.MPIReduction; None in a
        group of one.
        """

    def total(self, *values: float) -> list[float]:
        """Sums of numbers over all workers, in the order of ranks."""
        return list(values)

    def highest(self, value: float) -> float:
        """The largest of the workers' numbers."""
        return value

    def all_gather(self, array: np.ndarray, parts: Sequence[tuple[int, int]]) -> None:
        """Complete a flat array of which each worker has its own part, (start, stop), one a rank."""

    def from_root(self, function: Callable[[], Any]) -> Any:
        """Call function() on the root and return its result on all ranks. A UserError is raised on all."""
        return function()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        """Leave the group; after an error in such a way that no worker is left waiting."""


class WorkerError(RuntimeError):
    """A worker died, failed or hung. The message says which and how; the other workers have been ended."""


def check_batch(B: int, size: int, flag: str = "--workers") -> None:
    """Raise UserError unless `size` workers can take equal shares of B sequences.

    With unequal shares all would wait for the largest.
    """
    if size > B:
        raise UserError(
            f"{flag} {size}: a batch has only {B} sequences, so at most {B} workers have "
            f"something to do; take {flag} {B}, or --batch-size {size}"
        )
    if B % size:
        fewer = max(n for n in range(1, size) if B % n == 0)
        below = B // size * size
        raise UserError(
            f"{flag} {size}: a batch of {B} sequences cannot be cut into {size} equal shares; "
            f"take --batch-size {below} or {below + size}, or {flag} {fewer}"
        )
