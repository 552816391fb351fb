"""FLOPs and memory traffic of a training step, layer by layer: lower bounds for a roofline.

A product of (n, k) and (k, m) takes 2nkm FLOPs; attention counts the lower triangle alone; everything else is
free. Each layer's inputs and outputs are moved once in float32, and its intermediates are free. These are
bounds for layers that are fully fused, but not with each other.
"""

import math
from dataclasses import dataclass

from examples import llama

ITEM = 4  # bytes of a float32


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes of one kind of layer, summed over its instances."""

    flops: int
    bytes: int

    def seconds(self, peak, bandwidth):
        """The shortest possible time at `peak` FLOP/s and `bandwidth` bytes/s."""
        return max(self.flops / peak, self.bytes / bandwidth)


def step_work(size):
    """(kind of layer, forward | backward | update) -> its Work in a step."""
    config = size.config
    L, C, V, T = config.n_layer, config.n_embd, config.vocab_size, size.T
    N = size.B * T
    work = {
        ("encoder", "forward"): Work(0, ITEM * (2 * N + T) * C),
        ("encoder", "backward"): Work(0, ITEM * (3 * N + T) * C),  # dout read; rows of dwte read and written
        ("layernorm", "forward"): Work(0, ITEM * (2 * L + 1) * 2 * N * C),
        ("layernorm", "backward"): Work(0, ITEM * (2 * L + 1) * 3 * N * C),
        ("residual", "forward"): Work(0, ITEM * 2 * L * 3 * N * C),
        ("residual", "backward"): Work(0, ITEM * 2 * L * 3 * N * C),  # the two branches' gradients are added
        ("gelu", "forward"): Work(0, ITEM * L * 2 * N * 4 * C),
        ("gelu", "backward"): Work(0, ITEM * L * 3 * N * 4 * C),
        ("crossentropy", "forward"): Work(0, ITEM * N * V),
        ("crossentropy", "backward"): Work(0, ITEM * 2 * N * V),
        **_attention(L, N, T, C),
    }
    for kind, times, inputs, outputs in (
        ("qkv", L, C, 3 * C),
        ("attproj", L, C, C),
        ("fc", L, C, 4 * C),
        ("fcproj", L, 4 * C, C),
        ("head", 1, C, V),
    ):
        work |= _product(kind, times, N, inputs, outputs)
    # g is read twice, first for its norm; p, m and v are read and written
    work["clip, AdamW", "update"] = Work(0, ITEM * 8 * config.num_parameters)
    return work


def step_flops(size):
    """FLOPs of all matrix products of a step."""
    if size.training == "llama":
        return _llama_flops(size)
    return sum(work.flops for work in step_work(size).values())


def _llama_flops(size):
    """Every matrix product has two gradients that are products, so its FLOPs count three times."""
    c, N = size.config, size.B * size.T
    matrices = sum(math.prod(s) for name, s in llama.shapes(c).items() if len(s) == 2 and "embed" not in name)
    head = c.vocab_size * c.hidden_size if c.tie_word_embeddings else 0
    width = c.num_attention_heads * c.head_dim
    triangle = 2 * 2 * N * (size.T + 1) // 2 * width
    return 6 * N * (matrices + head) + 3 * triangle * c.num_hidden_layers


def _product(kind, times, N, inputs, outputs):
    flops = 2 * N * inputs * outputs
    arrays = ITEM * (N * inputs + inputs * outputs + N * outputs)
    return {
        (kind, "forward"): Work(times * flops, times * arrays),
        # two products: weight, dweight, inp and dinp, but dout once
        (kind, "backward"): Work(times * 2 * flops, times * (2 * arrays - ITEM * N * outputs)),
    }


def _attention(L, N, T, C):
    triangle = 2 * 2 * N * (T + 1) // 2 * C  # two products, each over half of the keys
    return {
        ("attention", "forward"): Work(L * triangle, L * ITEM * 4 * N * C),
        ("attention", "backward"): Work(L * 2 * triangle, L * ITEM * 8 * N * C),  # qkv, out, dout; dqkv
    }
