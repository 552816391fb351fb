"""Choose the fastest way to train, by timing a few gradients in each way.

    settings, model, notes = choose(settings, config, make, spawn=True)

A way is a backward, a kind of --parallel and a number of workers. Ways sum in different orders, so a run's
last digits depend on the choice: it is printed in one line and kept with the run's settings, and a run that
is resumed, or names its way, is reproduced to the last bit.

Measuring may take at most MAX_MEASURING_SHARE of the run's time; if it would take more, the first way is
used unmeasured. A choice measured on an idle machine is cached for this machine.

As many processes as shares give the same bits. So if shares were chosen, steps of both are compared, where
the run is long enough for processes to be started for that.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpt2.autodiff import Choices, get_threads
from gpt2.errors import UserError
from gpt2.machine import free_memory, watched
from gpt2.model.config import GPT2Config
from gpt2.model.gpt2 import GPT2
from gpt2.parallel import auto
from gpt2.parallel.cores import launched_ranks
from gpt2.parallel.group import Group, WorkerError
from gpt2.parallel.shares import Shares
from gpt2.train.build import make_optimizer, model_options, start_exactly
from gpt2.train.settings import FASTEST, Settings

MAX_MEASURING_SHARE = 0.05  # of the run's time
ROUNDS = 3  # the ways take turns; the median counts
MOST_ROUNDS = 15  # if ways are close and the budget allows it
MARGIN = 0.97  # a later way must win by this much, so that the choice does not depend on noise
START_S = 2.5  # for processes to start and compile
STEPS = 4  # of shares and of processes, when they are compared
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


def choose(
    s: Settings, config: GPT2Config, make: Callable[[Settings], GPT2], spawn: bool
) -> tuple[Settings, GPT2, list[str]]:
    """The settings with a way for FASTEST, the model that make(settings) returned, and notes to print.

    spawn   whether processes may be started: without a main guard they would run the script again
    """
    if FASTEST not in (s.backward, s.parallel):
        return s, make(s), []
    open_ways = ways(s, get_threads())
    key = key_of(s, config, open_ways)
    way = {str(way): way for way in open_ways}.get(chosen.get(key) or "") if len(open_ways) > 1 else None
    why = "the fastest way when it was last measured here"
    model = make((way or open_ways[0]).applied(s))
    if way is None:
        way, why = open_ways[0], "the run is too short to measure"
        with watched() as quiet:
            times = time_ways(s, model, open_ways)
        if times:
            for other, seconds in times.items():
                way = other if seconds < MARGIN * times[way] else way
            chosen.put(key, str(way), keep=quiet())
            seconds, second = min((seconds, other) for other, seconds in times.items() if other != way)
            why = (
                f"the fastest of {len(times)} ways here, {1e3 * times[way]:.0f} ms a gradient "
                f"(next {second} {1e3 * seconds:.0f} ms)"
            )
        elif len(open_ways) == 1:
            why = "the only possible way"
        if way.backward != model.spec:
            model = make(way.applied(s))
    notes: list[str] = []
    if spawn and s.parallel == FASTEST and way.parallel == "shares":
        way = shares_or_processes(s, model, way, (*key, "processes"), notes)
    return way.applied(s), model, [f"{way}: {why}", *notes]


def shares_or_processes(s: Settings, model: GPT2, way: Way, key: tuple, notes: list[str]) -> Way:
    """A way with shares, or with as many processes, if their steps take less time here. Adds a note.

    key   of the cached choice
    """
    by_processes = way._replace(parallel="processes")
    applied = by_processes.applied(s)
    known, budget = chosen.get(key), MAX_MEASURING_SHARE * s.steps  # in steps
    if known is not None or budget < 2 * STEPS or not fits(model, by_processes):
        return by_processes if known == "processes" else way
    batches = s.batch_size, s.block_size, s.accumulate
    copy = model.twin()  # has the compiled programs
    copy.use(model.flat_params.copy(), copy.flat_grads)
    with watched() as quiet:  # it would take our own processes for other programs
        shares = auto.step_seconds(Shares(copy, make_optimizer(copy, s), way.workers), *batches)
    del copy  # the other model needs the memory
    if budget * shares < START_S + 2 * STEPS * shares:
        return way
    other = GPT2(model.config, seed=None, **model_options(applied))
    try:
        team = start_exactly(way.workers, applied, other, make_optimizer(other, s), Group())
        with team:
            processes = auto.step_seconds(team, *batches)
    except (UserError, WorkerError):  # too little memory, too few open files
        return way
    best = by_processes if processes < MARGIN * shares else way
    chosen.put(key, best.parallel, keep=quiet())
    n, kind = way.workers, best.parallel
    notes.append(
        f"{n} shares: {1e3 * shares:.0f} ms a step, {n} processes: {1e3 * processes:.0f} ms; taking {kind}"
    )
    return best


def key_of(s: Settings, config: GPT2Config, open_ways: list[Way]) -> tuple:
    """The key of a cached choice: everything besides the machine that it depends on."""
    batch = (s.batch_size, s.block_size, s.accumulate)
    tuned = () if s.tuning.everything else (s.tuning.summary(),)
    engine = (s.elementwise, s.kernels, s.layers, get_threads())
    return *dataclasses.astuple(config), *batch, *engine, *open_ways, *tuned


def time_ways(s: Settings, model: GPT2, open_ways: list[Way]) -> dict[Way, float]:
    """Way -> seconds of a gradient of the run's model on random tokens, the median. Changes no parameters.

    Ways that would cost too much to try are left out, and all of them if the run is too short to measure.
    """
    first, *others = open_ways
    gradients = s.steps * s.accumulate
    if not others or MAX_MEASURING_SHARE * gradients < 2 * (1 + ROUNDS):  # even without compiling
        return {}
    runners = {first: runner(s, model, first)}
    compiling = timed(runners[first])
    step = timed(runners[first])
    budget = MAX_MEASURING_SHARE * gradients * step
    spent = (1 + ROUNDS) * step  # compiling is needed anyway
    for way in others:
        if spent + compiling + (1 + ROUNDS) * step > budget or not fits(model, way):
            continue
        began = time.perf_counter()
        runners[way] = runner(s, model, way)
        timed(runners[way])
        spent += time.perf_counter() - began + ROUNDS * step
    return in_turns(runners, budget - spent) if len(runners) > 1 else {}


def in_turns(runners: dict[Way, Callable[[], Any]], budget: float) -> dict[Way, float]:
    """The ways timed in turns, with more rounds within the budget while the leader has lost one."""
    samples: dict[Way, list[float]] = {way: [] for way in runners}
    times: dict[Way, float] = {}
    for n in range(1, MOST_ROUNDS + 1):
        for way, take in runners.items():
            samples[way].append(timed(take))
        times = {way: float(np.median(seconds)) for way, seconds in samples.items()}
        if n < ROUNDS:
            continue
        ahead, second, *_ = sorted(times, key=times.__getitem__)
        budget -= sum(times.values())  # another round
        if max(samples[ahead]) < MARGIN * times[second] or budget < 0.0:
            break
    return times


def runner(s: Settings, model: GPT2, way: Way) -> Callable[[], Any]:
    """A function that computes a gradient, and its norm, in this way."""
    shape = (2, s.batch_size, s.block_size)
    batch = tuple(np.random.default_rng(0).integers(0, model.config.vocab_size, shape, np.int32))
    if way.backward != model.spec:
        other = GPT2(model.config, seed=None, **model_options(way.applied(s)))
        other.use(model.flat_params, model.flat_grads)
        other.freeze(model.frozen)
        model = other
    team = Shares(model, None, way.workers)
    return lambda: team.gradient([batch])


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
