"""Runs of models that differ from GPT-2 as it was released: trained, resumed, sampled, converted, refused."""

import json

import numpy as np
import pytest

import gpt2
from gpt2.commands import convert, evaluate, sample
from gpt2.commands.check import VARIANT
from tests.train.test_tuned_runs import assert_same, train

pytestmark = pytest.mark.usefixtures("quick_peak")

SETTINGS = (
    "--n-inner 20 --activation gelu --layer-norm-epsilon 1e-3 --no-scale-attn-weights "
    "--scale-attn-by-inverse-layer-idx --untied --no-bias"
).split()
FLAGS = (
    "--batch-size 4 --block-size 16 --steps 6 --warmup 1 --lr 1e-2 --min-lr 1e-2 --eval-every 3 "
    "--eval-batches 2 --sample-tokens 4 --save-every 3"
).split()
PLAIN = "--backward whole --parallel none".split()


@pytest.fixture
def begin(prose, tmp_path):
    """begin(name, *flags): trains a run of a small model with these settings; returns its folder."""

    def begin(name, *flags):
        sizes = "--tokenizer byte --n-layer 2 --n-head 2 --n-embd 16".split()
        assert train("--data", prose[0], *sizes, *SETTINGS, "--out", tmp_path / name, *FLAGS, *flags) == 0
        return tmp_path / name

    return begin


def test_run_is_resumed_sampled_and_converted(begin, prose, tmp_path, capsys):
    one, two = begin("one", *PLAIN), begin("two", *PLAIN, "--steps", 3)
    assert train("--resume", two, "--steps", 6) == 0
    assert_same(one, two)
    model, tokens = gpt2.load(one), np.arange(12)[None]
    assert model.config.settings == VARIANT
    assert sample.main(["--run", str(one), "--max-tokens", "3", "--temperature", "0"]) == 0
    assert evaluate.main(["--run", str(one), "--data", str(prose[0])]) == 0
    folder = tmp_path / "hf"
    assert convert.main([str(one), str(folder)]) == 0
    assert json.loads((folder / "config.json").read_text())["activation_function"] == "gelu"
    again = gpt2.load(folder)
    assert again.config == model.config and np.array_equal(again.forward(tokens), model.forward(tokens))
    assert convert.main([str(folder), str(tmp_path / "x.bin")]) == 2
    start = ["--data", prose[0], "--init", folder, *FLAGS, *PLAIN, "--out", tmp_path / "three"]
    assert train(*start) == 0 and gpt2.load(tmp_path / "three").config == model.config
    lora = ["--train", "lora:2", "--out", tmp_path / "four", "--backward", "auto"]
    assert train(*start, *lora, "--optimizer", "adamw") == 0
    capsys.readouterr()
    for flags, message in (
        ([*start, "--activation", "relu"], "--activation relu: the weights"),
        ([*start, "--bias"], "--bias: the weights"),
        (["--resume", one, "--n-inner", 24], "--n-inner 24: the run in"),
        ([*"--data stdlib --tokenizer byte --untied --lines llm.c".split()], "only for GPT-2 as it was"),
        (["--activation", "gelo"], "--activation: expected one of gelu_new, "),
    ):
        assert train(*flags) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


@pytest.mark.slow
def test_every_way_of_training_has_its_bits(begin):
    """As many processes as shares sum in the same order; manual and derived agree to rounding."""
    assert_same(*(begin(kind, "--parallel", kind, "--workers", 2) for kind in ("shares", "processes")))
    losses = [
        gpt2.load(begin(b, "--backward", b)).loss(*np.arange(24).reshape(2, 1, 12))
        for b in ("manual", "auto", "whole")
    ]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


def test_dry_run_estimates_it(capsys):
    sizes = "--tokenizer byte --data stdlib --n-layer 2 --n-head 2 --n-embd 16 --batch-size 2".split()
    assert train(*sizes, "--dry-run", *SETTINGS) == 0
    out = capsys.readouterr().out
    model = gpt2.GPT2(gpt2.GPT2Config(256, 64, 2, 2, 16, **VARIANT))
    assert f"{model.num_parameters:,}" in out and "a step" in out
