"""The fingerprint of an encoded corpus, by which a resumed run checks that its data is unchanged."""

import mmap
import zlib
from collections.abc import Mapping

import numpy as np

from gpt2.data.tokenizer import Tokenizer
from gpt2.data.tokenizer_json import FileTokenizer

BLOCK = 1 << 24  # tokens


def fingerprint(train: np.ndarray, val: np.ndarray, tokenizer: Tokenizer) -> dict[str, int]:
    """Numbers that change with any token of either part, and with the vocabulary.

    With `char`, which numbers the characters of the text, another text may have the same tokens.
    """
    return {
        "train": len(train),
        "val": len(val),
        "crc32": _crc32(train),
        "crc32_val": _crc32(val),
        "vocabulary": vocabulary(tokenizer),
    }


def _crc32(tokens):
    """zlib.crc32 of an array, in blocks: Ctrl-C works between them, and pages of a mapped file are released,
    which would count as memory of this process.
    """
    owner = tokens
    while isinstance(owner, np.ndarray):
        owner = owner.base
    mapped = isinstance(owner, mmap.mmap) and not tokens.flags.writeable and hasattr(mmap, "MADV_DONTNEED")
    crc = 0
    for start in range(0, len(tokens), BLOCK):
        crc = zlib.crc32(tokens[start : start + BLOCK].data, crc)
        if mapped:
            owner.madvise(mmap.MADV_DONTNEED)
    return crc


def vocabulary(tokenizer: Tokenizer) -> int:
    """A checksum of a Tokenizer's tokens."""
    if isinstance(tokenizer, FileTokenizer):
        return zlib.crc32(tokenizer.to_json().encode())
    crc = zlib.crc32(repr(sorted(tokenizer.special.items())).encode())
    for rank in tokenizer.ranks:
        crc = zlib.crc32(len(rank).to_bytes(4, "little") + rank, crc)
    return crc


def as_number(fingerprint: Mapping[str, int]) -> int:
    """A fingerprint as one number of 32 bits, for ranks to compare."""
    return zlib.crc32(repr(sorted(fingerprint.items())).encode())
