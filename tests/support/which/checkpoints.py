"""Checkpoints of nanoGPT, as PyTorch writes them, and what a nanoGPT computes, in PyTorch's functions.

made(folder, ...)   writes a ckpt.pt; returns its path, and its tensors as a model has them
rows()              those of docs/models.md
"""

import pickle
from functools import partial

import numpy as np
import pytest

import gpt2
from gpt2.errors import UserError
from gpt2.weights import huggingface, pretrained
from tests.support.which.configs import cells

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # its users skip their tests
    pass

TITLE, FIRST = "Checkpoints of nanoGPT, and pytorch_model.bin", "what PyTorch wrote"
L, NH, C, T = 3, 2, 12, 8
TOKENS = np.random.default_rng(0).integers(0, 19, (2, 2, 7))


def state(V, bias, seed=0):
    """The tensors of a nanoGPT model by their names, in its order, head and embedding one."""
    torch.manual_seed(seed)
    shapes = {"transformer.wte": (V, C), "transformer.wpe": (T, C)}
    for l in range(L):
        h = f"transformer.h.{l}."
        shapes |= {h + "ln_1": (C,), h + "attn.c_attn": (3 * C, C), h + "attn.c_proj": (C, C)}
        shapes |= {h + "ln_2": (C,), h + "mlp.c_fc": (4 * C, C), h + "mlp.c_proj": (C, 4 * C)}
    tensors = {}
    for name, shape in {**shapes, "transformer.ln_f": (C,)}.items():
        tensors[f"{name}.weight"] = 0.2 * torch.randn(shape) + (len(shape) == 1)
        if bias and not name.endswith(("wte", "wpe")):
            tensors[f"{name}.bias"] = 0.1 * torch.randn(shape[:1])
    return {**tensors, "lm_head.weight": tensors["transformer.wte.weight"]}


def logits_of(p, tokens):
    """nanoGPT's forward, in PyTorch's functions."""

    def linear(x, name):
        return F.linear(x, p[f"transformer.{name}.weight"], p.get(f"transformer.{name}.bias"))

    def norm(x, name):
        weight, bias = p[f"transformer.{name}.weight"], p.get(f"transformer.{name}.bias")
        return F.layer_norm(x, (C,), weight, bias, 1e-5)

    B, n = tokens.shape
    x = p["transformer.wte.weight"][tokens] + p["transformer.wpe.weight"][:n]
    for l in range(L):
        parts = linear(norm(x, f"h.{l}.ln_1"), f"h.{l}.attn.c_attn").split(C, dim=2)
        q, k, v = (part.view(B, n, NH, C // NH).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, n, C)
        x = x + linear(y, f"h.{l}.attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, f"h.{l}.ln_2"), f"h.{l}.mlp.c_fc")), f"h.{l}.mlp.c_proj")
    return F.linear(norm(x, "ln_f"), p["lm_head.weight"])


def loss_of(p):
    tokens, targets = torch.from_numpy(TOKENS)
    return F.cross_entropy(logits_of(p, tokens).flatten(0, 1), targets.flatten())


def leaves(tensors, dtype="float64"):
    """The tensors as parameters, the head the embedding."""
    found = {name: tensor.to(getattr(torch, dtype)).requires_grad_() for name, tensor in tensors.items()}
    return {**found, "lm_head.weight": found["transformer.wte.weight"]}


def optimizer_of(p):
    """nanoGPT's AdamW: matrices decay, and come first."""
    parameters = [tensor for name, tensor in p.items() if name != "lm_head.weight"]
    groups = [
        {"params": [x for x in parameters if x.ndim > 1], "weight_decay": 0.1},
        {"params": [x for x in parameters if x.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))


def step(p, optimizer):
    optimizer.zero_grad()
    loss_of(p).backward()
    optimizer.step()


def write(path, tensors, V, bias, optimizer=None, prefix="", **changes):
    """A ckpt.pt."""
    model = {prefix + name: tensor.detach() for name, tensor in tensors.items()}
    args = dict(n_layer=L, n_head=NH, n_embd=C, block_size=T, bias=bias, vocab_size=V, dropout=0.0)
    content = {
        "model": model,
        "optimizer": {} if optimizer is None else optimizer.state_dict(),
        "model_args": args,
        "iter_num": 3,
        "best_val_loss": torch.tensor(2.5),
        "config": {"dataset": "letters", "learning_rate": 1e-3, "compile": True},
    }
    torch.save({**content, **changes}, path)
    return path


def ours(name):
    """The name and block here of a nanoGPT tensor."""
    short = name.removeprefix("transformer.")
    for mine, theirs, _ in huggingface.NAMES:
        for l in range(L):
            if theirs.format(l=l) == short:
                return mine, l if "{l}" in theirs else ...
    raise AssertionError(name)


LETTERS = sorted("abcdefghijklmnop \n.")  # as many as TOKENS has


def made(folder, V=19, bias=True, dtype="float32", prefix="", masks=False, zipped=True, steps=0):
    """Write a ckpt.pt of a variant. Returns (path, its tensors in float64, without rows of padding)."""
    tensors = leaves(state(V, bias), dtype)
    optimizer = optimizer_of(tensors) if steps else None
    for _ in range(steps):
        step(tensors, optimizer)
    stored = dict(tensors)
    if masks:  # of attention that is not flash
        stored |= {f"transformer.h.{l}.attn.bias": torch.ones(1, 1, T, T).tril() for l in range(L)}
    path = write(folder / "ckpt.pt", stored, V, bias, optimizer, prefix)
    if not zipped:
        torch.save(torch.load(path), path, _use_new_zipfile_serialization=False)
    rows = 50257 if V == 50304 else V
    cut = {name: t.detach()[:rows] if len(t) == V else t.detach() for name, t in tensors.items()}
    return path, leaves(cut)


def write_letters(folder):
    """The meta.pkl of nanoGPT's data set of letters, whose checkpoints are in a folder beside data/."""
    (folder / "data" / "letters").mkdir(parents=True)
    meta = {"vocab_size": len(LETTERS), "itos": dict(enumerate(LETTERS))}
    meta["stoi"] = {letter: i for i, letter in meta["itos"].items()}
    (folder / "data" / "letters" / "meta.pkl").write_bytes(pickle.dumps(meta))


VARIANTS = {
    "plain": {},
    "no biases": {"bias": False},
    "compiled": {"prefix": "_orig_mod."},
    "compiled, DDP, no biases": {"prefix": "_orig_mod.module.", "bias": False},
    "GPT-2's rows": {"V": 50304},
    "bfloat16": {"dtype": "bfloat16"},
    "masks": {"masks": True},
    "old format": {"zipped": False},
    "optimizer": {"steps": 3},
}
# A row of docs/models.md: what it is, the name of its variant
ROWS = {
    "`ckpt.pt`; its GELU is by erf": "plain",
    "`bias=False`": "no biases",
    "of a model that was compiled, with `_orig_mod.`": "compiled",
    "compiled, from a model of DDP": "compiled, DDP, no biases",
    "50,304 rows, of which 47 are padding": "GPT-2's rows",
    "bfloat16": "bfloat16",
    "masks of attention among the tensors": "masks",
    "the format of PyTorch before 1.6": "old format",
    "with its optimizer: a new run goes on with its moments": "optimizer",
    "`meta.pkl` of letters": "letters",
    "a pickle that names a function": "function",
}


def rows():
    """What the row is -> a function of a folder that gives its cells: read, trained, written back."""
    return {what: partial(_cells, name) for what, name in ROWS.items()}


def _cells(name, folder):
    """Read a variant, train a step, and let transformers read what is written back."""
    import transformers

    if name == "function":
        torch.save({"model": print}, folder / "ckpt.pt")
        with pytest.raises(UserError) as error:
            gpt2.load(folder / "ckpt.pt")
        return f"refused: {str(error.value).partition(': ')[2]}", "", ""
    (folder / "out").mkdir()
    path, p = made(folder / "out", **VARIANTS.get(name, {}))
    model, tokens = gpt2.load(path), TOKENS[0]
    if name == "letters":
        write_letters(folder)
        words = gpt2.load_tokenizer(path)
        gpt2.save(model, folder / "letters", words)
        again = transformers.AutoTokenizer.from_pretrained(folder / "letters")
        assert again.encode("a fig\n") == words.encode("a fig\n").tolist()
    if name == "optimizer":
        assert pretrained.find(str(path)).moments()[0] == VARIANTS[name]["steps"]
    read = transformers.AutoModelForCausalLM.from_pretrained
    logits = logits_of(p, torch.from_numpy(tokens))
    return cells(model, logits, read, folder / "b", *TOKENS, lr=1e-4)
