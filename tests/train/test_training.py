"""gpt2.train as a library: an iterator of steps, callbacks, reporters, runs that are left and resumed."""

import math
import os
import sys
import types
from dataclasses import replace

import numpy as np
import pytest

from gpt2.errors import UserError
from gpt2.storage import metrics
from gpt2.train import Reporter, Settings, from_preset, opened, program, resumed_settings, steps, train
from gpt2.train.loop import Interrupts, loop
from gpt2.train.recipe import new_settings
from gpt2.weights import checkpoint
from tests.support import small_run
from tests.support.small_run import ROOT
from tests.support.terminal import Terminal

pytestmark = pytest.mark.usefixtures("quick_peak")


@pytest.fixture
def settings(prose, tmp_path):
    sizes = dict(n_layer=1, n_head=2, n_embd=16, block_size=16, batch_size=4, steps=6, warmup=0)
    often = dict(eval_every=2, eval_batches=2, save_every=4, sample_tokens=4)
    return Settings(
        data=str(prose[0]), out=str(tmp_path / "run"), tokenizer="byte", threads=1, **sizes, **often
    )


def test_steps_are_yielded_complete_and_print_nothing(settings, tmp_path, capsys):
    all_steps = list(steps(settings))
    first, last = all_steps[0], all_steps[-1]
    assert [step.number for step in all_steps] == [1, 2, 3, 4, 5, 6]
    assert [step.val_loss is not None for step in all_steps] == [False, True, False, True, False, True]
    assert last.loss < first.loss and all(step.grad_norm > 0 for step in all_steps)
    assert last.val_loss == last.run.validation_loss()
    assert first.seconds > 0 and first.rates.tokens == pytest.approx(64 / first.seconds)
    assert capsys.readouterr().out == ""


def test_steps_train_as_the_program_does_to_the_bit(settings, tmp_path):
    losses = [step.loss for step in steps(settings)]
    usual = vars(new_settings({}))
    changed = {name: value for name, value in vars(settings).items() if value != usual[name]}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in changed.items()]
    assert program.main([*flags, "--out", str(tmp_path / "other")]) == 0
    one, other = (checkpoint.load(tmp_path / name / "last.safetensors") for name in ("run", "other"))
    assert all(np.array_equal(one[0][name], other[0][name]) for name in one[0])
    assert one[1]["spikes"]["recent"] == other[1]["spikes"]["recent"] == losses


def test_callback_is_called_with_each_step_and_may_stop_the_run(settings, tmp_path):
    numbers = []

    def callback(step):
        numbers.append(step.number)
        if step.number == 3:
            step.run.stop()

    run = train(settings, [callback])
    assert numbers == [1, 2, 3] and run.step == 3
    assert checkpoint.load(tmp_path / "run" / "last.safetensors")[1]["step"] == 3
    assert math.isfinite(run.model.loss(*run.loader.batch(0)))


def test_run_that_stops_itself_has_no_signal(settings):
    """The program's exit status is then 0."""
    interrupts, reporter = Interrupts(), Reporter()
    with opened(settings) as run:
        reporter.begin(run)
        for step in loop(run, reporter, interrupts):
            step.run.stop()
    assert run.step == 1 and interrupts.received is None


def test_break_saves_a_run_that_can_be_resumed(settings, tmp_path):
    """With the losses of an uninterrupted run."""
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
    with pytest.raises(UserError, match="has done its 6 steps; continue with steps 12"):
        next(steps(again, resume=True))


def test_reporter_methods_are_called_in_order(settings):
    calls = []

    class Recorder(Reporter):
        def step(self, step):
            calls.append(step.number)

        def validated(self, run, loss, best):
            calls.append(("validated", run.step, best))

        def sampled(self, run, text, last):
            calls.append(("sampled", last))

        def end(self, run):
            calls.append("end")

        def close(self):
            calls.append("closed")

    train(settings, reporter=Recorder())
    assert calls[0] == ("validated", 0, False) and calls[1:4] == [1, 2, ("validated", 2, True)]
    assert calls[-3:] == [("sampled", True), "end", "closed"]


def test_user_s_loop_over_train_step(settings):
    with opened(settings) as run:
        before = run.validation_loss()
        for _ in range(6):
            run.train_step()
        assert run.validation_loss() < before
    with pytest.raises(UserError, match="holds a run already"), opened(settings):
        pass
    with opened(settings, overwrite=True) as run:
        assert run.step == 0


def test_error_in_a_loop_over_steps_releases_the_folder(settings):
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
def test_invalid_settings_are_refused_by_the_constructor(given, message):
    with pytest.raises(UserError) as error:
        Settings(**given)
    assert str(error.value) == message


def test_presets_by_name():
    assert from_preset("shakespeare-char-cpu", steps=7).tokenizer == "char"
    assert from_preset("gpt2-medium").n_layer == 24
    with pytest.raises(UserError, match="preset tiny: expected one of shakespeare, "):
        from_preset("tiny")


def test_settings_need_no_numpy():
    code = "import sys; from gpt2.train import Settings; Settings(); sys.exit('numpy' in sys.modules)"
    assert small_run.python(code).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train.py", "-m gpt2 train", "-m gpt2.train"])
def test_threads_are_set_before_numpy_is_imported_however_training_is_started(command, settings, tmp_path):
    """A sitecustomize prints the number that NumPy's libraries will read when it is imported."""
    (tmp_path / "sitecustomize.py").write_text(
        "import builtins, os, sys\n"
        "real = builtins.__import__\n"
        "def watched(name, *args, **kwargs):\n"
        "    if name == 'numpy' and 'numpy' not in sys.modules:\n"
        "        print('threads', os.environ.get('OPENBLAS_NUM_THREADS'), file=sys.stderr)\n"
        "    return real(name, *args, **kwargs)\n"
        "builtins.__import__ = watched\n"
    )
    environment = small_run.environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    del environment["OPENBLAS_NUM_THREADS"]
    words = f"{command} --data {settings.data} --threads 3 --dry-run --block-size 9 --context 8"
    done = small_run.run([sys.executable, *words.split()], env=environment)
    assert done.returncode == 2 and done.stderr.startswith("threads 3\n"), done.stderr
    assert "error: --block-size 9: the model reads at most 8 tokens (--context)" in done.stderr


# ---- What a run shows --------------------------------------------------------------------------------------


def test_patience_ends_a_run_that_gets_no_better(settings, capsys):
    worse = replace(settings, lr=0.0, min_lr=0.0, steps=30, patience=2)
    run = train(worse, overwrite=True)
    assert run.step == 6 and run.worse == 2  # validations at 2, which is the best, at 4 and at 6
    again = resumed_settings(run.folder)
    assert train(again, resume=True).step == 10  # the count begins anew
    assert program.main(["--resume", str(run.folder)]) == 0
    out = capsys.readouterr().out
    assert "step 14: 2 validations no better than the best: the run ends" in out and "done: 14 steps" in out


def test_epochs_count_passes_over_the_text(settings):
    all_steps = list(steps(replace(settings, accumulate=2)))
    run = all_steps[-1].run
    assert [step.epoch for step in all_steps] == [128 * n / len(run.train) for n in range(1, 7)]
    assert metrics.read(run.folder).get("epoch")[1][-1] == round(all_steps[-1].epoch, 4)


class Screen(Terminal):
    encoding = "utf-8"


def test_train_shows_progress_in_a_terminal(settings, monkeypatch, capsys):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Screen())
    run = train(settings)
    bar, out = sys.stderr.getvalue(), sys.stdout.getvalue()
    assert "6/6" in bar and "val_loss=" in bar and "epoch=" in bar
    assert out.startswith("loss ") and f"best validation loss {run.best:.4f}" in out
    sys.stdout.truncate(0)
    train(settings, overwrite=True, reporter=Reporter())
    assert not sys.stdout.getvalue().strip("\0")


def test_train_draws_the_curve_in_a_notebook(settings, monkeypatch):
    """The curve is one display, drawn again after each validation and at the end."""
    drawn = []
    place = types.SimpleNamespace(update=drawn.append)
    display = types.SimpleNamespace(
        HTML=str, display=lambda picture, display_id: drawn.append(picture) or place
    )
    shell = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=1), display=display)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    train(settings)
    assert len(drawn) == 5 and all(picture.startswith("<svg") for picture in drawn)
    assert [picture.count("<circle") for picture in drawn] == [1, 2, 3, 4, 4]
