"""The fingerprint of an encoded corpus: a resumed run has to have the one that it began with."""

import mmap
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpt2.data.tokenizer import Tokenizer

# What a run of an earlier version kept: nothing of the validation part but its length
EARLIER = {"train", "val", "crc32"}
BLOCK = 1 << 24  # tokens


def fingerprint(train: np.ndarray, val: np.ndarray, words: Tokenizer) -> dict[str, int]:
    """Numbers that differ where a token of either part does, or what a token stands for.

    With `char`, which numbers the characters of the text, another text may have the same tokens.
    """
    return {
        "train": len(train),
        "val": len(val),
        "crc32": _crc32(train),
        "crc32_val": _crc32(val),
        "vocabulary": vocabulary(words),
    }


def _crc32(tokens):
    """zlib.crc32 of an array, in blocks: between two of them Ctrl-C is heard, and pages of a mapped file are
    given back, which would count as memory of this process.
    """
    owner = tokens
    while isinstance(owner, np.ndarray):
        owner = owner.base
    mapped = isinstance(owner, mmap.mmap) and not tokens.flags.writeable and hasattr(mmap, "MADV_DONTNEED")
    found = 0
    for start in range(0, len(tokens), BLOCK):
        found = zlib.crc32(tokens[start : start + BLOCK].data, found)
        if mapped:
            owner.madvise(mmap.MADV_DONTNEED)
    return found


def vocabulary(words: Tokenizer) -> int:
    """A number that tells the tokens of one Tokenizer from those of another."""
    found = zlib.crc32(repr(sorted(words.special.items())).encode())
    for rank in words.ranks:
        found = zlib.crc32(len(rank).to_bytes(4, "little") + rank, found)
    return found


def agree(kept: Any, now: Mapping[str, int]) -> bool:
    """Whether the corpus is the one that a checkpoint was written with, in everything that it kept of it."""
    if not isinstance(kept, Mapping) or not EARLIER <= kept.keys():
        return False
    return all(now[name] == number for name, number in kept.items() if name in now)


def as_number(found: Mapping[str, int]) -> int:
    """A fingerprint as one number of 32 bits, for ranks to compare."""
    return zlib.crc32(repr(sorted(found.items())).encode())
