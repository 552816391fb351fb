"""The same small model in PyTorch: loss and all sixteen gradients, then ten steps of AdamW."""

import math

import numpy as np
import pytest

from gpt2.model import GPT2, GPT2Config
from gpt2.model.optimizer import AdamW
from gpt2.model.parameters import MATRICES

pytestmark = pytest.mark.numeric

CONFIG = {"vocab_size": 37, "block_size": 16, "n_layer": 3, "n_head": 4, "n_embd": 24}
B, T = 3, 11
torch = F = None  # imported by the first test: it takes seconds, and each process collects this file
TOLERANCE = {"float32": 1e-4, "float64": 1e-10}


def torch_loss(p, tokens, targets, config):
    """GPT-2's mean loss from PyTorch's layers."""
    C = config.n_embd

    def heads(x):
        return x.view(*x.shape[:2], config.n_head, -1).transpose(1, 2)

    x = F.embedding(tokens, p["wte"]) + p["wpe"][: tokens.shape[1]]
    for l in range(config.n_layer):
        h = F.layer_norm(x, (C,), p["ln1w"][l], p["ln1b"][l])
        q, k, v = F.linear(h, p["qkvw"][l], p["qkvb"][l]).split(C, dim=-1)
        y = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
        y = y.transpose(1, 2).reshape(x.shape)
        x = x + F.linear(y, p["attprojw"][l], p["attprojb"][l])
        h = F.layer_norm(x, (C,), p["ln2w"][l], p["ln2b"][l])
        h = F.gelu(F.linear(h, p["fcw"][l], p["fcb"][l]), approximate="tanh")
        x = x + F.linear(h, p["fcprojw"][l], p["fcprojb"][l])
    x = F.layer_norm(x, (C,), p["lnfw"], p["lnfb"])
    logits = F.linear(x, p["wte"])
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.fixture(autouse=True)
def pytorch():
    global torch, F
    torch = pytest.importorskip("torch")
    F = torch.nn.functional


@pytest.fixture(params=["float32", "float64"])
def pair(request):
    """Our model with random parameters, and the same parameters as torch tensors."""
    model = GPT2(GPT2Config(**CONFIG, dtype=request.param))
    model.flat_params += 0.1 * np.random.default_rng(0).standard_normal(model.flat_params.shape)
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in model.params.items()}
    return model, tensors


def batches(count):
    """count pairs (tokens, targets), in NumPy and in torch."""
    rng = np.random.default_rng(1)
    for _ in range(count):
        ids = rng.integers(0, CONFIG["vocab_size"], (2, B, T))
        yield ids, torch.tensor(ids)


def assert_close(ours, theirs, tolerance, name):
    theirs = theirs.detach().numpy()
    assert ours.dtype == theirs.dtype
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max(), name


def test_loss_and_gradients_equal_pytorchs(pair):
    model, tensors = pair
    tolerance = TOLERANCE[model.config.dtype]
    ((ids, torch_ids),) = batches(1)
    loss = torch_loss(tensors, *torch_ids, model.config)
    loss.backward()
    assert math.isclose(model.forward(*ids), loss.item(), rel_tol=tolerance)
    model.backward()
    assert len(model.grads) == 16
    for name, gradient in model.grads.items():
        assert_close(gradient, tensors[name].grad, tolerance, name)


def test_ten_steps_of_adamw_equal_pytorchs(pair):
    """Losses, gradient norms and parameters over ten steps on ten batches.

    eps is 1e-6: the keys' biases do not influence the loss, so their gradient is pure rounding error, which
    with 1e-8 AdamW would amplify to full steps in float32, in another direction in each program.
    """
    model, tensors = pair
    tolerance = TOLERANCE[model.config.dtype]
    settings = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-6}
    ours = AdamW(model, **settings, weight_decay=0.1)
    groups = [
        {"params": [x for name, x in tensors.items() if name in MATRICES], "weight_decay": 0.1},
        {"params": [x for name, x in tensors.items() if name not in MATRICES], "weight_decay": 0.0},
    ]
    theirs = torch.optim.AdamW(groups, **settings)
    for ids, torch_ids in batches(10):
        loss = torch_loss(tensors, *torch_ids, model.config)
        theirs.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(tensors.values(), 1.0)
        theirs.step()
        assert math.isclose(model.forward(*ids), loss.item(), rel_tol=tolerance)
        model.backward()
        assert math.isclose(ours.step(clip=1.0), norm.item(), rel_tol=tolerance)
        assert norm > 1.0  # so that clipping is tested
    for name, parameter in model.params.items():
        assert_close(parameter, tensors[name], tolerance, name)
