"""Whether a model can take a batch: tokens and targets of the right shape, type and range."""

from typing import Any

import numpy as np

from gpt2.layers.crossentropy import check_targets
from gpt2.layers.encoder import check_ids
from gpt2.model.config import GPT2Config


def checked(name: str, ids: Any, config: GPT2Config) -> np.ndarray:
    """ids as an array (B, T) that a model can take as `tokens` or `targets`, or ValueError."""
    ids = np.asarray(ids)
    if ids.ndim == 1 and ids.size:
        raise ValueError(
            f"GPT2.forward: {name} has shape {ids.shape}, expected (B, T); "
            f"np.array({name})[None] is a batch of one"
        )
    if ids.ndim != 2 or ids.size == 0:
        raise ValueError(f"GPT2.forward: {name} has shape {ids.shape}, expected (B, T), not empty")
    if ids.dtype.kind not in "iu":
        raise ValueError(f"GPT2.forward: {name} has dtype {ids.dtype}, expected integers")
    if ids.shape[1] > config.block_size:
        raise ValueError(
            f"GPT2.forward: {name} has T={ids.shape[1]} positions, more than "
            f"block_size {config.block_size}; pass shorter sequences"
        )
    if name == "targets":
        check_targets("GPT2.forward", ids, config.vocab_size)
    else:
        check_ids("GPT2.forward", name, ids, config.vocab_size)
    return ids


def checked_targets(targets: Any, tokens: np.ndarray, config: GPT2Config) -> np.ndarray:
    """targets as an array of the shape of tokens, or ValueError."""
    targets = checked("targets", targets, config)
    if targets.shape != tokens.shape:
        raise ValueError(
            f"GPT2.forward: targets has shape {targets.shape}, expected {tokens.shape} to match tokens"
        )
    return targets
