"""What benchmarks train: models and batches by name, the optimizer's settings, the data; single layers."""

import math
from dataclasses import dataclass, replace

import numpy as np

from examples import llama
from gpt2.errors import UserError
from gpt2.layers.cases import Sizes, at
from gpt2.model import GPT2Config
from gpt2.model.parameters import initialise, unflatten

# nanoGPT's optimizer settings, for all contenders. The learning rate is constant, as it does not affect time.
LR, BETAS, EPS, WEIGHT_DECAY, CLIP = 6e-4, (0.9, 0.95), 1e-8, 0.1, 1.0


@dataclass(frozen=True)
class Size:
    """A model and its batch: B sequences of T tokens.

    training   the function of a contender's module that trains this model
    """

    name: str
    config: GPT2Config | llama.Config
    B: int
    T: int
    training: str = "training"


# block_size is T, so that no contender holds unused positions. The vocabulary is GPT-2's 50257; nanoGPT's
# recipe for a CPU reads 65 characters, and the last size is for a tokenizer trained as bpe:8192.
SIZES = {
    size.name: size
    for size in (
        Size("124M-B4T64", GPT2Config.preset("gpt2", block_size=64), 4, 64),
        Size("124M-B4T256", GPT2Config.preset("gpt2", block_size=256), 4, 256),
        Size("124M-B1T1024", GPT2Config.preset("gpt2", block_size=1024), 1, 1024),
        Size("6x384-B12T256", GPT2Config.preset("small-cpu"), 12, 256),
        Size("4x128-B12T64", GPT2Config.preset("shakespeare-char-cpu"), 12, 64),
        # the default of `python train.py`
        Size("default", GPT2Config(block_size=64, n_layer=4, n_head=4, n_embd=128), 8, 64),
        Size("8x256-B8T128", GPT2Config(8192, 128, n_layer=8, n_head=8, n_embd=256), 8, 128),
    )
}


def _llama(name, vocab_size, L, C, B, T):
    """A Llama with heads of 64 channels, two query heads for each head of keys and values."""
    return Size(name, llama.shaped(vocab_size, L, C, C // 64, C // 128), B, T, "llama")


# For examples/llama.py. Vocabularies are those of bpe:8192 and of Llama 2, and bytes
LLAMAS = {
    size.name: size
    for size in (
        _llama("llama-8x512-B4T256", 8192, 8, 512, 4, 256),
        _llama("llama-8x512-B4T256-V32000", 32000, 8, 512, 4, 256),
        _llama("llama-2x128-B2T64", 256, 2, 128, 2, 64),
    )
}


def find(name, among=SIZES, flag="--sizes"):
    """The Size of this name. Raises a UserError that names the flag and the valid names."""
    if name not in among:
        some = "some" if flag == "--sizes" else "one"
        every = ", or all" if flag == "--sizes" else ""
        raise UserError(f"{flag}: no size {name!r}, expected {some} of {', '.join(among)}{every}")
    return among[name]


def find_all(names, among=SIZES):
    """The Sizes of a comma-separated list, or those of SIZES for "all"."""
    return [find(name, among) for name in (SIZES if names == "all" else names.split(","))]


def step_flops(size):
    """FLOPs of all matrix products of a step.

    A product of (n, k) and (k, m) takes 2nkm, and its two gradients as many each. Attention counts the lower
    triangle alone.
    """
    c, N = size.config, size.B * size.T
    if size.training == "llama":
        shapes = llama.shapes(c).items()
        weights = sum(math.prod(s) for name, s in shapes if len(s) == 2 and "embed" not in name)
        weights += c.vocab_size * c.hidden_size if c.tie_word_embeddings else 0  # the head
        width = c.num_attention_heads * c.head_dim * c.num_hidden_layers
    else:
        weights = 12 * c.n_embd**2 * c.n_layer + c.vocab_size * c.n_embd
        width = c.n_embd * c.n_layer
    return 6 * N * (weights + (size.T + 1) * width)


def batches(size, seed=1):
    """Endless (tokens, targets), each (B, T) int64, the same for every contender."""
    rng = np.random.default_rng(seed)
    while True:
        tokens, targets = rng.integers(0, size.config.vocab_size, (2, size.B, size.T))
        yield tokens, targets


def initial_weights(config, seed=0):
    """Every contender's initial weights, by name: those of GPT2(config, seed=seed)."""
    params = unflatten(np.empty(config.num_parameters, config.dtype), config)
    initialise(params, config, seed)
    return params


# ---- Single layers, in the shapes of GPT-2 124M ------------------------------------------------------------

C, NH, V = 768, 12, 50257
# Of results, relative to their norm: float32 sums of up to 50257 terms in different orders
TOLERANCE = 1e-4


def cases(B, T, C=C, NH=NH, V=V):
    """Name -> Case for a batch of B sequences of T tokens.

    C channels, NH heads, V words in the vocabulary: those of GPT-2 124M unless given.
    """

    def row(name, C=C, OC=C):
        layer = name.partition("-")[0]
        return replace(at(Sizes(B=B, T=T, C=C, OC=OC, NH=NH, V=V, max_t=T))[layer], name=name)

    rows = [
        row("encoder"),
        row("layernorm"),
        row("matmul-qkv", OC=3 * C),
        row("matmul-attproj"),
        row("matmul-fc", OC=4 * C),
        row("matmul-fcproj", C=4 * C),
        replace(row("matmul-head"), shapes=((B, T, C), (V, C), None)),
        row("attention"),
        row("gelu", C=4 * C),
        row("residual"),
        row("crossentropy"),
    ]
    return {case.name: case for case in rows}


def find_batch(name):
    """(B, T) of a name such as B4T64. Raises UserError for others."""
    B, t, T = name.removeprefix("B").partition("T")
    if not (name.startswith("B") and t and B.isdecimal() and T.isdecimal() and int(B) and int(T)):
        raise UserError(f"{name!r} is not a batch such as B4T64: 4 sequences of 64 tokens")
    return int(B), int(T)
