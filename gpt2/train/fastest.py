"""Choose the fastest way to train, by timing a few gradients in each way.

    settings, model, notes, contender = choose(settings, config, make, spawn=True)

A way is a backward, a kind of --parallel and a number of workers. Ways sum in different orders, so a run's
last digits depend on the choice: it is printed in one line and kept with the run's settings, and a run that
is resumed, or names its way, is reproduced to the last bit.

Measuring may take at most MAX_MEASURING_SHARE of the run's time; if it would take more, the first way is
used unmeasured. A choice measured on an idle machine is cached for this machine.

As many processes as shares give the same bits. So if shares were chosen, processes are tried in some of the
run's own steps (gpt2.parallel.handover), which costs only their start.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from gpt2.autodiff import Choices, get_threads
from gpt2.machine import free_memory, watched
from gpt2.model.config import GPT2Config
from gpt2.model.gpt2 import GPT2
from gpt2.parallel import auto
from gpt2.parallel.cores import launched_ranks
from gpt2.parallel.shares import BatchShares
from gpt2.train.build import model_options
from gpt2.train.settings import FASTEST, Settings

MAX_MEASURING_SHARE = 0.05  # of the run's time
ROUNDS = 3  # the ways take turns; the median counts
MOST_ROUNDS = 15  # if ways are close and the budget allows it
MARGIN = 0.97  # a later way must win by this much, so that the choice does not depend on noise
START_S = 2.5  # for processes to start and compile
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


def ways(s: Settings, threads: int) -> list[Way]:
    """The ways that these settings allow; the first is the default without measuring."""
    plain = "whole" if s.compile == "on" else by_hand(s)
    backward = plain if s.backward == FASTEST else s.backward
    if s.parallel != FASTEST:
        return [Way(backward, s.parallel)]
    open_ways = [Way(backward, "none")]
    if s.compile == "off" or s.detect_anomaly or launched_ranks() > 1:
        return open_ways
    n = auto.candidates(s.batch_size, threads)[-1]
    if n > 1:
        open_ways.append(Way(backward, "shares", n))
    if s.backward == FASTEST:
        open_ways.append(Way(by_hand(s), "none"))
    return open_ways


def by_hand(s: Settings) -> str:
    """The manual backward, except for adapters, which have none."""
    lora = s.tuning.lora
    return ",".join(["manual", *(f"{name}=auto" for name in (() if lora is None else lora.layers))])


def unmeasured(s: Settings) -> Settings:
    """The settings with the default way, without measuring."""
    return ways(s, 1)[0].applied(s)


class Contender:
    """Processes in place of as many shares: whether a run tries them in its own steps, and the outcome."""

    def __init__(self, s: Settings, shares: Way, key: tuple):
        self.s, self.key = s, key
        self.settings = shares._replace(parallel="processes").applied(s)
        self.watch = ExitStack()
        self.is_quiet = self.watch.enter_context(watched())

    def is_worth(self, seconds: float) -> bool:
        """Whether a run with steps of `seconds` by shares is long enough to start processes."""
        self.watch.close()  # it would take our own processes for other programs
        return MAX_MEASURING_SHARE * self.s.steps * seconds > START_S

    def decided(self, parallel: str, seconds: Mapping[str, float]) -> None:
        """Keep the decision for this machine, if both were timed."""
        if len(seconds) == 2:
            chosen.put(self.key, parallel, keep=self.is_quiet())


class Choice(NamedTuple):
    """A run's settings and model, notes to print, and processes that may be faster still."""

    settings: Settings
    model: GPT2
    notes: list[str]
    contender: Contender | None


def choose(s: Settings, config: GPT2Config, make: Callable[[Settings], GPT2], spawn: bool) -> Choice:
    """The settings with a way for FASTEST, and the model that make(settings) returned.

    spawn   whether processes may be started: without a main guard they would run the script again
    """
    if FASTEST not in (s.backward, s.parallel):
        return Choice(s, make(s), [], None)
    open_ways = ways(s, get_threads())
    key = key_of(s, config, open_ways)
    way = {str(way): way for way in open_ways}.get(chosen.get(key) or "") if len(open_ways) > 1 else None
    known = way is not None
    model = make((way or open_ways[0]).applied(s))
    if way is None:
        trial = Trial(s, model, open_ways)
        with watched() as quiet:
            way = trial.run()
        if len(trial.times) > 1:
            chosen.put(key, str(way), keep=quiet())
        if way.backward != model.spec:
            model = make(way.applied(s))
    contender = None
    if spawn and s.parallel == FASTEST and way.parallel == "shares":
        by_processes = way._replace(parallel="processes")
        faster = chosen.get((*key, "processes"))
        if faster == "processes":
            way, known = by_processes, True
        elif faster is None and fits(model, by_processes):
            contender = Contender(s, way, (*key, "processes"))
    note = f"{way}: the fastest way when it was last measured here" if known else trial.summary(way)
    return Choice(way.applied(s), model, [note], contender)


def key_of(s: Settings, config: GPT2Config, open_ways: list[Way]) -> tuple:
    """The key of a cached choice: everything besides the machine that it depends on."""
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
        """The fastest way. Ways that would cost too much to try are skipped."""
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
            if self.spent + compiling + (1 + ROUNDS) * step > budget or not fits(self.model, way):
                continue
            began = time.perf_counter()
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
        """Time the ways in turns, with more rounds within the budget while the leader has lost one."""
        samples: dict[Way, list[float]] = {way: [] for way in runners}
        for n in range(MOST_ROUNDS):
            for way, take in runners.items():
                samples[way].append(timed(take))
            self.times |= {way: float(np.median(seconds)) for way, seconds in samples.items()}
            if n + 1 >= ROUNDS:
                (_, ahead), (second, _), *_ = sorted((seconds, way) for way, seconds in self.times.items())
                another = sum(self.times[way] for way in runners)
                if max(samples.get(ahead, [0.0])) < MARGIN * second or self.spent + another > budget:
                    return
                self.spent += another

    def runner(self, way: Way) -> Callable[[], Any]:
        """A function that computes a gradient, and its norm, in this way."""
        model = self.model
        if way.backward != model.spec:
            model = GPT2(model.config, seed=None, **model_options(way.applied(self.s)))
            model.use(self.model.flat_params, self.model.flat_grads)
            model.freeze(self.model.frozen)
        cut = BatchShares(model, way.workers)
        return lambda: cut.gradient([self.batch])

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
