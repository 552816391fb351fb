"""nanoGPT's ckpt.pt and pytorch_model.bin: read without PyTorch, to the numbers that PyTorch computes."""

import pickle
import shutil

import numpy as np
import pytest

import gpt2
from gpt2.commands import convert, evaluate, sample
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.model.optimizer import AdamW
from gpt2.train import program
from gpt2.weights import huggingface, pretrained
from tests.support.which.checkpoints import (
    LETTERS,
    NH,
    TOKENS,
    VARIANTS,
    C,
    L,
    T,
    leaves,
    logits_of,
    loss_of,
    made,
    optimizer_of,
    ours,
    state,
    step,
    write,
    write_letters,
)

pytestmark = pytest.mark.numeric
torch = pytest.importorskip("torch")


@pytest.mark.parametrize("variant", VARIANTS)
def test_checkpoint_has_pytorchs_logits_and_gradients(tmp_path, variant):
    path, p = made(tmp_path, **VARIANTS[variant])
    model = gpt2.load(path, dtype="float64")
    assert model.config.vocab_size == len(p["lm_head.weight"])
    assert model.config.bias == ("transformer.ln_f.bias" in p)
    expected = logits_of(p, torch.from_numpy(TOKENS[0])).detach().numpy()
    np.testing.assert_allclose(model.forward(TOKENS[0]), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(gpt2.load(path).forward(TOKENS[0]), expected, rtol=1e-4, atol=1e-5)
    loss = loss_of(p)
    loss.backward()
    assert model.loss_and_grads(*TOKENS) == pytest.approx(loss.item(), rel=1e-12)
    for name, tensor in p.items():
        if name != "lm_head.weight":
            mine, l = ours(name)
            np.testing.assert_allclose(model.grads[mine][l], tensor.grad.numpy(), rtol=1e-8, atol=1e-12)


def test_training_goes_on_with_the_moments(tmp_path):
    """Three steps by PyTorch and three here are six by PyTorch."""
    p = leaves(state(19, True))
    optimizer = optimizer_of(p)
    for _ in range(3):
        step(p, optimizer)
    path = write(tmp_path / "ckpt.pt", p, 19, True, optimizer)
    weights = pretrained.find(str(path), "float64")
    model = weights.model()
    mine = AdamW(model, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    t, m, v = weights.moments()
    views = {
        name: gpt2.model.parameters.unflatten(flat, model.description)
        for name, flat in (("m", mine.m), ("v", mine.v))
    }
    for key, tensors in (("m", m), ("v", v)):
        for name, view in views[key].items():
            view[...] = tensors[name]
    mine.t = t
    for _ in range(3):
        step(p, optimizer)
        model.loss_and_grads(*TOKENS)
        mine.step(clip=None)
    for name, tensor in p.items():
        if name != "lm_head.weight":
            own, l = ours(name)
            np.testing.assert_allclose(model.params[own][l], tensor.detach().numpy(), rtol=1e-9, atol=1e-12)
    assert t == 3
    write(path, p, 19, True)  # without an optimizer
    assert pretrained.find(str(path)).moments() is None


@pytest.fixture
def letters(tmp_path, monkeypatch):
    """A checkpoint of letters in nanoGPT's folders, and its text."""
    monkeypatch.chdir(tmp_path)
    write_letters(tmp_path)
    (tmp_path / "text.txt").write_text("a bad fig. " * 60 + "".join(LETTERS))
    (tmp_path / "out").mkdir()
    return made(tmp_path / "out", steps=1)[0]


def test_checkpoint_in_every_command(letters, tmp_path, capsys):
    """With the letters that nanoGPT's own sample.py finds."""
    name = str(letters)
    assert gpt2.load_tokenizer(letters).decode([3, 4]) == "ab"
    assert sample.main(["--init", name, "--prompt", "a fig", "--max-tokens", "4", "--seed", "1"]) == 0
    assert evaluate.main(["--init", name, "--data", "text.txt"]) == 0
    assert convert.main([name, "mine-hf"]) == 0
    expected = gpt2.load(letters).forward(TOKENS[0])
    np.testing.assert_allclose(gpt2.load("mine-hf").forward(TOKENS[0]), expected, rtol=1e-5, atol=1e-6)
    flags = "--batch-size 4 --block-size 8 --steps 2 --eval-batches 1 --sample-tokens 0 --parallel none"
    assert program.main(["--init", name, "--data", "text.txt", "--out", "run", *flags.split()]) == 0
    assert "AdamW goes on with the moments in" in capsys.readouterr().out
    state = gpt2.weights.checkpoint.load_state("run/last.safetensors")
    assert state["adamw.t"] == 3  # one step by PyTorch, two here


@pytest.mark.parametrize("zipped", [True, False])
def test_pytorch_model_bin_is_read_like_safetensors(tmp_path, zipped):
    model = GPT2(GPT2Config(19, T, L, NH, C, n_inner=20), seed=3)
    gpt2.save(model, tmp_path / "new")
    gpt2.save(model, tmp_path / "old")
    tensors = {
        n: torch.from_numpy(np.array(t.array()))
        for n, t in huggingface.tensors_of(tmp_path / "new" / huggingface.WEIGHTS).items()
    }
    tensors |= {f"transformer.h.{l}.attn.bias": torch.ones(1, 1, T, T).tril().bool() for l in range(L)}
    (tmp_path / "old" / huggingface.WEIGHTS).unlink()
    torch.save(tensors, tmp_path / "old" / huggingface.TORCH, _use_new_zipfile_serialization=zipped)
    for path in (tmp_path / "old", tmp_path / "old" / huggingface.TORCH):
        assert np.array_equal(gpt2.load(path).flat_params, model.flat_params)
    # transformers prefers the safetensors beside it
    torch.save({}, tmp_path / "new" / huggingface.TORCH)
    assert np.array_equal(gpt2.load(tmp_path / "new").flat_params, model.flat_params)
    with pytest.raises(UserError, match=r"pytorch_model\.bin: belongs to other weights; remove it"):
        gpt2.save(model, tmp_path / "old")
    # in two files, with an index
    names = sorted(tensors)
    files = {"pytorch_model-00001-of-00002.bin": names[:9], "pytorch_model-00002-of-00002.bin": names[9:]}
    for file, part in files.items():
        torch.save({name: tensors[name] for name in part}, tmp_path / "old" / file)
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (tmp_path / "old" / f"{huggingface.TORCH}.index.json").write_text(str(index).replace("'", '"'))
    (tmp_path / "old" / huggingface.TORCH).unlink()
    assert np.array_equal(gpt2.load(tmp_path / "old").flat_params, model.flat_params)
    shutil.rmtree(tmp_path / "new")


def refused(tmp_path):
    """File name -> (content, message)."""
    tensors = state(19, True)
    other = {**tensors, "lm_head.weight": tensors["lm_head.weight"] + 1}
    few = {name: tensor for name, tensor in tensors.items() if "h.1.mlp.c_fc" not in name}
    args = dict(n_layer=L, n_head=NH, n_embd=C, block_size=T)
    five_heads = {**args, "vocab_size": 19, "n_head": 5}
    saved = {
        "head.pt": ((other, 19, True), {}, "its lm_head is not its wte"),
        "few.pt": ((few, 19, True), {}, r"2 tensors are missing, the first is h\.1\.mlp\.c_fc\.bias"),
        "rows.pt": ((tensors, 20, True), {}, r"wte\.weight has shape \(19, 12\), expected \(20, 12\)"),
        "args.pt": ((tensors, 19, True), {"model_args": args}, "model_args lacks vocab_size"),
        "heads.pt": ((tensors, 19, True), {"model_args": five_heads}, "not divisible"),
        "state.pt": ((tensors, 19, True), {"model": 3}, "holds no model and model_args, expected nanoGPT's"),
    }
    for name, (values, changes, message) in saved.items():
        write(tmp_path / name, *values, **changes)
        yield name, message
    unread = "is not of a kind that can be read"
    for name, content, message in (
        ("m.gguf", b"GGUF" + bytes(40), f"{unread}; expected a folder of transformers"),
        ("tokenizer.json", b"{}", unread),
        ("x.pt", b"nothing", "no file of torch.save or pickle, or damaged"),
        ("runs.pt", pickle.dumps(print), "names builtins.print, and a name in a pickle may run anything"),
    ):
        (tmp_path / name).write_bytes(content)
        yield name, message


def test_what_cannot_be_read_is_one_line(tmp_path):
    for name, message in refused(tmp_path):
        with pytest.raises(UserError, match=message) as error:
            gpt2.load(tmp_path / name)
        assert "\n" not in str(error.value) and str(tmp_path / name) in str(error.value)
