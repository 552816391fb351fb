"""The fastest way to train: which ways are tried, how they are timed, and that a run keeps the chosen one."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from gpt2 import machine
from gpt2.autodiff import set_threads
from gpt2.autodiff.run import remembered
from gpt2.model import GPT2, GPT2Config
from gpt2.parallel import auto
from gpt2.parallel.group import WorkerError
from gpt2.parallel.memory import TooLittleMemory
from gpt2.parallel.workers import Workers
from gpt2.storage import runs
from gpt2.train import Settings, fastest, opened, resumed_settings, session, steps, train
from gpt2.train.fastest import Way
from gpt2.train.flags import read_toml
from tests.support.slow import rest_slow

WHOLE, SHARES, MANUAL = Way("whole", "none"), Way("whole", "shares", 2), Way("manual", "none")
LONG = Settings(n_layer=1, n_head=2, n_embd=16, block_size=8, batch_size=4, steps=10_000)


@pytest.fixture(autouse=True)
def nothing_remembered():
    remembered.forget()
    set_threads(2)
    yield
    remembered.forget()


@pytest.fixture
def quiet(monkeypatch):
    """No other program is at work."""
    monkeypatch.setattr(machine, "busy_seconds", lambda: None)


@pytest.fixture
def settings(prose):
    """Of a short run on prose."""
    short = dict(warmup=1, sample_tokens=0, eval_every=0, eval_batches=1, threads=2)
    return replace(LONG, data=str(prose[0]), tokenizer="byte", **short)


def clock(monkeypatch, seconds):
    """Makes each way take the given seconds, by a fake clock. Returns a list of the ways tried since."""
    tried, now = [], itertools.count()
    monkeypatch.setattr(fastest, "timed", lambda take: take())
    monkeypatch.setattr(fastest.time, "perf_counter", lambda: 1e-9 * next(now))

    def runner(s, model, way):
        tried.append(way)
        return lambda: seconds[way]

    monkeypatch.setattr(fastest, "runner", runner)
    return tried


def chosen(s=LONG, spawn=False):
    """(the chosen way, the model's backward, the note)."""
    config = GPT2Config(31, 8, s.n_layer, s.n_head, s.n_embd)
    s, model, notes = fastest.choose(s, config, lambda s: GPT2(config, s.backward), spawn)
    workers = int(s.workers) if s.workers != "auto" else 1
    return Way(s.backward, s.parallel, workers), model.spec, " ".join(notes)


# ---- Ways to choose from -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "threads", "expected"),
    [
        ({}, 2, [WHOLE, SHARES, MANUAL]),
        ({}, 1, [WHOLE, MANUAL]),
        ({"batch_size": 1}, 2, [WHOLE, MANUAL]),
        ({"batch_size": 12}, 8, [WHOLE, Way("whole", "shares", 6), MANUAL]),
        ({"backward": "auto"}, 2, [Way("auto", "none"), Way("auto", "shares", 2)]),
        ({"parallel": "none"}, 2, [WHOLE]),
        ({"parallel": "processes"}, 2, [Way("whole", "processes")]),
        ({"compile": "off"}, 2, [MANUAL]),
        ({"detect_anomaly": True}, 2, [WHOLE]),
    ],
)
def test_ways_respect_named_settings(named, threads, expected):
    s = replace(LONG, **named)
    assert fastest.ways(s, threads) == expected
    for way in expected:
        applied = way.applied(s)
        assert fastest.FASTEST not in (applied.backward, applied.parallel)
        assert all(getattr(applied, name) == value for name, value in named.items())


def test_mpi_rank_measures_nothing(monkeypatch):
    """The other ranks would run beside it."""
    monkeypatch.setattr(fastest, "launched_ranks", lambda: 2)
    assert fastest.ways(LONG, 2) == [WHOLE]


def test_fully_named_way_is_not_measured(monkeypatch):
    tried = clock(monkeypatch, {})
    s = replace(LONG, backward="manual", parallel="shares", workers="2")
    assert chosen(s) == (Way("manual", "shares", 2), "manual", "") and not tried


# ---- Measuring ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("best", [WHOLE, SHARES, MANUAL])
def test_fastest_way_is_chosen(monkeypatch, best):
    seconds = dict.fromkeys([WHOLE, SHARES, MANUAL], 2.0) | {best: 1.0}
    tried = clock(monkeypatch, seconds)
    way, backward, note = chosen()
    assert way == best and backward == best.backward
    assert set(tried) == set(seconds)
    assert note.startswith(f"{best}: the fastest of 3 ways here, 1000 ms a gradient") and "2000 ms" in note


def test_slightly_faster_way_is_not_chosen(monkeypatch):
    """Otherwise noise would decide about the last bits."""
    clock(monkeypatch, {WHOLE: 1.0, SHARES: 0.98, MANUAL: 0.99})
    assert chosen()[0] == WHOLE


def test_median_decides_and_close_ways_are_timed_more_often(monkeypatch):
    """As often as the share of the run that may be spent on measuring allows."""
    clock(monkeypatch, {})
    turns = {
        WHOLE: itertools.cycle([1.0, 1.0, 0.5]),
        SHARES: itertools.cycle([0.9, 1.1, 0.9]),
        MANUAL: itertools.repeat(3.0),
    }
    runs_of = Counter()

    def runner(s, model, way):
        def take():
            runs_of[way] += 1
            return next(turns[way])

        return take

    monkeypatch.setattr(fastest, "runner", runner)
    assert chosen()[0] == SHARES
    assert set(runs_of.values()) == {1 + fastest.MOST_ROUNDS, 2 + fastest.MOST_ROUNDS}
    runs_of.clear()
    turns[SHARES] = itertools.repeat(0.4)  # clearly faster
    assert chosen(replace(LONG, batch_size=8))[0] == SHARES
    assert runs_of[SHARES] == 1 + fastest.ROUNDS
    runs_of.clear()
    turns[SHARES] = itertools.cycle([0.9, 1.1, 0.9])
    short = replace(LONG, batch_size=16, steps=700)  # so that measuring may take 35 gradients
    assert chosen(short)[0] == SHARES
    assert fastest.ROUNDS < runs_of[SHARES] - 1 < fastest.MOST_ROUNDS


@pytest.mark.parametrize(
    ("count", "tries", "best"), [(100, 0, WHOLE), (170, 1, WHOLE), (200, 2, SHARES), (800, 3, MANUAL)]
)
def test_measuring_takes_a_small_share_of_the_run(monkeypatch, count, tries, best):
    """At 1 second a gradient, a way costs 5 of them; measuring may take 5 % of the run."""
    tried = clock(monkeypatch, {WHOLE: 1.0, SHARES: 0.5, MANUAL: 0.4})
    way, _, note = chosen(replace(LONG, steps=count))
    assert len(tried) == tries and way == best
    assert ("the run is too short" in note) == (tries < 2)


def test_way_that_would_fill_the_memory_is_not_tried(monkeypatch):
    tried = clock(monkeypatch, {WHOLE: 1.0, SHARES: 0.5, MANUAL: 0.9})
    nbytes = 4 * GPT2Config(31, 8, 1, 2, 16).num_parameters
    monkeypatch.setattr(fastest, "free_memory", lambda: 9 * nbytes)
    assert chosen()[0] == MANUAL and SHARES not in tried


def test_trial_changes_no_parameter():
    config = GPT2Config(31, 8, 1, 2, 16)
    model, other = GPT2(config, "whole", seed=3), GPT2(config, "whole", seed=3)
    times = fastest.time_ways(LONG, model, [WHOLE, SHARES, MANUAL])
    assert set(times) == {WHOLE, SHARES, MANUAL} and min(times.values()) > 0
    assert model.flat_params.tobytes() == other.flat_params.tobytes()


def test_choice_is_remembered_for_the_same_sizes(monkeypatch, tmp_path, quiet):
    remembered.remember(tmp_path)
    clock(monkeypatch, {WHOLE: 2.0, SHARES: 1.0, MANUAL: 3.0})
    chosen()
    remembered.forget()
    remembered.remember(tmp_path)
    tried = clock(monkeypatch, {})
    way, backward, note = chosen()
    assert way == SHARES and backward == "whole" and not tried and "last measured" in note
    short = replace(LONG, steps=1)
    assert chosen(short)[0] == SHARES  # it costs nothing
    assert chosen(replace(short, batch_size=8))[0] == WHOLE


def test_choice_made_on_a_busy_machine_is_not_remembered(monkeypatch, tmp_path):
    remembered.remember(tmp_path)
    busy = itertools.count(step=1000)
    monkeypatch.setattr(machine, "busy_seconds", lambda: float(next(busy)))
    clock(monkeypatch, {WHOLE: 2.0, SHARES: 1.0, MANUAL: 3.0})
    assert chosen()[0] == SHARES and not (tmp_path / "ways.json").exists()


# ---- The run -----------------------------------------------------------------------------------------------


def test_resumed_run_keeps_its_way_to_the_bit(monkeypatch, settings, tmp_path):
    """Also on a machine where another way is faster."""
    s = replace(settings, steps=6)
    monkeypatch.setattr(fastest, "time_ways", lambda *args: {WHOLE: 2.0, SHARES: 1.0})
    whole = train(replace(s, out=str(tmp_path / "whole")))
    assert whole.team.size == 2
    stored = read_toml(tmp_path / "whole" / runs.SETTINGS, Settings)
    assert (stored["backward"], stored["parallel"], stored["workers"]) == SHARES[:2] + ("2",)

    for step in steps(replace(s, out=str(tmp_path / "parts"))):
        if step.number == 3:
            break
    monkeypatch.setattr(fastest, "time_ways", lambda *args: {WHOLE: 2.0, MANUAL: 1.0})
    parts = train(resumed_settings(tmp_path / "parts", {"threads": 1}), resume=True)
    assert parts.team.size == 2 and parts.step == 6
    assert parts.model.flat_params.tobytes() == whole.model.flat_params.tobytes()


# ---- Shares or processes -----------------------------------------------------------------------------------


@pytest.fixture
def step_times(monkeypatch, quiet):
    """step_times(seconds): steps take seconds[team]. Returns a list of the teams timed since."""
    monkeypatch.setattr(fastest, "time_ways", lambda *args: {WHOLE: 2.0, SHARES: 1.0})
    monkeypatch.setattr(session, "remember", lambda folder: None)

    def set_times(seconds):
        timed = []

        def step_seconds(team, *batches):
            team.step([np.zeros((2, 4, 8), np.int32)])
            timed.append(type(team).__name__)
            return seconds[timed[-1]]

        monkeypatch.setattr(auto, "step_seconds", step_seconds)
        return timed

    return set_times


@pytest.mark.parametrize(("processes", "faster"), rest_slow([(0.9, "processes"), (0.98, "shares")]))
def test_faster_of_shares_and_processes_trains_to_the_same_bits(
    step_times, settings, tmp_path, processes, faster
):
    step_times({"Shares": 1.0, "Processes": processes})
    with opened(replace(settings, out=str(tmp_path / "run")), overwrite=True, spawn=True) as run:
        text = f"2 shares: 1000 ms a step, 2 processes: {1e3 * processes:.0f} ms; taking {faster}"
        assert text in run.notes and type(run.team).__name__ == faster.capitalize()
        list(itertools.islice(steps(run), 3))
    assert read_toml(tmp_path / "run" / runs.SETTINGS, Settings)["parallel"] == faster
    named = replace(run.settings, parallel="shares", out=str(tmp_path / "alone"))
    with opened(named) as alone:
        list(itertools.islice(steps(alone), 3))
    assert run.model.flat_params.tobytes() == alone.model.flat_params.tobytes()


@pytest.mark.slow
def test_choice_of_processes_is_remembered_for_programs_that_may_start_them(step_times, settings, tmp_path):
    remembered.remember(tmp_path)
    timed = step_times({"Shares": 1.0, "Processes": 0.5})
    for _ in range(2):
        with opened(replace(settings, out=str(tmp_path / "run")), overwrite=True, spawn=True) as run:
            assert run.settings.parallel == "processes"
        assert timed == ["Shares", "Processes"]
        remembered.forget()
        remembered.remember(tmp_path)
    assert chosen(replace(settings, data=run.settings.data))[0].parallel != "processes"


@pytest.mark.parametrize(
    "error", [TooLittleMemory("too little memory"), WorkerError("worker 1 died")], ids=repr
)
def test_shares_train_if_processes_cannot_start(step_times, monkeypatch, error):
    """Not fewer processes, which would give other bits."""

    def call(self, *args, **options):
        assert self.size == 2
        raise error

    monkeypatch.setattr(Workers, "call", call)
    assert step_times({"Shares": 1.0}) == [] and chosen(spawn=True)[0] == SHARES


@pytest.mark.parametrize(("count", "teams"), [(150, 0), (200, 1), (220, 2)])
def test_short_run_starts_no_processes(step_times, monkeypatch, count, teams):
    """Processes take 2.5 s to start, and 8 steps 8 s; 5 % of the run may be spent."""
    timed = step_times({"Shares": 1.0, "Processes": 2.0})
    assert chosen(replace(LONG, steps=count), spawn=True)[0] == SHARES and len(timed) == teams
