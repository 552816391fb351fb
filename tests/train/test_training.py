"""gpt2.train as a library: an iterator of steps, callbacks, and how a run is left and taken up again."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpt2.errors import UserError
from gpt2.train import Reporter, Settings, from_preset, opened, program, resumed_settings, steps, train
from gpt2.train.loop import Interrupts, loop
from gpt2.weights import checkpoint

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("quick_peak")


@pytest.fixture
def settings(prose, tmp_path):
    return Settings(
        data=str(prose[0]),
        out=str(tmp_path / "run"),
        tokenizer="byte",
        n_layer=1,
        n_head=2,
        n_embd=16,
        block_size=16,
        batch_size=4,
        steps=6,
        warmup=0,
        eval_every=2,
        eval_batches=2,
        save_every=4,
        sample_tokens=4,
        threads=1,
    )


def test_an_iterator_of_steps(settings, tmp_path, capsys):
    """Every step is yielded once all that belongs to it is known, and nothing is printed."""
    taken = list(steps(settings))
    assert [step.number for step in taken] == [1, 2, 3, 4, 5, 6]
    assert [step.val_loss is not None for step in taken] == [False, True, False, True, False, True]
    assert taken[-1].loss < taken[0].loss and all(step.grad_norm > 0 for step in taken)
    assert taken[-1].val_loss == taken[-1].run.validation_loss()
    assert taken[0].seconds > 0 and taken[0].rates.tokens == pytest.approx(64 / taken[0].seconds)
    assert capsys.readouterr().out == ""


def test_it_is_the_run_that_the_program_does(settings, prose, tmp_path):
    """To the last bit: the weights, the moments and the losses."""
    losses = [step.loss for step in steps(settings)]
    flags = [
        word
        for name, value in vars(settings).items()
        if value != getattr(Settings(), name) and name != "out"
        for word in ("--" + name.replace("_", "-"), str(value))
    ]
    assert program.main([*flags, "--out", str(tmp_path / "other")]) == 0
    one, other = (checkpoint.load(tmp_path / name / "last.safetensors") for name in ("run", "other"))
    assert all(np.array_equal(one[0][name], other[0][name]) for name in one[0])
    assert one[1]["spikes"]["recent"] == other[1]["spikes"]["recent"] == losses


def test_callbacks_see_every_step_and_may_end_the_run(settings, tmp_path):
    seen = []

    def tell(step):
        seen.append(step.number)
        if step.number == 3:
            step.run.stop()

    run = train(settings, [tell])
    assert seen == [1, 2, 3] and run.step == 3
    assert checkpoint.load(tmp_path / "run" / "last.safetensors")[1]["step"] == 3
    assert math.isfinite(run.model.loss(*run.loader.batch(0)))  # what it returns can be used


def test_a_run_that_stops_itself_received_no_signal(settings):
    """The program's exit status is then 0."""
    interrupts, reporter = Interrupts(), Reporter()
    with opened(settings) as run:
        reporter.begin(run)
        for step in loop(run, reporter, interrupts):
            step.run.stop()
    assert run.step == 1 and interrupts.received is None


def test_a_break_saves_and_the_run_goes_on(settings, tmp_path):
    """As if nothing had happened: the losses are those of a run in one go."""
    whole = [step.loss for step in steps(settings)]
    parts = []
    folder = tmp_path / "parts"
    for step in steps(replace(settings, out=str(folder))):
        parts.append(step.loss)
        if step.number == 3:
            break
    del step
    again = resumed_settings(folder)
    parts += [step.loss for step in steps(again, resume=True)]
    assert parts == whole
    with pytest.raises(UserError, match="has done its 6 steps; continue with --steps 12"):
        next(steps(again, resume=True))


def test_a_reporter_is_called(settings):
    class Notes(Reporter):
        def __init__(self):
            self.told = []

        def step(self, step):
            self.told.append(step.number)

        def validated(self, run, loss, best):
            self.told.append(("validated", run.step, best))

        def sampled(self, run, text, last):
            self.told.append(("sampled", last))

        def end(self, run):
            self.told.append("end")

        def close(self):
            self.told.append("closed")

    notes = Notes()
    train(settings, reporter=notes)
    assert notes.told[0] == ("validated", 0, False) and notes.told[1:4] == [1, 2, ("validated", 2, True)]
    assert notes.told[-3:] == [("sampled", True), "end", "closed"]


def test_a_loop_of_ones_own(settings):
    with opened(settings) as run:
        before = run.validation_loss()
        for _ in range(6):
            run.train_step()
        assert run.validation_loss() < before
    with pytest.raises(UserError, match="holds a run already"), opened(settings):
        pass
    with opened(settings, overwrite=True) as run:
        assert run.step == 0


def test_a_loop_whose_body_fails_lets_go_of_the_folder(settings):
    with pytest.raises(ZeroDivisionError) as error, opened(settings) as run:
        for step in steps(run):
            assert step.run is run
            1 / 0  # noqa: B018
    assert error.traceback  # kept, as a notebook keeps it
    assert list(steps(settings, overwrite=True))[-1].number == 6


@pytest.mark.parametrize(
    "given, message",
    [
        ({"steps": 0}, "steps: expected 1 or more, got 0"),
        ({"steps": "8"}, "steps: expected a whole number, got '8'"),
        ({"lr": "big"}, "lr: expected a number, got 'big'"),
        ({"data": 3}, "data: expected text, got 3"),
        ({"order": "any"}, "order: expected one of epochs, random, llm.c; got 'any'"),
    ],
)
def test_settings_that_make_no_sense_are_refused_as_they_are_made(given, message):
    with pytest.raises(UserError) as error:
        Settings(**given)
    assert str(error.value) == message


def test_presets_by_name():
    assert from_preset("shakespeare-char-cpu", steps=7).tokenizer == "char"
    assert from_preset("gpt2-medium").n_layer == 24
    with pytest.raises(UserError, match="--preset tiny: expected one of shakespeare, "):
        from_preset("tiny")


def test_the_settings_alone_need_no_numpy():
    code = "import sys; from gpt2.train import Settings; Settings(); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


DOORS = [["train.py"], ["-m", "gpt2", "train"], ["-m", "gpt2.train"]]


@pytest.mark.slow
@pytest.mark.parametrize("command", DOORS, ids=" ".join)
def test_three_doors_to_one_program(command, settings, tmp_path):
    """All set the threads before NumPy is there: the libraries are told the number that --threads says."""
    watch = tmp_path / "sitecustomize.py"
    watch.write_text(
        "import builtins, os, sys\n"
        "real = builtins.__import__\n"
        "def watched(name, *args, **kwargs):\n"
        "    if name == 'numpy' and 'numpy' not in sys.modules:\n"
        "        print('threads', os.environ.get('OPENBLAS_NUM_THREADS'), file=sys.stderr)\n"
        "    return real(name, *args, **kwargs)\n"
        "builtins.__import__ = watched\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    environment.pop("OPENBLAS_NUM_THREADS", None)
    words = [
        *command,
        "--data",
        settings.data,
        "--threads",
        "3",
        "--dry-run",
        "--block-size",
        "9",
        "--context",
        "8",
    ]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("threads 3\n"), done.stderr
    assert "error: --block-size 9: the model reads at most 8 tokens (--context)" in done.stderr
