"""Choose the fastest way to train, by timing a few gradients in each way.

    settings, model, notes = choose(settings, config, make, spawn=True)

A way is a backward, a kind of --parallel and a number of workers. Ways sum in different orders, so a run's
last digits depend on the choice: it is printed and saved with the run's settings, and a run that is resumed,
or names its way, is the same to the last bit. (As many shares as processes give the same bits.)

Measuring may take MAX_MEASURING_SHARE of the run's time; if it would take more, the first way is used. A
result is cached for this machine if it was otherwise idle.
"""

import dataclasses
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from gpt2.autodiff import Choices, get_threads
from gpt2.errors import UserError
from gpt2.machine import free_memory, watched
from gpt2.model.config import GPT2Config
from gpt2.model.gpt2 import GPT2
from gpt2.model.optimizer import AdamW
from gpt2.parallel import auto
from gpt2.parallel.cores import launched_ranks
from gpt2.parallel.shares import BatchShares
from gpt2.train.build import model_options
from gpt2.train.settings import FASTEST, Settings

MAX_MEASURING_SHARE = 0.05  # of the run's time
ROUNDS = 3  # the ways take turns; the median counts
MOST_ROUNDS = 15  # if ways are close and the budget allows
MARGIN = 0.97  # a later way must win by this much, so that the choice does not depend on noise
START_S = 2.5  # seconds for processes to start and compile
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


def ways(s: Settings, threads: int, spawn: bool) -> list[Way]:
    """The ways that these settings allow; the first is the default without measuring.

    spawn   whether processes may be started: without a main guard they would run the script again
    """
    plain = "whole" if s.compile == "on" else by_hand(s)
    backward = plain if s.backward == FASTEST else s.backward
    if s.parallel != FASTEST:
        return [Way(backward, s.parallel)]
    allowed = [Way(backward, "none")]
    if s.compile == "off" or s.detect_anomaly or launched_ranks() > 1:
        return allowed
    n = auto.candidates(s.batch_size, threads)[-1]
    if n > 1:
        allowed.append(Way(backward, "shares", n))
    if s.backward == FASTEST:
        allowed.append(Way(by_hand(s), "none"))
    if n > 1 and spawn:
        allowed.append(Way(backward, "processes", n))
    return allowed


def by_hand(s: Settings) -> str:
    """The manual backward, except for adapters, which have none."""
    return "manual" if s.tuning.lora is None else "manual,lora=auto"


def unmeasured(s: Settings) -> Settings:
    """The settings with the default way, without measuring."""
    return ways(s, 1, False)[0].applied(s)


def choose(
    s: Settings, config: GPT2Config, make: Callable[[Settings], GPT2], spawn: bool
) -> tuple[Settings, GPT2, list[str]]:
    """Replace FASTEST in the settings; returns them, the model that make(settings) built, and notes."""
    if FASTEST not in (s.backward, s.parallel):
        return s, make(s), []
    open_ways = ways(s, get_threads(), spawn)
    key = key_of(s, config, open_ways)
    if len(open_ways) > 1:
        known = {str(way): way for way in open_ways}.get(chosen.get(key) or "")
        if known is not None:
            s = known.applied(s)
            return s, make(s), [f"{known}: the fastest way when it was last measured here"]
    model = make(open_ways[0].applied(s))
    trial = Trial(s, model, open_ways)
    with watched() as quiet:
        best = trial.run()
    if len(trial.times) > 1:
        chosen.put(key, str(best), keep=quiet())
    if best.backward != model.spec:
        model = make(best.applied(s))
    return best.applied(s), model, [trial.summary(best)]


def key_of(s: Settings, config: GPT2Config, open_ways: list[Way]) -> tuple:
    """The key of a cached choice: all that it depends on besides the machine."""
    batch = (s.batch_size, s.block_size, s.accumulate)
    tuned = () if s.tuning.everything else (s.tuning.summary(),)
    engine = (s.elementwise, s.kernels, s.layers, get_threads())
    return *dataclasses.astuple(config), *batch, *engine, *open_ways, *tuned


class Trial:
    """Times gradients of the run's model on random tokens, in several ways. Changes no parameters.

    times   way -> seconds of one gradient, the median
    spent   seconds
    """

    def __init__(self, s: Settings, model: GPT2, open_ways: list[Way]):
        self.s, self.model, self.ways = s, model, open_ways
        shape = (2, s.batch_size, s.block_size)
        self.batch = tuple(np.random.default_rng(0).integers(0, model.config.vocab_size, shape, np.int32))
        self.times: dict[Way, float] = {}
        self.spent = 0.0

    def run(self) -> Way:
        """The fastest way, of those that fit into the budget."""
        first, *others = self.ways
        gradients = self.s.steps * self.s.accumulate
        # the run is too short to measure, even without compiling
        if not others or MAX_MEASURING_SHARE * gradients < 2 * (1 + ROUNDS):
            return first
        runners = {first: self.runner(first)}
        compiling = timed(runners[first])
        self.times[first] = step = timed(runners[first])
        budget = MAX_MEASURING_SHARE * gradients * step
        self.spent = (1 + ROUNDS) * step  # compiling is needed anyway
        for way in others:
            cost = compiling + (1 + ROUNDS) * step + START_S * (way.parallel == "processes")
            if self.spent + cost > budget or not self.fits(way):
                continue
            began = time.perf_counter()
            if way.parallel == "processes":
                self.times |= self.processes(way)
            else:
                runners[way] = self.runner(way)
                timed(runners[way])
            self.spent += time.perf_counter() - began + ROUNDS * step
        if len(runners) > 1:
            self.rounds(runners, budget)
        best = first
        for way, seconds in self.times.items():
            if seconds < MARGIN * self.times[best]:
                best = way
        return best

    def rounds(self, runners: dict[Way, Callable[[], Any]], budget: float) -> None:
        """Time the ways in turns; in more rounds while the leader has lost one, within the budget."""
        samples: dict[Way, list[float]] = {way: [] for way in runners}
        for n in range(MOST_ROUNDS):
            for way, take in runners.items():
                samples[way].append(timed(take))
            self.times |= {way: float(np.median(seconds)) for way, seconds in samples.items()}
            if n + 1 >= ROUNDS:
                (_, ahead), (second, _), *_ = sorted((median, way) for way, median in self.times.items())
                another = sum(self.times[way] for way in runners)
                if max(samples.get(ahead, [0.0])) < MARGIN * second or self.spent + another > budget:
                    return
                self.spent += another

    def fits(self, way: Way) -> bool:
        """Whether half of the free memory holds it: parameters, moments, and gradients for every worker."""
        free = free_memory()
        frozen = self.model.num_parameters - self.model.flat_params.size  # copied for processes
        needed = (3 + way.workers) * self.model.flat_params.size + frozen * (way.parallel == "processes")
        return free is None or needed * self.model.flat_params.itemsize < free / 2

    def runner(self, way: Way) -> Callable[[], Any]:
        """A function that computes a gradient, and its norm, in this way."""
        model = self.model
        if way.backward != model.spec:
            model = GPT2(model.config, seed=None, **model_options(way.applied(self.s)))
            model.use(self.model.flat_params, self.model.flat_grads)
            model.freeze(self.model.frozen)
        shares = BatchShares(model, way.workers)
        return lambda: shares.gradient([self.batch])

    def processes(self, way: Way) -> dict[Way, float]:
        """Seconds of a gradient by worker processes: those of a step minus the update."""
        s, config = self.s, self.model.config
        options = model_options(way.applied(s))
        with suppress(UserError):  # too little memory, too few open files
            step = auto.measure(
                config, way.workers, s.batch_size, s.block_size, threads=s.threads, options=options
            )
            optimizer = AdamW(Zeros(self.model))
            optimizer.update(1.0)
            return {way: max(step - timed(lambda: optimizer.update(1.0)), 0.0)}
        return {}

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


class Zeros:
    """Parameters only for timing."""

    def __init__(self, model: GPT2):
        self.flat_params, self.flat_grads = (np.zeros_like(model.flat_params) for _ in range(2))
        self.decayed = model.decayed


def timed(work: Callable[[], Any]) -> float:
    """Seconds that work() takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
