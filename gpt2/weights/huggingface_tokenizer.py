"""Tokenizers written for transformers; gpt2/data/huggingface.py reads them.

A Tokenizer of this project has what tiktoken needs, the bytes of each token in the order of merging.
vocab.json maps tokens to ids, with bytes spelt as characters; merges.txt has the pairs that are merged.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt2.data.huggingface import ALL_IN_ONE, MERGES, SETTINGS, VOCAB
from gpt2.data.tokenizer import ANY_CHARACTER, END_OF_TEXT, GPT2_PIECES, Tokenizer, name_of
from gpt2.data.tokenizer_json import FileTokenizer, of_characters, parts, spell
from gpt2.errors import UserError


def contents(tokenizer: Tokenizer, longest: int) -> dict[str, bytes]:
    """The files by name.

    longest  context of the model, in tokens
    """
    settings: dict[str, Any] = {"model_max_length": longest}
    if isinstance(tokenizer, FileTokenizer):
        texts = {ALL_IN_ONE: json.dumps(tokenizer.fields, ensure_ascii=False)}
        clean = {"clean_up_tokenization_spaces": tokenizer.clean}
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast", **clean, **tokenizer.roles}
    elif tokenizer.name == "char":
        texts = {ALL_IN_ONE: json.dumps(of_characters(tokenizer.ranks), ensure_ascii=False)}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    else:
        ids = {spell(token): i for i, token in enumerate(tokenizer.ranks)}
        lines = ["#version: 0.2", *(f"{spell(a)} {spell(b)}" for a, b in merges(tokenizer))]
        texts = {
            VOCAB: json.dumps({**ids, **tokenizer.special}, ensure_ascii=False),
            MERGES: "\n".join(lines) + "\n",
        }
        # without these, transformers adds an end of text, with an id that the model does not have
        end = None if tokenizer.end_of_text is None else END_OF_TEXT
        special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), end)
        settings |= {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, **special}
    texts[SETTINGS] = json.dumps(settings, indent=2) + "\n"
    return {name: text.encode() for name, text in texts.items()}


def merges(tokenizer: Tokenizer) -> Iterator[Sequence[bytes]]:
    """Pairs of bytes in the order of merging.

    tiktoken joins whichever two neighbours spell a token, so a tokenizer trained here gets all pairs that do.
    GPT-2's own list has one pair a token, and is reproduced exactly.
    """
    rank = {token: i for i, token in enumerate(tokenizer.ranks)}
    for token, r in rank.items():
        if len(token) == 1:
            continue
        if tokenizer.name == "gpt2":
            yield parts(token, rank)
        else:
            splits = [(token[:i], token[i:]) for i in range(1, len(token))]
            yield from (pair for pair in splits if all(rank.get(part, r) < r for part in pair))


def from_ranks(path: str | Path, ranks: Sequence[bytes], special: Mapping[str, int]) -> Tokenizer:
    """A Tokenizer from tokens (bytes, in the order of their ids), read from the file `path` of llm.c."""
    if sorted(ranks[:256]) != [bytes([b]) for b in range(256)]:
        raise UserError(
            f"{path}: the first 256 tokens are not the 256 bytes, expected a vocabulary like GPT-2's"
        )
    if special not in ({}, {END_OF_TEXT: len(ranks)}):
        raise UserError(f"{path}: {END_OF_TEXT} is token {special[END_OF_TEXT]}, expected the last one")
    if len(set(ranks)) != len(ranks) or b"" in ranks:
        raise UserError(f"{path}: a token is empty or repeated")
    if len(ranks) == 256 and not special and ranks == [bytes([b]) for b in range(256)]:
        return Tokenizer("byte", ANY_CHARACTER, ranks)
    return Tokenizer(name_of(ranks), GPT2_PIECES, ranks, special)
