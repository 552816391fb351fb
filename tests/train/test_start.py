"""Runs that start from weights, and estimates of a run: --init, --preset finetune, --dry-run."""

import re

import numpy as np
import pytest

from gpt2.commands import sample
from gpt2.data import stored, tokenizer
from gpt2.data.tokens import write_tokens
from gpt2.model import GPT2, GPT2Config
from gpt2.train import cost, program, recipe
from gpt2.train.flags import read_toml
from gpt2.train.resolve import resolve
from gpt2.train.settings import Settings, resumed_settings
from gpt2.weights import checkpoint, huggingface, llmc, pretrained

pytestmark = pytest.mark.usefixtures("quick_peak")
CONFIG = GPT2Config(vocab_size=256, block_size=32, n_layer=2, n_head=3, n_embd=24)
OPTIONS = (
    "--block-size 16 --batch-size 4 --steps 4 --warmup 0 --eval-every 2 --eval-batches 2 "
    "--sample-tokens 4 --save-every 0"
).split()


@pytest.fixture(scope="module")
def model():
    model = GPT2(CONFIG, seed=3)
    noise = np.random.default_rng(4).standard_normal(model.flat_params.size)
    model.flat_params += (0.05 * noise).astype(np.float32)
    return model


def write_as(kind, folder, model):
    """Write the model in one of the formats, with the byte tokenizer. Returns the path for --init."""
    folder.mkdir(exist_ok=True)
    if kind == "llm.c":
        llmc.write(folder / "m.bin", model.params, model.config)
        llmc.write_tokenizer(folder / "m_tokenizer.bin", tokenizer.byte())
        return str(folder / "m.bin")
    if kind == "huggingface":
        huggingface.write(folder, model.params, model.config, tokenizer.byte())
        return str(folder)
    arrays, state = checkpoint.model_arrays(model), checkpoint.model_state(model)
    tokenizer.byte().save(folder / "tokenizer.json")
    if kind == "run":
        (folder / "settings.toml").write_text("")
        checkpoint.save(folder / "last.safetensors", arrays, state)
        return str(folder)
    checkpoint.save(folder / "m.safetensors", arrays, state)
    return str(folder / "m.safetensors")


@pytest.fixture
def start(prose, tmp_path, model):
    """The command line of a run on prose that starts from a checkpoint of llm.c."""
    return ["--data", str(prose[0]), "--init", write_as("llm.c", tmp_path / "start", model), *OPTIONS]


# ---- --init ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llm.c", "huggingface", "run", "checkpoint"])
def test_run_starts_from_weights(kind, prose, tmp_path, model):
    """Its first validation loss is theirs, and its sizes, window and tokenizer."""
    init = write_as(kind, tmp_path / "start", model)
    out = tmp_path / "run"
    assert program.main(["--data", str(prose[0]), "--init", init, *OPTIONS, "--out", str(out)]) == 0
    run = resolve(resumed_settings(out, {}), folder=out)
    assert run.model.config == CONFIG and run.tokenizer.name == "byte"
    run.model.flat_params[:] = model.flat_params
    first = (out / "metrics.jsonl").read_text().splitlines()[0]
    assert re.fullmatch(r'\{"step": 0, "val_loss": (.*)\}', first)[1] == repr(run.validation_loss())
    stored = read_toml(out / "settings.toml", Settings)
    assert (stored["n_layer"], stored["n_embd"], stored["context"], stored["block_size"]) == (2, 24, 32, 16)


@pytest.mark.parametrize(
    "flags, rates",
    [
        ({}, (5e-5, 5e-6)),
        ({"freeze": "wte"}, (5e-5, 5e-6)),
        ({"train": "lora:2"}, (1e-3, 1e-4)),
        ({"train": "biases"}, (2e-3, 2e-4)),
        ({"train": "last:1"}, (3e-4, 3e-5)),
        ({"train": "lora:2", "lr": 7e-4}, (7e-4, 5e-6)),
        ({"train": "lora:2", "min_lr": 0.0}, (1e-3, 0.0)),
        ({"train": "lora:2", "preset": "gpt2"}, (6e-4, 6e-5)),
    ],
)
def test_what_is_trained_decides_the_rate_of_the_finetune_preset(flags, rates):
    settings = recipe.new_settings({"preset": "finetune", "init": "gpt2", **flags})
    assert (settings.lr, settings.min_lr) == pytest.approx(rates)


def test_weights_imply_the_finetune_preset_in_their_own_window(start):
    init = {"init": start[start.index("--init") + 1]}
    settings = recipe.new_settings(init)
    assert (settings.preset, settings.lr, settings.block_size) == ("finetune", 5e-5, 32)
    settings = recipe.new_settings({**init, "preset": "shakespeare-char-cpu", "block_size": 16})
    assert (settings.lr, settings.block_size) == (2e-3, 16)


def test_weights_that_no_step_improves_are_kept_as_the_best(start, model, tmp_path, capsys):
    out = tmp_path / "run"
    assert program.main([*start, "--lr", "3", "--clip", "0", "--out", str(out)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("the best so far") == 1 and "no step was better than" in printed
    best, _ = checkpoint.load(out / "best.safetensors")
    begun = model.params
    for name, array in begun.items():
        assert np.array_equal(best[f"params.{name}"], array), name


def test_resumed_run_needs_no_initial_weights(start, tmp_path):
    """It ends with the bits of an uninterrupted run."""
    start = [*start, "--lr", "0.002", "--min-lr", "0.002"]  # whatever --steps is
    assert program.main([*start, "--out", str(tmp_path / "whole")]) == 0
    assert program.main([*start, "--steps", "2", "--out", str(tmp_path / "parts")]) == 0
    (tmp_path / "start" / "m.bin").unlink()
    assert program.main(["--resume", str(tmp_path / "parts"), "--steps", "4"]) == 0
    assert program.main([*start, "--out", str(tmp_path / "new")]) == 2
    whole, parts = (checkpoint.load(tmp_path / name / "last.safetensors") for name in ("whole", "parts"))
    assert whole[1]["step"] == parts[1]["step"] == 4
    assert all(np.array_equal(whole[0][name], parts[0][name]) for name in whole[0])


def test_char_model_keeps_its_alphabet(prose, tmp_path):
    """Fine-tuned on a text with fewer characters, it keeps the ids of its own."""
    small = ["--tokenizer", "char", "--n-layer", "1", "--n-head", "2", "--n-embd", "16", *OPTIONS]
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert program.main(["--data", str(prose[0]), *small, "--out", first]) == 0
    other = tmp_path / "other.txt"
    other.write_text("the queen went to sea\n" * 60)
    assert program.main(["--data", str(other), "--init", first, *OPTIONS, "--out", second]) == 0
    one, two = (stored.load(f"{folder}/tokenizer.json") for folder in (first, second))
    assert one.ranks == two.ranks and len(set(other.read_text())) < one.vocab_size
    assert program.main(["--resume", second, "--steps", "5"]) == 0


def test_sample_of_a_run_in_double_precision_from_single_precision_weights(start, tmp_path, capsys):
    run = str(tmp_path / "run")
    assert program.main([*start, "--dtype", "float64", "--out", run]) == 0
    assert pretrained.find(run).config.dtype == "float64"
    capsys.readouterr()
    assert sample.main(["--run", run, "--prompt", "the ", "--max-tokens", "20"]) == 0
    assert capsys.readouterr().out.startswith("the ")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--n-layer", "3"], "--n-layer 3: the weights {init} have 2; leave it out"),
        (["--context", "64"], "--context 64: the weights {init} have 32"),
        (["--block-size", "64"], "--block-size 64: the model reads at most 32 tokens"),
        (["--tokenizer", "char"], "--tokenizer char: the weights {init} were trained with byte"),
        (["--init", "nowhere"], "nowhere: no such file or folder"),
        (
            ["--init", "gpt2", "--tokenizer", "byte"],
            "gpt2: (config.json is not in huggingface_hub's cache|needs)",
        ),
    ],
)
def test_settings_that_do_not_fit_the_weights_are_refused(
    start, monkeypatch, tmp_path, refusal, arguments, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPT2_DATA_DIR", raising=False)
    init = start[start.index("--init") + 1]
    assert re.search(message.format(init=re.escape(init)), refusal(program.main, *start, *arguments))
    assert not (tmp_path / "runs").exists()


def test_weights_without_a_tokenizer_take_one_that_fits(start, tmp_path, refusal):
    (tmp_path / "start" / "m_tokenizer.bin").unlink()
    assert "no tokenizer belongs to these weights" in refusal(program.main, *start)
    error = refusal(program.main, *start, "--tokenizer", "char")
    assert "has a vocabulary of 256 tokens, char one of" in error
    assert program.main([*start, "--tokenizer", "byte", "--out", str(tmp_path / "run")]) == 0


def test_tokens_of_a_larger_vocabulary_are_refused(start, tmp_path, refusal):
    for part in ("train", "val"):
        write_tokens(tmp_path / f"x_{part}.bin", np.arange(300))
    error = refusal(program.main, *start, "--data", tmp_path / "x_train.bin")
    assert "holds token 299, the tokenizer byte has 0 to 255" in error


# ---- --dry-run -------------------------------------------------------------------------------------------


def test_dry_run_prints_an_estimate_and_writes_nothing(prose, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["--tokenizer", "byte", "--n-layer", "3", "--n-head", "2", "--n-embd", "16", *OPTIONS]
    assert program.main(["--data", str(prose[0]), *small, "--dry-run"]) == 0
    text = capsys.readouterr().out
    count = GPT2Config(256, 16, 3, 2, 16).num_parameters
    assert f"{count:,}" in text and "n_layer=3" in text
    for kind in ("parameters", "moments", "activations", "in all"):
        assert f"memory: {kind}" in text or f"memory {kind}" in text
    assert "GFLOP a step" in text and "for 4 steps" in text
    assert not (tmp_path / "runs").exists()


def test_dry_run_of_the_released_model_needs_no_weights(monkeypatch, tmp_path, capsys, refusal):
    calls = []

    def estimate(config, *batch, **options):
        calls.append((config, *batch))
        return cost.Cost(config.num_parameters, {"parameters": 1}, 10**9, 1.0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPT2_DATA_DIR", raising=False)
    monkeypatch.setattr(cost, "estimate", estimate)
    assert program.main(["--preset", "finetune", "--data", "nowhere.txt", "--dry-run"]) == 0
    assert calls == [(GPT2Config.preset("gpt2"), 4, 128, 2)]
    assert "124,439,808" in capsys.readouterr().out
    error = refusal(program.main, "--preset", "finetune", "--block-size", 2048, "--dry-run")
    assert "the model reads at most 1024 tokens (gpt2)" in error


def test_run_without_a_network_takes_the_standard_library_and_more_steps(monkeypatch, tmp_path, capsys):
    for name in ("GPT2_DATA_DIR", "TIKTOKEN_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPT2_CACHE_DIR", str(tmp_path))
    for given, steps, text in (
        ({}, 1500, "1,500 steps, one or two minutes"),
        ({"steps": 7, "lr": 1e-3}, 7, "standard library instead of tinyshakespeare"),
        ({"preset": "shakespeare-char-cpu"}, 600, "standard library"),
    ):
        settings, (note,) = recipe.with_corpus(recipe.new_settings(given), given)
        assert (settings.data, settings.steps) == ("stdlib", steps) and text in note and "\n" not in note
        assert ("1,500" in note) == (not given)
    with monkeypatch.context() as patch:
        patch.setattr("gpt2.train.console.dry_run", lambda s: print("the table") or 0)
        assert program.main(["--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("note: tinyshakespeare.txt is not here")
    settings = recipe.new_settings({"data": "my.txt"})
    assert recipe.with_corpus(settings, {}) == (settings, [])
    monkeypatch.setattr(recipe.corpora.named, "tinyshakespeare", lambda: "text")
    settings, notes = recipe.with_corpus(recipe.new_settings({}), {})
    assert (settings.data, settings.steps, notes) == ("tinyshakespeare", 200, [])
