"""Choose between threads and processes by timing a step each way, in the run's shapes."""

import contextlib
import statistics
import timeit
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpt2.errors import UserError
from gpt2.machine import cores
from gpt2.model.config import GPT2Config
from gpt2.model.gpt2 import GPT2
from gpt2.model.optimizer import AdamW
from gpt2.parallel.cores import threads_each
from gpt2.parallel.processes import Processes
from gpt2.parallel.team import Team


def candidates(B: int, count: int) -> list[int]:
    """Numbers of workers to time on `count` cores: 1, and divisors of B in steps of about two."""
    divisors = [n for n in range(1, min(B, count) + 1) if B % n == 0]
    chosen = [divisors[-1]]
    for n in reversed(divisors):
        if 2 * n <= chosen[-1]:
            chosen.append(n)
    return sorted({1, *chosen})


def choose(
    config: GPT2Config,
    B: int,
    T: int,
    *,
    threads: int = 0,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> tuple[int, dict[int, float]]:
    """The best number of workers for batches of B sequences of T tokens, and the seconds of a step by number.

    1 means one process with all threads. Numbers that cannot be started are left out.
    threads, options and more are arguments of Processes.
    """
    counts = candidates(B, threads or cores())
    if counts == [1]:
        return 1, {}
    times = {}
    for n in counts:
        with contextlib.suppress(UserError):  # too little memory, too few open files
            model = GPT2(config, seed=None, **(options or {}))
            with Processes(model, AdamW(model), n, threads=threads, options=options or None, **more) as team:
                times[n] = step_seconds(team, B, T)
    return min(times, key=times.get, default=1), times


def step_seconds(team: Team, B: int, T: int, accumulate: int = 1) -> float:
    """Seconds of a step, the median of three after one to warm up. It changes the parameters."""
    vocab_size = team.model.config.vocab_size
    batch = tuple(np.random.default_rng(0).integers(0, vocab_size, (2, B, T), dtype=np.int32))
    team.step([batch] * accumulate)
    return statistics.median(timeit.repeat(lambda: team.step([batch] * accumulate), number=1, repeat=3))


def as_text(times: Mapping[int, float], best: int, threads: int = 0) -> str:
    """A line with the measured times and the choice."""

    def label(n):
        each = threads_each(n, threads)
        return f"{n} process{'es' * (n > 1)} of {each} thread{'s' * (each > 1)}"

    measured = ", ".join(f"{label(n)} {1e3 * seconds:.0f} ms" for n, seconds in times.items())
    return f"workers auto: {f'a step takes {measured}; ' if times else ''}taking {label(best)}"
