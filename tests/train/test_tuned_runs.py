"""Runs that train adapters, the last blocks or biases: what is saved, what stays frozen, what is refused."""

import json
import re
import shutil

import numpy as np
import pytest

import gpt2
from gpt2.commands import convert, evaluate, sample
from gpt2.data import tokenizer
from gpt2.errors import UserError
from gpt2.layers.lora import lengths
from gpt2.model import GPT2, GPT2Config
from gpt2.train import program
from gpt2.weights import checkpoint, huggingface, peft, pretrained

pytestmark = pytest.mark.usefixtures("quick_peak")

CONFIG = GPT2Config(vocab_size=256, block_size=16, n_layer=2, n_head=2, n_embd=16)
FLAGS = (
    "--batch-size 4 --block-size 16 --steps 6 --warmup 1 --lr 1e-2 --eval-every 3 --eval-batches 2 "
    "--sample-tokens 4 --save-every 3 --backward whole --parallel none"
).split()
LORA = "--train lora:2 --lora-targets c_attn,mlp --lora-alpha 4".split()
LAST = ["--train", "last:1"]
KINDS = {"lora": LORA, "last": LAST, "biases": ["--train", "biases"], "frozen": ["--freeze", "wte,wpe"]}


@pytest.fixture
def start(tmp_path):
    """A checkpoint that belongs to no run."""
    gpt2.save(GPT2(CONFIG, seed=2), tmp_path / "start" / "base.safetensors", tokenizer.byte())
    return tmp_path / "start" / "base.safetensors"


def train(*flags):
    return program.main([str(flag) for flag in flags])


@pytest.fixture
def begin(prose, start):
    """begin(out, *flags, init=start): trains a run from the checkpoint, or with init=None a new model."""

    def begin(out, *flags, init=start):
        new = "--tokenizer byte --n-layer 2 --n-head 2 --n-embd 16 --optimizer adamw".split()
        model = ["--init", init] if init else new
        return train("--data", prose[0], *model, "--out", out, *FLAGS, *flags)

    return begin


def assert_same(*folders):
    """Two runs have the same arrays in their last checkpoints."""
    one, other = (checkpoint.load(folder / "last.safetensors")[0] for folder in folders)
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_run_saves_and_trains_only_its_part_of_the_model(begin, start, tmp_path, kind):
    one, other = tmp_path / "one", tmp_path / "other"
    assert begin(one, *KINDS[kind]) == 0
    assert begin(other, *KINDS[kind], "--steps", 3) == 0
    assert train("--resume", other, "--steps", 6) == 0
    (a, _), (b, state) = (checkpoint.load(run / "last.safetensors") for run in (one, other))
    assert a.keys() == b.keys() and state["base"]["path"] == str(start)
    model = gpt2.load(one)
    assert {name.removeprefix("params.") for name in a if name.startswith("params.")} == set(model.grads)
    base = gpt2.load(start)
    trained = model.description.trained
    for name, blocks in trained.items():
        for l in (blocks or [...]) if name in base.params else ():
            assert not np.array_equal(model.params[name][l], base.params[name][l])
    for name, tensor in model.frozen.items():
        blocks = trained.frozen_blocks(name) or ...
        assert np.array_equal(np.asarray(tensor), base.params[name][blocks])


def test_resumed_adapters_have_the_bits_of_an_uninterrupted_run(begin, start, tmp_path):
    """With a constant learning rate, as its schedule depends on the number of steps."""
    one, two = tmp_path / "one", tmp_path / "two"
    flags = [*LORA, "--min-lr", "1e-2", "--warmup", 0]
    assert begin(one, *flags) == 0
    assert begin(two, *flags, "--steps", 3) == 0
    shutil.move(start.parent, tmp_path / "moved")
    assert train("--resume", two, "--steps", 6) == 2  # its base is gone
    assert train("--resume", two, "--steps", 6, "--init", tmp_path / "moved" / start.name) == 0
    assert_same(one, two)


@pytest.mark.slow
def test_shares_and_processes_train_the_same_adapters(begin, tmp_path):
    folders = tmp_path / "shares", tmp_path / "processes"
    for folder in folders:
        assert begin(folder, *LORA, "--parallel", folder.name, "--workers", 2) == 0
    assert_same(*folders)


def test_fastest_backward_of_adapters_is_found(begin, tmp_path, capsys):
    assert begin(tmp_path / "run", *LORA, "--backward", "fastest") == 0
    assert "of which" in capsys.readouterr().out


def test_sample_evaluate_and_convert_read_adapters(begin, prose, tmp_path, capsys):
    run = tmp_path / "run"
    assert begin(run, *LORA) == 0
    assert sample.main(["--run", str(run), "--max-tokens", "3", "--temperature", "0"]) == 0
    assert evaluate.main(["--run", str(run), "--data", str(prose[0])]) == 0
    mine, tokens = gpt2.load(run), np.arange(12)[None]
    assert convert.main([str(run), str(tmp_path / "whole.bin"), "--merge"]) == 0
    merged = gpt2.load(tmp_path / "whole.bin")
    np.testing.assert_allclose(merged.forward(tokens), mine.forward(tokens), rtol=1e-4, atol=1e-5)
    assert convert.main([str(run), str(tmp_path / "no.bin")]) == 2 and not (tmp_path / "no.bin").exists()
    assert convert.main([str(run), str(tmp_path / "adapter")]) == 0
    assert np.array_equal(gpt2.load(tmp_path / "adapter").flat_params, mine.flat_params)
    # training may continue with the same adapters, but not with others
    byte = ["--tokenizer", "byte"]
    assert begin(tmp_path / "more", *LORA, *byte, init=tmp_path / "adapter") == 0
    assert begin(tmp_path / "less", "--train", "lora:3", *byte, init=tmp_path / "adapter") == 2
    adapters = "lora:2 (alpha 4) on attn.c_attn, mlp.c_fc, mlp.c_proj"
    assert f"has adapters, {adapters}; go on with them (--train adapter)" in capsys.readouterr().err
    assert not (tmp_path / "less").exists()
    assert begin(tmp_path / "new", "--train", "adapter", *byte) == 2
    assert "--train adapter: --init names no adapter" in capsys.readouterr().err


def test_run_goes_on_with_an_adapter_of_peft(begin, tmp_path):
    """With DoRA in a block and biases beside it; what the run wrote has the adapter's base."""
    start = tmp_path / "hf"
    gpt2.save(GPT2(CONFIG, seed=2), start, tokenizer.byte())
    model = gpt2.lora(gpt2.load(start), rank=2)
    gpt2.save(model, tmp_path / "adapter")
    path, weights = tmp_path / "adapter" / peft.CONFIG, tmp_path / "adapter" / peft.WEIGHTS
    fields = {**json.loads(path.read_text()), "use_dora": True, "bias": "lora_only", "lora_alpha": 3}
    fields |= {"base_model_name_or_path": str(start), "target_modules": ["h.1.attn.c_attn"]}
    path.write_text(json.dumps(fields))
    front = "base_model.model.transformer.h.1.attn.c_attn."
    extra = {
        "lora_magnitude_vector": lengths(model.params["qkvw"][1]),
        "base_layer.bias": model.params["qkvb"][1],
    }
    tensors = {name: array for name, array in peft.contents(model) if name.startswith(front)}
    tensors |= {front + name: array for name, array in extra.items()}
    weights.write_bytes(b"".join(huggingface.tensor_parts(tensors)))
    run, byte = tmp_path / "run", ["--tokenizer", "byte"]
    assert begin(run, "--train", "adapter", *byte, "--steps", 2, init=tmp_path / "adapter") == 0
    assert train("--resume", run, "--steps", 4) == 0
    assert convert.main([str(run), str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / peft.CONFIG).read_text())["base_model_name_or_path"] == str(start)
    trained = gpt2.load(tmp_path / "out")
    assert np.array_equal(trained.flat_params, gpt2.load(run).flat_params)
    assert not np.array_equal(trained.params["qkvb"][1], model.params["qkvb"][1])
    assert np.array_equal(trained.params["qkvb"][0], model.params["qkvb"][0])


def test_base_that_a_run_may_rewrite_is_saved_with_the_adapters(begin, tmp_path):
    """They are unchanged when that run is resumed."""
    first, second = tmp_path / "first", tmp_path / "second"
    assert begin(first, "--steps", 3) == 0
    assert begin(second, *LORA, init=first) == 0
    before = gpt2.load(second).forward(np.arange(9)[None])
    assert "base" not in checkpoint.load_state(second / "last.safetensors")
    assert train("--resume", first, "--steps", 6) == 0
    assert np.array_equal(gpt2.load(second).forward(np.arange(9)[None]), before)
    assert train("--resume", second, "--steps", 8) == 0


def test_base_in_the_folder_of_the_run_is_saved_with_the_adapters(begin, tmp_path):
    """The run replaces the file of that name."""
    first, copy = tmp_path / "first", tmp_path / "copy"
    assert begin(first, "--steps", 3) == 0
    copy.mkdir()
    for name in ("tokenizer.json", "best.safetensors"):
        shutil.copy(first / name, copy)
    assert begin(copy, *LORA, init=copy / "best.safetensors") == 2
    assert begin(copy, *LORA, "--overwrite", init=copy / "best.safetensors") == 0
    gpt2.load(copy).forward(np.arange(9)[None])


def test_run_of_a_new_model_saves_the_frozen_part_too(begin, tmp_path):
    assert begin(tmp_path / "run", *LAST, init=None) == 0
    arrays, state = checkpoint.load(tmp_path / "run" / "last.safetensors")
    assert arrays["params.wte"].shape == (256, 16) and "base" not in state
    assert arrays["adamw.m.qkvw"].shape == (1, 48, 16) and "adamw.m.wte" not in arrays
    assert train("--resume", tmp_path / "run", "--steps", 8) == 0
    gpt2.save(gpt2.load(tmp_path / "run"), tmp_path / "x.safetensors")  # which forgets what was trained
    assert gpt2.load(tmp_path / "x.safetensors").description.trained.everything


def test_changed_base_is_refused(begin, start, tmp_path):
    run = tmp_path / "run"
    assert begin(run, *LORA) == 0
    gpt2.save(GPT2(CONFIG, seed=3), start)
    with pytest.raises(UserError, match=r"holds only trained weights, .* has changed; restore"):
        gpt2.load(run)
    start.unlink()
    with pytest.raises(UserError, match=r"which is not available \(.*\); restore it at .*base\.safetensors"):
        pretrained.load(str(run))


INVALID = {
    "--train lora:0": "--train lora:0: expected a rank from 1, lora:8, got 0",
    "--train lorra:8": "--train lorra:8: expected all, .*; did you mean lora",
    "--train last:3": "--train last:3: the model has 2 blocks",
    "--freeze wte,qkw": "--freeze wte,qkw: there is no tensor 'qkw'; did you mean qkvw",
    "--train lora:2 --lora-targets c_atn": "--lora-targets c_atn: 'c_atn' is no",
    "--train last:1 --freeze all": "there is no tensor 'all'",
    "--lora-alpha 4": "--lora-alpha has no effect without --train lora:RANK",
    "--train lora:2 --backward manual": "--backward manual: lora is lora_forward, which",
    "--train lora:2 --lines llm.c": "--lines llm.c: only for GPT-2",
}


@pytest.mark.parametrize("flags", INVALID)
def test_invalid_flags_are_refused_before_anything_is_written(begin, tmp_path, capsys, flags):
    assert begin(tmp_path / "run", *flags.split()) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert re.search(INVALID[flags], line), line
    assert not (tmp_path / "run").exists()


def test_resumed_run_trains_the_same_part(begin, tmp_path, refusal):
    assert begin(tmp_path / "run", *LORA) == 0
    error = refusal(program.main, "--resume", tmp_path / "run", *LAST, "--steps", 9)
    assert "--train last:1: the run in" in error


@pytest.mark.parametrize(
    "change, message",
    [
        ({"settings": 5}, "holds no training state"),
        ({"tuned": {"train": "lora:2", "freeze": 5}}, "its note about what is trained cannot be read"),
    ],
)
def test_adapters_with_another_state_are_refused(begin, tmp_path, refusal, change, message):
    begin(tmp_path / "run", *LORA)
    path = tmp_path / "run" / "last.safetensors"
    arrays, state = checkpoint.load(path)
    checkpoint.save(path, arrays, {**state, **change})
    assert message in refusal(program.main, "--resume", tmp_path / "run", "--steps", 8)


def test_dry_run_estimates_the_trained_part(begin, tmp_path, capsys):
    assert begin(tmp_path / "run", *LAST, "--dry-run") == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "memory: " in line)
    assert rows["memory: gradients"] != rows["memory: parameters"] and not (tmp_path / "run").exists()
