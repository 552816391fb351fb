"""examples/llama.py: what transformers computes with the same weights, what it refuses, and the program."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples import llama
from gpt2.errors import UserError

pytestmark = pytest.mark.numeric

ROOT = Path(__file__).resolve().parents[1]
SHAPE = dict(vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2)
HEADS = dict(num_attention_heads=6, num_key_value_heads=2, rms_norm_eps=1e-4, rope_theta=500.0)
TIED = dict(tie_word_embeddings=True, head_dim=10, num_key_value_heads=6)
T = llama.QUERY_BLOCK + 9  # more than one block of queries


def written(folder, options=(), dtype="float32", **saving):
    """A random LlamaForCausalLM, written into the folder by transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SHAPE, **HEADS, "max_position_embeddings": T, **dict(options)})
    peer = transformers.LlamaForCausalLM(config)
    for p in peer.parameters():  # none at a special value
        p.data = (torch.randn_like(p) * (0.3 if p.dim() == 2 else 0.2) + (p.dim() == 1)).to(p.dtype)
    peer = peer.to(getattr(torch, dtype))
    peer.save_pretrained(folder, **saving)
    return peer.float()


def read(folder):
    model = llama.Llama(llama.read_config(folder), seed=None)
    llama.read_weights(folder, model.params)
    return model


def error(ours, theirs):
    """Relative to the largest number."""
    theirs = theirs.detach().numpy()
    return np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, TIED, {"num_key_value_heads": 1}], ids=["untied", "tied", "one"])
def test_logits_loss_and_all_gradients_are_those_of_transformers(tmp_path, options):
    peer, model = written(tmp_path, options), read(tmp_path)
    import torch

    tokens = np.random.default_rng(1).integers(0, 61, (2, T + 1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits = peer(torch.tensor(inputs)).logits
    assert error(llama.forward(model.params, inputs, model.config), logits) < 1e-5
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten())
    loss.backward()
    assert model.loss_and_grads(inputs, targets) == pytest.approx(loss.item(), rel=1e-5)
    assert model.loss(inputs, targets) == pytest.approx(loss.item(), rel=1e-5)
    gradients = {name: p.grad for name, p in peer.named_parameters()}
    assert gradients.keys() == model.grads.keys()
    assert max(error(model.grads[name], gradient) for name, gradient in gradients.items()) < 1e-5


@pytest.mark.slow
def test_several_files_and_bfloat16(tmp_path):
    peer = written(tmp_path, dtype="bfloat16", max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model = read(tmp_path)
    assert all(error(model.params[name], p) == 0.0 for name, p in peer.named_parameters())


def test_text_is_that_of_transformers(tmp_path):
    peer, model = written(tmp_path), read(tmp_path)
    import torch

    theirs = peer.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=20, min_new_tokens=20, do_sample=False)
    assert list(model.generate([1, 2, 3], 20, temperature=0)) == theirs[0, 3:].tolist()


# ---- Without transformers --------------------------------------------------------------------------------


def small(**more):
    model = llama.Llama(llama.shaped(61, 2, 24, 6, 2, **more), seed=0)
    model.flat_params[:] += 0.2 * np.random.default_rng(2).standard_normal(model.flat_params.shape)
    return model


def test_what_is_read_by_pieces_is_what_is_read_at_once():
    model = small()
    tokens = np.random.default_rng(3).integers(0, 61, (2, 11))
    whole = llama.forward(model.params, tokens, model.config)
    kept = [[] for _ in range(2)]
    cuts = [(0, 4), (4, 5), (5, 9), (9, 11)]
    pieces = [llama.forward(model.params, tokens[:, a:b], model.config, a, kept) for a, b in cuts]
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), whole, rtol=1e-5, atol=1e-5)


def test_text_goes_on_where_positions_end():
    model = small(max_position_embeddings=8)
    made = list(model.generate([1, 2, 3], 12, temperature=0))
    window = [1, 2, 3]
    for token in made:  # after 8 positions the newer half is read again, from position 0
        if len(window) > 8:
            window = window[-4:]
        assert token == np.argmax(llama.forward(model.params, np.array([window]), model.config)[0, -1])
        window.append(token)


def test_training_lowers_the_loss():
    model = llama.Llama(llama.shaped(61, 1, 24, 6, 2), seed=0)
    optimizer = llama.AdamW(model, lr=1e-2)
    tokens = np.random.default_rng(3).integers(0, 61, (2, 11))
    losses = []
    for _ in range(15):
        losses.append(model.loss_and_grads(tokens[:, :-1], tokens[:, 1:]))
        optimizer.step()
    assert abs(losses[0] - np.log(61)) < 0.1 and losses[-1] < 0.5 * losses[0]


def test_matrices_alone_are_decayed():
    model = small()
    decayed = np.zeros(model.flat_params.size, bool)
    for start, stop in model.decayed:
        decayed[start:stop] = True
    assert decayed.sum() == sum(p.size for p in model.params.values() if p.ndim == 2)
    model.flat_params[:] = decayed
    assert all(np.all(p == (p.ndim == 2)) for p in model.params.values())


# ---- What is refused -------------------------------------------------------------------------------------

CONFIG = {**SHAPE, **HEADS, "model_type": "llama", "use_cache": True}


def write_config(folder, **changes):
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder


def test_what_is_left_out_has_transformers_default(tmp_path):
    write_config(tmp_path, num_key_value_heads=None, rope_scaling=None, rms_norm_eps=None, rope_theta=None)
    config = llama.read_config(tmp_path)
    assert (config.num_key_value_heads, config.head_dim) == (6, 4)
    assert (config.rms_norm_eps, config.rope_theta) == (1e-6, 10000.0)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"model_type": "mistral"}, "model_type is 'mistral'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"sliding_window": 128}, "sliding_window is a field that is not understood"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling has rope_type 'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling has type 'linear'"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor",
        ),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta is there twice"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"hidden_size": "24"}, "hidden_size is '24', expected int"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"num_key_value_heads": 4}, "num_key_value_heads is no divisor"),
        ({"head_dim": 3}, "head_dim is 3"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
    ],
)
def test_a_config_of_other_arithmetic_is_refused_by_name(tmp_path, changes, said):
    write_config(tmp_path, **changes)
    with pytest.raises(UserError, match=said):
        llama.read_config(tmp_path)


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(UserError, match="expected a folder that transformers wrote"):
        llama.read_config(tmp_path / "none")
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match="not a JSON object"):
            llama.read_config(tmp_path)


def file_of(path, tensors, kind="F32"):
    """A .safetensors file of float32 arrays."""
    table, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, x in tensors.items():
        table[name] = {"dtype": kind, "shape": x.shape, "data_offsets": [offset, offset + x.nbytes]}
        offset += x.nbytes
    head = json.dumps(table).encode()
    body = b"".join(x.astype("<f4").tobytes() for x in tensors.values())
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)


def test_weights_of_another_model_are_refused_by_name(tmp_path):
    model = small()
    path, name = tmp_path / "model.safetensors", "model.layers.1.mlp.up_proj.weight"

    def refused(tensors, said, **options):
        file_of(path, tensors, **options)
        before = model.flat_params.copy()
        with pytest.raises(UserError, match=said):
            llama.read_weights(tmp_path, model.params)
        assert np.array_equal(before, model.flat_params)

    tensors = dict(model.params)
    refused({n: x for n, x in tensors.items() if n != name}, f"1 tensors are missing, the first is {name}")
    refused({**tensors, name: tensors[name][:-1]}, rf"{name} has shape \(63, 24\), expected \(64, 24\)")
    refused({**tensors, "extra.weight": tensors[name]}, "extra.weight is there twice, or is none")
    refused(tensors, "is of type I32", kind="I32")
    file_of(path, tensors)
    whole = path.read_bytes()
    for damaged in (whole[:-4], whole + b"0000", whole[:40], b"", b"\xff" * 40):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="no safetensors file, or damaged"):
            llama.read_weights(tmp_path, model.params)
    path.write_bytes(whole)
    (tmp_path / "second.safetensors").write_bytes(whole)
    with pytest.raises(UserError, match="is there twice"):
        llama.read_weights(tmp_path, model.params)


# ---- The program -----------------------------------------------------------------------------------------


def program(*argv):
    return llama.cli.run(llama.parser(), llama.work, [str(word) for word in argv])


SMALL = (
    "--n-layer",
    1,
    "--n-embd",
    16,
    "--n-head",
    4,
    "--n-kv-head",
    2,
    "--batch-size",
    2,
    "--block-size",
    8,
)


def test_the_program_trains_and_writes(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be " * 40)
    argv = [*SMALL, "--data", text, "--steps", 40, "--lr", "1e-2", "--max-tokens", 30, "--prompt", "to be"]
    done = subprocess.run(
        [sys.executable, "examples/llama.py", *map(str, argv)], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, last = [float(line.split()[3]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert last < 0.5 * first
    assert "validation loss" in done.stdout and done.stdout.splitlines()[-1].startswith("to be")


def test_the_program_goes_on_from_weights(tmp_path, capsys):
    written(tmp_path, {"vocab_size": 256})
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be " * 40)
    given = ("--weights", tmp_path, "--data", text, "--tokenizer", "byte", "--block-size", 8)
    assert program(*given, "--steps", 2, "--max-tokens", 3) == 0
    assert "validation loss" in capsys.readouterr().out


def test_a_model_of_more_tokens_than_the_tokenizer_knows_writes_text(tmp_path, capsys):
    """A vocabulary may be padded: those tokens have no letters."""
    written(tmp_path, {"vocab_size": 256})
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be " * 40)
    given = ("--weights", tmp_path, "--data", text, "--tokenizer", "char", "--block-size", 8)
    assert program(*given, "--steps", 0, "--max-tokens", 20) == 0
    assert set(capsys.readouterr().out.splitlines()[-1]) <= set("to be or not")


@pytest.mark.parametrize(
    "argv, said",
    [
        (("--steps", "-1"), "--steps -1: expected 0 or more"),
        (("--lr", "nan"), "--lr nan: expected more than 0"),
        (("--block-size", "0"), "--block-size 0: expected more than 0"),
        (("--seed", "-1"), "--seed -1"),
        (("--n-head", "3"), "256 channels, 3 heads"),
        (("--weights", "nowhere"), "name the one that fits: --tokenizer"),
        (("--weights", "nowhere", "--tokenizer", "byte"), "nowhere/config.json: No such file"),
        (("--weights", "nowhere", "--tokenizer", "byte", "--tied"), "brings the shape of the model"),
        (("--tokenizer", "chars"), "did you mean char"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, argv, said):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be " * 40)
    assert program(*argv, "--data", text) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1


def test_weights_with_too_few_tokens_or_positions(tmp_path, capsys):
    write_config(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be " * 40)
    given = ("--weights", tmp_path, "--data", text)
    assert program(*given, "--tokenizer", "byte") == 2
    assert "61 tokens, the tokenizer byte needs 256" in capsys.readouterr().err
    assert program(*given, "--tokenizer", "char", "--block-size", 4000) == 2
    assert "2048 positions, --block-size needs 4000" in capsys.readouterr().err


def test_it_trains_without_a_network(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("GPT2_DATA_DIR", raising=False)
    monkeypatch.setenv("GPT2_CACHE_DIR", str(tmp_path))
    words = "--steps 1 --n-layer 1 --n-embd 8 --n-head 2 --n-kv-head 1 --batch-size 1 --block-size 8"
    assert program(*words.split(), "--tokenizer", "byte", "--max-tokens", 2) == 0
    assert "note: tinyshakespeare.txt is not here" in capsys.readouterr().out
