"""Attention whose scores have another scale, as some models of transformers have.

    scores = q @ k.T / sqrt(HS) / n         n: the number of the block, from 1
    scores = q @ k.T                        without the root

They are transformers' scale_attn_by_inverse_layer_idx, after Mistral (Karamcheti et al. 2021), and
scale_attn_weights=False. The queries are multiplied by the ratio to attention's own scale, and so is their
gradient.
"""

import math
from typing import Any

import numpy as np

from gpt2.layers.attention import attention_backward, attention_forward, attention_read
from gpt2.layers.layer import Array, Layer


def scaled_attention_forward(
    qkv: Array, divisor: Array | None = None, *, num_heads: int, scaled: bool = True
) -> tuple[Array, tuple]:
    """attention_forward with scores of another scale.

    qkv      (B, T, 3C)   as there
    divisor  (1,) int     scores are divided by it; None: they are not
    scaled   whether scores are divided by sqrt(HS)

    Returns out (B, T, C). Saved: what attention saves, of the scaled queries, and divisor.
    """
    out, saved = attention_forward(scale_queries(qkv, divisor, num_heads, scaled), num_heads=num_heads)
    return out, (*saved, divisor)


def scaled_attention_backward(dout: Array, saved: tuple, *, num_heads: int, scaled: bool = True) -> tuple:
    """Gradient of scaled_attention_forward: dqkv (B, T, 3C), and None for a divisor."""
    *saved, divisor = saved
    (dqkv,) = attention_backward(dout, tuple(saved), num_heads=num_heads)
    dqkv = scale_queries(dqkv, divisor, num_heads, scaled)
    return (dqkv,) if divisor is None else (dqkv, None)


def scaled_attention_read(
    qkv: Array, divisor: Array | None = None, *, num_heads: int, scaled: bool = True, **where: Any
) -> Array:
    """attention_read with scores of another scale; where: kept, start and length."""
    return attention_read(scale_queries(qkv, divisor, num_heads, scaled), num_heads=num_heads, **where)


def scale_queries(qkv: Array, divisor: Array | None, num_heads: int, scaled: bool) -> Array:
    """qkv (B, T, 3C) with its queries, the first C channels, multiplied by the ratio of the scales."""
    C = qkv.shape[-1] // 3
    ratio = 1.0 if scaled else math.sqrt(C // num_heads)
    if divisor is not None:
        ratio = ratio / divisor.astype(qkv.dtype)
    return np.concatenate([qkv[..., :C] * ratio, qkv[..., C:]], axis=-1)


LAYER = Layer(
    "scaled_attention", scaled_attention_forward, scaled_attention_backward, read=scaled_attention_read
)
