"""The layers at small sizes, all different, so that a swapped axis cannot pass; and the formula of each.

A formula is the layer once more, written as close to the textbook as possible and as far as possible from the
code under test.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from gpt2.layers import ALL_LAYERS
from gpt2.layers.cases import Case, Sizes, at

B, T, NH, C, OC, V, MAX_T = 2, 5, 3, 12, 7, 11, 8


class Checked(Case):
    """A case with the formula that its layer is checked by."""

    @property
    def formula(self) -> Callable:
        return FORMULAS[self.layer]

    def forward(self, *inputs):
        return ALL_LAYERS[self.layer].forward(*inputs, **self.static)


def float_arguments(inputs):
    """Positions of the inputs that have a gradient."""
    return [i for i, x in enumerate(inputs) if x is not None and x.dtype.kind == "f"]


def encoder_formula(tokens, wte, wpe):
    onehot = np.eye(len(wte))[tokens]  # (B, T, V)
    return onehot @ wte + np.eye(len(wpe))[: tokens.shape[1]] @ wpe


def layernorm_formula(inp, weight, bias=0.0, eps=1e-5):
    norm = (inp - inp.mean(-1, keepdims=True)) / np.sqrt(inp.var(-1, keepdims=True) + eps)
    return norm * weight + bias


def matmul_formula(inp, weight, bias):
    return np.einsum("...c,oc->...o", inp, weight) + (0.0 if bias is None else bias)


def attention_formula(qkv, divisor=(1,), *, num_heads, scaled=True):
    B, T, C3 = qkv.shape
    HS = C3 // 3 // num_heads
    root = (math.sqrt(HS) if scaled else 1.0) * divisor[0]
    out = np.zeros((B, T, C3 // 3))
    for b in range(B):
        for h in range(num_heads):
            q, k, v = (qkv[b, :, i * C3 // 3 + h * HS :][:, :HS] for i in range(3))
            for t in range(T):
                weights = [math.exp(q[t] @ k[s] / root) for s in range(t + 1)]
                mix = sum(w * v[s] for s, w in enumerate(weights)) / sum(weights)
                out[b, t, h * HS : (h + 1) * HS] = mix
    return out


@np.vectorize
def gelu_formula(x):
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@np.vectorize
def gelu_erf_formula(x):
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def silu_formula(inp, k=1.0):
    return inp / (1.0 + np.exp(-k * inp))


def crossentropy_formula(logits, targets):
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    onehot = targets[..., None] == np.arange(logits.shape[-1])  # (B, T, V), no row for an ignored target
    return -np.log((probs * onehot).sum(-1) + ~onehot.any(-1))


FORMULAS = {
    "encoder": encoder_formula,
    "layernorm": layernorm_formula,
    "matmul": matmul_formula,
    "attention": attention_formula,
    "gelu": gelu_formula,
    "scaled_attention": attention_formula,
    "layernorm_no_bias": layernorm_formula,
    "gelu_erf": gelu_erf_formula,
    "quick_gelu": partial(silu_formula, k=1.702),
    "relu": lambda inp: (inp + abs(inp)) / 2,
    "silu": silu_formula,
    "residual": operator.add,
    "crossentropy": crossentropy_formula,
}


def _cases():
    rows = at(Sizes(B=B, T=T, C=C, OC=OC, NH=NH, V=V, max_t=MAX_T))
    unscaled = {"num_heads": NH, "scaled": False}
    yield from rows.values()
    yield replace(rows["layernorm"], name="layernorm-rows", shapes=((T, C), (C,), (C,)))
    yield replace(rows["layernorm"], name="layernorm-eps", static={"eps": 0.1})
    yield replace(rows["matmul"], name="matmul-no-bias", shapes=((B, T, C), (OC, C), None))
    yield replace(rows["matmul"], name="matmul-one-row", shapes=((C,), (OC, C), (OC,)))
    yield replace(rows["attention"], name="attention-one-head", static={"num_heads": 1})
    yield replace(
        rows["scaled_attention"], name="attention-unscaled", shapes=((B, T, 3 * C),), static=unscaled
    )
    logits, targets = rows["crossentropy"].shapes
    ignored = replace(targets, ignored=(-1, -100))
    yield replace(rows["crossentropy"], name="crossentropy-ignored", shapes=(logits, ignored))


CASES = [Checked(case.name, case.layer, case.shapes, case.static) for case in _cases()]
