"""Tokenizers of transformers: vocab.json and merges.txt, or both inside tokenizer.json.

vocab.json maps tokens to ids, with bytes spelt as characters (SPELLING). merges.txt has the merged pairs in
order. This project stores what tiktoken needs, the bytes of each token in the order of merging: pairs are
reconstructed by merging the bytes of a token with the earlier tokens only, until two parts are left.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpt2.data.tokenizer import ANY_CHARACTER, BYTES, END_OF_TEXT, GPT2_PIECES, SPELLING, Tokenizer
from gpt2.errors import UserError

VOCAB = "vocab.json"
MERGES = "merges.txt"
SETTINGS = "tokenizer_config.json"
ALL_IN_ONE = "tokenizer.json"  # of version 5
VOCABULARIES = (VOCAB, MERGES, ALL_IN_ONE, "added_tokens.json")  # files that define tokens
GPT2_RANKS = 50256  # 256 bytes and 50000 merges


def spell(token: bytes) -> str:
    """The bytes of a token as text."""
    return "".join(SPELLING[byte] for byte in token)


def contents(tokenizer: Tokenizer, longest: int) -> dict[str, bytes]:
    """The three files by name; {} if they cannot express the tokenizer.

    longest  context of the model, in tokens

    That is so for `char`: a character of several bytes is a token without merges.
    """
    if tokenizer.name == "char":
        return {}
    ids = {spell(token): i for i, token in enumerate(tokenizer.ranks)}
    lines = ["#version: 0.2", *(f"{spell(a)} {spell(b)}" for a, b in _merges(tokenizer))]
    # without these, transformers adds an end of text, with an id that the model does not have
    end = None if tokenizer.end_of_text is None else END_OF_TEXT
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), end)
    settings = {
        "tokenizer_class": "GPT2Tokenizer",
        "model_max_length": longest,
        "add_prefix_space": False,
        **special,
    }
    texts = {
        VOCAB: json.dumps({**ids, **tokenizer.special}, ensure_ascii=False),
        MERGES: "\n".join(lines) + "\n",
        SETTINGS: json.dumps(settings, indent=2) + "\n",
    }
    return {name: text.encode() for name, text in texts.items()}


def _merges(tokenizer):
    """Pairs of bytes in the order of merging.

    tiktoken joins whichever two neighbours spell a token, so a tokenizer trained here gets all pairs that do.
    GPT-2's own list has one pair a token, and is reproduced exactly.
    """
    rank = {token: i for i, token in enumerate(tokenizer.ranks)}
    for token, r in rank.items():
        if len(token) == 1:
            continue
        if tokenizer.name == "gpt2":
            yield _parts(token, rank)
        else:
            splits = [(token[:i], token[i:]) for i in range(1, len(token))]
            yield from (pair for pair in splits if all(rank.get(part, r) < r for part in pair))


def _parts(token, rank):
    """The pair that `token` was merged from: its bytes merged by all earlier tokens."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda i: rank.get(parts[i] + parts[i + 1], len(rank)))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return tuple(parts)


def read(folder: str | Path) -> Tokenizer | None:
    """The Tokenizer in a folder of transformers, or None if there is none.

    Raises UserError if the files are damaged or differ from a GPT-2 tokenizer: ids must be in
    the order of merging, bytes first, end of text last; and text must be split as in GPT-2.
    """
    folder = Path(folder)
    path = folder / VOCAB
    try:
        if not path.exists() and not (folder / ALL_IN_ONE).exists():
            return None
        content: dict = {}
        if (folder / ALL_IN_ONE).exists():
            path = folder / ALL_IN_ONE
            content = json.loads(path.read_text(encoding="utf-8"))
            _check_cuts(content)
        if (folder / SETTINGS).exists():
            path = folder / SETTINGS
            _check_settings(json.loads(path.read_text(encoding="utf-8")), bool(content))
        path = folder / (VOCAB if (folder / VOCAB).exists() else ALL_IN_ONE)
        if path.name == VOCAB:
            vocab = json.loads(path.read_text(encoding="utf-8"))
        else:
            vocab = content["model"]["vocab"]
            vocab |= {added["content"]: added["id"] for added in content["added_tokens"]}
        names = _in_order(vocab)
        special = {END_OF_TEXT: names.index(END_OF_TEXT)} if END_OF_TEXT in names else {}
        plain = [name for name in names if name not in special]
        ranks = [bytes(BYTES[c] for c in name) for name in plain]
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: not the vocabulary of a GPT-2 ({error})") from None
    tokenizer = from_ranks(path, ranks, special)
    _check_merges(folder, content, plain[256:])
    return tokenizer


def _in_order(vocab: dict[str, int]) -> list[str]:
    """The tokens in the order of their ids. Raises ValueError if these are not 0, 1, 2 and so on."""
    names = sorted(vocab, key=vocab.get)
    if [vocab[name] for name in names] != list(range(len(names))):
        raise ValueError("ids are not 0, 1, 2 and so on")
    return names


def _check_cuts(content):
    """Raise ValueError if tokenizer.json processes text differently from GPT-2's tokenizer."""
    model, cuts = content["model"], content.get("pre_tokenizer")
    if model.get("type", "BPE") != "BPE":
        raise ValueError(f"its model is {model['type']}, expected BPE")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(name):
            raise ValueError(f"it has {name} = {model[name]!r}, which GPT-2's has not")
    if content.get("normalizer") is not None:
        raise ValueError(f"it changes the text first, by {_kind(content['normalizer'])}")
    if _kind(cuts) != "ByteLevel" or not cuts.get("use_regex", True):
        raise ValueError(f"it cuts text into pieces in another way than GPT-2's, by {_kind(cuts)}")
    if cuts.get("add_prefix_space"):
        raise ValueError("it puts a blank before the text")
    after = content.get("post_processor") or {"type": "ByteLevel"}
    adds = any("Sequence" not in part for part in after.get("single", ()))
    if _kind(after) not in ("ByteLevel", "TemplateProcessing") or adds:
        raise ValueError(f"it adds tokens to the text, by {_kind(after)}")


def _kind(part):
    """The type of a part of tokenizer.json, including those of its parts."""
    if part is None:
        return "nothing"
    inside = next((part[name] for name in ("pretokenizers", "normalizers", "processors") if name in part), ())
    return part["type"] + (f" of {', '.join(map(_kind, inside))}" if inside else "")


def _check_settings(settings, described):
    """Raise ValueError if tokenizer_config.json describes another tokenizer.

    described   whether there is a tokenizer.json; then the class does not matter
    """
    name = settings.get("tokenizer_class")
    if not described and name not in (None, "GPT2Tokenizer", "GPT2TokenizerFast"):
        raise ValueError(f"tokenizer_class is {name}, expected GPT2Tokenizer")
    for flag in ("add_prefix_space", "add_bos_token"):
        if settings.get(flag):
            raise ValueError(f"{flag} is set, which GPT-2's tokenizer has not")


def _check_merges(folder, content, merged):
    """Raise UserError if tokens are merged in another order than that of their ids.

    merged   the tokens that are not single bytes, as spelt in the files, by their ids
    """
    path = folder / (MERGES if (folder / MERGES).exists() else ALL_IN_ONE)
    try:
        if path.name == MERGES:
            lines = path.read_text(encoding="utf-8").split("\n")
            pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
        elif content:
            pairs = [p.split(" ") if isinstance(p, str) else p for p in content["model"]["merges"]]
        else:
            raise UserError(f"{folder / MERGES}: is missing, and has the order of merging")
        order = list(dict.fromkeys(a + b for a, b in pairs))
    except UserError:  # which is a ValueError
        raise
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: not the merges of a GPT-2 ({error})") from None
    if order != merged:
        raise UserError(f"{path}: its tokens are merged in another order than that of their ids")


def from_ranks(path: str | Path, ranks: Sequence[bytes], special: Mapping[str, int]) -> Tokenizer:
    """A Tokenizer from tokens (bytes, in the order of their ids), read from the file `path`."""
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
    name = "gpt2" if len(ranks) == GPT2_RANKS else f"bpe:{len(ranks)}"
    return Tokenizer(name, GPT2_PIECES, ranks, special)
