"""Group: how the processes that train one model communicate; this one alone, or the ranks of mpi.MPIGroup.

Every method is called by all workers, in the same order. Sums depend only on the number of workers: a run can
be repeated bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np


class Reduction(Protocol):
    """A sum of gradients over all workers, taken while they are computed."""

    def __call__(self, start: int, stop: int) -> None:
        """Begin with these entries, which are final in this worker."""

    def wait(self) -> float:
        """Do the rest; the sum of squares of this worker's part."""


class Group:
    """A process that trains alone. `size` workers have a `rank` from 0; rank 0 is the root."""

    rank = 0
    size = 1

    def wait_for_root(self) -> None:
        """Return once every worker has called this. Its time limit allows for work of the root alone."""

    def broadcast(self, array: np.ndarray, root: int = 0) -> None:
        """Fill a flat array with that of worker `root`."""

    def reduction(self, grads: np.ndarray) -> Reduction | None:
        """Sums the workers' gradients, grads (n,); None in a group of one."""

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
