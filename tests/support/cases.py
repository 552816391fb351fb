"""One row per layer: its inputs at small sizes, all different, so that a swapped axis cannot pass.

A case makes its arrays from a seed, in either dtype. `formula` is the layer once more, written as close to
the textbook as possible and as far as possible from the code under test.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gpt2.layers import LAYERS

B, T, NH, C, OC, V, MAX_T = 2, 5, 3, 12, 7, 11, 8


@dataclass(frozen=True)
class Case:
    """name: of the test. layer: of LAYERS. shapes: one per input; Ids for integers, None for no input."""

    name: str
    layer: str
    shapes: tuple
    formula: Callable
    static: dict = field(default_factory=dict)

    def inputs(self, dtype=np.float64, seed=0):
        """Seeded inputs: normal floats, and ids with repeats."""
        rng = np.random.default_rng(seed)
        return tuple(_draw(rng, shape, dtype) for shape in self.shapes)

    def forward(self, *inputs):
        return LAYERS[self.layer].forward(*inputs, **self.static)


def _draw(rng, shape, dtype):
    if shape is None:
        return None
    if isinstance(shape, Ids):
        return rng.integers(0, shape.below, shape.shape)
    return rng.standard_normal(shape).astype(dtype)


@dataclass(frozen=True)
class Ids:
    """Integers from 0 to below - 1."""

    shape: tuple
    below: int


def float_arguments(inputs):
    """Positions of the inputs that have a gradient."""
    return [i for i, x in enumerate(inputs) if x is not None and x.dtype.kind == "f"]


def encoder_formula(tokens, wte, wpe):
    onehot = np.eye(len(wte))[tokens]  # (B, T, V)
    return onehot @ wte + np.eye(len(wpe))[: tokens.shape[1]] @ wpe


def layernorm_formula(inp, weight, bias):
    return (inp - inp.mean(-1, keepdims=True)) / np.sqrt(inp.var(-1, keepdims=True) + 1e-5) * weight + bias


def matmul_formula(inp, weight, bias):
    return np.einsum("...c,oc->...o", inp, weight) + (0.0 if bias is None else bias)


def attention_formula(qkv, *, num_heads):
    B, T, C3 = qkv.shape
    HS = C3 // 3 // num_heads
    out = np.zeros((B, T, C3 // 3))
    for b in range(B):
        for h in range(num_heads):
            q, k, v = (qkv[b, :, i * C3 // 3 + h * HS :][:, :HS] for i in range(3))
            for t in range(T):
                weights = [math.exp(q[t] @ k[s] / math.sqrt(HS)) for s in range(t + 1)]
                mix = sum(w * v[s] for s, w in enumerate(weights)) / sum(weights)
                out[b, t, h * HS : (h + 1) * HS] = mix
    return out


def gelu_formula(inp):
    def gelu(x):
        return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    return np.vectorize(gelu)(inp)


def residual_formula(a, b):
    return a + b


def crossentropy_formula(logits, targets):
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return -np.log((probs * np.eye(logits.shape[-1])[targets]).sum(-1))


CASES = [
    Case("encoder", "encoder", (Ids((B, T), V), (V, C), (MAX_T, C)), encoder_formula),
    Case("layernorm", "layernorm", ((B, T, C), (C,), (C,)), layernorm_formula),
    Case("layernorm-rows", "layernorm", ((T, C), (C,), (C,)), layernorm_formula),
    Case("matmul", "matmul", ((B, T, C), (OC, C), (OC,)), matmul_formula),
    Case("matmul-no-bias", "matmul", ((B, T, C), (OC, C), None), matmul_formula),
    Case("matmul-one-row", "matmul", ((C,), (OC, C), (OC,)), matmul_formula),
    Case("attention", "attention", ((B, T, 3 * C),), attention_formula, {"num_heads": NH}),
    Case("attention-one-head", "attention", ((B, T, 3 * C),), attention_formula, {"num_heads": 1}),
    Case("gelu", "gelu", ((B, T, C),), gelu_formula),
    Case("residual", "residual", ((B, T, C), (B, T, C)), residual_formula),
    Case("crossentropy", "crossentropy", ((B, T, V), Ids((B, T), V)), crossentropy_formula),
]
