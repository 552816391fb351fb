"""Where text becomes tokens: one file per corpus, and `prepare`, which writes the token files.

    tinyshakespeare    downloaded on first use, or found in GPT2_DATA_DIR
    stdlib             the source of Python's standard library: on every machine, no network
    path/to/file.txt   any UTF-8 text
    path/to/X_train.bin    token files that llm.c made; X_val.bin lies beside it, the tokenizer is gpt2
    auto               tinyshakespeare where it can be had, else stdlib

Command: python -m gpt2.data CORPUS [--tokenizer NAME] writes the files and says where they are.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gpt2.data import stdlib, textfile, tinyshakespeare
from gpt2.data import tokenizer as tokenizers
from gpt2.data.tokens import read_tokens, write_token_stream
from gpt2.errors import UserError, printable, suggestion
from gpt2.storage import files
from gpt2.storage.download import cache_folder, sha256_of
from gpt2.storage.files import made_folder, write_atomically
from gpt2.storage.lock import turn

NAMED = {
    "tinyshakespeare": lambda: tinyshakespeare.read(),
    "stdlib": lambda: stdlib.read(),
}  # name -> its text
FILES = ("train.bin", "val.bin", "tokenizer.json")
LONG = 20_000_000  # characters of a text about which a log gets a line
DELAY = 1.0  # seconds after which a terminal gets a progress line
LOCK = ".tokens.lock"
RECORD = "made.json"  # from which text, and what was written: damage to the files is noticed by it
VALIDATION_SHARE = 0.1  # of the text, from its end, unless the corpus has a split of its own


@dataclass(frozen=True)
class Prepared:
    """A corpus ready to train on.

    corpus, train, val    its name, and the paths of the two token files
    tokenizer             the gpt2.data.tokenizer.Tokenizer that made them
    notes                 what was chosen instead of what `auto` stands for, one line each
    """

    corpus: str
    train: Path
    val: Path
    tokenizer: tokenizers.Tokenizer
    notes: list = field(default_factory=list)


def prepare(
    corpus: str | Path = "auto",
    tokenizer: str | tokenizers.Tokenizer = "auto",
    folder: str | Path | None = None,
) -> Prepared:
    """Encode `corpus` with `tokenizer`, write its two token files, and return a Prepared.

    tokenizer is a name, or the Tokenizer itself where weights already speak its language.

    Files from an earlier call with the same text and tokenizer are used again, if they are what was written
    then. `folder` is where they lie, by default a folder of their own in the cache folder. Raises UserError
    where text or vocabulary is missing.
    """
    words = None
    if isinstance(tokenizer, tokenizers.Tokenizer):
        words = tokenizer
    else:
        tokenizers.check_name(tokenizer)
    if str(corpus).endswith(".bin"):
        return _token_files(Path(corpus), tokenizer)
    notes: list[str] = []
    name, parts = _text(str(corpus), notes)
    if tokenizer == "auto":
        tokenizer = _choose_tokenizer(name, notes)
    text = _PartedText(name, parts)
    hint = ""
    if folder is None:
        files.sweep_below(cache_folder() / "tokens")  # large, and perhaps of a text that is not used again
        stem = Path(name).stem if name.endswith(".txt") else Path(name).name
        used = str(tokenizer) if words is None else f"{words.name}{_digest(words)[:8]}"
        folder = cache_folder() / "tokens" / f"{stem}-{used.replace(':', '')}-{text.digest[:16]}"
        hint = "; set GPT2_CACHE_DIR to a folder that can be written"
    folder = Path(folder)
    if (before := _made_before(folder, text, tokenizer)) is not None:
        return Prepared(name, *before, notes)
    try:
        with turn(made_folder(folder) / LOCK):  # of ranks that start together one encodes the text
            made = _made_before(folder, text, tokenizer) or _make(folder, text, tokenizer)
    except UserError as error:
        raise UserError(f"{error}{hint}") from None
    return Prepared(name, *made, notes)


_Made = tuple[Path, Path, tokenizers.Tokenizer]  # of Prepared: train, val, tokenizer


class _PartedText:
    """A text that is read in parts, as often as is needed, and never held as a whole.

    name            of its corpus
    read            returns its parts again at each call
    length, digest  in characters, and SHA-256 of its UTF-8
    """

    def __init__(self, name: str, read: Callable[[], Iterable[str]]) -> None:
        self.name, self.read = name, read
        self.length, self.digest = self.measure()

    def measure(self) -> tuple[int, str]:
        """Length and digest, as they are now."""
        length, sha256 = 0, hashlib.sha256()
        for part in self._shown(self.read(), "reading"):
            length += len(part)
            sha256.update(part.encode())
        return length, sha256.hexdigest()

    def between(self, start: int, stop: int, doing: str) -> Iterator[str]:
        """The characters from `start` to `stop` in parts, with a progress line that says what is done."""
        return self._shown(self._between(start, stop), doing, stop - start)

    def _between(self, start, stop):
        position = 0
        for part in self.read():
            yield part[max(0, start - position) : max(0, stop - position)]
            position += len(part)
            if position >= stop:
                return

    def _shown(self, parts, doing, total=None):
        """The parts, with a progress line: live on a terminal, else printed once for a long text."""
        what = f"{doing} {printable(self.name)}"
        live = sys.stderr is not None and sys.stderr.isatty()
        if not live and total and total >= LONG:
            print(f"{what}: {total:,} characters", file=sys.stderr, flush=True)
        with tqdm(
            desc=what, total=total, unit="B", unit_scale=True, delay=DELAY, leave=False, disable=not live
        ) as bar:
            for part in parts:
                yield part
                bar.update(len(part))


def _made_before(folder: Path, text: _PartedText, tokenizer: Any) -> _Made | None:
    """The two token files in `folder` and their tokenizer, if they are those of this text; else None."""
    train, val, words = (folder / name for name in FILES)
    try:
        made = tokenizers.load(words)
        same = made.name == tokenizer or _is_same(made, tokenizer)
        if same and json.loads((folder / RECORD).read_bytes()) == _record(text.digest, (train, val, words)):
            return train, val, made
    except (UserError, OSError, ValueError, RecursionError):
        pass  # not made yet, or damaged
    return None


def _is_same(made, tokenizer):
    return isinstance(tokenizer, tokenizers.Tokenizer) and _digest(made) == _digest(tokenizer)


def _make(folder: Path, text: _PartedText, tokenizer: Any) -> _Made:
    """Write the token files of a text and their tokenizer to `folder`: what `_made_before` gives."""
    paths = [folder / name for name in FILES]
    made, *parts = _encode(text, tokenizer)
    for path, arrays in zip(paths, parts):
        write_token_stream(path, arrays)
    if text.measure() != (text.length, text.digest):
        raise UserError(f"--data {text.name}: the file has changed while it was read; start again")
    made.save(paths[2])
    write_atomically(folder / RECORD, json.dumps(_record(text.digest, paths)).encode())
    return paths[0], paths[1], made


def _record(text, paths):
    """What is kept beside token files: SHA-256 of the text that they were made from, and of each file."""
    return {"text": text, **{path.name: sha256_of(path) for path in paths}}


def _text(corpus, notes):
    """The corpus' name, and a function that gives its text in parts."""
    if corpus == "auto":
        corpus = choose(notes)
    if corpus in NAMED:
        return corpus, _parts_of(NAMED[corpus]())
    if not any(sign in corpus for sign in "/\\.") and not os.path.exists(corpus):
        text = f"--data {corpus}: no such corpus or file; corpora: auto, tinyshakespeare, stdlib"
        raise UserError(text + suggestion(corpus, ["auto", *NAMED]))
    name, path = str(Path(corpus).resolve()), Path(corpus)
    if (
        os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    ):  # a pipe can be read once
        return name, _parts_of(textfile.read(path))
    return name, lambda: textfile.pieces(path)


def choose(notes: list[str]) -> str:
    """What `auto` means here: tinyshakespeare, or stdlib with a note that says why not."""
    try:
        tinyshakespeare.read()
        return "tinyshakespeare"
    except UserError as error:
        notes.append(
            f"{_reason(error)}; training on the source of Python's standard library "
            "instead of tinyshakespeare"
        )
        return "stdlib"


def _parts_of(text):
    size = textfile.CHUNK
    return lambda: (text[start : start + size] for start in range(0, len(text), size))


def _choose_tokenizer(name, notes):
    """GPT-2's tokenizer where its vocabulary can be had, else bytes; always bytes for the fallback corpus."""
    if name == "stdlib":
        return "byte"
    try:
        tokenizers.gpt2()
        return "gpt2"
    except UserError as error:
        notes.append(f"{_reason(error)}; using the byte tokenizer instead of GPT-2's")
        return "byte"


def _reason(error):
    """What went wrong, without the advice that follows it."""
    return str(error).split(";")[0]


def _digest(words):
    """Tells one Tokenizer from another."""
    return hashlib.sha256(words.to_json().encode()).hexdigest()


def _encode(text, tokenizer):
    """The tokenizer of a text, its training tokens and its validation tokens, both as consecutive arrays."""
    words = tokenizer if isinstance(tokenizer, tokenizers.Tokenizer) else None
    if text.name == "tinyshakespeare" and (words.name if words else tokenizer) == "gpt2":
        made = words or tokenizers.gpt2()
        parts = tinyshakespeare.split_for_gpt2("".join(text.read()), made)
        return made, *([part] for part in parts)
    cut = int(text.length * (1 - VALIDATION_SHARE))
    if words is None:
        # `char` counts the characters of the whole text, as nanoGPT does, so that validation can be encoded;
        # merges are learnt from the training part alone.
        seen = text.length if tokenizer == "char" else cut
        words = tokenizers.make(tokenizer, text.between(0, seen, "making the vocabulary of"))
    train = text.between(0, cut, "tokenizing")
    val = text.between(cut, text.length, "tokenizing the validation part of")
    return words, words.encode_stream(train), words.encode_stream(val)


def _token_files(train, tokenizer):
    """Token files made elsewhere: X_train.bin and X_val.bin, with GPT-2's tokenizer if no other is given."""
    words = tokenizer if isinstance(tokenizer, tokenizers.Tokenizer) else None
    if words is None and tokenizer not in ("auto", "gpt2"):
        raise UserError(f"--tokenizer {tokenizer}: {train} is already encoded, with gpt2")
    if "train" not in train.name:
        raise UserError(
            f"--data {train}: expected a name with 'train' in it, so that the validation file "
            "has the same name with 'val'"
        )
    val = train.with_name("val".join(train.name.rsplit("train", 1)))
    read_tokens(train), read_tokens(val)
    return Prepared(str(train.resolve()), train, val, words or tokenizers.gpt2())
