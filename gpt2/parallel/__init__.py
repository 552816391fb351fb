"""Data-parallel training: every worker computes its share of the batch, together they make one step.

    cores.py       how many cores there are, and how many threads that leaves each worker
    group.py       what workers need of each other: rank, size, barrier, broadcast, all-reduce
    one.py         a group of one: the ordinary run
    pipes.py       a group of processes on one machine: pipes for words, shared memory for arrays
    mpi.py         a group of MPI ranks, on one machine or many
    interrupts.py  Ctrl-C in a rank
    time_limit.py  a limit on how long a rank waits for the others
    team.py        a model and its optimizer trained by a group: the step itself
    memory.py      arrays in shared memory
    workers.py     processes that are started, watched, and never left behind
    worker.py      what runs inside of one
    processes.py   a team of such processes
    shares.py      a team of threads in one process, each with a share of the batch
    auto.py        threads or processes, whichever is faster here
    errors.py      a worker that is lost; a batch that cannot be shared out

    group = join("mpi")                       first of all; a group of one unless it is "mpi"
    team = start("processes", model, optimizer, group, workers=2, batch_size=8)
    with team:
        loss, norm = team.step([(inputs, targets)], lr)

Importing this package loads no NumPy, so that a program can decide on the number of its threads first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpt2.errors import UserError
from gpt2.parallel.errors import WorkerError, check_batch

if TYPE_CHECKING:
    from gpt2.model.gpt2 import GPT2
    from gpt2.model.optimizer import AdamW
    from gpt2.parallel.group import Group
    from gpt2.parallel.processes import Processes
    from gpt2.parallel.team import Team

__all__ = ["KINDS", "WorkerError", "check_batch", "join", "start"]

KINDS = ("none", "shares", "processes", "mpi")


def join(kind: str, timeout: float = 0.0) -> Group:
    """The group that this process belongs to: MPI's ranks for "mpi", else a group of one.

    timeout   of "mpi": seconds for which a rank waits for the others; then it ends the job. 0: for ever

    Raises UserError for another kind, or where MPI cannot be had.
    """
    if kind not in KINDS:
        raise UserError(f"--parallel {kind}: expected one of {', '.join(KINDS)}")
    if kind == "mpi":
        from gpt2.parallel.mpi import MPIGroup

        return MPIGroup(timeout)
    from gpt2.parallel.one import One

    return One()


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
) -> Team | Processes:
    """The team that trains `model`: parameters, gradients and moments move to where its workers see them.

    kind        of KINDS; group is what join(kind) gave
    workers     of "processes" and "shares": a number of them, from 1 on; see gpt2.parallel.auto for the best
    batch_size  sequences in a batch, checked here so that it need not fail later
    threads     for matrix products on this machine, shared out among its workers; 0: as many as cores
    shard       with "mpi": each rank keeps the moments of its own part of the parameters alone
    timeout     of "processes": seconds without a sign of life after which a worker counts as hung; 0: never
    options     of GPT2() besides config and seed, for the models in the workers

    Raises UserError where the batch cannot be shared out evenly, or memory is too small.
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
        group.broadcast(model.flat_params)  # whatever made them, all start from the same
    return Team(group, model, optimizer, shard=shard and group.size > 1)
