"""Encoder: token embedding plus position embedding.

out[b, t] = wte[tokens[b, t]] + wpe[t]
"""

import numpy as np

from gpt2.layers.layer import Array, Layer


def encoder_forward(tokens: Array, wte: Array, wpe: Array) -> tuple[Array, tuple]:
    """Look up the vectors of tokens and of their positions, and add them.

    tokens  (B, T) int      each in [0, V)
    wte     (V, C)          token embedding
    wpe     (maxT, C)       position embedding, maxT >= T

    Returns out (B, T, C), in the dtype of wte. Radford et al. 2019 (GPT-2), section 2.3.
    """
    check_integers("encoder_forward", "tokens", tokens)
    V, C = wte.shape
    if tokens.ndim != 2:
        raise ValueError(f"encoder_forward: tokens has shape {tokens.shape}, expected (B, T)")
    if wpe.ndim != 2 or wpe.shape[1] != C:
        raise ValueError(
            f"encoder_forward: wpe has shape {wpe.shape}, expected (maxT, {C}) to match wte {wte.shape}"
        )
    T = tokens.shape[1]
    if T > wpe.shape[0]:
        raise ValueError(
            f"encoder_forward: tokens has T={T} positions, but wpe has vectors for {wpe.shape[0]}; "
            "pass a shorter sequence or a model with a larger block_size"
        )
    check_ids("encoder_forward", "tokens", tokens, V)
    out = wte[tokens] + wpe[:T]  # (B, T, C)
    return out, (tokens, wte, wpe)


def encoder_backward(dout: Array, saved: tuple) -> tuple:
    """Gradient of encoder_forward: None for the tokens, then dwte (V, C) and dwpe (maxT, C).

    dout   (B, T, C)
    saved  tokens, wte, wpe; of the last two only shape and dtype are used

    A row of wte serves every position that holds its token, and a row of wpe every sequence, so the
    gradient of a row is the sum over its uses. Rows that were not used have gradient zero.
    """
    tokens, wte, wpe = saved
    T = tokens.shape[1]
    dwte = np.zeros_like(wte)
    # add.at, since `dwte[tokens] += dout` would count a repeated token once. A loop of row additions is seven
    # times faster, but 2 ms (256 rows of 768) is small beside a step, and this line says what it means.
    np.add.at(dwte, tokens, dout)
    dwpe = np.zeros_like(wpe)
    dwpe[:T] = dout.sum(axis=0)
    return None, dwte, dwpe


def encoder_read(tokens: Array, wte: Array, wpe: Array, *, kept: dict, start: int, length: int) -> Array:
    """encoder_forward of the positions from `start` on: (B, n, C). `kept` holds only memory for the result of
    one position.
    """
    if tokens.shape[1] > 1:
        return wte[tokens] + wpe[start : start + tokens.shape[1]]
    if "out" not in kept or kept["out"].shape != (*tokens.shape, wte.shape[1]):
        kept["out"] = np.empty((*tokens.shape, wte.shape[1]), wte.dtype)
    out = kept["out"]
    for b, row in enumerate(out):  # (1, C)
        np.add(wte[tokens[b, 0]], wpe[start], out=row[0])
    return out


def check_integers(function: str, argument: str, ids: Array) -> None:
    """Raise ValueError unless ids is an array of integers."""
    if ids.dtype.kind not in "iu":
        raise ValueError(f"{function}: {argument} has dtype {ids.dtype}, expected integers")


def check_ids(function: str, argument: str, ids: Array, V: int, others: str = "") -> None:
    """Raise ValueError unless every id is in [0, V): a negative one would silently count from the end.

    others   what the message says of values that the caller allows besides
    """
    if ids.size and (np.min(ids) < 0 or np.max(ids) >= V):
        outside = int(np.min(ids)) if np.min(ids) < 0 else int(np.max(ids))
        raise ValueError(f"{function}: {argument} contains {outside}, expected ids from 0 to {V - 1}{others}")


LAYER = Layer("encoder", encoder_forward, encoder_backward, read=encoder_read)
