"""train.py as its users meet it: runs, interruptions, mistakes."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gpt2.data.tokens import Epochs, Loader
from gpt2.model import GPT2, GPT2Config
from gpt2.storage import runs
from gpt2.train import program
from gpt2.train.flags import read_toml
from gpt2.train.recipe import new_settings
from gpt2.train.resolve import resolve
from gpt2.train.run import Run
from gpt2.train.settings import Settings, read_settings, resumed_settings
from gpt2.weights import checkpoint
from tests.support.slow import rest_slow

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("quick_peak")

SMALL = (
    "--tokenizer byte --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --batch-size 4 --accumulate 2 "
    "--steps 12 --warmup 2 --lr 1e-2 --eval-every 5 --eval-batches 2 --sample-tokens 8 --save-every 4"
).split()


@pytest.fixture
def small(prose):
    return ["--data", str(prose[0]), *SMALL]


def lines(folder):
    """The metrics without the times."""
    timed = ("seconds", "tokens_per_second", "gflops")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in timed} for record in records]


def assert_same(one, other):
    """Two runs ended alike: weights, moments and numbers, to the last bit."""
    (a, state_a), (b, state_b) = (checkpoint.load(run / "last.safetensors") for run in (one, other))
    assert list(a) == list(b) and len(a) == 3 * 16 + 1  # parameters, moments, the tokenizer
    for name in a:
        assert a[name].tobytes() == b[name].tobytes(), name
    for name in ("step", "adamw.t", "loader", "best", "spikes"):
        assert state_a[name] == state_b[name]
    assert (one / "best.safetensors").exists() and (other / "best.safetensors").exists()
    assert lines(one) == lines(other)


@pytest.fixture
def whole(small, tmp_path):
    """A run that nothing interrupted."""
    folder = tmp_path / "whole"
    assert program.main([*small, "--out", str(folder)]) == 0
    return folder


# ---- A run -------------------------------------------------------------------------------------------------


def test_a_run_learns_and_leaves_what_is_promised(whole, capsys):
    records = lines(whole)
    losses = [record["loss"] for record in records if "loss" in record]
    assert len(losses) == 12 and losses[-1] < losses[0] - 0.5
    assert [record["step"] for record in records if "val_loss" in record] == [0, 5, 10, 12]
    assert isinstance(records[-1]["sample"], str)
    assert {path.name for path in whole.iterdir()} == {
        "settings.toml",
        "tokenizer.json",
        "metrics.jsonl",
        "last.safetensors",
        "best.safetensors",
    }


def test_what_a_run_prints(small, tmp_path, capsys):
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
    assert "your own text" not in out  # it is one
    assert "\r" not in out and "\x1b" not in out  # no terminal, no control characters


def test_accumulated_batches_are_one_large_batch(small, tmp_path):
    """Two runs that see the same sequences a step, one of them in two halves, take the same step."""
    settings = new_settings(read_settings([*small, "--dtype", "float64"])[0])
    run = Run(resolve(settings))
    (x1, y1), (x2, y2) = run.loader.batch(0), run.loader.batch(1)
    model = GPT2(run.model.config, seed=settings.seed)
    loss = model.forward(np.concatenate([x1, x2]), np.concatenate([y1, y2]))
    model.backward()
    metrics = run.train_step()
    assert metrics["loss"] == pytest.approx(loss, rel=1e-12)
    scale = np.abs(model.flat_grads).max()
    assert np.abs(run.model.flat_grads - model.flat_grads).max() < 1e-12 * scale


def test_validation_is_the_mean_over_the_split(small):
    run = Run(resolve(new_settings(read_settings([*small, "--eval-batches", "0"])[0])))
    count = (len(run.val) - 1) // 16 * 16
    x, y = run.val[:count].reshape(-1, 16).astype(int), run.val[1 : count + 1].reshape(-1, 16).astype(int)
    assert run.validation_loss() == pytest.approx(run.model.forward(x, y), rel=1e-5)


def test_the_same_settings_give_the_same_run(whole, small, tmp_path):
    assert program.main([*small, "--out", str(tmp_path / "again")]) == 0
    assert_same(whole, tmp_path / "again")


def test_settings_kept_with_a_run_repeat_it(whole, tmp_path):
    config = str(whole / "settings.toml")
    assert program.main(["--config", config, "--out", str(tmp_path / "again")]) == 0
    assert_same(whole, tmp_path / "again")


def test_flags_win_over_toml_and_toml_over_the_preset(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text('preset = "shakespeare-char-cpu"\nsteps = 7\nlr = 0.5\n')
    given, *_ = read_settings(["--config", str(config), "--lr", "0.25"])
    settings = new_settings(given)
    assert (settings.lr, settings.steps, settings.batch_size, settings.tokenizer) == (0.25, 7, 12, "char")


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_presets_have_the_released_shapes(name):
    s, released = new_settings({"preset": name}), GPT2Config.preset(name)
    assert (s.n_layer, s.n_head, s.n_embd) == (released.n_layer, released.n_head, released.n_embd)


@pytest.mark.parametrize("order", ["epochs", "random"])
def test_the_order_of_batches_can_be_chosen(small, order):
    run = Run(resolve(new_settings(read_settings([*small, "--order", order])[0])))
    expected = {"epochs": Epochs, "random": Loader}[order](run.train, 4, 16, 1337)
    assert (run.loader.batch(3)[0] == expected.batch(3)[0]).all()


def test_new_runs_get_folders_of_their_own(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert program.main([*small, "--steps", "1", "--sample-tokens", "0"]) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["shakespeare-1", "shakespeare-2"]


# ---- Stopping and going on ---------------------------------------------------------------------------------


class Stop(Exception):
    pass


def dying_at(step, monkeypatch):
    """A step that ends the program without a chance to save, once."""
    train_step = Run.train_step

    def dies(run):
        if run.step == step:
            monkeypatch.setattr(Run, "train_step", train_step)
            raise Stop
        return train_step(run)

    monkeypatch.setattr(Run, "train_step", dies)


@pytest.mark.parametrize("step", [4, 6, 11])
def test_a_run_that_died_goes_on_bit_for_bit(whole, small, tmp_path, monkeypatch, step):
    """Dies after `step` steps without a chance to save; the last checkpoint is from step 4 or 8."""
    folder = tmp_path / "broken"
    dying_at(step, monkeypatch)
    with pytest.raises(Stop):
        program.main([*small, "--out", str(folder)])
    assert program.main(["--resume", str(folder)]) == 0
    assert_same(whole, folder)


def test_a_spike_is_reported_and_is_the_same_after_a_resume(small, tmp_path, monkeypatch, capsys):
    """The loss of step 19 is made to jump; the run that dies just before goes on from step 16."""
    train_step = Run.train_step

    def jumps(run):
        metrics = train_step(run)
        return {**metrics, "loss": metrics["loss"] + 50.0 * (run.step == 19)}

    monkeypatch.setattr(Run, "train_step", jumps)
    small = [*small, "--steps", "24"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert program.main([*small, "--out", str(whole)]) == 0
    records = [record for record in lines(whole) if "loss" in record]
    (record,) = [record for record in records if "spike_from" in record]
    usual = statistics.median(earlier["loss"] for earlier in records[:18])
    assert record["step"] == 19 and record["spike_from"] == usual
    text = f"step 19: the loss jumped to {record['loss']:.4f}, from {record['spike_from']:.4f} in the steps"
    assert text in capsys.readouterr().out

    dying_at(18, monkeypatch)
    with pytest.raises(Stop):
        program.main([*small, "--out", str(broken)])
    assert program.main(["--resume", str(broken)]) == 0
    assert_same(whole, broken)
    assert text in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_kill_9_and_resume(small, tmp_path):
    """A separate process, killed without warning at a random moment."""
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    # far more steps than it can do before it is killed; a way that is measured may come out otherwise
    small = [*small, "--steps", "400", "--backward", "manual", "--parallel", "none"]
    assert program.main([*small, "--out", str(whole)]) == 0
    command = [sys.executable, str(ROOT / "train.py"), *small, "--out", str(folder), "--save-every", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=tmp_path)
    wait_for(folder / "last.safetensors", process)
    process.kill()
    _, error = process.communicate()
    assert process.returncode == -signal.SIGKILL, error
    assert program.main(["--resume", str(folder)]) == 0
    assert_same(whole, folder)


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("name, status", rest_slow([("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)]))
def test_a_signal_saves_and_says_how_to_go_on(small, tmp_path, name, status, hangup):
    folder = tmp_path / "stopped"
    command = [
        sys.executable,
        str(ROOT / "train.py"),
        *small,
        "--out",
        str(folder),
        "--steps",
        "100000",
        "--save-every",
        "1",
        "--eval-every",
        "0",
    ]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process = subprocess.Popen(command, **pipes, text=True, cwd=tmp_path)
    wait_for(folder / "last.safetensors", process)
    process.send_signal(getattr(signal, name))
    out, error = process.communicate(timeout=300)
    assert process.returncode == status and error == ""
    assert out.splitlines()[-1].endswith(f"train.py --resume {folder}")
    step = checkpoint.load(folder / "last.safetensors")[1]["step"]
    assert f"stopped and saved at step {step};" in out
    assert lines(folder)[-1]["step"] == step


def wait_for(path, process, seconds=300):
    """Until the file is there. A process that ends first has failed."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


def test_a_resumed_run_may_be_longer(whole, capsys):
    assert program.main(["--resume", str(whole)]) == 2
    assert "has done its 12 steps; continue with --steps 24" in capsys.readouterr().err
    assert program.main(["--resume", str(whole), "--steps", "14"]) == 0
    steps = [record["step"] for record in lines(whole) if "loss" in record]
    assert steps == list(range(1, 15))
    assert Settings(**read_toml(whole / "settings.toml", Settings)).steps == 14


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        ["--n-embd", "32"],
        ["--seed", "1"],
        ["--tokenizer", "char"],
        ["--data", "stdlib"],
        ["--preset", "gpt2"],
    ],
    ids=lambda c: c[0],
)
def test_a_resumed_run_keeps_its_shape_and_data(whole, capsys, change):
    assert program.main(["--resume", str(whole), "--steps", "20", *change]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {change[0]} {change[1]}: the run in {whole} has ")
    assert error.count("\n") == 1


def test_a_resumed_run_remembers_its_best(whole):
    run = Run(resolve(resumed_settings(whole, {})))
    run.load(whole)
    losses = [record["val_loss"] for record in lines(whole) if "val_loss" in record]
    assert run.best == min(losses) and run.validated == 12


def test_a_resumed_run_notices_that_its_text_has_changed(whole, prose, capsys):
    prose[0].write_text(prose[1].replace("king", "duke"), encoding="utf-8")
    assert program.main(["--resume", str(whole), "--steps", "20"]) == 2
    assert "text or tokens have changed" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_one_line(whole, capsys):
    path = whole / "last.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    assert program.main(["--resume", str(whole), "--steps", "20"]) == 2
    assert capsys.readouterr().err == (
        f"error: {path}: the checksum does not match, the file is damaged; use another checkpoint\n"
    )


def test_a_run_is_not_overwritten_by_accident(whole, small, capsys):
    before = (whole / "last.safetensors").read_bytes()
    assert program.main([*small, "--out", str(whole)]) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert (whole / "last.safetensors").read_bytes() == before
    assert program.main([*small, "--out", str(whole), "--overwrite", "--steps", "1"]) == 0
    assert max(record["step"] for record in lines(whole)) == 1


def test_overwrite_where_nothing_is(small, tmp_path, capsys):
    missing = tmp_path / "missing"
    assert program.main([*small, "--out", str(missing), "--overwrite", "--steps", "1"]) == 0
    text = capsys.readouterr()
    assert f"--overwrite: there is no folder {missing} yet" in text.out + text.err
    assert program.main([*small, "--overwrite"]) == 2
    assert "--overwrite has no effect without --out" in capsys.readouterr().err


@pytest.mark.parametrize("name", runs.FILES)
def test_files_that_are_no_runs_are_not_replaced_by_accident(small, tmp_path, capsys, name):
    """Weights that were copied away from a run, the tokenizer of a folder of transformers."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("kept")
    assert program.main([*small, "--out", str(tmp_path / "mine")]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [name]
    assert (tmp_path / "mine" / name).read_text() == "kept"


# ---- Mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--batchsize", "4"], "unknown argument --batchsize; did you mean --batch-size?"),
        (["--preset", "gpt5"], "--preset gpt5: expected one of shakespeare, shakespeare-char-cpu, finetune"),
        (["--n-head", "3"], "--n-embd 16 is not divisible by --n-head 3"),
        (["--block-size", "100000"], "a sequence of --block-size 100000 needs 100001"),
        (["--data", "nothing.txt"], "--data nothing.txt: No such file"),
        (["--tokenizer", "gpt3"], "tokenizer 'gpt3': expected gpt2, byte, char or bpe:N"),
        (["--backward", "hand"], "error: --backward hand: 'hand' is not one of manual"),
        (["--backward", "hand", "--dry-run"], "error: --backward hand: 'hand' is not one of manual"),
        (["--threads", "100000"], "--threads: expected less than 1025, got 100000"),
        (["--backward", "manual,dropout=auto"], "dropout"),
        (["--resume", "nowhere"], "nowhere: no run here"),
        (["--config", "nowhere.toml"], "nowhere.toml: No such file"),
        (["--steps", "0"], "--steps: expected 1 or more, got 0"),
        (["--eps", "0"], "--eps: expected 1e-30 or more, got 0.0"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(small, tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    assert program.main([*small, *argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error
    assert not Path("runs").exists()  # nothing was begun


def test_a_loss_that_is_not_finite_names_the_layer(small, tmp_path, monkeypatch, capsys):
    train_step = Run.train_step

    def spoilt(run):
        if run.step == 5:
            run.model.params["fcw"][0, 3, 2] = np.nan
        return train_step(run)

    monkeypatch.setattr(Run, "train_step", spoilt)
    assert program.main([*small, "--out", str(tmp_path / "a")]) == 2
    error = capsys.readouterr().err
    assert "step 6: the loss is nan; first output that is not finite: block 0 fc (matmul)" in error
    assert checkpoint.load(tmp_path / "a" / "last.safetensors")[1]["step"] == 4


def test_a_gradient_that_is_not_finite_ends_the_run_in_one_line(small, tmp_path, monkeypatch, capsys):
    loss_and_grads = GPT2.loss_and_grads
    models = []

    def spoilt(model, *args):
        models.append((model, model.flat_params.copy()))
        loss = loss_and_grads(model, *args)
        if len(models) == 11:  # the first half of step 6
            model.flat_grads[7] = np.inf
        return loss

    monkeypatch.setattr(GPT2, "loss_and_grads", spoilt)
    assert program.main([*small, "--out", str(tmp_path / "a")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: step 6: the gradient's norm is inf, the loss ") and error.count("\n") == 1
    assert len(models) == 12  # and no step after that one
    model, before = models[-1]
    assert np.array_equal(model.flat_params, before)
    assert checkpoint.load(tmp_path / "a" / "last.safetensors")[1]["step"] == 4


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("backward", ["manual", "auto", "whole"])
def test_the_flag_detect_anomaly_names_the_line(small, tmp_path, monkeypatch, capsys, backward):
    train_step = Run.train_step

    def spoilt(run):
        if run.step == 5:
            run.model.params["qkvb"][0] = 1e25  # scores of 1e50
        return train_step(run)

    monkeypatch.setattr(Run, "train_step", spoilt)
    how = ["--backward", backward, "--detect-anomaly"]
    assert program.main([*small, *how, "--out", str(tmp_path / "a")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: step 6: gpt2/layers/attention.py:") and error.count("\n") == 1, error


@pytest.mark.slow
def test_threads_are_set_before_numpy_starts(small):
    """In a new process: the number of threads is set before NumPy is imported."""
    script = """
import sys, os
from gpt2.train import program
limit = program.limit_threads
def checked(threads):
    assert "numpy" not in sys.modules
    limit(threads)
    print("limit", os.environ["OPENBLAS_NUM_THREADS"])
program.limit_threads = checked
sys.exit(program.main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", script, *small, "--threads", "3", "--data", "none.txt"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "limit 3\n" and "none.txt" in done.stderr, done.stderr
    done = subprocess.run([*command[:3], "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "optimisation:" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_a_terminal_gets_one_live_line(small, tmp_path):
    termios = pytest.importorskip("termios")
    mine, its = os.openpty()
    termios.tcsetwinsize(its, (40, 100))
    command = [sys.executable, str(ROOT / "train.py"), *small, "--out", str(tmp_path / "a"), "--steps", "300"]
    process = subprocess.Popen(command, stdout=its, stderr=its, stdin=subprocess.DEVNULL, cwd=tmp_path)
    os.close(its)
    shown = b""
    while True:
        try:
            piece = os.read(mine, 4096)
        except OSError:  # Linux says so when the last writer has gone
            piece = b""
        if not piece:
            break
        shown += piece
    os.close(mine)
    assert process.wait() == 0, shown
    assert b"\r" in shown and b"tok/s" in shown and b"left" in shown
    assert b"step   1/300" not in shown  # the plain lines are for files and pipes
