"""Adapters: layers with frozen weights, beside which a product of two thin matrices is trained.

    lora_forward           a linear layer:  inp @ (weight + scale * b @ a).T + bias
    lora_encoder_forward   the encoder with wte + scale * (b @ a).T, wpe likewise, or other rows in wte
    lora_tokens_forward    a linear layer with other rows in its weight: the head, if wte is

One of a and b starts at zero, so that at first each computes what it would without. Hu et al. 2021. With a
magnitude the rows of the sum are divided by their lengths, which count as constants for the gradient: DoRA,
Liu et al. 2024, section 4. There are no manual backwards: the compiler derives them, without the gradients
that are not needed, above all those of weights.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpt2.layers.encoder import check_ids, check_integers
from gpt2.layers.layer import Array, Layer
from gpt2.layers.matmul import check_shapes


def same(x: Array) -> Array:
    return x


def lora_forward(
    inp: Array,
    weight: Array,
    bias: Array | None,
    a: Array,
    b: Array,
    lora_bias: Array | None = None,
    magnitude: Array | None = None,
    scale: Array | float = 1.0,
    *,
    constant: Callable[[Array], Array] = same,
) -> tuple[Array, tuple]:
    """matmul_forward with the weight weight + scale * b @ a, which is formed for its lengths alone.

    inp        (..., C)
    weight     (OC, C)
    bias       (OC,) or None
    a, b       (r, C) and (OC, r)
    lora_bias  (OC,), added scale times, or None
    magnitude  (OC,), the lengths of the weight's rows, or None: their own
    scale      a number, or (1,)
    constant   marks the lengths, which get no gradient

    Returns out (..., OC).
    """
    check_shapes("lora_forward", inp, weight, bias)
    OC, C = weight.shape
    if a.shape[1:] != (C,) or b.shape != (OC, a.shape[0]):
        raise ValueError(
            f"lora_forward: a has shape {a.shape}, b {b.shape}, expected (r, {C}) and ({OC}, r) "
            f"to match weight {weight.shape}"
        )
    rows = inp.reshape(-1, C)
    out = rows @ weight.T + (scale * (rows @ a.T)) @ b.T  # (N, OC)
    if lora_bias is not None:
        out = out + scale * lora_bias
    if magnitude is not None:
        out = out * (magnitude / constant(lengths(weight + scale * (b @ a))))
    if bias is not None:
        out = out + bias
    return out.reshape(*inp.shape[:-1], OC), ()


def lengths(weight: Array) -> Array:
    """The lengths (OC,) of the rows of a weight (OC, C)."""
    return np.sqrt(np.sum(weight * weight, axis=1))


def lora_encoder_forward(
    tokens: Array,
    wte: Array,
    wpe: Array,
    wte_a: Array | None = None,
    wte_b: Array | None = None,
    wte_magnitude: Array | None = None,
    wpe_a: Array | None = None,
    wpe_b: Array | None = None,
    wpe_magnitude: Array | None = None,
    rows: Array | None = None,
    *,
    wte_scale: float = 1.0,
    wpe_scale: float = 1.0,
    replaced: Sequence[int] = (),
    start: int = 0,
    constant: Callable[[Array], Array] = same,
) -> tuple[Array, tuple]:
    """encoder_forward with adapters beside both embeddings, or one.

    tokens      (B, T) int
    wte, wpe    (V, C) and (maxT, C)
    .._a, .._b  (r, V) or (r, maxT), and (C, r)
    magnitudes  (C,), the lengths of the columns
    rows        (n, C), in place of wte's rows `replaced`
    start       position of the first token

    Returns out (B, T, C).
    """
    check_integers("lora_encoder_forward", "tokens", tokens)
    check_ids("lora_encoder_forward", "tokens", tokens, len(wte))
    words = _looked_up(tokens, wte, wte_a, wte_b, wte_magnitude, wte_scale, constant)
    if rows is not None:
        row = np.full(len(wte), -1)
        row[list(replaced)] = np.arange(len(rows))
        at = row[tokens]  # (B, T), -1 for tokens that keep their row of wte
        words = np.where((at < 0)[..., None], words, rows[np.maximum(at, 0)])
    positions = np.arange(start, start + tokens.shape[1])
    return words + _looked_up(positions, wpe, wpe_a, wpe_b, wpe_magnitude, wpe_scale, constant), ()


def _looked_up(ids, table, a, b, magnitude, scale, constant):
    """The rows `ids` of table + scale * (b @ a).T."""
    out = table[ids]
    if a is not None:
        out = out + (scale * a.T[ids]) @ b.T
    if magnitude is not None:
        out = out * (magnitude / constant(lengths(table.T + scale * (b @ a))))
    return out


def lora_encoder_read(
    tokens: Array, *tensors: Array | None, kept: dict, start: int, length: int, **static: Any
) -> Array:
    """lora_encoder_forward of the positions from `start` on: (B, n, C)."""
    return lora_encoder_forward(tokens, *tensors, start=start, **static)[0]


def lora_tokens_forward(
    inp: Array, weight: Array, bias: Array | None, rows: Array, *, replaced: Sequence[int]
) -> tuple[Array, tuple]:
    """matmul_forward with `rows` (n, C) in place of the rows `replaced` of weight. Returns out (..., OC)."""
    check_shapes("lora_tokens_forward", inp, weight, bias)
    OC, C = weight.shape
    flat = inp.reshape(-1, C)
    out = flat @ weight.T
    out[:, list(replaced)] = flat @ rows.T
    if bias is not None:
        out = out + bias
    return out.reshape(*inp.shape[:-1], OC), ()


LAYERS = {
    "lora": Layer("lora", lora_forward, None, by_position=True),
    "lora_encoder": Layer("lora_encoder", lora_encoder_forward, None, read=lora_encoder_read),
    "lora_tokens": Layer("lora_tokens", lora_tokens_forward, None, by_position=True),
}
