"""Divide cores and threads among workers. Needs no NumPy."""

import os

from gpt2.machine import cores

# Libraries under NumPy and numexpr; each reads its variable once, when it is loaded.
LIBRARIES = ("OPENBLAS", "MKL", "OMP", "VECLIB_MAXIMUM", "BLIS", "NUMEXPR")

# The number of ranks of an MPI job on this machine, as set by mpich, Intel MPI and Open MPI; and for how
# many Slurm has made room, which may be more
LOCAL_RANKS = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
ROOM = ("SLURM_NTASKS_PER_NODE",)
RANKS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")


def threads_each(workers: int, threads: int = 0) -> int:
    """Threads for each of `workers` on this machine, of `threads` in all (0: one a core). At least 1."""
    return max(1, (threads or cores()) // workers)


def thread_variables(threads: int) -> dict[str, str]:
    """The environment variables that limit the libraries under NumPy to a number of threads."""
    return {f"{library}_NUM_THREADS": str(threads) for library in LIBRARIES}


def local_ranks() -> int:
    """Ranks of this process's MPI job on this machine, from the environment; else 1."""
    return _number(*LOCAL_RANKS, *ROOM) or 1


def ranks_from_env() -> tuple[int, int] | None:
    """(ranks of this process's MPI job on this machine, ranks in all) from the environment, or None."""
    here, in_all = _number(*LOCAL_RANKS), _number(*RANKS)
    return (here, in_all) if here and in_all else None


def launched_rank() -> int:
    """This process's rank in the MPI job that it was started in, from the environment; else 0."""
    return _number(*RANK) or 0


def launched_ranks() -> int:
    """Processes of the MPI job that this one was started in, from the environment; else 1."""
    return _number(*RANKS) or 1


def _number(*names: str) -> int | None:
    """The value of the first of these variables that is set."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), None)
