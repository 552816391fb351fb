"""A team of processes on one machine, started and watched by this one.

Parameters, moments and each worker's gradients are in shared memory, so that only tokens and a few numbers
are sent, and this process can save, validate and sample between any two steps. As in ZeRO's first stage
(Rajbhandari et al. 2020) every worker reduces and updates its own part of the parameters.

A step is three calls of every worker: forward and backward; add up the own part of all gradients; update the
own part. Each begins when all have answered the one before.
"""

import functools
import math
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpt2.autodiff import set_threads
from gpt2.errors import UserError, no_overflow_warnings, reason
from gpt2.model.gpt2 import GPT2
from gpt2.model.optimizer import AdamW, part
from gpt2.parallel.cores import threads_each
from gpt2.parallel.group import Group
from gpt2.parallel.split import Batch, add_up, counted, counted_in, cut, gradient_of, loss_of
from gpt2.parallel.team import Team
from gpt2.parallel.workers import Workers


class Processes(Team):
    """Team on `size` worker processes. After a step model.grads holds the gradient of the whole batch."""

    def __init__(
        self,
        model: GPT2,
        optimizer: AdamW,
        size: int,
        *,
        threads: int = 0,
        timeout: float = 300.0,
        options: Mapping[str, Any] | None = None,
    ):
        super().__init__(Group(), model, optimizer)
        self.size = size
        model.drop_stale_programs()
        self.environment = model.environment
        try:
            pickle.dumps(options or model.description.options)
        except Exception as error:  # pickle calls the objects' own methods
            raise UserError(
                f"worker processes cannot be given these layers ({reason(error)}); put them into a file: "
                'GPT2(config, layers="my_layers.py")'
            ) from None
        n, dtype = model.flat_params.size, model.config.dtype
        names = ["params", "m", "v", *(f"grads {r}" for r in range(size))]
        sizes = {**dict.fromkeys(names, n), "frozen": model.num_parameters - n}
        each = threads_each(size, threads)
        self.workers = Workers(
            size, {name: ((k,), dtype) for name, k in sizes.items()}, threads=each, timeout=timeout
        )
        try:
            arrays = self.workers.arrays  # which model and optimizer move to while the processes start
            arrays["params"][...] = model.flat_params
            if optimizer.t:  # otherwise they are zeros, like new shared memory
                arrays["m"][...], arrays["v"][...] = optimizer.m, optimizer.v
            model.use(arrays["params"], arrays["grads 0"])
            model.freeze(model.frozen_copy(arrays["frozen"]))
            optimizer.use(model.flat_params, model.flat_grads, arrays["m"], arrays["v"])
            options = options or {"backward": model.spec, **model.description.options}
            results = self.workers.call(
                _set_up, model.config, options, (type(optimizer), optimizer.options()), each
            )
            if not all(map(self.environment.matches, results)):
                raise UserError(f"worker processes import own layers anew, and get different ones: {_MOVE}")
        except BaseException:
            self.workers.kill()
            raise

    def gradient(self, batches: Sequence[Batch]) -> tuple[float, float]:
        self._check_environment()
        each = [([cut(batch, r, self.size) for batch in batches],) for r in range(self.size)]
        losses = self.workers.call(_gradient, counted_in(batches), each=each)
        return sum(losses), math.sqrt(sum(self.workers.call(_add_up)))

    def update(self, norm: float, lr: float | None, clip: float | None) -> None:
        lr = self.optimizer.lr if lr is None else lr
        self.workers.call(_update, norm, lr, clip, self.optimizer.t)
        self.optimizer.t += 1

    def loss(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        self._check_environment()
        each = [(cut((inputs, targets), r, self.size),) for r in range(self.size)]
        return sum(self.workers.call(_loss, max(1, counted(targets)), each=each))

    def _check_environment(self):
        """Raise UserError if globals that own layers read have changed since the workers started."""
        if not self.environment.unchanged(arrays=True):
            raise UserError(
                f"a value that own layers read has changed since the worker processes began: {_MOVE}"
            )

    def close(self) -> None:
        self.workers.close()

    def __exit__(self, kind, error, trace):
        self.workers.__exit__(kind, error, trace)


_MOVE = "they would use the old one; make it a parameter of the layer, or train without processes"


# ---- In a worker -------------------------------------------------------------------------------------------


def _set_up(worker, config, options, optimizer, threads):
    """Make this worker's model and optimizer on the shared arrays."""
    no_overflow_warnings()
    if options.get("compile", True):  # compiled programs use their own threads
        set_threads(threads)
    arrays, kept = worker.arrays, worker.kept
    gradients = [arrays[f"grads {r}"] for r in range(worker.size)]
    model = GPT2(config, seed=None, **options)
    model.use(arrays["params"], gradients[worker.rank])
    model.freeze(arrays["frozen"])
    kind, settings = optimizer
    optimizer = kind(model, **settings)
    optimizer.use(model.flat_params, gradients[0], arrays["m"], arrays["v"])  # sums go to the first one's
    kept.model, kept.optimizer, kept.gradients = model, optimizer, gradients
    kept.part = part(model.flat_params.size, worker.rank, worker.size)
    return model.environment.results


def _gradient(worker, total, shares):
    beat = functools.partial(worker.beat, "computing")
    return gradient_of(worker.kept.model, shares, worker.size, total, beat=beat)


def _add_up(worker):
    worker.beat("reducing")
    return add_up(worker.kept.gradients, *worker.kept.part)


def _update(worker, norm, lr, clip, t):
    worker.beat("updating")
    worker.kept.optimizer.t = t
    optimizer = worker.kept.optimizer
    optimizer.update(norm, lr, clip, *optimizer.share(worker.rank, worker.size))


def _loss(worker, total, share):
    return loss_of(worker.kept.model, share, total)
