"""A team of shares that lets processes take a few of its steps, and goes on with the faster of the two.

As many shares as processes give the same bits, so nothing but the time of a step depends on who takes it: a
run may change over between any two steps, be killed there, and resume either way.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gpt2.errors import UserError
from gpt2.parallel.errors import WorkerError
from gpt2.parallel.group import Group
from gpt2.parallel.processes import Processes
from gpt2.parallel.shares import Shares
from gpt2.parallel.split import Batch
from gpt2.parallel.team import Team

SKIPPED = 2  # steps after a switch, not counted: the first compiles and touches new memory
COUNTED = 5  # steps whose median counts
KINDS = ("shares", "processes")
MARGIN = 0.97  # processes must win by this much, as they use more memory


class Handover(Team):
    """A team of `shares` that becomes one of as many processes if they are faster.

    taken     "shares" or "processes": whoever takes the next step

    start     returns as many Processes as there are shares; may raise UserError or WorkerError
    worth     worth(seconds of a step): whether to start processes at all
    decided   called once, with the choice, "shares" or "processes", and the seconds of a step of those tried
    """

    def __init__(
        self,
        shares: Shares,
        start: Callable[[], Processes],
        worth: Callable[[float], bool],
        decided: Callable[[str, Mapping[str, float]], None],
    ):
        super().__init__(Group(), shares.model, shares.optimizer)
        self.team: Shares | Processes = shares
        self.size = shares.size
        self.start, self.worth, self.decided = start, worth, decided
        self.seconds: list[float] = []  # of the steps since the last switch
        self.times: dict[str, float] = {}  # "shares", "processes" -> seconds of a step
        self.is_open = True  # no decision yet
        self.is_reported = False

    def step(
        self, batches: Sequence[Batch], lr: float | None = None, clip: float | None = 1.0
    ) -> tuple[float, float]:
        """Team.step; after some steps, may switch teams."""
        begin = time.perf_counter()
        result = self.team.step(batches, lr, clip)
        if self.is_open:
            self.seconds.append(time.perf_counter() - begin)
            if len(self.seconds) == SKIPPED + COUNTED:
                self._compare()
        return result

    @property
    def taken(self) -> str:
        return "processes" if isinstance(self.team, Processes) else "shares"

    def news(self) -> str | None:
        """The decision as a line, at the first call after it."""
        if self.is_open or self.is_reported:
            return None
        self.is_reported = True
        shares, processes = (f"{self.size} {way}: {1e3 * self.times[way]:.0f} ms" for way in KINDS)
        return f"{shares} a step, {processes}; going on with {self.taken}"

    def _compare(self) -> None:
        """Start processes, or choose between them and shares."""
        taken = self.taken
        self.times[taken] = statistics.median(self.seconds[SKIPPED:])
        self.seconds.clear()
        if taken == "shares" and self.worth(self.times["shares"]):
            self.team.close()
            try:
                self.team = self.start()
                return
            except (UserError, WorkerError):  # too little memory, too few open files
                self._back_to_shares()  # the model may be in shared memory already
        if taken == "processes" and self.times["processes"] >= MARGIN * self.times["shares"]:
            self._back_to_shares()
        self.is_open, self.is_reported = False, len(self.times) < 2
        self.decided(self.taken, self.times)

    def _back_to_shares(self) -> None:
        """End the processes; move model and optimizer out of shared memory, which is then freed."""
        model, optimizer = self.model, self.optimizer
        self.team.close()
        model.use(model.flat_params.copy(), model.flat_grads.copy())
        frozen = np.empty(model.num_parameters - model.flat_params.size, model.config.dtype)
        model.freeze(model.frozen_copy(frozen))
        optimizer.use(model.flat_params, model.flat_grads, optimizer.m.copy(), optimizer.v.copy())
        self.team = Shares(model, optimizer, self.size)

    def loss(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        return self.team.loss(inputs, targets)

    def close(self) -> None:
        self.team.close()

    def __exit__(self, kind, error, trace):
        self.team.__exit__(kind, error, trace)
