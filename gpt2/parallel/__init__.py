"""Data-parallel training: each worker computes its share of the batch, and all make one step together.

    group = join("mpi")                       before anything else; a group of one unless it is "mpi"
    team = start("processes", model, optimizer, group, workers=2, batch_size=8)
    with team:
        loss, norm = team.step([(inputs, targets)], lr)

Importing this package does not load NumPy, so that a program can set the number of its threads first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpt2.errors import UserError
from gpt2.parallel.group import Group, WorkerError, check_batch

if TYPE_CHECKING:
    from gpt2.model.gpt2 import GPT2
    from gpt2.model.optimizer import AdamW
    from gpt2.parallel.team import Team

__all__ = ["KINDS", "WorkerError", "check_batch", "join", "start"]

KINDS = ("none", "shares", "processes", "mpi")


def join(kind: str, timeout: float = 0.0) -> Group:
    """The group that this process belongs to: MPI's ranks for "mpi", else a group of one.

    timeout   for "mpi": seconds that a rank waits for the others before it ends the job; 0: for ever

    Raises UserError for another kind, or if MPI is not available.
    """
    if kind not in KINDS:
        raise UserError(f"--parallel {kind}: expected one of {', '.join(KINDS)}")
    if kind == "mpi":
        from gpt2.parallel.mpi import MPIGroup

        return MPIGroup(timeout)
    return Group()


def start(
    kind: str,
    model: GPT2,
    optimizer: AdamW,
    group: Group,
    *,
    workers: int = 1,
    batch_size: int | None = None,
    threads: int = 0,
    shard: bool = False,
    timeout: float = 300.0,
    options: Mapping[str, Any] | None = None,
) -> Team:
    """Start the team that trains `model`; its arrays move to memory that the workers share.

    kind        of KINDS; group is the result of join(kind)
    workers     for "processes" and "shares": how many, from 1; gpt2.parallel.auto finds the best
    batch_size  sequences in a batch, checked here to fail early
    threads     for matrix products on this machine, split among its workers; 0: as many as cores
    shard       with "mpi": each rank keeps only the moments of its part of the parameters
    timeout     for "processes": seconds without a heartbeat after which a worker counts as hung; 0: never
    options     further arguments of GPT2() for the models in the workers

    Raises UserError if the batch cannot be split evenly, or memory is too small.
    """
    size = group.size if kind == "mpi" else workers
    if batch_size is not None:
        check_batch(batch_size, size, "mpiexec -n" if kind == "mpi" else "--workers")
    if kind == "processes" and workers > 1:
        from gpt2.parallel.processes import Processes

        return Processes(model, optimizer, workers, threads=threads, timeout=timeout, options=options)
    if kind == "shares" and workers > 1:
        from gpt2.parallel.shares import Shares

        return Shares(model, optimizer, workers)
    from gpt2.parallel.team import Team

    if group.size > 1:
        group.broadcast(model.flat_params)  # all ranks start from the root's parameters
    return Team(group, model, optimizer, shard=shard and group.size > 1)
