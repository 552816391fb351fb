"""A team of processes on one machine, started and watched by this one.

Parameters, moments and each worker's gradients are in shared memory, so that only tokens and a few numbers
are sent, and this process can save, validate and sample between any two steps. As in ZeRO's first stage
(Rajbhandari et al. 2020) every worker reduces and updates its own part of the parameters.

    a step     forward, backward | barrier | add up own part of all gradients | exchange loss and squares |
               update own part | answer; the next step begins when all have answered
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpt2.autodiff import set_threads
from gpt2.errors import UserError, no_overflow_warnings, reason
from gpt2.model.gpt2 import GPT2
from gpt2.model.optimizer import AdamW
from gpt2.parallel.cores import threads_each
from gpt2.parallel.errors import check_batch
from gpt2.parallel.group import share
from gpt2.parallel.team import Team
from gpt2.parallel.workers import Workers


class Processes:
    """The interface of team.Team on `size` worker processes.

    After a step model.grads holds the gradient of the whole batch.
    """

    root = True

    def __init__(
        self,
        model: GPT2,
        optimizer: AdamW,
        size: int,
        *,
        threads: int = 0,
        timeout: float = 300.0,
        pin: bool = False,
        options: Mapping[str, Any] | None = None,
    ):
        self.model, self.optimizer, self.size = model, optimizer, size
        model.drop_stale_programs()
        self.environment = model.environment
        _check_sendable(options or model.description.options)
        n, dtype = model.flat_params.size, model.config.dtype
        names = ["params", "m", "v", *(f"grads {r}" for r in range(size))]
        sizes = {**dict.fromkeys(names, n), "frozen": model.num_parameters - n}
        each = threads_each(size, threads)
        self.workers = Workers(
            size, {name: ((k,), dtype) for name, k in sizes.items()}, threads=each, timeout=timeout, pin=pin
        )
        try:
            self._move(self.workers.arrays)  # while the processes start
            options = options or {"backward": model.spec, **model.description.options}
            results = self.workers.call(_set_up, model.config, options, optimizer.options(), each)
            if not all(map(self.environment.matches, results)):
                raise UserError(f"worker processes import own layers anew, and get different ones: {_MOVE}")
        except BaseException:
            self.workers.kill()
            raise

    def _move(self, arrays):
        """Move model and optimizer into shared memory."""
        model, optimizer = self.model, self.optimizer
        arrays["params"][...] = model.flat_params
        if optimizer.t:  # otherwise they are zeros, like new shared memory
            arrays["m"][...], arrays["v"][...] = optimizer.m, optimizer.v
        model.use(arrays["params"], arrays["grads 0"])
        model.freeze(model.frozen_copy(arrays["frozen"]))
        optimizer.use(model.flat_params, model.flat_grads, arrays["m"], arrays["v"])

    def step(
        self,
        batches: Sequence[tuple[np.ndarray, np.ndarray]],
        lr: float | None = None,
        clip: float | None = 1.0,
    ) -> tuple[float, float]:
        check_batch(len(batches[0][0]), self.size)
        self._check_environment()
        lr = self.optimizer.lr if lr is None else lr
        each = [([_cut(batch, r, self.size) for batch in batches],) for r in range(self.size)]
        answers = self.workers.call(_step, lr, clip, self.optimizer.t, each=each)
        loss, norm, self.optimizer.t = answers[0]
        return loss, norm

    def loss(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        self._check_environment()
        each = [_cut((inputs, targets), r, self.size) for r in range(self.size)]
        return self.workers.call(_loss, len(inputs), each=each)[0]

    def _check_environment(self):
        """Raise UserError if globals that own layers read have changed since the workers started."""
        if not self.environment.unchanged(arrays=True):
            raise UserError(
                f"a value that own layers read has changed since the worker processes began: {_MOVE}"
            )

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        return self.optimizer.m, self.optimizer.v

    def put_moments(self, m: np.ndarray, v: np.ndarray) -> None:
        pass  # they are in shared memory

    def from_root(self, function: Callable[[], Any]) -> Any:
        return function()

    def wait_for_root(self) -> None:
        pass  # no other worker is running

    def highest(self, number: float) -> float:
        return number

    def close(self) -> None:
        self.workers.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.workers.__exit__(kind, error, trace)


_MOVE = "they would use the old one; make it a parameter of the layer, or train without processes"


def _check_sendable(options):
    """Raise UserError for own layers that another process cannot find."""
    try:
        pickle.dumps(options)
    except Exception as error:  # pickle calls the objects' own methods
        raise UserError(
            f"worker processes cannot be given these layers ({reason(error)}); put them into a file: "
            'GPT2(config, layers="my_layers.py")'
        ) from None


def _cut(batch, rank, size):
    mine = share(len(batch[0]), rank, size)
    return tuple(part[mine] for part in batch)


# ---- In a worker -------------------------------------------------------------------------------------------


def _set_up(worker, config, options, adamw, threads):
    """Make this worker's model and optimizer on the shared arrays."""
    no_overflow_warnings()
    if options.get("compile", True):  # compiled programs use their own threads
        set_threads(threads)
    arrays, group = worker.arrays, worker.group
    gradients = [arrays[f"grads {r}"] for r in range(worker.size)]
    model = GPT2(config, seed=None, **options)
    model.use(arrays["params"], gradients[worker.rank])
    model.freeze(arrays["frozen"])
    optimizer = AdamW(model, **adamw)
    optimizer.use(model.flat_params, gradients[0], arrays["m"], arrays["v"])  # sums go to the first one's
    group.share_gradients(gradients)
    worker.kept.team = Team(group, model, optimizer, part=group.part(model.flat_params.size))
    return model.environment.results


def _step(worker, lr, clip, t, shares):
    team = worker.kept.team
    team.optimizer.t = t
    loss, norm = team.step_on(shares, 1.0 / worker.size, lr, clip)
    return loss, norm, team.optimizer.t


def _loss(worker, count, inputs, targets):
    return worker.kept.team.loss_on(inputs, targets, count)
