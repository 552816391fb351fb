"""What programs say: flags as their user typed them, folders as a shell takes them."""

import os
import shlex

import pytest

from gpt2 import parallel, sampling
from gpt2.commands import evaluate, sample
from gpt2.data import corpora, tinyshakespeare, tokenizer
from gpt2.errors import OptionError, UserError, reason
from gpt2.model import GPT2, GPT2Config
from gpt2.storage import runs
from gpt2.train import program
from gpt2.train.flops import gflop
from tests.support import small_run

pytestmark = pytest.mark.usefixtures("quick_peak")


@pytest.fixture
def model():
    return GPT2(GPT2Config(vocab_size=256, block_size=12, n_layer=1, n_head=2, n_embd=8), seed=1)


# ---- Flags -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--top-p", "2"], "--top-p is 2.0, expected more than 0 and at most 1"),
        (["--top-k", "-1"], "--top-k is -1, expected 1 or more, or 0 for all tokens"),
        (["--max-tokens", "-1"], "--max-tokens is -1, expected 0 or more"),
        (["--temperature", "-1"], "--temperature is -1.0, expected 0 or more"),
        (["--samples", "0"], "--samples is 0, expected 1 or more"),
    ],
)
def test_sample_speaks_of_flags(run, capsys, flags, message):
    assert sample.main(["--run", str(run), *flags]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_a_library_speaks_of_arguments(model):
    with pytest.raises(OptionError, match="^top_p is 2, expected"):
        sampling.generate(model, [1], top_p=2)


def test_evaluate_speaks_of_flags(run, prose, capsys):
    assert evaluate.main(["--run", str(run), "--data", str(prose[0]), "--stride", "99"]) == 2
    assert capsys.readouterr().err.startswith("error: --stride is 99, expected 1 to ")


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--n-head", "3"], "--n-embd 16 is not divisible by --n-head 3"),
        (["--block-size", "99999"], "a sequence of --block-size 99999 needs 100000"),
        (["--tokenizer", "bpe:9"], "--tokenizer 'bpe:9': expected bpe:N with N from 256"),
        (["--workers", "2"], "--workers has no effect without --parallel processes"),
        (
            ["--worker-timeout", "2"],
            "--worker-timeout has no effect without --parallel processes or --parallel",
        ),
        (["--shard"], "--shard has no effect without --parallel mpi"),
        (["--shard", "--parallel", "processes"], "--shard has no effect without --parallel mpi"),
        (["--overwrite", "--out", ""], "--overwrite has no effect without --out"),
        (["--overwrite", "--resume", "x"], ""),
    ],
)
def test_train_speaks_of_flags(prose, tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    assert program.main([*small_run.flags(prose[0], tmp_path / "a"), *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "a").exists()


def test_flags_without_effect_on_a_resumed_run(prose, tmp_path, capsys):
    assert program.main(small_run.flags(prose[0], tmp_path / "a")) == 0
    for flags in (["--workers", "2"], ["--overwrite"]):
        assert program.main(["--resume", str(tmp_path / "a"), "--steps", "8", *flags]) == 2
        assert f"error: {flags[0]} has no effect" in capsys.readouterr().err
    more = ["--parallel", "processes", "--workers", "1"]
    assert program.main(["--resume", str(tmp_path / "a"), "--steps", "8", *more]) == 0


def test_settings_of_a_file_may_be_of_another_kind(prose, tmp_path):
    """Those of a run with processes, for one without."""
    flags = small_run.flags(prose[0], tmp_path / "a", "--parallel", "processes", "--workers", "1")
    assert program.main(flags) == 0
    config = ["--config", str(tmp_path / "a" / runs.SETTINGS)]
    assert program.main([*config, "--parallel", "none", "--out", str(tmp_path / "b")]) == 0


# ---- Steps -------------------------------------------------------------------------------------------------


def test_fewer_steps_than_were_done(prose, tmp_path, capsys):
    folder = tmp_path / "a"
    assert program.main(small_run.flags(prose[0], folder)) == 0
    assert program.main(["--resume", str(folder), "--steps", "4"]) == 2
    error = capsys.readouterr().err
    assert error == f"error: --steps 4: {folder} has done 6 steps already; continue with --steps 12\n"


# ---- Folders -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_what_to_try_next_can_be_pasted_into_a_shell(prose, tmp_path, capsys):
    folder = tmp_path / "my first run; isn't it"
    flags = small_run.flags(prose[0], folder)
    assert program.main(flags) == 0
    hints = [line for line in capsys.readouterr().out.splitlines() if str(tmp_path) in line and " --" in line]
    assert len(hints) == 2
    for hint in hints:
        words = shlex.split(hint)
        assert words[words.index("--run" if "--run" in words else "--resume") + 1] == str(folder)
    assert program.main(flags) == 2  # it holds a run already
    assert f"--resume {shlex.quote(str(folder))}, " in capsys.readouterr().err


# ---- Numbers and reasons -----------------------------------------------------------------------------------


def test_small_numbers_are_no_zeros(prose, tmp_path, capsys):
    assert program.main(small_run.flags(prose[0], tmp_path / "a")) == 0
    out = capsys.readouterr().out
    assert "0.00 G" not in out and " GFLOP a step" in out
    assert [gflop(n) for n in (190.526e9, 0.1e9, 4.9e6, 12)] == [
        "190.53 GFLOP",
        "0.10 GFLOP",
        "0.0049 GFLOP",
        "1.2e-08 GFLOP",
    ]


def test_no_empty_parentheses(prose, tmp_path, monkeypatch, capsys):
    def fails(*_, **__):
        raise MemoryError

    monkeypatch.setattr("gpt2.train.resolve.make_model", fails)
    assert program.main(small_run.flags(prose[0], tmp_path / "a")) == 2
    assert "not enough memory (MemoryError); take" in capsys.readouterr().err
    assert [reason(TimeoutError()), reason(OSError(28, "full")), reason(ValueError("a\nb"))] == [
        "TimeoutError",
        "full",
        "a",
    ]


# ---- Corpora -----------------------------------------------------------------------------------------------


def test_evaluate_knows_the_corpora_by_name(monkeypatch):
    monkeypatch.setattr(tinyshakespeare, "read", lambda: "O Romeo")
    words = tokenizer.byte()
    assert words.decode(evaluate.read_data("tinyshakespeare", words)) == "O Romeo"
    assert set(corpora.NAMED) == {"tinyshakespeare", "stdlib"}


# ---- mpiexec -----------------------------------------------------------------------------------------------


def test_mpiexec_without_parallel_mpi_is_noted(prose, tmp_path, monkeypatch, capsys):
    """Each process has a separate run; one that cannot have its folder says so, whatever its rank."""
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setenv("PMI_RANK", "1")
    flags = small_run.flags(prose[0], tmp_path / "a")
    assert program.main(flags) == 0
    assert "note: this is one of 3 processes of mpiexec" in capsys.readouterr().out
    assert program.main(flags) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_an_unknown_kind_is_named():
    with pytest.raises(UserError, match="--parallel threads: expected one of"):
        parallel.join("threads")
