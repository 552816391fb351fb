"""Tokenizers described by a tokenizer.json of Hugging Face's tokenizers library.

    from_fields(fields)    a BytePairTokenizer, which runs on tiktoken, if texts have the same tokens there;
                           `char` for words of one character that were written here; else a LibraryTokenizer,
                           which runs on the tokenizers package

tiktoken joins any two neighbours that spell a token, in the order of ids; the library joins listed pairs, in
the order of the list. They agree if the list is in the order of ids, and if the bytes of each token, merged
by the tokens before it, end as a pair that is listed for it. Then no other pair ever stands side by side:
what is merged between two boundaries does not depend on the text outside them.
"""

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np
import regex
import tiktoken

from gpt2.data.tokenizer import (
    ANY_CHARACTER,
    BYTES,
    END_OF_TEXT,
    FORMAT_OF_FILES,
    GPT2_PIECES,
    SPELLING,
    TextDecoder,
    Tokenizer,
    cut_safely,
    name_of,
)
from gpt2.errors import UserError
from gpt2.hints import install

_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_START = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# The patterns for which both regex engines were found to cut alike, around every character of Unicode. Each
# matches all of a text, and its pieces end at a WORD_END
PATTERNS = (
    GPT2_PIECES,
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    rf"{_SUFFIX}|{_START}\p{{L}}+|\p{{N}}{{1,3}}{_REST}",  # cl100k, Llama 3
    rf"{_SUFFIX}|{_START}\p{{L}}+|\p{{N}}{_REST}",  # Qwen 2
    rf"{_START}{_UPPER}*{_LOWER}+{_SUFFIX}?|{_START}{_UPPER}+{_LOWER}*{_SUFFIX}?|\p{{N}}{{1,3}}"
    + _REST.replace(r"[\r\n]*", r"[\r\n/]*", 1),  # o200k
)
MERGES_SHA256 = "04e3597d7996f292ca9b8b7285ca4d58a6ae171ac47d73fc7140ceb0c7a6bbc0"  # of GPT-2's, one a line
SPELLED = [bytes([byte]) for byte in SPELLING]
WORD_END = regex.compile(r"(?r)(?<=[A-Za-z0-9])(?= )")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
# Of `char`: each character is a word. Both regex engines know this class, a line break included
EACH_CHARACTER = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
# transformers' clean_up_tokenization_spaces
CLEANED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


class Differs(Exception):
    """Why tiktoken would give a text other tokens than the tokenizers library."""


class FileTokenizer(Tokenizer):
    """A tokenizer described by the content of a tokenizer.json.

    fields   that content; its added_tokens have the ids that the library gives them
    roles    bos_token, eos_token and so on -> text of a token
    clean    whether blanks before punctuation are removed from decoded text

    Added tokens, special ones among them, are cut out of a text first, as transformers does.
    """

    def __init__(self, fields: Mapping[str, Any], roles: Mapping[str, str], clean: bool) -> None:
        self.fields, self.roles, self.clean = dict(fields), dict(roles), clean
        added = self.fields["added_tokens"]
        self.special = {token["content"]: token["id"] for token in added}
        self.silent = {token["id"] for token in added if token["special"]}
        self.ids = {**vocabulary(self.fields["model"]), **self.special}
        kind = str(self.fields["model"].get("type") or "BPE").lower()
        self.name = f"{kind}:{1 + max(self.ids.values(), default=-1)}"
        self.ranks, self.size = [], 0
        self.before, self.after = template(self.fields)

    @property
    def vocab_size(self) -> int:
        """Number of token ids, those without a token included."""
        return max(self.size, 1 + max(self.ids.values(), default=-1))

    @property
    def end_of_text(self) -> int | None:
        """Id of eos_token, or of <|endoftext|>; None if the vocabulary has neither."""
        return self.ids.get(self.roles.get("eos_token", END_OF_TEXT))

    @property
    def start(self) -> int:
        """Id to begin with if there is no prompt: bos_token, end of text, a line break, or token 0."""
        first = self.ids.get(self.roles.get("bos_token", ""), self.end_of_text)
        return first if first is not None else next(iter(self._encode("\n")), 0)

    def sized(self, rows: int) -> Tokenizer:
        """This tokenizer for a model of so many rows: added tokens beyond them are ordinary text."""
        kept = [token for token in self.fields["added_tokens"] if token["id"] < rows]
        if len(kept) == len(self.special):
            new: Tokenizer = copy.copy(self)
        else:
            new = from_fields({**self.fields, "added_tokens": kept}, self.roles, self.clean)
        new.size = rows
        return new

    def to_json(self) -> str:
        state = {"format": FORMAT_OF_FILES, "roles": self.roles, "clean": self.clean, "size": self.size}
        return json.dumps({**state, "tokenizer": self.fields})


class BytePairTokenizer(FileTokenizer):
    """Byte-level byte-pair encoding, by tiktoken."""

    def __init__(self, fields: Mapping[str, Any], roles: Mapping[str, str], clean: bool) -> None:
        super().__init__(fields, roles, clean)
        self.pattern, self.blank, ranks = by_tiktoken(self.fields)
        self.encoding = tiktoken.Encoding(
            self.name, pat_str=self.pattern, special_tokens={}, mergeable_ranks=ranks
        )
        self.pieces = {i: _bytes(token) for token, i in self.ids.items()}
        ordered = sorted(ranks.values()) == [*range(len(ranks))] and max(map(ranks.get, SPELLED)) == 255
        cut_like_gpt2 = self.pattern in PATTERNS[:2] and not self.blank
        special_last = self.special in ({}, {END_OF_TEXT: len(ranks)})
        whole = len(self.ids) == len(ranks) + len(self.special)
        if ordered and cut_like_gpt2 and special_last and whole:
            self.ranks = sorted(ranks, key=ranks.get)
            self.name = name_of(self.ranks)
        later = {token["content"] for token in self.fields["added_tokens"] if token["normalized"]}
        self.cuts = [_any_of(tokens) for tokens in (self.special.keys() - later, later) if any(tokens)]

    def _encode(self, text):
        return np.concatenate([np.array([], np.uint32), *self._parts(text, self.cuts)])

    def _parts(self, text, cuts):
        """The ids of a text in arrays. Added tokens are cut out: first those not normalized, everywhere."""
        if not cuts:
            blank = " " if self.blank and text and not text.startswith(" ") else ""
            yield self.encoding.encode_to_numpy(blank + text, disallowed_special=())
            return
        for i, part in enumerate(cuts[0].split(text)):  # which gives the separators too, at odd places
            if i % 2:
                yield np.array([self.special[part]], np.uint32)
            elif part:
                yield from self._parts(part, cuts[1:])

    def encode_stream(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        if any(WORD_END.search(token) for token in self.special):  # a cut might divide a token
            texts = ["".join(texts)]
        for text in cut_safely(texts, WORD_END):
            yield self.encode(text)

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """The bytes of a sequence of token ids; an id without a token has none."""
        return b"".join(self.pieces.get(int(token), b"") for token in tokens)


class LibraryTokenizer(FileTokenizer):
    """A tokenizer that runs on the tokenizers package.

    source, reason   the file, and why tiktoken cannot run it, for the error if the package is missing
    """

    def __init__(
        self, fields: Mapping[str, Any], roles: Mapping[str, str], clean: bool, source: str, reason: str
    ) -> None:
        super().__init__(fields, roles, clean)
        try:
            import tokenizers
        except ImportError:
            raise UserError(
                f"{source}: needs the tokenizers package ({install('tokenizers')}), as {reason}"
            ) from None
        try:
            self.library = tokenizers.Tokenizer.from_str(json.dumps(self.fields))
        except Exception as error:  # the package raises Exception itself
            raise UserError(f"{source}: the tokenizers package cannot read it ({error})") from None

    def _encode(self, text):
        text.encode()  # UnicodeEncodeError for a lone surrogate
        return np.array(self.library.encode(text, add_special_tokens=False).ids, np.uint32)

    def encode_stream(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """The token ids of the whole text: where it may be cut is not known."""
        yield self.encode("".join(texts))

    def decode(self, tokens: Iterable[int]) -> str:
        text = self.library.decode([int(token) for token in tokens], skip_special_tokens=False)
        for blank in CLEANED if self.clean else ():
            text = text.replace(blank, blank.strip())
        return text

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        return self.decode(tokens).encode()

    def decoder(self) -> "_WholeDecoder":
        return _WholeDecoder(self)


class _WholeDecoder(TextDecoder):
    """Text as tokens arrive, where the text of a token depends on those before it."""

    def __init__(self, words: LibraryTokenizer) -> None:
        self.words: LibraryTokenizer = words
        self.tokens, self.shown = [], ""

    def feed(self, token: int) -> str:
        self.tokens.append(token)
        text = self.words.decode(self.tokens).rstrip("\ufffd")
        return self._rest(text[: -2 * max(map(len, CLEANED))] if self.words.clean else text)

    def close(self) -> str:
        return self._rest(self.words.decode(self.tokens))

    def _rest(self, text):
        rest = text[len(self.shown) :]
        self.shown += rest
        return rest


def from_fields(
    fields: Mapping[str, Any], roles: Mapping[str, str], clean: bool, source: str = "tokenizer.json"
) -> Tokenizer:
    """The tokenizer of these fields. Raises UserError if it needs the tokenizers package, and has not."""
    plain = {**fields, "post_processor": None, "model": {**fields["model"], "vocab": {}}}
    if plain == of_characters([]) and template(fields) == ([], []):
        ids = fields["model"]["vocab"]
        if [*ids.values()] == [*range(len(ids))] and all(len(c) == 1 for c in ids):
            return Tokenizer("char", ANY_CHARACTER, [c.encode() for c in ids])
    try:
        return BytePairTokenizer(fields, roles, clean)
    except Differs as error:
        return LibraryTokenizer(fields, roles, clean, source, str(error))


def of_characters(ranks: Iterable[bytes]) -> dict[str, Any]:
    """The content of a tokenizer.json for `char`: words of one character."""
    model = {"type": "WordLevel", "vocab": {c.decode(): i for i, c in enumerate(ranks)}, "unk_token": ""}
    parts: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": []}
    parts |= {"normalizer": None, "pre_tokenizer": EACH_CHARACTER, "post_processor": None}
    return {**parts, "decoder": {"type": "Fuse"}, "model": model}


def from_state(state: Mapping[str, Any], source: str) -> Tokenizer:
    """The tokenizer of a parsed `to_json`, which was read from the file `source`."""
    words = from_fields(state["tokenizer"], state["roles"], state["clean"], source)
    words.size = int(state["size"])
    return words


def vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    """Token -> id of a model; Unigram has a list of tokens and scores. Raises ValueError for other ids."""
    vocab = model["vocab"]
    if isinstance(vocab, list):
        return {token: i for i, (token, _) in enumerate(vocab)}
    if len({i for i in vocab.values() if type(i) is int and 0 <= i < 1 << 31}) < len(vocab):
        raise ValueError("its ids are not different numbers from 0")
    return vocab


def add_tokens(fields: dict[str, Any], tokens: Iterable[Mapping[str, Any]]) -> None:
    """Add tokens to a tokenizer.json as the library does: it assigns ids itself, whatever the file says."""
    vocab = vocabulary(fields["model"])
    added = {token["content"]: token for token in fields["added_tokens"]}
    for token in tokens:
        known = added.get(token["content"])
        number = known["id"] if known else vocab.get(token["content"])
        if number is None:
            number = max([len(vocab), *(t["id"] + 1 for t in added.values())])
        if token["content"]:
            added[token["content"]] = {**token, "id": number}
    fields["added_tokens"] = sorted(added.values(), key=lambda token: token["id"])


# ---- What tiktoken can do --------------------------------------------------------------------------------


def by_tiktoken(fields: Mapping[str, Any]) -> tuple[str, bool, dict[bytes, int]]:
    """(pattern, whether a blank is put before, bytes -> id) for tiktoken to have the library's tokens.

    Raises Differs, with the reason, if there are none.
    """
    model = fields["model"]
    if model.get("type", "BPE") != "BPE":
        raise Differs(f"its model is {model['type']}")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(name):
            raise Differs(f"it has {name} = {model[name]!r}")
    if fields.get("normalizer") is not None:
        raise Differs(f"it changes the text first, by {kind(fields['normalizer'])}")
    if kind(fields.get("decoder")) != "ByteLevel":
        raise Differs(f"its tokens become text by {kind(fields.get('decoder'))}")
    for token in fields["added_tokens"]:
        if any(token.get(flag) for flag in ("single_word", "lstrip", "rstrip")):
            raise Differs(f"its token {token['content']!r} takes only whole words, or blanks beside it")
    cuts = fields.get("pre_tokenizer")
    first = cuts["pretokenizers"][0] if kind(cuts) == "Sequence of Split, ByteLevel" else {}
    if kind(cuts) == "ByteLevel" and cuts.get("use_regex", True):
        pattern, blank = GPT2_PIECES, bool(cuts.get("add_prefix_space"))
    else:
        pattern, blank = first.get("pattern", {}).get("Regex"), False
        second = cuts["pretokenizers"][1] if first else {}
        plain = first.get("behavior") == "Isolated" and not first.get("invert")
        if pattern not in PATTERNS or not plain or second.get("use_regex") or second.get("add_prefix_space"):
            raise Differs(f"it cuts text into pieces in a way of its own, by {kind(cuts)}")
    return pattern, blank, _ranks(model, {token["content"] for token in fields["added_tokens"]})


def _ranks(model, added):
    """bytes -> id of the tokens that merging can make. Raises Differs if tiktoken would merge otherwise."""
    vocab, last = model["vocab"], -1
    if lacking := [c for c in BYTES if c not in vocab]:
        raise Differs(f"{len(lacking)} of the 256 bytes have no token")
    ranks = {bytes([byte]): vocab[c] for byte, c in SPELLING.items()}
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    listed = "\n".join(map(" ".join, pairs))
    checked = hashlib.sha256(listed.encode()).hexdigest() == MERGES_SHA256  # the check takes half a second
    for spelled, group in groupby(pairs, key=lambda pair: pair[0] + pair[1]):
        token, number = _bytes(spelled), vocab.get(spelled, -1)
        if number <= last:
            raise Differs("its tokens are merged in another order than that of their ids")
        if not checked and parts(token, ranks) not in [[_bytes(a), _bytes(b)] for a, b in group]:
            raise Differs(f"tiktoken would merge {spelled!r} from other parts than those listed")
        ranks[token] = last = number
    if model.get("ignore_merges") and len(vocab.keys() - added) > len({spell(t) for t in ranks} - added):
        raise Differs("it has tokens that no merge makes")
    return ranks


def parts(token: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """The bytes of a token, merged by `ranks`, lowest first, until two parts are left, or no merge."""
    none = 1 << 31
    parts = [token[i : i + 1] for i in range(len(token))]
    found = [ranks.get(token[i : i + 2], none) for i in range(len(token) - 1)]  # of each with its neighbour
    while len(parts) > 2 and (best := min(found)) != none:
        i = found.index(best)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
        del found[i]
        for k in range(max(i - 1, 0), min(i + 1, len(found))):
            found[k] = ranks.get(parts[k] + parts[k + 1], none)
    return parts


def template(fields: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """The ids that the post-processor puts before and after a text."""
    after = fields.get("post_processor") or {"type": "ByteLevel"}
    steps, before, behind = after.get("processors", [after]), [], []
    for step in steps:
        if step["type"] == "TemplateProcessing":
            at = next(i for i, part in enumerate(step["single"]) if "Sequence" in part)
            names = [part["SpecialToken"]["id"] if "SpecialToken" in part else "" for part in step["single"]]
            ids = [step["special_tokens"][name]["ids"] if name else [] for name in names]
            before, behind = sum(ids[:at], []) + before, behind + sum(ids[at:], [])
        elif step["type"] in ("RobertaProcessing", "BertProcessing"):
            before, behind = [step["cls"][1], *before], [*behind, step["sep"][1]]
    return before, behind


def kind(part: Mapping[str, Any] | None) -> str:
    """The type of a part of tokenizer.json, including those of its parts."""
    if part is None:
        return "nothing"
    names = ("pretokenizers", "normalizers", "processors", "decoders")
    inside = next((part[name] for name in names if name in part), ())
    return part["type"] + (f" of {', '.join(map(kind, inside))}" if inside else "")


def spell(token: bytes) -> str:
    """The bytes of a token as text."""
    return "".join(SPELLING[byte] for byte in token)


def _bytes(token):
    """The bytes that a token decodes to: text that does not spell bytes stands for itself."""
    try:
        return bytes(map(BYTES.__getitem__, token))
    except KeyError:
        return token.encode()


def _any_of(tokens):
    """A pattern of the leftmost and longest of these texts, as one group."""
    longest_first = sorted(filter(None, tokens), key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})")
