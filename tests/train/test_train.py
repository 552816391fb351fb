"""train.py on the command line: complete runs, interrupted and resumed ones, invalid flags."""

import json
import signal
import statistics
import time
from pathlib import Path

import numpy as np
import pytest

from gpt2.data.tokens import Epochs, Loader
from gpt2.model import GPT2
from gpt2.storage import runs
from gpt2.train import program
from gpt2.train.flags import read_toml
from gpt2.train.recipe import new_settings
from gpt2.train.resolve import resolve
from gpt2.train.run import Run
from gpt2.train.settings import Settings, read_settings, resumed_settings
from gpt2.weights import checkpoint
from tests.support import small_run
from tests.support.slow import rest_slow
from tests.support.small_run import posix
from tests.support.terminal import at_a_terminal

pytestmark = pytest.mark.usefixtures("quick_peak")

SMALL = (
    "--tokenizer byte --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --batch-size 4 --accumulate 2 "
    "--steps 12 --warmup 2 --lr 1e-2 --eval-every 5 --eval-batches 2 --sample-tokens 8 --save-every 4"
).split()


@pytest.fixture
def small(prose):
    return ["--data", str(prose[0]), *SMALL, "--optimizer", "adamw"]


def lines(folder):
    """The records of the metrics, without times."""
    timed = ("seconds", "tokens_per_second", "gflops")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in timed} for record in records]


def assert_same(one, other, optimizer="adamw", moments=32):
    """Check that two runs have the same weights, moments and metrics, to the last bit."""
    (a, state_a), (b, state_b) = (checkpoint.load(run / "last.safetensors") for run in (one, other))
    assert list(a) == list(b) and len(a) == 16 + moments + 1  # parameters, moments, the tokenizer
    for name in a:
        assert a[name].tobytes() == b[name].tobytes(), name
    for name in ("step", f"{optimizer}.t", "loader", "best", "spikes"):
        assert state_a[name] == state_b[name]
    assert (one / "best.safetensors").exists() and (other / "best.safetensors").exists()
    assert lines(one) == lines(other)


@pytest.fixture
def whole(small, tmp_path):
    """An uninterrupted run."""
    folder = tmp_path / "whole"
    assert program.main([*small, "--out", str(folder)]) == 0
    return folder


def resolved(small, *flags):
    """A Run from the command line, without a folder."""
    return resolve(new_settings(read_settings([*small, *flags])[0]))


@pytest.fixture
def at_step(monkeypatch):
    """at_step(step, action): calls action(run) before the step after `step`."""

    def patch(step, action):
        train_step = Run.train_step

        def patched(run):
            if run.step == step:
                action(run)
            return train_step(run)

        monkeypatch.setattr(Run, "train_step", patched)

    return patch


# ---- Complete runs -----------------------------------------------------------------------------------------


def test_run_learns_and_writes_its_files(whole):
    records = lines(whole)
    losses = [record["loss"] for record in records if "loss" in record]
    assert len(losses) == 12 and losses[-1] < losses[0] - 0.5
    assert [record["step"] for record in records if "val_loss" in record] == [0, 5, 10, 12]
    assert isinstance(records[-1]["sample"], str)
    files = "settings.toml tokenizer.json metrics.jsonl last.safetensors best.safetensors"
    assert {path.name for path in whole.iterdir()} == set(files.split())


def test_output_of_a_run(small, tmp_path, capsys):
    assert program.main([*small, "--out", str(tmp_path / "a"), "--log-every", "6"]) == 0
    out = capsys.readouterr().out
    assert "steps=12" in out and "batch_size=4" in out
    for piece in (
        "parameters",
        "GFLOP a step",
        "step  6/12  loss",
        "tok/s",
        "% of peak",
        "validation loss",
        "sample",
        "all settings: ",
        "more text: ",
        "try next, the gradients that trained it, by hand and derived: ",
        f"--resume {tmp_path / 'a'}",
    ):
        assert piece in out, piece
    assert "your own text" not in out  # the hint for other corpora
    assert "\r" not in out and "\x1b" not in out  # no terminal, no control characters


def test_validation_loss_is_the_mean_over_the_split(small):
    run = resolved(small, "--eval-batches", "0")
    count = (len(run.val) - 1) // 16 * 16
    x, y = run.val[:count].reshape(-1, 16).astype(int), run.val[1 : count + 1].reshape(-1, 16).astype(int)
    assert run.validation_loss() == pytest.approx(run.model.forward(x, y), rel=1e-5)


@pytest.mark.parametrize("source", ["flags", "settings.toml"])
def test_same_settings_give_the_same_bits(whole, small, tmp_path, source):
    words = small if source == "flags" else ["--config", str(whole / source)]
    assert program.main([*words, "--out", str(tmp_path / "again")]) == 0
    assert_same(whole, tmp_path / "again")


def test_flags_win_over_toml_and_toml_over_the_preset(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text('preset = "shakespeare-char-cpu"\nsteps = 7\nlr = 0.5\n')
    given, *_ = read_settings(["--config", str(config), "--lr", "0.25"])
    settings = new_settings(given)
    assert (settings.lr, settings.steps, settings.batch_size, settings.tokenizer) == (0.25, 7, 12, "char")


@pytest.mark.parametrize("order, loader", [("epochs", Epochs), ("random", Loader)])
def test_order_of_batches_can_be_chosen(small, order, loader):
    run = resolved(small, "--order", order)
    assert (run.loader.batch(3)[0] == loader(run.train, 4, 16, 1337).batch(3)[0]).all()


def test_new_runs_get_numbered_folders(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert program.main([*small, "--steps", "1", "--sample-tokens", "0"]) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["shakespeare-1", "shakespeare-2"]


# ---- Interrupted and resumed -------------------------------------------------------------------------------


class Crash(Exception):
    pass


@pytest.fixture
def crash_and_resume(at_step):
    """crash_and_resume(flags, folder, step): a run that crashes after the step, unsaved, and is resumed."""

    def crash_and_resume(flags, folder, step):
        crashed = []

        def crash(run):
            if not crashed:  # the resumed run passes the same step
                crashed.append(run)
                raise Crash

        at_step(step, crash)
        with pytest.raises(Crash):
            program.main([*flags, "--out", str(folder)])
        assert program.main(["--resume", str(folder)]) == 0

    return crash_and_resume


@pytest.mark.parametrize("step", rest_slow([6, 4, 11]))
def test_crashed_and_resumed_run_has_the_bits_of_an_uninterrupted_one(
    whole, small, tmp_path, crash_and_resume, step
):
    """The last checkpoint is of step 4 or 8."""
    crash_and_resume(small, tmp_path / "broken", step)
    assert_same(whole, tmp_path / "broken")


def test_run_with_muon_resumes_to_the_bit_and_keeps_its_optimizer(small, tmp_path, crash_and_resume, refusal):
    """A matrix of a block has one moment in the checkpoint; AdamW's state is not taken for Muon's."""
    flags = [*small, "--optimizer", "muon", "--muon-lr", "0.01"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert program.main([*flags, "--out", str(whole)]) == 0
    crash_and_resume(flags, broken, 6)
    assert_same(whole, broken, "muon", moments=16 + 12)
    arrays, _ = checkpoint.load(whole / "last.safetensors")
    assert "muon.v.wte" in arrays and "muon.m.fcw" in arrays and "muon.v.fcw" not in arrays

    settings = broken / "settings.toml"
    settings.write_text(settings.read_text().replace('optimizer = "muon"', 'optimizer = "adamw"'))
    assert "was trained with --optimizer muon, whose moments adamw cannot use" in refusal(
        program.main, "--resume", broken
    )


def test_spike_of_the_loss_is_reported_also_after_a_resume(
    small, tmp_path, monkeypatch, capsys, crash_and_resume
):
    """The loss of step 19 is made to jump; the run that crashes just before is resumed at step 16."""
    train_step = Run.train_step

    def with_spike(run):
        metrics = train_step(run)
        return {**metrics, "loss": metrics["loss"] + 50.0 * (run.step == 19)}

    monkeypatch.setattr(Run, "train_step", with_spike)
    small = [*small, "--steps", "24"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert program.main([*small, "--out", str(whole)]) == 0
    records = [record for record in lines(whole) if "loss" in record]
    (record,) = [record for record in records if "spike_from" in record]
    usual = statistics.median(earlier["loss"] for earlier in records[:18])
    assert record["step"] == 19 and record["spike_from"] == usual
    text = f"step 19: the loss jumped to {record['loss']:.4f}, from {record['spike_from']:.4f} in the steps"
    assert text in capsys.readouterr().out

    crash_and_resume(small, broken, 18)
    assert_same(whole, broken)
    assert text in capsys.readouterr().out


@posix
@pytest.mark.parametrize("name, status", rest_slow([("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)]))
def test_signal_saves_the_run_and_prints_how_to_resume(small, tmp_path, name, status, hangup):
    folder = tmp_path / "stopped"
    often = "--steps 100000 --save-every 1 --eval-every 0".split()
    process = small_run.start(small_run.command(*small, *often, "--out", folder))
    end = time.monotonic() + 300
    while not (folder / "last.safetensors").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "no checkpoint after 300 seconds"
        time.sleep(0.01)
    process.send_signal(getattr(signal, name))
    out, error = process.communicate(timeout=300)
    assert process.returncode == status and error == ""
    assert out.splitlines()[-1].endswith(f"train.py --resume {folder}")
    step = checkpoint.load(folder / "last.safetensors")[1]["step"]
    assert f"stopped and saved at step {step};" in out
    assert lines(folder)[-1]["step"] == step


def test_resumed_run_may_be_longer(whole, refusal):
    error = refusal(program.main, "--resume", whole)
    assert "has done its 12 steps; continue with --steps 24" in error
    assert program.main(["--resume", str(whole), "--steps", "14"]) == 0
    steps = [record["step"] for record in lines(whole) if "loss" in record]
    assert steps == list(range(1, 15))
    assert Settings(**read_toml(whole / "settings.toml", Settings)).steps == 14


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", ["--n-embd 32", "--seed 1", "--tokenizer char", "--data stdlib", "--preset gpt2"]
)
def test_resumed_run_refuses_other_sizes_and_data(whole, refusal, change):
    error = refusal(program.main, "--resume", whole, "--steps", 20, *change.split())
    assert error.startswith(f"error: {change}: the run in {whole} has ")


def test_resumed_run_has_its_best_loss(whole):
    run = resolve(resumed_settings(whole, {}))
    run.load(whole)
    losses = [record["val_loss"] for record in lines(whole) if "val_loss" in record]
    assert run.best == min(losses) and run.validated == 12


def test_damaged_checkpoint_is_refused(whole, refusal):
    path = whole / "last.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    assert refusal(program.main, "--resume", whole, "--steps", 20) == (
        f"error: {path}: the checksum does not match, the file is damaged; use another checkpoint\n"
    )


def test_run_is_overwritten_only_with_the_flag(whole, small, refusal):
    before = (whole / "last.safetensors").read_bytes()
    assert "holds a run already" in refusal(program.main, *small, "--out", whole)
    assert (whole / "last.safetensors").read_bytes() == before
    assert program.main([*small, "--out", str(whole), "--overwrite", "--steps", "1"]) == 0
    assert max(record["step"] for record in lines(whole)) == 1


def test_overwrite_of_a_missing_folder_is_noted(small, tmp_path, capsys):
    missing = tmp_path / "missing"
    assert program.main([*small, "--out", str(missing), "--overwrite", "--steps", "1"]) == 0
    captured = capsys.readouterr()
    assert f"--overwrite: there is no folder {missing} yet" in captured.out + captured.err


@pytest.mark.parametrize("name", runs.FILES)
def test_single_files_of_a_run_are_not_overwritten_without_the_flag(small, tmp_path, refusal, name):
    """Such as weights copied from a run, or a tokenizer of transformers."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("kept")
    assert "--overwrite" in refusal(program.main, *small, "--out", tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [name]
    assert (tmp_path / "mine" / name).read_text() == "kept"


# ---- Invalid flags, numbers that are not finite ------------------------------------------------------------


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--batchsize", "4"], "unknown argument --batchsize; did you mean --batch-size?"),
        (
            ["--preset", "gpt5"],
            "--preset gpt5: expected one of shakespeare, shakespeare-char-cpu, nanogpt-char-cpu, finetune",
        ),
        (["--n-head", "3"], "--n-embd 16 is not divisible by --n-head 3"),
        (["--block-size", "100000"], "a sequence of --block-size 100000 needs 100001"),
        (["--data", "nothing.txt"], "--data nothing.txt: No such file"),
        (
            ["--tokenizer", "gpt3"],
            "tokenizer 'gpt3': expected gpt2, byte, char, bpe:N, or the path of a tokenizer",
        ),
        (["--backward", "hand"], "error: --backward hand: 'hand' is not one of manual"),
        (["--backward", "hand", "--dry-run"], "error: --backward hand: 'hand' is not one of manual"),
        (["--threads", "100000"], "--threads: expected less than 1025, got 100000"),
        (["--backward", "manual,dropout=auto"], "dropout"),
        (["--resume", "nowhere"], "nowhere: no run here"),
        (["--config", "nowhere.toml"], "nowhere.toml: No such file"),
        (["--steps", "0"], "--steps: expected 1 or more, got 0"),
        (["--eps", "0"], "--eps: expected 1e-30 or more, got 0.0"),
        (["--tokenizer", "bpe:9"], "--tokenizer 'bpe:9': expected bpe:N with N from 256"),
        (["--workers", "2"], "--workers has no effect without --parallel processes"),
        (["--worker-timeout", "2"], "--worker-timeout has no effect without --parallel processes or"),
        (["--shard"], "--shard has no effect without --parallel mpi"),
        (["--shard", "--parallel", "processes"], "--shard has no effect without --parallel mpi"),
        (
            ["--parallel", "processes", "--workers", "3"],
            "--workers 3: a batch of 4 sequences cannot be cut into 3 equal shares; "
            "take --batch-size 3 or 6, or --workers 2",
        ),
        (["--parallel", "shares", "--workers", "7"], "--workers 7: a batch has only 4 sequences"),
        (["--parallel", "shares", "--workers", "0"], "--workers 0: expected a number from 1, or auto"),
        (["--parallel", "shares", "--workers", "two"], "--workers two: expected a number from 1, or auto"),
        (["--parallel", "thread"], "--parallel: expected one of fastest, none, shares, processes, mpi"),
        (["--overwrite"], "--overwrite has no effect without --out"),
        (
            ["--lines", "llm.c", "--sample-every", "5", "--sample-tokens", "17"],
            "--sample-tokens 17: the model reads at most 16 tokens",
        ),
    ],
)
def test_invalid_flag_is_one_line_and_starts_no_run(small, tmp_path, monkeypatch, refusal, argv, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(program.main, *small, *argv)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--block-size 100000", "the training text has "),
        ("--block-size 2000 --eval-every 0", "the validation split has "),
        (
            "--batch-size 200 --eval-every 0 --order llm.c",
            "tokens, llm.c's batches of 200 times 16 need 3201",
        ),
    ],
)
def test_short_text_is_refused_before_anything_is_started(small, monkeypatch, refusal, flags, message):
    """Also if the first validation is at the end, and before workers are there that nobody would end."""
    monkeypatch.setattr("gpt2.train.resolve.start_team", lambda *args: pytest.fail("started"))
    assert message in refusal(program.main, *small, "--parallel", "processes", *flags.split())


def test_loss_that_is_not_finite_names_the_layer(small, tmp_path, at_step, refusal):
    def set_nan(run):
        run.model.params["fcw"][0, 3, 2] = np.nan

    at_step(5, set_nan)
    error = refusal(program.main, *small, "--out", tmp_path / "a")
    assert "step 6: the loss is nan; first output that is not finite: block 0 fc (matmul)" in error
    assert checkpoint.load(tmp_path / "a" / "last.safetensors")[1]["step"] == 4


def test_gradient_that_is_not_finite_ends_the_run_and_changes_nothing(small, tmp_path, monkeypatch, refusal):
    loss_and_grads = GPT2.loss_and_grads
    models = []

    def with_infinity(model, *args):
        models.append((model, model.flat_params.copy()))
        loss = loss_and_grads(model, *args)
        if len(models) == 11:  # the first half of step 6
            model.flat_grads[7] = np.inf
        return loss

    monkeypatch.setattr(GPT2, "loss_and_grads", with_infinity)
    error = refusal(program.main, *small, "--out", tmp_path / "a")
    assert error.startswith("error: step 6: the gradient's norm is inf, the loss ")
    assert len(models) == 12  # it was the last step
    model, before = models[-1]
    assert np.array_equal(model.flat_params, before)
    assert checkpoint.load(tmp_path / "a" / "last.safetensors")[1]["step"] == 4


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_detect_anomaly_names_the_line(small, tmp_path, at_step, refusal):
    """By every backward: tests/model/test_numbers.py."""

    def set_large(run):
        run.model.params["qkvb"][0] = 1e25  # scores of 1e50

    at_step(5, set_large)
    error = refusal(program.main, *small, "--detect-anomaly", "--out", tmp_path / "a")
    assert error.startswith("error: step 6: gpt2/layers/attention.py:")


@pytest.mark.slow
@posix
def test_terminal_shows_one_progress_line(small, tmp_path):
    termios = pytest.importorskip("termios")
    words = small_run.command(*small, "--out", tmp_path / "a", "--steps", 300)
    status, shown = at_a_terminal(words, lambda terminal: termios.tcsetwinsize(terminal, (40, 100)))
    assert status == 0, shown
    assert "\r" in shown and "tok/s" in shown and "left" in shown
    assert "step   1/300" not in shown  # which is for files and pipes
