"""Messages of training: flags as they are typed, folders quoted for the shell, numbers, notes."""

import pickle
import shlex

import pytest

from gpt2 import parallel, sampling
from gpt2.errors import OptionError, UserError, reason
from gpt2.model import GPT2, GPT2Config
from gpt2.storage import runs
from gpt2.train import program
from gpt2.train.flops import gflop
from tests.support import small_run
from tests.support.small_run import posix

pytestmark = pytest.mark.usefixtures("quick_peak")


@pytest.fixture
def train(prose, tmp_path):
    """train(*flags): the exit status of a run into tmp_path / "a"."""
    return lambda *flags: program.main(small_run.flags(prose[0], tmp_path / "a", *flags))


# ---- Flags -------------------------------------------------------------------------------------------------


def test_library_names_arguments_and_not_flags():
    model = GPT2(GPT2Config(vocab_size=256, block_size=12, n_layer=1, n_head=2, n_embd=8))
    with pytest.raises(OptionError, match="^top_p is 2, expected"):
        sampling.generate(model, [1], top_p=2)


@pytest.mark.parametrize(
    "text, argument",
    [
        ("--min-lr: expected 0 or more, got -1", "min_lr: expected 0 or more, got -1"),
        ("the weights have 4; give --no-bias", "the weights have 4; give bias=False"),
        ("stopped; resume with: python -m gpt2 train --resume runs/a", None),
        ("no gelu; write it with `python train.py --layers x.py`; or --lr", "no gelu; write it with `python "
            "train.py --layers x.py`; or lr"),
        ("start the container with docker run --shm-size=1g", None),
        ("runs/a--b: is no run", None),
    ],
)  # fmt: skip
def test_errors_name_arguments_in_python_and_flags_in_commands(text, argument):
    error = pickle.loads(pickle.dumps(UserError(text)))
    assert (str(error), error.as_flag) == (argument or text, text)


def test_invalid_flags_of_a_resumed_run(train, tmp_path, refusal):
    assert train() == 0
    folder = tmp_path / "a"
    resume = ["--resume", str(folder), "--steps", "8"]
    for flags in (["--workers", "2"], ["--overwrite"]):
        assert refusal(program.main, *resume, *flags).startswith(f"error: {flags[0]} has no effect")
    error = refusal(program.main, *resume, "--steps", "4")
    assert error == f"error: --steps 4: {folder} has done 6 steps already; continue with --steps 12\n"
    assert program.main([*resume, "--parallel", "processes", "--workers", "1"]) == 0


def test_flags_of_another_kind_of_workers_are_allowed_in_a_file(train, tmp_path):
    assert train("--parallel", "processes", "--workers", "1") == 0
    config = ["--config", str(tmp_path / "a" / runs.SETTINGS)]
    assert program.main([*config, "--parallel", "none", "--out", str(tmp_path / "b")]) == 0


# ---- Folders -----------------------------------------------------------------------------------------------


@posix
def test_commands_of_a_run_quote_its_folder_for_the_shell(prose, tmp_path, capsys, refusal):
    folder = tmp_path / "my first run; isn't it"
    flags = small_run.flags(prose[0], folder)
    assert program.main(flags) == 0
    hints = [line for line in capsys.readouterr().out.splitlines() if str(tmp_path) in line and " --" in line]
    assert len(hints) == 2
    for hint in hints:
        words = shlex.split(hint)
        assert words[words.index("--run" if "--run" in words else "--resume") + 1] == str(folder)
    assert f"--resume {shlex.quote(str(folder))}, " in refusal(program.main, *flags)  # it holds a run already


# ---- Numbers and reasons -----------------------------------------------------------------------------------


def test_small_numbers_of_flops_are_not_rounded_to_zero(train, capsys):
    assert train() == 0
    out = capsys.readouterr().out
    assert "0.00 G" not in out and " GFLOP a step" in out
    printed = [gflop(n) for n in (190.526e9, 0.1e9, 4.9e6, 12)]
    assert printed == ["190.53 GFLOP", "0.10 GFLOP", "0.0049 GFLOP", "1.2e-08 GFLOP"]


def test_errors_without_a_text_are_named_by_their_type(train, monkeypatch, capsys):
    def make_model(*_, **__):
        raise MemoryError

    monkeypatch.setattr("gpt2.train.resolve.make_model", make_model)
    assert train() == 2
    assert "not enough memory (MemoryError); take" in capsys.readouterr().err
    errors = TimeoutError(), OSError(28, "full"), ValueError("a\nb")
    assert [reason(error) for error in errors] == ["TimeoutError", "full", "a"]


# ---- mpiexec -----------------------------------------------------------------------------------------------


def test_mpiexec_without_parallel_mpi_is_noted(train, monkeypatch, capsys):
    """Each process has a separate run, and each rank reports that its folder is taken."""
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setenv("PMI_RANK", "1")
    assert train() == 0
    assert "note: this is one of 3 processes of mpiexec" in capsys.readouterr().out
    assert train() == 2
    assert "holds a run already" in capsys.readouterr().err


def test_unknown_kind_of_workers_is_named():
    with pytest.raises(UserError, match="parallel threads: expected one of"):
        parallel.join("threads")
