"""Choose the fastest way to train, by timing a few gradients in each way.

    settings, model, notes = choose(settings, config, make, spawn=True)

A way is a backward, a kind of --parallel and a number of workers. Ways sum in different orders, so a run's
last digits depend on the choice: it is printed in one line and kept with the run's settings, and a run that
is resumed, or names its way, is reproduced to the last bit.

Measuring may take at most MAX_MEASURING_SHARE of the run's time; if it would take more, the first way is
used unmeasured. A choice measured on an idle machine is cached for this machine.
"""

import dataclasses
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from gpt2.autodiff import Choices, get_threads
from gpt2.errors import UserError
from gpt2.machine import free_memory, watched
from gpt2.model.config import GPT2Config
from gpt2.model.gpt2 import GPT2
from gpt2.model.optimizer import AdamW
from gpt2.parallel.cores import even_workers, launched_ranks
from gpt2.parallel.group import Group, WorkerError
from gpt2.parallel.shares import BatchShares
from gpt2.train.build import model_options, start
from gpt2.train.settings import FASTEST, Settings

MAX_MEASURING_SHARE = 0.05  # of the run's time
ROUNDS = 5  # the ways take turns; the median counts
MARGIN = 0.97  # a later way must win by this much, so that the choice does not depend on noise
START_S = 2.5  # for processes to start
DAYS = 30  # before a cached choice is measured again

chosen = Choices("ways.json", None, days=DAYS)


class Way(NamedTuple):
    """A way to train. workers is 1 if the batch is not split."""

    backward: str
    parallel: str
    workers: int = 1

    def __str__(self) -> str:
        workers = f" --workers {self.workers}" if self.workers > 1 else ""
        return f"--backward {self.backward} --parallel {self.parallel}{workers}"

    def applied(self, s: Settings) -> Settings:
        """The settings with this way instead of FASTEST."""
        if s.parallel != FASTEST:  # named, and so are its workers
            return dataclasses.replace(s, backward=self.backward)
        workers = str(self.workers) if self.workers > 1 else s.workers
        return dataclasses.replace(s, backward=self.backward, parallel=self.parallel, workers=workers)


def ways(s: Settings, threads: int, spawn: bool = False) -> list[Way]:
    """The ways that these settings allow; the first is the default without measuring.

    spawn   whether processes may be started
    """
    plain = "whole" if s.compile == "on" else by_hand(s)
    backward = plain if s.backward == FASTEST else s.backward
    if s.parallel != FASTEST:
        return [Way(backward, s.parallel)]
    open_ways = [Way(backward, "none")]
    if s.compile == "off" or s.detect_anomaly or launched_ranks() > 1:
        return open_ways
    n = even_workers(s.batch_size, threads)
    if n > 1:
        open_ways.append(Way(backward, "shares", n))
    if s.backward == FASTEST:
        open_ways.append(Way(by_hand(s), "none"))
    if n > 1 and spawn:  # last, as it takes the longest to try
        open_ways.append(Way(backward, "processes", n))
    return open_ways


def by_hand(s: Settings) -> str:
    """The manual backward, except for adapters, which have none."""
    return "manual" if s.tuning.lora is None else "manual,lora=auto"


def unmeasured(s: Settings) -> Settings:
    """The settings with the default way, without measuring."""
    return ways(s, 1)[0].applied(s)


class Choice(NamedTuple):
    """A run's settings and model, and notes to print."""

    settings: Settings
    model: GPT2
    notes: list[str]


def choose(s: Settings, config: GPT2Config, make: Callable[[Settings], GPT2], spawn: bool) -> Choice:
    """The settings with a way for FASTEST, and the model that make(settings) returned.

    spawn   whether processes may be started: without a main guard they would run the script again
    """
    if FASTEST not in (s.backward, s.parallel):
        return Choice(s, make(s), [])
    open_ways = ways(s, get_threads(), spawn)
    key = key_of(s, config, open_ways)
    way = {str(way): way for way in open_ways}.get(chosen.get(key) or "") if len(open_ways) > 1 else None
    model = make((way or open_ways[0]).applied(s))
    if way is not None:
        return Choice(way.applied(s), model, [f"{way}: the fastest way when it was last measured here"])
    trial = Trial(s, model, open_ways)
    with watched() as quiet:
        way = trial.run()
    if len(trial.times) > 1:
        chosen.put(key, str(way), keep=quiet())
    if way.backward != model.spec:
        model = make(way.applied(s))
    return Choice(way.applied(s), model, [trial.summary(way)])


def key_of(s: Settings, config: GPT2Config, open_ways: list[Way]) -> tuple:
    """The key of a cached choice: everything besides the machine that it depends on."""
    batch = (s.batch_size, s.block_size, s.accumulate)
    tuned = () if s.tuning.everything else (s.tuning.summary(),)
    engine = (s.elementwise, s.kernels, s.layers, get_threads())
    return *dataclasses.astuple(config), *batch, *engine, *open_ways, *tuned


class Trial:
    """Times gradients of the run's model on random tokens, in several ways. Changes no parameters.

    times   way -> seconds of one gradient, the median
    """

    def __init__(self, s: Settings, model: GPT2, open_ways: list[Way]):
        self.s, self.model, self.ways = s, model, open_ways
        shape = (2, s.batch_size, s.block_size)
        self.batch = tuple(np.random.default_rng(0).integers(0, model.config.vocab_size, shape, np.int32))
        self.times: dict[Way, float] = {}

    def run(self) -> Way:
        """The fastest way. Ways that would cost too much to try are skipped."""
        first, *others = self.ways
        budget = MAX_MEASURING_SHARE * self.s.steps * self.s.accumulate  # in gradients of the first way
        # the run is too short to measure, even without compiling
        if not others or budget < 2 * (1 + ROUNDS):
            return first
        with ExitStack() as stack:
            runners = {first: self.runner(first, stack)}
            compiling, step = timed(runners[first]), timed(runners[first])
            left = (budget - (1 + ROUNDS)) * step  # compiling is needed anyway
            for way in others:
                starting = START_S if way.parallel == "processes" else 0.0
                if starting + compiling + (1 + ROUNDS) * step > left or not fits(self.model, way):
                    continue
                began = time.perf_counter()
                try:
                    runners[way] = self.runner(way, stack)
                except (UserError, WorkerError):  # processes: too little memory, too few open files
                    continue
                timed(runners[way])
                left -= time.perf_counter() - began + ROUNDS * step
            if len(runners) == 1:
                return first
            samples = [{way: timed(take) for way, take in runners.items()} for _ in range(ROUNDS)]
        self.times = {way: float(np.median([sample[way] for sample in samples])) for way in runners}
        best = first
        for way, seconds in self.times.items():
            if seconds < MARGIN * self.times[best]:
                best = way
        return best

    def runner(self, way: Way, stack: ExitStack) -> Callable[[], Any]:
        """A function that computes a gradient, and its norm, in this way. Processes end with the stack."""
        model = self.model
        if way.backward != model.spec or way.parallel == "processes":
            model = GPT2(model.config, seed=None, **model_options(way.applied(self.s)))
            model.use(self.model.flat_params, self.model.flat_grads)
            model.freeze(self.model.frozen)
        if way.parallel != "processes":
            shares = BatchShares(model, way.workers)
            return lambda: shares.gradient([self.batch])
        team = start(way.workers, way.applied(self.s), model, AdamW(model), Group())
        stack.enter_context(team)
        return lambda: team.gradient([self.batch])

    def summary(self, best: Way) -> str:
        """The choice as a line of text."""
        if len(self.times) < 2:
            alone = len(self.ways) == 1
            return f"{best}: {'the only possible way' if alone else 'the run is too short to measure'}"
        best_s, (second_s, second) = (
            self.times[best],
            min((s, way) for way, s in self.times.items() if way != best),
        )
        return (
            f"{best}: the fastest of {len(self.times)} ways here, {1e3 * best_s:.0f} ms a gradient "
            f"(next {second} {1e3 * second_s:.0f} ms)"
        )


def fits(model: GPT2, way: Way) -> bool:
    """Whether parameters, moments and every worker's gradients fit in half of the free memory. Frozen
    parameters exist already, or are copied once into shared memory."""
    free = free_memory()
    frozen = model.num_parameters - model.flat_params.size
    needed = (3 + way.workers) * model.flat_params.size + frozen * (way.parallel == "processes")
    return free is None or needed * model.flat_params.itemsize < free / 2


def timed(work: Callable[[], Any]) -> float:
    """Seconds that work() takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
