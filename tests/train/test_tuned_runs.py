"""Runs that train less than everything: what they keep, and that nothing saved is lost."""

import re
import shutil

import numpy as np
import pytest

import gpt2
from gpt2.commands import convert, evaluate, sample
from gpt2.data import tokenizer
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.train import program
from gpt2.weights import checkpoint, pretrained

pytestmark = pytest.mark.usefixtures("quick_peak")

CONFIG = GPT2Config(vocab_size=256, block_size=16, n_layer=2, n_head=2, n_embd=16)
FLAGS = (
    "--batch-size 4 --block-size 16 --steps 6 --warmup 1 --lr 1e-2 --eval-every 3 --eval-batches 2".split()
)
FLAGS += "--sample-tokens 4 --save-every 3 --backward whole --parallel none".split()
KINDS = {
    "lora": ["--train", "lora:2", "--lora-targets", "c_attn,mlp", "--lora-alpha", "4"],
    "last": ["--train", "last:1"],
    "biases": ["--train", "biases"],
    "frozen": ["--freeze", "wte,wpe"],
}


@pytest.fixture
def start(tmp_path):
    """A checkpoint that is no run's."""
    gpt2.save(GPT2(CONFIG, seed=2), tmp_path / "start" / "base.safetensors", tokenizer.byte())
    return tmp_path / "start" / "base.safetensors"


def train(*flags):
    return program.main([str(flag) for flag in flags])


def begin(prose, start, out, *more):
    init = ["--init", start] if start else "--tokenizer byte --n-layer 2 --n-head 2 --n-embd 16".split()
    return train("--data", prose[0], *init, "--out", out, *FLAGS, *more)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_to_the_bit_and_keeps_what_it_trained(prose, start, tmp_path, kind):
    one, other = tmp_path / "one", tmp_path / "other"
    assert begin(prose, start, one, *KINDS[kind]) == 0
    assert begin(prose, start, other, *KINDS[kind], "--steps", 3) == 0
    assert train("--resume", other, "--steps", 6) == 0
    (a, _), (b, state) = (checkpoint.load(run / "last.safetensors") for run in (one, other))
    # the course of the learning rate depends on the number of steps: both had six in the end, not on the way
    assert a.keys() == b.keys() and state["base"]["path"] == str(start)
    model = gpt2.load(one)
    assert {name.removeprefix("params.") for name in a if name.startswith("params.")} == set(model.grads)
    base = gpt2.load(start)
    for name, first in model.description.trained.items():
        assert name not in base.params or not np.array_equal(
            model.params[name][first:], base.params[name][first:]
        )
    for name, tensor in model.frozen.items():
        parts = tensor if isinstance(tensor, np.ndarray) else np.stack(tensor)
        assert np.array_equal(parts, base.params[name][: len(parts)])


def test_the_same_bits_whether_it_was_interrupted_or_not(prose, start, tmp_path):
    """lr constant, so that the number of steps says nothing else."""
    flags = [*KINDS["lora"], "--min-lr", "1e-2", "--warmup", 0]
    assert begin(prose, start, tmp_path / "one", *flags) == 0
    assert begin(prose, start, tmp_path / "two", *flags, "--steps", 3) == 0
    shutil.move(start.parent, tmp_path / "moved")
    assert train("--resume", tmp_path / "two", "--steps", 6) == 2  # its base is gone
    assert train("--resume", tmp_path / "two", "--steps", 6, "--init", tmp_path / "moved" / start.name) == 0
    (a, _), (b, _) = (checkpoint.load(tmp_path / run / "last.safetensors") for run in ("one", "two"))
    assert all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.slow
def test_shares_and_processes_train_the_same_adapters(prose, start, tmp_path):
    for kind in ("shares", "processes"):
        more = ["--parallel", kind, "--workers", 2]
        assert begin(prose, start, tmp_path / kind, *KINDS["lora"], *more) == 0
    (a, _), (b, _) = (checkpoint.load(tmp_path / k / "last.safetensors") for k in ("shares", "processes"))
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_what_is_fastest_is_found_for_adapters_too(prose, start, tmp_path, capsys):
    assert begin(prose, start, tmp_path / "run", *KINDS["lora"], "--backward", "fastest") == 0
    assert "of which" in capsys.readouterr().out


def test_sample_evaluate_and_convert_know_it_again(prose, start, tmp_path, capsys):
    run = tmp_path / "run"
    assert begin(prose, start, run, *KINDS["lora"]) == 0
    capsys.readouterr()
    assert sample.main(["--run", str(run), "--max-tokens", "3", "--temperature", "0"]) == 0
    assert evaluate.main(["--run", str(run), "--data", str(prose[0])]) == 0
    mine, tokens = gpt2.load(run), np.arange(12)[None]
    assert convert.main([str(run), str(tmp_path / "whole.bin"), "--merge"]) == 0
    merged = gpt2.load(tmp_path / "whole.bin")
    np.testing.assert_allclose(merged.forward(tokens), mine.forward(tokens), rtol=1e-4, atol=1e-5)
    assert convert.main([str(run), str(tmp_path / "no.bin")]) == 2 and not (tmp_path / "no.bin").exists()
    assert convert.main([str(run), str(tmp_path / "adapter")]) == 0
    assert np.array_equal(gpt2.load(tmp_path / "adapter").flat_params, mine.flat_params)
    # the adapter trained further, and refused where another one is asked for
    again = [*KINDS["lora"], "--tokenizer", "byte"]
    assert begin(prose, tmp_path / "adapter", tmp_path / "more", *again) == 0
    capsys.readouterr()
    assert (
        begin(prose, tmp_path / "adapter", tmp_path / "less", "--train", "lora:3", "--tokenizer", "byte") == 2
    )
    message = capsys.readouterr().err
    assert (
        "has adapters, lora:2 (alpha 4) on attn.c_attn, mlp.c_fc, mlp.c_proj; continue with the same"
        in message
    )
    assert not (tmp_path / "less").exists()


def test_weights_that_a_run_may_rewrite_are_kept_whole(prose, start, tmp_path):
    """Another run goes on after adapters were trained on it: they still stand on what it was."""
    begin(prose, start, tmp_path / "first", "--steps", 3)
    assert begin(prose, tmp_path / "first", tmp_path / "second", *KINDS["lora"]) == 0
    before = gpt2.load(tmp_path / "second").forward(np.arange(9)[None])
    assert "base" not in checkpoint.load_state(tmp_path / "second" / "last.safetensors")
    assert train("--resume", tmp_path / "first", "--steps", 6) == 0
    assert np.array_equal(gpt2.load(tmp_path / "second").forward(np.arange(9)[None]), before)
    assert train("--resume", tmp_path / "second", "--steps", 8) == 0


def test_a_copy_of_a_runs_weights_is_kept_whole(prose, start, tmp_path):
    """A run in that folder replaces a file of this name."""
    begin(prose, start, tmp_path / "first", "--steps", 3)
    (tmp_path / "copy").mkdir()
    copied = shutil.copy(tmp_path / "first" / "best.safetensors", tmp_path / "copy")
    shutil.copy(tmp_path / "first" / "tokenizer.json", tmp_path / "copy")
    assert begin(prose, copied, tmp_path / "copy", *KINDS["lora"]) == 2
    assert begin(prose, copied, tmp_path / "copy", *KINDS["lora"], "--overwrite") == 0
    gpt2.load(tmp_path / "copy").forward(np.arange(9)[None])


def test_a_run_from_nothing_keeps_everything(prose, tmp_path):
    assert begin(prose, None, tmp_path / "run", *KINDS["last"]) == 0
    arrays, state = checkpoint.load(tmp_path / "run" / "last.safetensors")
    assert arrays["params.wte"].shape == (256, 16) and "base" not in state
    assert arrays["adamw.m.qkvw"].shape == (1, 48, 16) and "adamw.m.wte" not in arrays
    assert train("--resume", tmp_path / "run", "--steps", 8) == 0
    # a run that starts from it need not know which parts were trained
    gpt2.save(gpt2.load(tmp_path / "run"), tmp_path / "x.safetensors")
    assert gpt2.load(tmp_path / "x.safetensors").description.trained.everything


def test_a_base_that_has_changed_is_refused(prose, start, tmp_path):
    run = tmp_path / "run"
    assert begin(prose, start, run, *KINDS["lora"]) == 0
    gpt2.save(GPT2(CONFIG, seed=3), start)
    with pytest.raises(UserError, match=r"holds only trained weights, .* has changed; restore"):
        gpt2.load(run)
    start.unlink()
    with pytest.raises(UserError, match=r"which is not available \(.*\); restore it at .*base\.safetensors"):
        pretrained.load(str(run))


WRONG = {
    "a rank of nothing": (["--train", "lora:0"], "--train lora:0: expected a rank from 1, lora:8, got 0"),
    "no such kind": (["--train", "lorra:8"], "--train lorra:8: expected all, .*; did you mean lora"),
    "more blocks than there are": (["--train", "last:3"], "--train last:3: the model has 2 blocks"),
    "no such tensor": (
        ["--freeze", "wte,qkw"],
        "--freeze wte,qkw: there is no tensor 'qkw'; did you mean qkvw",
    ),
    "no such matrix": (
        ["--train", "lora:2", "--lora-targets", "c_atn"],
        "--lora-targets c_atn: 'c_atn' is no",
    ),
    "nothing left": (["--train", "last:1", "--freeze", "all"], "there is no tensor 'all'"),
    "no effect": (["--lora-alpha", "4"], "--lora-alpha has no effect without --train lora:RANK"),
    "by hand": (
        ["--train", "lora:2", "--backward", "manual"],
        "--backward manual: lora is lora_forward, which",
    ),
    "lines of llm.c": (["--train", "lora:2", "--lines", "llm.c"], "--lines llm.c: only for GPT-2"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_line_and_nothing_is_written(prose, start, tmp_path, capsys, case):
    flags, message = WRONG[case]
    assert begin(prose, start, tmp_path / "run", *flags) == 2
    err = capsys.readouterr().err
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    assert re.search(message, line), line
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_keeps_what_it_trains(prose, start, tmp_path, capsys):
    assert begin(prose, start, tmp_path / "run", *KINDS["lora"]) == 0
    capsys.readouterr()
    assert train("--resume", tmp_path / "run", "--train", "last:1", "--steps", 9) == 2
    assert "--train last:1: the run in" in capsys.readouterr().err


def test_a_dry_run_counts_what_is_trained(prose, start, tmp_path, capsys):
    assert begin(prose, start, tmp_path / "run", *KINDS["last"], "--dry-run") == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "memory: " in line)
    assert rows["memory: gradients"] != rows["memory: parameters"] and not (tmp_path / "run").exists()
