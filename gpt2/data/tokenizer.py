"""Tokenizers: text to token ids and back. Each is a tiktoken Encoding made of ranks.

    gpt2      GPT-2's 50257 tokens; needs the file vocab.bpe once
    byte      256 ranks, one a byte of UTF-8; nothing to download
    char      one rank a character of the corpus, in code-point order, as in nanoGPT's shakespeare_char
    bpe:N     N ranks: the bytes, then N - 256 merges trained on the corpus (Sennrich et al. 2016)

A tokenizer is stored beside a run as JSON, ranks included, so that sampling needs neither corpus nor network.
"""

import base64
import codecs
import copy
import hashlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import regex
import tiktoken

from gpt2.errors import UserError, option_error, suggestion
from gpt2.storage.download import cache_folder, data_folders, fetch, find, sha256_of
from gpt2.storage.files import write_atomically

VOCAB_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
VOCAB_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
# Of GPT-2's tokens, one after the other
TOKENS_SHA256 = "50fa6e3913609e5a8339bb9d9b90931b8272ced6502789605af2b4e9576fea4d"
END_OF_TEXT = "<|endoftext|>"
RELEASED_VOCABULARY = 50257  # of GPT-2

# How GPT-2 cuts text before merging: contractions, words, numbers, other signs, blanks (Radford et al. 2019)
GPT2_PIECES = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ANY_CHARACTER = r"(?s:.)"
# Where a text may be cut without a change to its tokens: a piece of GPT2_PIECES ends there whatever
# comes before and after. Only classes on which this engine and tiktoken's agree. (?r): the last one first
SAFE_CUT = regex.compile(r"(?r)(?<=\S)(?=[\t-\r ])|(?<=[A-Za-z0-9])(?=[!-/:-@\[-`{-~])")


# byte -> character, as GPT-2's files spell them, in the order of the first 256 ranks: printable ones as
# themselves, then the others, and the blank, from U+0100 on
_PRINTABLE = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
_OTHERS = [b for b in range(256) if b not in _PRINTABLE]
SPELLING = {**{b: chr(b) for b in _PRINTABLE}, **{b: chr(256 + i) for i, b in enumerate(_OTHERS)}}
BYTES = {character: byte for byte, character in SPELLING.items()}
LARGEST_VOCABULARY = 1 << 20  # that is trained here; llm.c's token files would hold 1 << 32
UNKNOWN = (1 << 32) - 1  # no token id
FORMAT = "gpt2 tokenizer 1"
FORMAT_OF_FILES = "gpt2 tokenizer 2"  # of tokenizer_json.py


class Tokenizer:
    """Ranks, the pattern that cuts text into pieces, and a name.

    name      one of gpt2, byte, char, bpe:N; for tokenizers of other programs also wordlevel:N and so on
    pattern   regular expression; every piece of text it cuts is merged by itself
    ranks     list of bytes: token id -> bytes
    special   text -> id of tokens that no text produces; ids follow the ranks
    """

    # Ids that the template of a tokenizer file puts before and after a text
    before: Sequence[int] = ()
    after: Sequence[int] = ()

    def __init__(
        self, name: str, pattern: str, ranks: Iterable[bytes], special: Mapping[str, int] | None = None
    ) -> None:
        self.name = name
        self.pattern = pattern
        self.ranks = list(ranks)
        self.special = dict(special or {})
        self.silent = set(self.special.values())  # ids that `stream` leaves out
        self.size = 0
        self.encoding = tiktoken.Encoding(
            name,
            pat_str=pattern,
            special_tokens=self.special,
            mergeable_ranks={token: i for i, token in enumerate(self.ranks)},
        )
        self._table = _table(name, self.ranks)

    @property
    def vocab_size(self) -> int:
        """Number of token ids, special ones included, and those without a token after `sized`."""
        return max(self.size, len(self.ranks) + len(self.special))

    def sized(self, rows: int) -> "Tokenizer":
        """This tokenizer for a model with so many rows; the ids above its own tokens have no text."""
        new = copy.copy(self)
        new.size = rows
        return new

    @property
    def end_of_text(self) -> int | None:
        """Id of the token between documents, or None if the vocabulary has none."""
        return self.special.get(END_OF_TEXT)

    @property
    def start(self) -> int:
        """Id to begin with if there is no prompt: end of text, else a line break, else token 0."""
        if self.end_of_text is not None:
            return self.end_of_text
        return self.ranks.index(b"\n") if b"\n" in self.ranks else 0

    @property
    def by_character(self) -> bool:
        """Whether a text may be cut anywhere without a change to its tokens."""
        return self._table is not None

    def encode(self, text: str, add_special_tokens: bool = False) -> np.ndarray:
        """Token ids of `text`, uint32 array. Text that spells a special token is ordinary text here, unless
        the tokenizer comes from a file of transformers.

        add_special_tokens   with the tokens that such a file's template puts before and after a text, as its
                             BOS; other tokenizers have none

        Raises UserError for a lone surrogate, which UTF-8 cannot hold.
        """
        try:
            ids = self._encode(text)
        except UnicodeEncodeError as error:
            raise UserError(
                f"tokenizer {self.name}: character {error.start} of the text is a lone surrogate, "
                f"{error.object[error.start]!r}, which UTF-8 cannot hold; decode its bytes as UTF-8"
            ) from None
        return np.concatenate([self.before, ids, self.after]).astype(np.uint32) if add_special_tokens else ids

    def _encode(self, text):
        if self._table is None:
            return self.encoding.encode_to_numpy(text, disallowed_special=())
        ids = self._table.take(_symbols(self.name, text), mode="clip")
        if (ids == UNKNOWN).any():
            unknown = sorted(set(text) - {token.decode() for token in self.ranks})
            raise UserError(
                f"tokenizer char: {len(unknown)} characters of the text are not in its "
                f"vocabulary of {self.vocab_size}, the first is {unknown[0]!r}; use text of "
                "the corpus' characters, or train with --tokenizer byte"
            )
        return ids

    def encode_stream(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Token ids of a text that arrives in parts: arrays that together are those of the whole text.

        Text after the last safe cut waits for the next part, so memory is that of the parts.
        """
        for text in texts if self.by_character else cut_safely(texts):
            yield self.encode(text)

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """The bytes of a sequence of token ids."""
        tokens = [int(token) for token in tokens]
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise UserError(f"tokenizer {self.name}: token {token} is outside 0..{self.vocab_size - 1}")
        if self.size:
            tokens = [token for token in tokens if token < len(self.ranks) + len(self.special)]
        return self.encoding.decode_bytes(tokens)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of a sequence of token ids; bytes that are not UTF-8 show as U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")

    def stream(self, tokens: Iterable[int]) -> Iterator[str]:
        """Text as tokens arrive, "" for special ones: a character is there once its last byte is."""
        decoder = self.decoder()
        for token in tokens:
            yield "" if token in self.silent else decoder.feed(token)
        yield decoder.close()

    def decoder(self) -> "TextDecoder":
        return TextDecoder(self)

    def to_json(self) -> str:
        ranks = [base64.b64encode(token).decode() for token in self.ranks]
        state = {"format": FORMAT, "name": self.name, "pattern": self.pattern, "special": self.special}
        return json.dumps({**state, "ranks": ranks, **({"size": self.size} if self.size else {})})

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to `path`, atomically."""
        write_atomically(path, self.to_json().encode())


class TextDecoder:
    """Text of a sequence of tokens as they arrive: a character once its last byte is there."""

    def __init__(self, words: Tokenizer) -> None:
        self.words = words
        self.utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        return self.utf8.decode(self.words.decode_bytes([token]))

    def close(self) -> str:
        return self.utf8.decode(b"", final=True)


def _symbols(name, text):
    """The units of a text: code points for `char`, else bytes."""
    if name == "char":
        return np.frombuffer(text.encode("utf-32-le"), "<u4")
    return np.frombuffer(text.encode(), np.uint8)


def _table(name, ranks):
    """For `char`, or if every rank is a single byte: symbol -> token id, or UNKNOWN. Else None.

    A table is ten times as fast as tiktoken, which panics on a character without a rank.
    """
    if name != "char" and not (len(ranks) == 256 and all(len(token) == 1 for token in ranks)):
        return None
    symbols = [int(_symbols(name, token.decode())[0]) if name == "char" else token[0] for token in ranks]
    table = np.full(max(symbols, default=0) + 2, UNKNOWN, np.uint32)  # the last stands for all that follow
    table[symbols] = np.arange(len(symbols))
    return table


def cut_safely(texts: Iterable[str], cut: regex.Pattern[str] = SAFE_CUT) -> Iterator[str]:
    """The same text in other parts, each of which ends where `cut` matches; text without any stays whole.

    cut   matches nothing, behind a character; from the end of a text on
    """
    pending: list[str] = []
    for text in texts:
        last = match.start() if (match := cut.search(text)) else 0
        if last:
            yield "".join([*pending, text[:last]])
            pending = []
        pending.append(text[last:])
    yield "".join(pending)


def is_name(name: str) -> bool:
    """Whether `--tokenizer name` is a tokenizer made here, and no path."""
    return re.fullmatch(r"auto|gpt2|byte|char|bpe:.*", name) is not None


def check_name(name: str) -> str:
    """Return `name` if it names a tokenizer (or is `auto`), else raise UserError."""
    if name in ("auto", "gpt2", "byte", "char"):
        return name
    match = re.fullmatch(r"bpe:([0-9]{1,9})", name)
    if match and 256 <= int(match[1]) <= LARGEST_VOCABULARY:
        return name
    if name.startswith("bpe"):
        raise option_error("tokenizer", f"{name!r}: expected bpe:N with N from 256 to {LARGEST_VOCABULARY}")
    text = f"{name!r}: expected gpt2, byte, char, bpe:N, or the path of a tokenizer of transformers"
    raise option_error("tokenizer", text + suggestion(name, ["gpt2", "byte", "char", "auto"]))


def make(name: str, text: str | Iterable[str]) -> Tokenizer:
    """The tokenizer called `name`; `char` and `bpe:N` are built from `text`, whole or in parts."""
    check_name(name)
    if name == "gpt2":
        return gpt2()
    if name == "byte":
        return byte()
    if name == "char":
        return char(text)
    return bpe(text, int(name.removeprefix("bpe:")))


def byte() -> Tokenizer:
    return Tokenizer("byte", ANY_CHARACTER, [bytes([b]) for b in range(256)])


def char(text: str | Iterable[str]) -> Tokenizer:
    """One rank a distinct character of `text`, a str or parts of one, in code-point order."""
    seen: set[str] = set()
    for part in [text] if isinstance(text, str) else text:
        seen.update(part)
    characters = sorted(seen)
    if not characters:
        raise UserError("tokenizer char: the text is empty, so there are no characters to number")
    return Tokenizer("char", ANY_CHARACTER, [c.encode() for c in characters])


def gpt2() -> Tokenizer:
    """GPT-2's own vocabulary: 256 bytes, 50000 merges, end of text.

    The file vocab.bpe is looked for in TIKTOKEN_CACHE_DIR (under tiktoken's name for it), in GPT2_DATA_DIR
    and in the cache folder, in this order, and downloaded to the last if none has it.
    """
    path = _vocab_file()
    ranks = [bytes([b]) for b in SPELLING]
    merges = path.read_text(encoding="utf-8").split("\n")[1:-1]  # a version line, and a final line break
    return of_gpt2(ranks + [bytes(BYTES[c] for c in merge.replace(" ", "")) for merge in merges])


def of_gpt2(ranks: list[bytes]) -> Tokenizer:
    return Tokenizer("gpt2", GPT2_PIECES, ranks, {END_OF_TEXT: len(ranks)})


def name_of(ranks: Iterable[bytes]) -> str:
    """The name of byte-pair encoding with these ranks: gpt2, bpe:N, or byte if there are no merges."""
    ranks = list(ranks)
    if ranks == [bytes([b]) for b in range(256)]:
        return "byte"
    same = hashlib.sha256(b"".join(ranks)).hexdigest() == TOKENS_SHA256
    return "gpt2" if same else f"bpe:{len(ranks)}"


def _vocab_file():
    tiktoken_cache = os.environ.get("TIKTOKEN_CACHE_DIR")
    if tiktoken_cache:
        path = Path(tiktoken_cache) / hashlib.sha1(VOCAB_URL.encode()).hexdigest()
        if path.is_file() and sha256_of(path) == VOCAB_SHA256:
            return path
    return find("vocab.bpe", VOCAB_SHA256, data_folders()) or fetch(
        VOCAB_URL, cache_folder() / "vocab.bpe", VOCAB_SHA256
    )


def bpe(text: str | Iterable[str], size: int) -> Tokenizer:
    """Byte-pair encoding with `size` ranks trained on `text`, a str or parts of one.

    The most frequent pair of neighbouring tokens inside a piece becomes a token, repeatedly; of pairs
    equally frequent the one with the smaller bytes is taken, so that the result does not depend on the order
    of a dictionary. Pair counts are kept up to date piece by piece: a merge costs the pieces that hold the
    pair, not the corpus.
    """
    pieces: Counter = Counter()
    for part in cut_safely([text] if isinstance(text, str) else text):
        pieces.update(regex.findall(GPT2_PIECES, part))
    counts = list(pieces.values())
    words = [[bytes([b]) for b in piece.encode()] for piece in pieces]
    pairs: Counter = Counter()
    holders = defaultdict(set)  # pair -> indices of the words that hold it
    for i, word in enumerate(words):
        for pair in zip(word, word[1:]):
            pairs[pair] += counts[i]
            holders[pair].add(i)

    ranks = [bytes([b]) for b in range(256)]
    known = set(ranks)
    while len(ranks) < size:
        # Two different pairs can spell the same bytes; one token is enough
        new = {pair: n for pair, n in pairs.items() if n > 0 and pair[0] + pair[1] not in known}
        if not new:
            raise UserError(
                f"tokenizer bpe:{size}: the corpus has pairs for {len(ranks)} tokens only; "
                f"use --tokenizer bpe:{len(ranks)} or a longer text"
            )
        best = min(new, key=lambda pair: (-new[pair], pair))
        ranks.append(best[0] + best[1])
        known.add(ranks[-1])
        for i in sorted(holders.pop(best)):
            old = words[i]
            words[i] = merged = _merge(old, best)
            for pair in zip(old, old[1:]):
                pairs[pair] -= counts[i]
            for pair in zip(merged, merged[1:]):
                pairs[pair] += counts[i]
                holders[pair].add(i)
    return Tokenizer(f"bpe:{size}", GPT2_PIECES, ranks)


def _merge(word, pair):
    """`word` with each occurrence of the two tokens `pair`, left to right, replaced by their union."""
    merged = []
    i = 0
    while i < len(word):
        if tuple(word[i : i + 2]) == pair:
            merged.append(pair[0] + pair[1])
            i += 2
        else:
            merged.append(word[i])
            i += 1
    return merged
