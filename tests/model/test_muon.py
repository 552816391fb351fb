"""Muon against its formula by singular values, against torch.optim.Muon, and what it leaves to AdamW."""

import pickle

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.model.muon import QUINTIC, FlatMatrix, Muon, Workspace
from gpt2.model.optimizer import AdamW
from gpt2.model.tensors import ranges_of

pytestmark = pytest.mark.numeric
TENSORS = ("qkvw", "attprojw", "fcw", "fcprojw")


def model_of(dtype="float64", **options):
    config = GPT2Config(vocab_size=61, block_size=16, n_layer=3, n_head=3, n_embd=24, dtype=dtype)
    return GPT2(config, seed=2, **options)


def draw_gradient(model, seed):
    model.flat_grads[...] = np.random.default_rng(seed).standard_normal(model.flat_grads.size)


def matrices(model, flat):
    """(L, n, rows, columns) of the four tensors, with queries, keys and values apart."""
    d = model.description
    ranges, shapes = ranges_of(d.trained.shapes), dict(d.trained.shapes)
    found = {name: flat[slice(*ranges[name])].reshape(shapes[name]) for name in TENSORS}
    return {name: a.reshape(3, 3, 24, 24) if name == "qkvw" else a[:, None] for name, a in found.items()}


@pytest.mark.parametrize(("rows", "columns"), [(12, 12), (40, 9), (9, 40), (1, 7), (7, 1)])
def test_polynomial_acts_on_singular_values_alone(rows, columns):
    """By a decomposition in float64: x is U p(S) V', p the polynomial taken again and again."""
    u = np.random.default_rng(rows).standard_normal((rows, columns))
    workspace = Workspace([FlatMatrix(0, rows, columns)], u.dtype)
    workspace.x[...] = u.reshape(-1)
    U, s, Vt = np.linalg.svd(u, full_matrices=False)
    s = s / np.linalg.norm(u)
    for a, b, c in QUINTIC:
        s = a * s + b * s**3 + c * s**5
    np.testing.assert_allclose(workspace.orthogonal(rows, columns, QUINTIC), U * s @ Vt, atol=1e-12)
    assert np.all((0.3 < s) & (s < 1.25)) or min(rows, columns) > 9  # those of a random matrix, but the least


def test_zero_gradient_leaves_a_matrix_but_for_decay():
    model = model_of()
    before = model.params["fcw"].copy()
    Muon(model, lr=0.1, weight_decay=0.5).step()
    np.testing.assert_allclose(model.params["fcw"], before * (1 - 0.05), rtol=1e-15)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
def test_ten_steps_are_those_of_torch(monkeypatch, dtype, tolerance):
    """torch takes the products in bfloat16, whatever the dtype; here that conversion is a copy."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    model = model_of(dtype)
    peers = {
        (name, at): torch.nn.Parameter(torch.tensor(stack[at].copy()))
        for name, stack in matrices(model, model.flat_params).items()
        for at in np.ndindex(stack.shape[:2])
    }
    assert len(peers) == 3 * 6
    peer = torch.optim.Muon(peers.values(), lr=0.02, momentum=0.9, weight_decay=0.2, ns_steps=4)
    optimizer = Muon(model, lr=0.02, momentum=0.9, weight_decay=0.2)
    for step in range(10):
        draw_gradient(model, step)
        grads = matrices(model, model.flat_grads)
        for (name, at), parameter in peers.items():
            parameter.grad = torch.tensor(grads[name][at].copy())
        optimizer.step(clip=None)
        peer.step()
    ours = matrices(model, model.flat_params)
    for (name, at), parameter in peers.items():
        error = np.abs(ours[name][at] - parameter.detach().numpy()).max()
        assert error < tolerance * np.abs(ours[name]).max(), (name, at)


def test_other_tensors_are_adamws_to_the_bit():
    """With the same clipping; lr in step() changes both rates by the same factor."""
    muon, adam = model_of(), model_of()
    by_muon, by_adam = Muon(muon, lr=0.02, adamw_lr=1e-3), AdamW(adam, lr=1e-3)
    for step in range(3):
        for model in (muon, adam):
            draw_gradient(model, step)
        assert by_muon.step(lr=0.01) == by_adam.step(lr=5e-4)
    for name in muon.params:
        assert np.array_equal(muon.params[name], adam.params[name]) == (name not in TENSORS), name
    start, stop = ranges_of(muon.description.trained.shapes)["fcw"]
    assert not by_muon.v[start:stop].any() and by_adam.v[start:stop].all()


def test_clipping_scales_the_gradient():
    clipped, scaled = model_of(), model_of()
    draw_gradient(clipped, 0)
    norm = Muon(clipped).step(clip=0.5)
    scaled.flat_grads[...] = clipped.flat_grads * (0.5 / (norm + 1e-6))
    Muon(scaled).step(clip=None)
    np.testing.assert_allclose(clipped.flat_params, scaled.flat_params, atol=1e-14)


@pytest.mark.parametrize("cut", ["parts", "shares"])
@pytest.mark.parametrize("kind", [Muon, AdamW])
def test_workers_together_make_the_whole_step(kind, cut):
    """Each with the moments of its part alone, or with moments that all share; on two threads, or on one."""
    whole, pieces = model_of("float32"), model_of("float32")
    one, many = kind(whole), kind(pieces)
    for model in (whole, pieces):
        draw_gradient(model, 1)
    ad.set_threads(1)
    norm = one.step()
    ad.set_threads(2)
    for rank in range(4):
        many.t = 0
        if cut == "shares":
            many.update(norm, None, 1.0, *many.share(rank, 4))
            continue
        start, stop = many.part(rank, 4)
        m, v = np.zeros((2, stop - start), np.float32)
        many.use(pieces.flat_params, pieces.flat_grads, m, v, first=start)
        many.update(norm, None, 1.0, start, stop)
    assert np.array_equal(whole.flat_params, pieces.flat_params)


def test_only_trained_blocks_are_updated():
    model = model_of(train="last:1")
    optimizer = Muon(model)
    assert len(optimizer.matrices) == 6 and optimizer.one_moment == TENSORS
    before = [a.copy() for a in model.params["fcw"]]
    draw_gradient(model, 0)
    optimizer.step()
    changed = [not np.array_equal(a, b) for a, b in zip(model.params["fcw"], before)]
    assert changed == [False, False, True]


def test_wrong_arguments_are_one_line():
    with pytest.raises(UserError, match="none of them is trained; take adamw"):
        Muon(model_of(train="lora:2"))
    for arguments, text in (
        ({"momentum": 1.0}, "momentum is 1.0, expected a number from 0 to below 1"),
        ({"coefficients": [(1.0, 2.0)]}, "coefficients are .*, expected a, b, c of every iteration"),
        ({"lr": 0.0}, "lr is 0.0, expected a number above 0"),
    ):
        with pytest.raises(ValueError, match=text):
            Muon(model_of(), **arguments)


def test_options_and_pickle_make_another_like_it():
    model = model_of()
    optimizer = Muon(model, lr=0.03, momentum=0.8, coefficients=QUINTIC[:3], adamw_lr=2e-4, betas=(0.8, 0.9))
    assert Muon(model, **optimizer.options()).options() == optimizer.options()
    assert pickle.loads(pickle.dumps(optimizer)).options() == optimizer.options()
    assert "18 matrices" in repr(optimizer)
