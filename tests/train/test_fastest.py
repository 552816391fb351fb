"""A run that picks its own way to train: what it may pick, what that costs, and that it keeps to it."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest

from gpt2 import machine
from gpt2.autodiff import set_threads
from gpt2.autodiff.run import remembered
from gpt2.model import GPT2, GPT2Config
from gpt2.parallel import handover
from gpt2.parallel.errors import WorkerError
from gpt2.parallel.memory import TooLittleMemory
from gpt2.parallel.processes import Processes
from gpt2.parallel.shares import Shares
from gpt2.parallel.workers import Workers
from gpt2.storage import runs
from gpt2.train import Reporter, Settings, fastest, opened, resumed_settings, session, steps, train
from gpt2.train.fastest import Way
from gpt2.train.flags import read_toml
from gpt2.train.loop import loop

WHOLE, SHARES, MANUAL = Way("whole", "none"), Way("whole", "shares", 2), Way("manual", "none")
LONG = Settings(n_layer=1, n_head=2, n_embd=16, block_size=8, batch_size=4, steps=10_000)


@pytest.fixture(autouse=True)
def afresh():
    remembered.forget()
    set_threads(2)
    yield
    remembered.forget()
    set_threads(1)


@pytest.fixture
def quiet(monkeypatch):
    """The machine does nothing else."""
    monkeypatch.setattr(machine, "busy_seconds", lambda: None)


def clock(monkeypatch, seconds):
    """Every way takes so many seconds, by a clock that only they move. Returns the ways that were tried."""
    tried, now = [], itertools.count()
    monkeypatch.setattr(fastest, "timed", lambda take: take())
    monkeypatch.setattr(fastest.time, "perf_counter", lambda: 1e-9 * next(now))

    def runner(self, way):
        tried.append(way)
        return lambda: seconds[way]

    monkeypatch.setattr(fastest.Trial, "runner", runner)
    return tried


def chosen(s=LONG, spawn=False):
    """(the way that is taken, the model's backward, the note)."""
    config = GPT2Config(31, 8, s.n_layer, s.n_head, s.n_embd)
    made, model, notes, _ = fastest.choose(s, config, lambda s: GPT2(config, s.backward), spawn)
    workers = int(made.workers) if made.workers != "auto" else 1
    return Way(made.backward, made.parallel, workers), model.spec, " ".join(notes)


# ---- What may be picked ------------------------------------------------------------------------------------


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
def test_ways_that_are_left_open(named, threads, expected):
    s = dataclasses.replace(LONG, **named)
    assert fastest.ways(s, threads) == expected
    for way in expected:
        applied = way.applied(s)
        assert fastest.FASTEST not in (applied.backward, applied.parallel)
        assert all(getattr(applied, name) == value for name, value in named.items())


def test_a_rank_of_mpiexec_measures_nothing(monkeypatch):
    """The others would be at work beside it."""
    monkeypatch.setattr(fastest, "launched_ranks", lambda: 2)
    assert fastest.ways(LONG, 2) == [WHOLE]


def test_what_is_named_is_obeyed(monkeypatch):
    tried = clock(monkeypatch, {})
    s = dataclasses.replace(LONG, backward="manual", parallel="shares", workers="2")
    assert chosen(s) == (Way("manual", "shares", 2), "manual", "") and not tried


# ---- Measuring ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("best", [WHOLE, SHARES, MANUAL])
def test_the_fastest_way_is_taken(monkeypatch, best):
    seconds = dict.fromkeys([WHOLE, SHARES, MANUAL], 2.0) | {best: 1.0}
    tried = clock(monkeypatch, seconds)
    way, backward, note = chosen(spawn=True)
    assert way == best and backward == best.backward
    assert set(tried) == set(seconds)
    assert note.startswith(f"{best}: the fastest of 3 ways here, 1000 ms a gradient") and "2000 ms" in note


def test_a_little_faster_is_not_enough(monkeypatch):
    """Else noise would decide about the last digits."""
    clock(monkeypatch, {WHOLE: 1.0, SHARES: 0.98, MANUAL: 0.99})
    assert chosen()[0] == WHOLE


def test_one_lucky_gradient_decides_nothing(monkeypatch):
    """The median counts, and ways that lie close together are timed more often, as far as the price goes."""
    clock(monkeypatch, {})
    turns = {
        WHOLE: itertools.cycle([1.0, 1.0, 0.5]),
        SHARES: itertools.cycle([0.9, 1.1, 0.9]),
        MANUAL: itertools.repeat(3.0),
    }
    taken = dict.fromkeys(turns, 0)

    def runner(self, way):
        def take():
            taken[way] += 1
            return next(turns[way])

        return take

    monkeypatch.setattr(fastest.Trial, "runner", runner)
    assert chosen()[0] == SHARES
    assert set(taken.values()) == {1 + fastest.MOST_ROUNDS, 2 + fastest.MOST_ROUNDS}
    taken.update(dict.fromkeys(taken, 0))
    turns[SHARES] = itertools.repeat(0.4)  # clear at once
    assert chosen(dataclasses.replace(LONG, batch_size=8))[0] == SHARES
    assert taken[SHARES] == 1 + fastest.ROUNDS
    taken.update(dict.fromkeys(taken, 0))
    turns[SHARES] = itertools.cycle([0.9, 1.1, 0.9])
    assert (
        chosen(dataclasses.replace(LONG, batch_size=16, steps=700))[0] == SHARES
    )  # 35 gradients may be spent
    assert fastest.ROUNDS < taken[SHARES] - 1 < fastest.MOST_ROUNDS


@pytest.mark.parametrize(("count", "tried"), [(100, 0), (170, 1), (200, 2), (800, 3)])
def test_measuring_has_to_pay_for_itself(monkeypatch, count, tried):
    """With 1 second a gradient, a way costs 5 of them; 5 % of the run are to be had."""
    found = clock(monkeypatch, {WHOLE: 1.0, SHARES: 0.5, MANUAL: 0.4})
    way, _, note = chosen(dataclasses.replace(LONG, steps=count))
    assert len(found) == tried
    assert way == (MANUAL if tried == 3 else SHARES if tried == 2 else WHOLE)
    assert ("the run is too short" in note) == (tried < 2)


def test_what_would_fill_the_memory_is_not_tried(monkeypatch):
    tried = clock(monkeypatch, {WHOLE: 1.0, SHARES: 0.5, MANUAL: 0.9})
    nbytes = 4 * GPT2Config(31, 8, 1, 2, 16).num_parameters
    monkeypatch.setattr(fastest, "free_memory", lambda: 9 * nbytes)
    assert chosen()[0] == MANUAL and SHARES not in tried


def test_a_trial_changes_no_parameter():
    config = GPT2Config(31, 8, 1, 2, 16)
    model, other = GPT2(config, "whole", seed=3), GPT2(config, "whole", seed=3)
    trial = fastest.Trial(LONG, model, [WHOLE, SHARES, MANUAL])
    trial.run()
    assert set(trial.times) == {WHOLE, SHARES, MANUAL} and trial.spent > 0
    assert model.flat_params.tobytes() == other.flat_params.tobytes()


def test_what_was_measured_is_kept(monkeypatch, tmp_path, quiet):
    remembered.remember(tmp_path)
    clock(monkeypatch, {WHOLE: 2.0, SHARES: 1.0, MANUAL: 3.0})
    chosen()
    remembered.forget()
    remembered.remember(tmp_path)
    tried = clock(monkeypatch, {})
    way, backward, note = chosen()
    assert way == SHARES and backward == "whole" and not tried and "last measured" in note
    short = dataclasses.replace(LONG, steps=1)
    assert chosen(short)[0] == SHARES  # it costs nothing
    assert chosen(dataclasses.replace(short, batch_size=8))[0] == WHOLE  # another batch is another choice


def test_what_was_measured_on_a_busy_machine_is_not_kept(monkeypatch, tmp_path):
    remembered.remember(tmp_path)
    others = itertools.count(step=1000)
    monkeypatch.setattr(machine, "busy_seconds", lambda: float(next(others)))
    clock(monkeypatch, {WHOLE: 2.0, SHARES: 1.0, MANUAL: 3.0})
    assert chosen()[0] == SHARES and not (tmp_path / "ways.json").exists()


# ---- The run -----------------------------------------------------------------------------------------------


def test_a_run_keeps_its_way(monkeypatch, prose, tmp_path):
    """In its settings, and when it goes on on a machine where another way is faster: bit for bit."""
    s = dataclasses.replace(LONG, data=str(prose[0]), tokenizer="byte", steps=6, warmup=1, sample_tokens=0)
    s = dataclasses.replace(s, eval_every=0, eval_batches=1, threads=2)
    monkeypatch.setattr(fastest.Trial, "run", lambda self: SHARES)
    through = train(dataclasses.replace(s, out=str(tmp_path / "through")))
    assert through.team.size == 2
    kept = read_toml(tmp_path / "through" / runs.SETTINGS, Settings)
    assert (kept["backward"], kept["parallel"], kept["workers"]) == SHARES[:2] + ("2",)

    for step in steps(dataclasses.replace(s, out=str(tmp_path / "halted"))):
        if step.number == 3:
            break
    monkeypatch.setattr(fastest.Trial, "run", lambda self: MANUAL)
    again = resumed_settings(tmp_path / "halted", {"threads": 1})
    halted = train(again, resume=True)
    assert halted.team.size == 2 and halted.step == 6
    assert halted.model.flat_params.tobytes() == through.model.flat_params.tobytes()


# ---- Processes, tried in the run's own steps ---------------------------------------------------------------


@pytest.fixture
def run_of_shares(monkeypatch, prose, tmp_path, quiet):
    """begun(seconds): a run that has taken shares and may start processes, its steps by these seconds."""
    s = dataclasses.replace(LONG, data=str(prose[0]), tokenizer="byte", steps=20, warmup=1, sample_tokens=0)
    s = dataclasses.replace(s, eval_every=0, eval_batches=1, threads=2)
    monkeypatch.setattr(fastest.Trial, "run", lambda self: SHARES)
    monkeypatch.setattr(session, "remember", lambda folder: None)
    monkeypatch.setattr(fastest.Contender, "is_worth", lambda self, seconds: self.watch.close() or True)

    def begun(seconds, **settings):
        now = [0.0]
        monkeypatch.setattr(handover, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        for team in (Shares, Processes):

            def step(self, *args, taken=team.step, name=team.__name__, **options):
                now[0] += seconds[name]
                return taken(self, *args, **options)

            monkeypatch.setattr(team, "step", step)
        return opened(
            dataclasses.replace(s, out=str(tmp_path / "run"), **settings), overwrite=True, spawn=True
        )

    return begun


@pytest.mark.parametrize(("shares", "processes", "taken"), [(1.0, 0.9, "processes"), (1.0, 0.98, "shares")])
def test_processes_take_steps_and_the_run_goes_on_with_the_faster(
    run_of_shares, tmp_path, capsys, shares, processes, taken
):
    """And the bits are those of shares all along."""
    reporter = Told()
    with run_of_shares({"Shares": shares, "Processes": processes}) as run:
        reporter.begin(run)
        teams = [type(run.team.team).__name__ for _ in loop(run, reporter)]
        expected = f"2 shares: 1000 ms a step, 2 processes: {1e3 * processes:.0f} ms; going on with {taken}"
        assert reporter.lines == [(14, expected)]
        changed = taken.capitalize()
        assert teams == ["Shares"] * 6 + ["Processes"] * 7 + [changed] * 7
        assert run.settings.parallel == taken
    assert read_toml(tmp_path / "run" / runs.SETTINGS, Settings)["parallel"] == taken
    alone = train(dataclasses.replace(run.settings, parallel="shares", out=str(tmp_path / "alone")))
    assert run.model.flat_params.tobytes() == alone.model.flat_params.tobytes()
    assert (tmp_path / "run" / runs.LAST).exists()


class Told(Reporter):
    """Notes what a run says of how it goes on."""

    def __init__(self):
        self.lines = []

    def noted(self, run, text):
        self.lines.append((run.step, text))


def test_what_processes_were_found_to_be_is_kept(run_of_shares, tmp_path):
    remembered.remember(tmp_path)
    with run_of_shares({"Shares": 1.0, "Processes": 0.5}) as run:
        list(steps(run))
    remembered.forget()
    remembered.remember(tmp_path)
    with run_of_shares({}) as run:
        assert run.settings.parallel == "processes" and isinstance(run.team, Processes)
    assert (
        chosen(dataclasses.replace(run.settings, backward="fastest", parallel="fastest"))[0].parallel
        != "processes"
    )


@pytest.mark.parametrize(
    "error", [TooLittleMemory("too little memory"), WorkerError("worker 1 died")], ids=repr
)
def test_processes_that_cannot_be_had_are_not_taken(run_of_shares, monkeypatch, tmp_path, error):
    """Nor are fewer of them, which would give other bits; and the model, moved already, is moved back."""

    def refused(self, *args, **options):
        assert self.size == 2
        raise error

    monkeypatch.setattr(Workers, "call", refused)
    with run_of_shares({"Shares": 1.0}) as run:
        list(steps(run))
        assert run.step == 20 and run.settings.parallel == "shares"
    alone = train(dataclasses.replace(run.settings, out=str(tmp_path / "alone")))
    assert run.model.flat_params.tobytes() == alone.model.flat_params.tobytes()


def test_a_short_run_starts_no_processes(monkeypatch):
    for count, worth in ((49, False), (51, True)):  # of 1 s each, against 2.5 s
        contender = fastest.Contender(dataclasses.replace(LONG, steps=count), SHARES, ())
        assert contender.is_worth(1.0) == worth
