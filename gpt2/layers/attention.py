"""Causal multi-head self-attention. Vaswani et al. 2017.

For one head, with queries q, keys k and values v of shape (T, HS):

    scores = q @ k.T / sqrt(HS)             position i sees positions j <= i only
    att    = softmax of each row of scores  (T, T)
    y      = att @ v

Backward, the passes in reverse. att is a product's left side, then a softmax, then another product:

    dv      = att.T @ dy
    datt    = dy @ v.T
    dscores = att * (datt - sum_j att * datt)                    the softmax of a row
    dq      = dscores @ k / sqrt(HS)
    dk      = dscores.T @ q / sqrt(HS)

Two identities keep this small (Dao et al. 2022, FlashAttention, appendix B):

    att = exp(scores - logsumexp)               so att need not be kept: one number a row restores it
    sum_j att * datt = sum_j att * (dy . v_j) = dy . y           a sum over HS channels, not over T positions

Queries are taken in blocks. A block that ends at position t1 needs no key from t1 on, so for long sequences
half of the work is saved, and no T x T array is ever held.
"""

import math

import numpy as np

from gpt2.layers.layer import Array, Layer

QUERY_BLOCK = 128
# Added to the score of a key that lies ahead. Finite, as inf - inf would be nan, and so large that exp of it
# is exactly 0 in either dtype.
MASKED = -1e30


def attention_forward(qkv: Array, *, num_heads: int) -> tuple[Array, tuple]:
    """Let each position gather values from itself and from those before it.

    qkv        (B, T, 3C)   queries, keys and values of all heads, side by side
    num_heads  NH, a divisor of C; a head has HS = C // NH channels

    Returns out (B, T, C), the heads side by side. Saved: qkv, out, logsumexp (B, NH, T, 1).
    """
    B, T, C = check_shape(qkv, num_heads)
    q, k, v = split_heads(qkv, num_heads)  # views, (B, NH, T, HS)
    out = np.empty_like(qkv, shape=(B, T, C))
    y = heads_of(out, num_heads)  # a view, (B, NH, T, HS)
    logsumexp = np.empty_like(qkv, shape=(B, num_heads, T, 1))
    scale = 1.0 / math.sqrt(C // num_heads)
    for t0, t1 in query_blocks(T):
        scores = (q[:, :, t0:t1] * scale) @ k[:, :, :t1].swapaxes(-1, -2)  # (B, NH, t1-t0, t1)
        scores = scores + causal_mask(t0, t1, qkv.dtype)
        largest = np.max(scores, axis=-1, keepdims=True)
        exps = np.exp(scores - largest)
        total = np.sum(exps, axis=-1, keepdims=True)
        y[:, :, t0:t1] = (exps @ v[:, :, :t1]) / total
        logsumexp[:, :, t0:t1] = largest + np.log(total)
    return out, (qkv, out, logsumexp)


def attention_backward(dout: Array, saved: tuple, *, num_heads: int) -> tuple:
    """Gradient of attention_forward: (dqkv,), (B, T, 3C).

    dout   (B, T, C)
    saved  qkv, out, logsumexp
    """
    qkv, out, logsumexp = saved
    C = qkv.shape[-1] // 3
    T = qkv.shape[1]
    q, k, v = split_heads(qkv, num_heads)  # (B, NH, T, HS)
    dy, y = heads_of(dout, num_heads), heads_of(out, num_heads)
    dqkv = np.zeros_like(qkv)
    dq, dk, dv = split_heads(dqkv, num_heads)  # views into dqkv
    scale = 1.0 / math.sqrt(C // num_heads)
    row_sums = np.sum(dy * y, axis=-1, keepdims=True)  # (B, NH, T, 1)
    for t0, t1 in query_blocks(T):
        rows, keys = slice(t0, t1), slice(0, t1)
        scaled_q = q[:, :, rows] * scale
        scores = scaled_q @ k[:, :, keys].swapaxes(-1, -2)  # (B, NH, t1-t0, t1)
        scores = scores + causal_mask(t0, t1, qkv.dtype)
        att = np.exp(scores - logsumexp[:, :, rows])
        dv[:, :, keys] += att.swapaxes(-1, -2) @ dy[:, :, rows]
        datt = dy[:, :, rows] @ v[:, :, keys].swapaxes(-1, -2)
        dscores = att * (datt - row_sums[:, :, rows])
        dq[:, :, rows] = (dscores @ k[:, :, keys]) * scale
        dk[:, :, keys] += dscores.swapaxes(-1, -2) @ scaled_q
    return (dqkv,)


def attention_read(qkv: Array, *, num_heads: int, kept: dict, start: int, length: int) -> Array:
    """attention_forward of n positions from `start` on, qkv (B, n, 3C), over all earlier ones: (B, n, C).

    Keys and values (B, NH, length, HS) are cached in `kept`. Each position sees those up to itself.
    """
    q, k, v = split_heads(qkv, num_heads)  # views, (B, NH, n, HS)
    B, NH, n, HS = q.shape
    keys, values = kept_heads(kept, (B, NH, length, HS), qkv.dtype)
    stop = start + n
    keys[:, :, start:stop] = k
    values[:, :, start:stop] = v
    if n == 1:
        return _read_one(q, keys[:, :, :stop], values[:, :, :stop], kept)
    scores = (q * (1.0 / math.sqrt(HS))) @ keys[:, :, :stop].swapaxes(-1, -2)  # (B, NH, n, stop)
    scores += np.where(np.tri(n, stop, start, dtype=bool), 0.0, MASKED).astype(qkv.dtype)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return (scores @ values[:, :, :stop]).transpose(0, 2, 1, 3).reshape(B, n, NH * HS)


def _read_one(q: Array, keys: Array, values: Array, kept: dict) -> Array:
    """Attention of the last of T positions, in the memory of `kept`: (B, 1, C), valid until the next call.

    q (B, NH, 1, HS); keys and values (B, NH, T, HS)
    """
    B, NH, T, HS = keys.shape
    out = kept["out"]
    scores = kept["scores"][..., :T]  # (B, NH, 1, T)
    number = kept["number"]  # (B, NH, 1, 1)
    np.multiply(q, 1.0 / math.sqrt(HS), out=kept["query"])
    np.matmul(kept["query"], keys.swapaxes(-1, -2), out=scores)
    np.maximum.reduce(scores, axis=-1, keepdims=True, out=number)
    np.subtract(scores, number, out=scores)
    np.exp(scores, out=scores)
    np.add.reduce(scores, axis=-1, keepdims=True, out=number)
    y = heads_of(out, NH)  # a view, (B, NH, 1, HS)
    np.matmul(scores, values, out=y)
    np.divide(y, number, out=y)
    return out


def kept_heads(kept: dict, shape: tuple[int, int, int, int], dtype: np.dtype) -> tuple[Array, Array]:
    """The arrays for keys and values in `kept`, allocated on the first call, with the scratch arrays that
    `_read_one` needs.
    """
    if "keys" not in kept or kept["keys"].shape != shape:
        B, NH, length, HS = shape
        sizes = {
            "keys": shape,
            "values": shape,
            "query": (B, NH, 1, HS),
            "scores": (B, NH, 1, length),
            "number": (B, NH, 1, 1),
            "out": (B, 1, NH * HS),
        }
        kept.update({name: np.empty(size, dtype) for name, size in sizes.items()})
    return kept["keys"], kept["values"]


def query_blocks(T: int) -> list[tuple[int, int]]:
    """Cut positions 0..T into (start, end) pairs of QUERY_BLOCK, the last one shorter."""
    return [(t0, min(t0 + QUERY_BLOCK, T)) for t0 in range(0, T, QUERY_BLOCK)]


def causal_mask(t0: int, t1: int, dtype: np.dtype) -> Array:
    """0 where query t0+i may see key j, MASKED where j lies ahead: (t1-t0, t1)."""
    return np.where(np.tri(t1 - t0, t1, t0, dtype=bool), 0.0, MASKED).astype(dtype)


def split_heads(qkv: Array, num_heads: int) -> tuple[Array, ...]:
    """Views q, k, v (B, NH, T, HS) of a packed qkv (B, T, 3C). A head's channels stay adjacent in memory."""
    B, T, C3 = qkv.shape
    parts = qkv.reshape(B, T, 3, num_heads, C3 // 3 // num_heads)
    return tuple(parts[:, :, i].transpose(0, 2, 1, 3) for i in range(3))


def heads_of(x: Array, num_heads: int) -> Array:
    """View (B, NH, T, HS) of x (B, T, C)."""
    B, T, C = x.shape
    return x.reshape(B, T, num_heads, C // num_heads).transpose(0, 2, 1, 3)


def check_shape(qkv: Array, num_heads: int) -> tuple[int, int, int]:
    """B, T, C of qkv (B, T, 3C), or ValueError if it cannot be split into num_heads heads."""
    if qkv.ndim != 3 or qkv.shape[-1] % 3:
        raise ValueError(f"attention_forward: qkv has shape {qkv.shape}, expected (B, T, 3*C)")
    B, T, C3 = qkv.shape
    if num_heads < 1 or (C3 // 3) % num_heads:
        raise ValueError(
            f"attention_forward: num_heads is {num_heads}, expected a divisor of C={C3 // 3} "
            f"for qkv {qkv.shape}"
        )
    return B, T, C3 // 3


LAYER = Layer("attention", attention_forward, attention_backward, read=attention_read)
