"""Functions that the tests of tests/parallel run in workers, and programs that they start."""

import itertools
import os
import signal
import sys
import time

import numpy as np

from gpt2.errors import UserError

V, T, B = 61, 16, 6
AS_WRITTEN = {"backward": "manual", "compile": False}  # nothing to compile: a worker is ready sooner
# Of a model that differs from GPT-2 as it was released
SETTINGS = {
    "activation_function": "gelu",
    "n_inner": 40,
    "scale_attn_by_inverse_layer_idx": True,
    "tie_word_embeddings": False,
    "bias": False,
}
NAMES = ("params", "m", "v")
COUNT = 5000  # entries
OPTIMIZERS = ("AdamW", "Muon")
MPI_VARIANTS = list(itertools.product(OPTIMIZERS, ("float64", "float32"), (False, True), (1, 2)))


# ---- With a group ------------------------------------------------------------------------------------------


def numbers(rank, dtype="float64"):
    """The entries that a worker starts from."""
    return np.random.default_rng(100 + rank).standard_normal(COUNT).astype(dtype)


def words(group):
    """What each method of a group returns to this worker."""
    from gpt2.model.optimizer import part

    rank, size = group.rank, group.size
    mine = numbers(rank)
    summed = mine.copy()
    reduction = group.reduction(summed)
    if reduction is not None:
        reduction(1000, 2000)  # final before the others
        squares = group.total(reduction.wait())[0]
    else:
        squares = 0.0
    sent = mine.copy()
    group.broadcast(sent, root=size - 1)
    start, stop = part(COUNT, rank, size)
    gathered = np.zeros(COUNT)
    gathered[start:stop] = mine[start:stop]
    group.all_gather(gathered, [part(COUNT, r, size) for r in range(size)])
    return {
        "rank": rank,
        "size": size,
        "summed": summed,
        "squares": squares,
        "sent": sent,
        "gathered": gathered,
        "total": group.total(0.1 * rank, 1.0),
        "highest": group.highest(-rank),
        "root": group.from_root(lambda: 7),
    }


def meet(group):
    """The clock before and after a barrier that each worker reaches later than the one before."""
    time.sleep(0.05 * group.rank)
    before = time.monotonic()
    group.wait_for_root()
    return before, time.monotonic()


# ---- With a team -------------------------------------------------------------------------------------------


def model_and_optimizer(dtype, options=AS_WRITTEN, kind="AdamW", settings=None):
    import gpt2
    from gpt2 import GPT2, GPT2Config

    sizes = dict(vocab_size=V, block_size=T, n_layer=3, n_head=3, n_embd=24, dtype=dtype)
    config = GPT2Config(**sizes, **(settings or {}))
    model = GPT2(config, seed=3, **options)
    return model, getattr(gpt2, kind)(model, lr=6e-4)


def batches(step, accumulate):
    rng = np.random.default_rng([9, step])
    return [tuple(rng.integers(0, V, (2, B, T))) for _ in range(accumulate)]


def team_of(kind, model, optimizer, group, workers, shard=False, options=AS_WRITTEN):
    from gpt2 import parallel

    return parallel.start(
        kind, model, optimizer, group, workers=workers, batch_size=B, threads=1, shard=shard, options=options
    )


def train(
    kind,
    group,
    workers=1,
    dtype="float64",
    steps=3,
    accumulate=2,
    shard=False,
    options=AS_WRITTEN,
    optimizer="AdamW",
    settings=None,
):
    """Some steps of a tiny model: its arrays after the first and the last, by name; losses and norms of all,
    followed by the loss of five sequences.
    """
    model, optimizer = model_and_optimizer(dtype, options, optimizer, settings)
    with team_of(kind, model, optimizer, group, workers, shard=shard, options=options) as team:
        words, arrays = [], {}
        for step in range(steps):
            words.append(team.step(batches(step, accumulate), clip=0.5))
            if step in (0, steps - 1):
                for name, array in zip(NAMES, (model.flat_params, *team.moments())):
                    arrays[f"{name} {'first' if step == 0 else 'last'}"] = array.copy()
        ((inputs, targets),) = batches(99, 1)
        words.append((team.loss(inputs[:5], targets[:5]), 0.0))
        return arrays, np.array(words)


def uneven():
    """Two batches whose sequences have different numbers of targets that count, one of them none."""
    rng = np.random.default_rng(8)
    pairs = [tuple(rng.integers(0, V, (2, B, T))) for _ in range(2)]
    for (_, targets), lengths in zip(pairs, ([T, 1, 0, 3, 9, 2], [4, 4, 5, 1, 1, 8])):
        for row, length in zip(targets, lengths):
            row[length:] = -1 if length % 2 else -100
    return pairs


def uneven_step(kind, group, workers=1, dtype="float64", options=AS_WRITTEN, accumulate=2):
    """Of one step on those batches: its loss, the norm and the gradient; and the loss of the first batch."""
    model, optimizer = model_and_optimizer(dtype, options)
    pairs = uneven()
    if accumulate == 1:
        pairs = [tuple(np.concatenate(arrays) for arrays in zip(*pairs))]
    with team_of(kind, model, optimizer, group, workers, options=options) as team:
        validation = team.loss(*uneven()[0])
        loss, norm = team.step(pairs)
        return np.array([loss, norm, validation]), model.flat_grads.copy()


# ---- Failures, each of worker 1 ----------------------------------------------------------------------------


def raise_(error):
    raise error


FAILURES = {
    "none": lambda: None,
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: os._exit(7),
    "ValueError": lambda: raise_(ValueError("a pear in the apples")),
    "UserError": lambda: raise_(UserError("take apples")),
    "sleep": lambda: time.sleep(1000),
}


def fail(worker, how):
    """Worker 1 fails."""
    if worker.rank == 1:
        FAILURES[how]()
    return os.getpid()


def stop_yourself(worker):
    """Stop this process right after the answer."""
    if worker.rank == 1:
        import threading

        threading.Timer(0.2, FAILURES["SIGSTOP"]).start()
    return os.getpid()


def nothing(worker, *args):
    return len(args)


def shared_entry(worker, name, i):
    return float(worker.arrays[name][i])


def environment(worker):
    return {name: os.environ.get(name) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")}


def compute_forever(worker):
    a = np.ones((500, 500))
    while True:
        a @ a


# ---- Programs ----------------------------------------------------------------------------------------------


def under_mpi(path):
    """Train in every variant and call a group's methods in an MPI job; rank 0 saves the results in `path`."""
    from gpt2 import parallel

    with parallel.join("mpi") as group:
        results = {f"word {name}": value for name, value in words(group).items()}
        before, after = zip(*group.comm.allgather(meet(group)))
        results["met"] = min(after) >= max(before)
        for optimizer, dtype, shard, run in MPI_VARIANTS:
            arrays, losses = train("mpi", group, dtype=dtype, shard=shard, optimizer=optimizer)
            for name, array in (*arrays.items(), ("losses", losses)):
                results[f"{optimizer} {dtype} {shard} {run} {name}"] = array
        for dtype in ("float64", "float32"):
            arrays, losses = train("mpi", group, dtype=dtype, shard=True, settings=SETTINGS)
            results |= {f"settings {dtype} {name}": array for name, array in arrays.items()}
            results[f"settings {dtype} losses"] = losses
            numbers, gradient = uneven_step("mpi", group, dtype=dtype)
            results |= {f"uneven {dtype}": numbers, f"uneven gradient {dtype}": gradient}
        if group.rank == 0:
            np.savez(path, **results)


def fail_under_mpi(how):
    from gpt2 import parallel

    with parallel.join("mpi") as group:
        if group.rank == 1:
            FAILURES[how]()
        group.wait_for_root()


def parent(how):
    """Start workers, print their process ids, and wait to be killed."""
    from gpt2.parallel.workers import Workers

    workers = Workers(2, {"x": ((1000,), "float64")})
    if how == "idle":
        print(*workers.call(fail, "none"), flush=True)
    else:
        workers.wait_until_ready()
        print(*[process.pid for process in workers.processes], flush=True)
        workers.call(compute_forever)
    time.sleep(1000)


if __name__ == "__main__":
    from tests.support import parallel_jobs  # under its own name, so that workers find its functions

    getattr(parallel_jobs, sys.argv[1])(*sys.argv[2:])


FACTOR = {"k": 1.0}


def scaled(inp):
    """A layer that reads a global variable."""
    return inp * FACTOR["k"]
