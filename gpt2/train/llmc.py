"""llm.c's program for the CPU around the model: sampling and log lines.

    batches        in gpt2/data/llmc.py
    optimizer      AdamW with lr 1e-4, betas 0.9 and 0.999, eps 1e-8, no decay, no clipping
    sampling       from the whole distribution, by an xorshift generator with seed 1337

With `train.py --preset llm.c` the same checkpoint and tokens give the same losses, line by line. Its file
formats are in gpt2/weights/llmc.py.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from gpt2.model.config import GPT2Config
from gpt2.model.decoder import Decoder
from gpt2.weights.llmc import padded

SAMPLE_SEED = 1337


def coins(state: int = SAMPLE_SEED) -> Iterator[float]:
    """llm.c's random numbers for sampling, float32 numbers in [0, 1): xorshift64* (Marsaglia 2003, Vigna
    2016), 24 bits.
    """
    mask = (1 << 64) - 1
    while True:
        state ^= state >> 12
        state ^= (state << 25) & mask
        state ^= state >> 27
        yield (((state * 0x2545F4914F6CDD1D) & mask) >> 32 >> 8) / 16777216.0


def choose(logits: np.ndarray, coin: float) -> int:
    """The first token at which the cumulated probability passes `coin`, all in float32. logits (V,)."""
    probs = np.exp(logits - logits.max(), dtype=np.float32)
    probs /= probs.sum(dtype=np.float32)
    cumulated = np.cumsum(probs, dtype=np.float32)
    return min(int(np.searchsorted(cumulated, np.float32(coin), side="right")), len(probs) - 1)


def generate(decoder: Decoder, start: int, count: int, earlier: int = 0) -> Iterator[int]:
    """Yields `count` tokens after the token `start`.

    decoder   a fresh gpt2.model.decoder.Decoder
    earlier   number of tokens drawn before in this run, whose random numbers are skipped
    """
    token = start
    for coin in islice(coins(), earlier, earlier + count):
        token = choose(decoder.read([[token]])[0, -1], coin)
        yield token


def printable(token: bytes) -> bytes:
    """The bytes llm.c prints of a token: none for a single byte that is not printable ASCII."""
    if len(token) == 1 and not (0x20 <= token[0] < 0x7F or token in b"\t\n\v\f\r"):
        return b""
    return token.split(b"\0")[0]


def first_lines(config: GPT2Config, train: np.ndarray, val: np.ndarray, B: int, T: int) -> list[str]:
    """The lines before the first step: about the model, the two token arrays and the activations."""
    V, L, C, NH, Vp = (
        config.vocab_size,
        config.n_layer,
        config.n_embd,
        config.n_head,
        padded(config.vocab_size),
    )
    # A position of a block: ln1, atty, attproj, residual2, ln2, fcproj, residual3 have C numbers, qkv 3C, fch
    # and its gelu 4C; two layernorms a mean and an rstd; attention T before and T after the softmax, a head
    per_block = 18 * C + 4 + 2 * NH * T
    ends = 2 * C + 2 + 2 * Vp + 1  # encoded, lnf and its mean and rstd, logits, probs, the loss
    return [
        "[GPT-2]",
        f"max_seq_len: {config.block_size}",
        f"vocab_size: {V}",
        f"padded_vocab_size: {Vp}",
        f"num_layers: {L}",
        f"num_heads: {NH}",
        f"channels: {C}",
        f"num_parameters: {config.num_parameters + (Vp - V) * C}",
        f"train dataset num_batches: {len(train) // (B * T)}",
        f"val dataset num_batches: {len(val) // (B * T)}",
        f"num_activations: {B * T * (L * per_block + ends)}",
    ]
