"""examples/llama.py: the same results as transformers with the same weights, what it refuses, the program."""

import json
import struct
import sys

import numpy as np
import pytest

from examples import llama
from gpt2.errors import UserError
from tests.support import small_run

pytestmark = pytest.mark.numeric

SHAPE = dict(vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2)
HEADS = dict(num_attention_heads=6, num_key_value_heads=2, rms_norm_eps=1e-4, rope_theta=500.0)
TIED = dict(tie_word_embeddings=True, head_dim=10, num_key_value_heads=6)
T = llama.QUERY_BLOCK + 9  # more than one block of queries


def write_peer(folder, options=(), dtype="float32", **saving):
    """Has transformers write a random LlamaForCausalLM into the folder; returns it in float32."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SHAPE, **HEADS, "max_position_embeddings": T, **dict(options)})
    peer = transformers.LlamaForCausalLM(config)
    for p in peer.parameters():  # no gain is 1
        p.data = (torch.randn_like(p) * (0.3 if p.dim() == 2 else 0.2) + (p.dim() == 1)).to(p.dtype)
    peer = peer.to(getattr(torch, dtype))
    peer.save_pretrained(folder, **saving)
    return peer.float()


def load(folder):
    model = llama.Llama(llama.read_config(folder), seed=None)
    llama.read_weights(folder, model.params)
    return model


def relative_error(ours, theirs):
    """The largest difference, relative to the largest number."""
    theirs = theirs.detach().numpy()
    return np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, TIED, {"num_key_value_heads": 1}], ids=["untied", "tied", "one"])
def test_logits_loss_and_gradients_equal_transformers(tmp_path, options):
    peer, model = write_peer(tmp_path, options), load(tmp_path)
    import torch

    tokens = np.random.default_rng(1).integers(0, 61, (2, T + 1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits = peer(torch.tensor(inputs)).logits
    assert relative_error(llama.forward(model.params, inputs, model.config), logits) < 1e-5
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten())
    loss.backward()
    for loss_of in (model.loss_and_grads, model.loss):
        assert loss_of(inputs, targets) == pytest.approx(loss.item(), rel=1e-5)
    gradients = {name: p.grad for name, p in peer.named_parameters()}
    assert gradients.keys() == model.grads.keys()
    assert max(relative_error(model.grads[name], gradient) for name, gradient in gradients.items()) < 1e-5


@pytest.mark.slow
def test_weights_in_several_bfloat16_files_are_read(tmp_path):
    peer = write_peer(tmp_path, dtype="bfloat16", max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model = load(tmp_path)
    assert all(relative_error(model.params[name], p) == 0.0 for name, p in peer.named_parameters())


@pytest.mark.slow
def test_generated_text_equals_transformers(tmp_path):
    peer, model = write_peer(tmp_path), load(tmp_path)
    import torch

    theirs = peer.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=20, min_new_tokens=20, do_sample=False)
    assert list(model.generate([1, 2, 3], 20, temperature=0)) == theirs[0, 3:].tolist()


# ---- Without transformers --------------------------------------------------------------------------------


def small(**more):
    """A small model with random parameters."""
    model = llama.Llama(llama.shaped(61, 2, 24, 6, 2, **more), seed=0)
    model.flat_params[:] += 0.2 * np.random.default_rng(2).standard_normal(model.flat_params.shape)
    return model


def test_reading_in_pieces_equals_one_pass():
    model = small()
    tokens = np.random.default_rng(3).integers(0, 61, (2, 11))
    whole = llama.forward(model.params, tokens, model.config)
    kept = [[] for _ in range(2)]
    cuts = [(0, 4), (4, 5), (5, 9), (9, 11)]
    pieces = [llama.forward(model.params, tokens[:, a:b], model.config, a, kept) for a, b in cuts]
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), whole, rtol=1e-5, atol=1e-5)


def test_generation_continues_past_the_last_position():
    """When 8 positions are full, the newer half is read again from position 0."""
    model = small(max_position_embeddings=8)
    window = [1, 2, 3]
    for token in list(model.generate(window, 12, temperature=0)):
        if len(window) > 8:
            window = window[-4:]
        assert token == np.argmax(llama.forward(model.params, np.array([window]), model.config)[0, -1])
        window.append(token)


# ---- What is refused -------------------------------------------------------------------------------------

CONFIG = {**SHAPE, **HEADS, "model_type": "llama", "use_cache": True}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "mistral"}, "model_type is 'mistral'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"sliding_window": 128}, "sliding_window is a field that is not understood"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling has rope_type 'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling has type 'linear'"),
        ({"rope_parameters": dict(rope_type="default", partial_rotary_factor=0.5)}, "partial_rotary_factor"),
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
def test_unsupported_config_is_refused_by_name(tmp_path, changes, message):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    with pytest.raises(UserError, match=message):
        llama.read_config(tmp_path)


def test_missing_or_broken_config_is_refused(tmp_path):
    with pytest.raises(UserError, match="expected a folder that transformers wrote"):
        llama.read_config(tmp_path / "none")
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match="not a JSON object"):
            llama.read_config(tmp_path)


def write_safetensors(path, tensors, kind="F32"):
    """Writes a .safetensors file of float32 arrays."""
    table, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, x in tensors.items():
        table[name] = {"dtype": kind, "shape": x.shape, "data_offsets": [offset, offset + x.nbytes]}
        offset += x.nbytes
    head = json.dumps(table).encode()
    body = b"".join(x.astype("<f4").tobytes() for x in tensors.values())
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)


def test_wrong_weights_are_refused_by_name(tmp_path):
    model = small()
    path, name = tmp_path / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    before = model.flat_params.copy()

    def assert_refused(message):
        with pytest.raises(UserError, match=message):
            llama.read_weights(tmp_path, model.params)
        assert np.array_equal(before, model.flat_params)

    tensors = dict(model.params)
    for changed, message in (
        ({n: x for n, x in tensors.items() if n != name}, f"1 tensors are missing, the first is {name}"),
        ({**tensors, name: tensors[name][:-1]}, rf"{name} has shape \(63, 24\), expected \(64, 24\)"),
        ({**tensors, "extra.weight": tensors[name]}, "extra.weight is there twice, or is none"),
    ):
        write_safetensors(path, changed)
        assert_refused(message)
    write_safetensors(path, tensors, kind="I32")
    assert_refused("is of type I32")
    write_safetensors(path, tensors)
    whole = path.read_bytes()
    for damaged in (whole[:-4], whole + b"0000", whole[:40], b"", b"\xff" * 40):
        path.write_bytes(damaged)
        assert_refused("no safetensors file, or damaged")
    for copy in (path, tmp_path / "second.safetensors"):
        copy.write_bytes(whole)
    assert_refused("is there twice")


# ---- The program -----------------------------------------------------------------------------------------


def program(*argv):
    return llama.cli.run(llama.parser(), llama.work, [str(word) for word in argv])


@pytest.fixture
def text(tmp_path):
    """The path of a short text."""
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be " * 40)
    return path


def test_program_trains_and_generates(text):
    sizes = "--n-layer 1 --n-embd 16 --n-head 4 --n-kv-head 2 --batch-size 2 --block-size 8".split()
    flags = ["--steps", "40", "--lr", "1e-2", "--max-tokens", "30", "--prompt", "to be", "--data", str(text)]
    done = small_run.run([sys.executable, "examples/llama.py", *sizes, *flags])
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, last = [float(line.split()[3]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert last < 0.5 * first
    assert "validation loss" in done.stdout and done.stdout.splitlines()[-1].startswith("to be")


@pytest.mark.parametrize("tokenizer, letters", [("byte", None), ("char", set("to be or not"))])
def test_program_continues_from_weights(tmp_path, text, capsys, tokenizer, letters):
    """Tokens that the tokenizer does not know, as in a padded vocabulary, have no letters."""
    write_peer(tmp_path, {"vocab_size": 256})
    flags = ("--tokenizer", tokenizer, "--block-size", 8, "--steps", 2, "--max-tokens", 20)
    assert program("--weights", tmp_path, "--data", text, *flags) == 0
    printed = capsys.readouterr().out
    assert "validation loss" in printed
    assert letters is None or set(printed.splitlines()[-1]) <= letters


@pytest.mark.parametrize(
    "argv, message",
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
def test_bad_arguments_are_refused_in_one_line(text, capsys, argv, message):
    assert program(*argv, "--data", text) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1
