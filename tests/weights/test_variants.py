"""Models of every config.json that transformers can make a GPT-2 of.

The real transformers writes each folder. Logits, loss and all gradients are compared with torch's, then ten
steps of AdamW, then what transformers reads of the folder written back. `-m ''` runs SAMPLE, in which each
setting and each folder is at least once; `python -m tests.long.variants` runs all, in both dtypes.
"""

import itertools
import json

import numpy as np
import pytest

import gpt2
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.model.config import parameter_table
from gpt2.model.optimizer import AdamW
from gpt2.weights import huggingface
from tests.support.slow import sampled
from tests.support.which.configs import CASES, CLASSES, CONFIGS, FOLDERS, SIZES, written

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
SAMPLE = [
    *"gelu_new gelu_pytorch_tanh gelu_accurate gelu_python swish no-epsilon upcast gelu+inner".split(),
    *"gelu_fast+epsilon quick_gelu+unscaled relu+by-block silu+untied gelu+everything".split(),
    *CLASSES,
    *FOLDERS,
]


def named(peer, config, of):
    """name -> of(parameter) of a transformers model, stacked and transposed as ours."""
    theirs = {
        name.removeprefix("transformer."): of(p).detach().numpy() for name, p in peer.named_parameters()
    }
    found = {}
    for name in dict(parameter_table(config)):
        path, transposed = next((path, t) for ours, path, t in huggingface.NAMES if ours == name)
        if "{l}" in path:
            parts = [theirs[path.format(l=l)] for l in range(config.n_layer)]
            found[name] = np.stack([p.T if transposed else p for p in parts])
        else:
            found[name] = theirs[path]
    return found


def assert_near(ours, theirs, tolerance):
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert ours[name].shape == array.shape, name
        assert np.abs(ours[name] - array).max() <= tolerance * np.abs(array).max(), name


def loss_of(torch, peer, ids):
    tokens, targets = torch.tensor(ids)
    logits = peer(tokens).logits
    return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize(
    "name, dtype", sampled(zip(SAMPLE, itertools.cycle(TOLERANCE)), itertools.product(CASES, TOLERANCE))
)
def test_model_of_transformers_is_read_trained_and_written_back(peers, tmp_path, name, dtype):
    if (name, dtype) == ("upcast", "float64"):
        dtype = "float32"  # transformers' own attention for this fails in float64
    torch, tolerance = peers[0], TOLERANCE[dtype]
    peer = written(name, tmp_path / "a", dtype)
    backward = ("manual", "auto", "whole")[(CASES.index(name) + (dtype == "float64")) % 3]
    model = gpt2.load(tmp_path / "a", backward, dtype)
    kept = [p for n, p in peer.named_parameters() if model.config.bias or not n.endswith("bias")]
    # the gradient of the keys' biases is rounding error, which a smaller eps would make full steps of
    settings = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-4}
    groups = [([p for p in kept if p.ndim > 1], 0.1), ([p for p in kept if p.ndim == 1], 0.0)]
    theirs = torch.optim.AdamW([{"params": p, "weight_decay": decay} for p, decay in groups], **settings)
    ours, rng = AdamW(model, **settings), np.random.default_rng(1)
    for step in range(10):
        ids = rng.integers(0, SIZES["vocab_size"], (2, 2, 12))
        logits, loss = loss_of(torch, peer, ids)
        peer.zero_grad()
        loss.backward()
        if step == 0:
            assert_near({"": model.forward(ids[0])}, {"": logits.detach().numpy()}, tolerance)
        assert abs(model.loss_and_grads(*ids) - loss.item()) <= tolerance * loss.item()
        if step == 0:
            assert_near(model.grads, named(peer, model.config, lambda p: p.grad), tolerance)
        torch.nn.utils.clip_grad_norm_(kept, 1.0)
        theirs.step()
        ours.step(clip=1.0)
    assert_near(model.params, named(peer, model.config, lambda p: p), 1e-5)
    gpt2.save(model, tmp_path / "b")
    again = named(type(peer).from_pretrained(tmp_path / "b"), model.config, lambda p: p)
    assert all(np.array_equal(again[n], model.params[n].astype(np.float32)) for n in model.params)
    read = gpt2.load(tmp_path / "b", dtype=dtype)
    assert read.config == model.config
    assert np.array_equal(read.flat_params, model.flat_params.astype(np.float32))
    stated = json.loads((tmp_path / "b" / "config.json").read_text())
    for setting, value in CONFIGS.get(name, {}).items():
        assert setting == "reorder_and_upcast_attn" or stated[setting] == value


def test_sample_has_each_setting_and_folder():
    def settings(names):
        return {pair for name in names for pair in CONFIGS.get(name, {}).items()}

    assert settings(SAMPLE) == settings(CASES) and {*CLASSES, *FOLDERS} < {*SAMPLE} < {*CASES}


def test_several_variants_are_refused(tmp_path):
    model = GPT2(GPT2Config(11, 8, 1, 2, 8))
    gpt2.save(model, tmp_path)
    weights = (tmp_path / "model.safetensors").rename(tmp_path / "model.fp16.safetensors")
    assert np.array_equal(gpt2.load(tmp_path).flat_params, model.flat_params)
    (tmp_path / "model.bf16.safetensors").write_bytes(weights.read_bytes())
    with pytest.raises(UserError, match="several variants of the weights, bf16, fp16"):
        gpt2.load(tmp_path)
