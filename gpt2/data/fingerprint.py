"""The fingerprint of an encoded corpus, by which a resumed run checks that its data is unchanged."""

import zlib
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from gpt2.data.conversations import Examples
from gpt2.data.tokenizer import Tokenizer
from gpt2.data.tokenizer_json import FileTokenizer
from gpt2.data.tokens import blocks, parts_of


def fingerprint(train: Any, val: Any, tokenizer: Tokenizer, texts: Sequence = ()) -> dict[str, Any]:
    """Numbers that change with any token of either part, and with the vocabulary; of several files also the
    name of each and its checksum.

    texts   [name, SHA-256] of each text, if there are several

    With `char`, which numbers the characters of the text, another text may have the same tokens.
    """
    (crc, files), (crc_val, files_val) = _checksums(train), _checksums(val)
    files = [*texts, *files, *files_val]
    return {
        "train": len(train),
        "val": len(val),
        "crc32": crc,
        "crc32_val": crc_val,
        "vocabulary": vocabulary(tokenizer),
        **({"files": files} if files else {}),
    }


def _checksums(tokens):
    """zlib.crc32 of the tokens, and [name, checksum] of each file if there are several, whose checksum
    together is that of the list."""
    if isinstance(tokens, Examples):
        crc, files = _checksums(tokens.tokens)
        return zlib.crc32(tokens.counts.tobytes(), zlib.crc32(tokens.lengths.tobytes(), crc)), files
    files = []
    for part in parts_of(tokens):
        crc = reduce(lambda crc, block: zlib.crc32(block.data, crc), blocks(part), 0)
        files.append([Path(getattr(part, "filename", "") or "").name, crc])
    return (files[0][1], []) if len(files) == 1 else (zlib.crc32(repr(files).encode()), files)


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
