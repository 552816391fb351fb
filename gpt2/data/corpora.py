"""Corpora by name, and `prepare`, which writes their token files.

    tinyshakespeare    downloaded on first use, or found in GPT2_DATA_DIR
    stdlib             the source of Python's standard library: on every machine, no network
    path/to/file.txt   any UTF-8 text
    path/to/X_train.bin    token files of llm.c; X_val.bin lies beside it, the tokenizer is gpt2
    auto               tinyshakespeare if available, else stdlib

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

from gpt2.data import huggingface, stdlib, textfile, tinyshakespeare
from gpt2.data import tokenizer as tokenizers
from gpt2.data.tokens import read_tokens, write_token_stream
from gpt2.errors import UserError, os_errors, printable, reason, suggestion
from gpt2.storage import files, runs
from gpt2.storage.download import cache_folder, sha256_of
from gpt2.storage.files import made_folder, write_atomically
from gpt2.storage.lock import turn

NAMED = {
    "tinyshakespeare": lambda: tinyshakespeare.read(),
    "stdlib": lambda: stdlib.read(),
}  # name -> its text
FILES = ("train.bin", "val.bin", "tokenizer.json")
LONG = 20_000_000  # characters of a text from which on a log gets a line
DELAY = 1.0  # seconds after which a terminal gets a progress line
LOCK = ".tokens.lock"
RECORD = "made.json"  # checksums of the text and of the files, to detect damage
VALIDATION_SHARE = 0.1  # of the text, from its end, unless the corpus defines a split


@dataclass(frozen=True)
class Prepared:
    """A corpus ready to train on.

    corpus, train, val    its name, and the paths of the two token files
    tokenizer             the gpt2.data.tokenizer.Tokenizer that encoded them
    notes                 why `auto` fell back to another choice, one line each
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

    tokenizer is a name, the path of a tokenizer of transformers, or a Tokenizer, such as that of the weights
    to start from.

    Intact files from an earlier call with the same text and tokenizer are reused. `folder` is where they lie,
    by default one in the cache folder. Raises UserError if text or vocabulary is missing.
    """
    given = None
    if not isinstance(tokenizer, tokenizers.Tokenizer) and not tokenizers.is_name(tokenizer):
        if os.path.exists(tokenizer):
            tokenizer = huggingface.alone(tokenizer)
    if isinstance(tokenizer, tokenizers.Tokenizer):
        given = tokenizer
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
        used = str(tokenizer) if given is None else f"{given.name}{_digest(given)[:8]}"
        # cut, as names of files have at most 255 bytes; the digest tells texts apart
        folder = cache_folder() / "tokens" / f"{stem[:40]}-{used.replace(':', '')}-{text.digest[:16]}"
        hint = "; set GPT2_CACHE_DIR to a folder that can be written"
    else:
        _check_replaced(Path(folder))
    folder = Path(folder)
    if (earlier := _earlier_files(folder, text, tokenizer)) is not None:
        return Prepared(name, *earlier, notes)
    try:
        with turn(made_folder(folder) / LOCK):  # if ranks start together, one encodes the text
            written = _earlier_files(folder, text, tokenizer) or _write_files(folder, text, tokenizer)
    except UserError as error:
        raise UserError(f"{error}{hint}") from None
    return Prepared(name, *written, notes)


_Files = tuple[Path, Path, tokenizers.Tokenizer]  # train, val, tokenizer of Prepared


class _PartedText:
    """A text that is read in parts, repeatedly, and never held as a whole.

    name            of its corpus
    read            returns its parts again at each call
    length, digest  in characters; SHA-256 of its UTF-8
    """

    def __init__(self, name: str, read: Callable[[], Iterable[str]]) -> None:
        self.name, self.read = name, read
        self.length, self.digest = self.measure()

    def measure(self) -> tuple[int, str]:
        """Read the text: its length and digest."""
        length, sha256 = 0, hashlib.sha256()
        for part in self._with_progress(self.read(), "reading"):
            length += len(part)
            sha256.update(part.encode())
        return length, sha256.hexdigest()

    def between(self, start: int, stop: int, task: str) -> Iterator[str]:
        """The characters from `start` to `stop` in parts, with a progress line for the task."""
        return self._with_progress(self._between(start, stop), task, stop - start)

    def _between(self, start, stop):
        position = 0
        for part in self.read():
            yield part[max(0, start - position) : max(0, stop - position)]
            position += len(part)
            if position >= stop:
                return

    def _with_progress(self, parts, task, total=None):
        """The parts, with a progress bar on a terminal; elsewhere a long text is announced once."""
        label = f"{task} {printable(self.name)}"
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        if not is_terminal and total and total >= LONG:
            print(f"{label}: {total:,} characters", file=sys.stderr, flush=True)
        with tqdm(
            desc=label,
            total=total,
            unit="B",
            unit_scale=True,
            delay=DELAY,
            leave=False,
            disable=not is_terminal,
        ) as bar:
            for part in parts:
                yield part
                bar.update(len(part))


def _earlier_files(folder: Path, text: _PartedText, tokenizer: Any) -> _Files | None:
    """The two token files in `folder` and their tokenizer, if they are those of this text; else None."""
    train, val, json_file = (folder / name for name in FILES)
    try:
        saved = tokenizers.load(json_file)
        matches = saved.name == tokenizer or _is_same(saved, tokenizer)
        if matches and json.loads((folder / RECORD).read_bytes()) == _record(
            text.digest, (train, val, json_file)
        ):
            return train, val, saved
    except (UserError, OSError, ValueError, RecursionError):
        pass  # not made yet, or damaged
    return None


def _check_replaced(folder):
    """Raise UserError if the files would replace those of a run, or of another program."""
    with os_errors(folder):
        if (folder / runs.SETTINGS).exists():
            raise UserError(f"{folder}: a run of train.py is in this folder; give another one")
        existing = [name for name in FILES if (folder / name).exists() and not (folder / RECORD).exists()]
    for name in existing:
        try:
            (read_tokens if name.endswith(".bin") else tokenizers.load)(folder / name)
        except UserError as error:
            raise UserError(f"{error}; it would be replaced: remove it, or give another folder") from None


def _is_same(saved, tokenizer):
    return isinstance(tokenizer, tokenizers.Tokenizer) and _digest(saved) == _digest(tokenizer)


def _write_files(folder: Path, text: _PartedText, tokenizer: Any) -> _Files:
    """Write the token files of a text and their tokenizer to `folder`; returns as `_earlier_files`."""
    paths = [folder / name for name in FILES]
    used, *parts = _encode(text, tokenizer)
    for path, arrays in zip(paths, parts):
        write_token_stream(path, arrays, used.vocab_size)
    if text.measure() != (text.length, text.digest):
        raise UserError(f"--data {text.name}: the file changed while it was read; start again")
    used.save(paths[2])
    write_atomically(folder / RECORD, json.dumps(_record(text.digest, paths)).encode())
    return paths[0], paths[1], used


def _record(text, paths):
    """The contents of RECORD: SHA-256 of the text, and of each file."""
    return {"text": text, **{path.name: sha256_of(path) for path in paths}}


def _text(corpus, notes):
    """The corpus' name, and a function that returns its text in parts."""
    if corpus == "auto":
        corpus = choose(notes)
    if corpus in NAMED:
        return corpus, _parts_of(NAMED[corpus]())
    if not any(sign in corpus for sign in "/\\.") and not os.path.exists(corpus):
        text = f"--data {corpus}: no such corpus or file; corpora: auto, tinyshakespeare, stdlib"
        raise UserError(text + suggestion(corpus, ["auto", *NAMED]))
    path = Path(corpus)
    try:
        name = str(path.resolve())
    except (OSError, ValueError, RuntimeError) as error:  # an impossible name, a link that leads to itself
        raise UserError(f"--data {corpus}: {reason(error)}") from None
    if (
        os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    ):  # a pipe can be read once
        return name, _parts_of(textfile.read(path))
    return name, lambda: textfile.pieces(path)


def choose(notes: list[str]) -> str:
    """The corpus for `auto`: tinyshakespeare, or stdlib with a note that says why."""
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
    """GPT-2's tokenizer if its vocabulary is available, else bytes; always bytes for the fallback corpus."""
    if name == "stdlib":
        return "byte"
    try:
        tokenizers.gpt2()
        return "gpt2"
    except UserError as error:
        notes.append(f"{_reason(error)}; using the byte tokenizer instead of GPT-2's")
        return "byte"


def _reason(error):
    """The error's message without the advice that follows it."""
    return str(error).split(";")[0]


def _digest(tokenizer):
    """A digest that identifies a Tokenizer."""
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


def _encode(text, tokenizer):
    """The tokenizer of a text, its training tokens and its validation tokens, both as consecutive arrays."""
    used = tokenizer if isinstance(tokenizer, tokenizers.Tokenizer) else None
    with_ends = tokenizer == "gpt2" if used is None else used.name == "gpt2" and used.end_of_text is not None
    if text.name == "tinyshakespeare" and with_ends:
        used = used or tokenizers.gpt2()
        parts = tinyshakespeare.split_for_gpt2("".join(text.read()), used)
        return used, *([part] for part in parts)
    cut = int(text.length * (1 - VALIDATION_SHARE))
    if used is None:
        # `char` counts the characters of the whole text, as nanoGPT does, so that validation can be encoded;
        # merges are learnt from the training part alone.
        seen = text.length if tokenizer == "char" else cut
        used = tokenizers.make(tokenizer, text.between(0, seen, "making the vocabulary of"))
    train = text.between(0, cut, "tokenizing")
    val = text.between(cut, text.length, "tokenizing the validation part of")
    return used, used.encode_stream(train), used.encode_stream(val)


def _token_files(train, tokenizer):
    """Token files from elsewhere: X_train.bin and X_val.bin, with GPT-2's tokenizer if no other is given."""
    given = tokenizer if isinstance(tokenizer, tokenizers.Tokenizer) else None
    if given is None and tokenizer not in ("auto", "gpt2"):
        raise UserError(f"--tokenizer {tokenizer}: {train} is already encoded, with gpt2")
    if "train" not in train.name:
        raise UserError(
            f"--data {train}: expected a name with 'train' in it, so that the validation file "
            "has the same name with 'val'"
        )
    val = train.with_name("val".join(train.name.rsplit("train", 1)))
    read_tokens(train), read_tokens(val)
    return Prepared(str(train.resolve()), train, val, given or tokenizers.gpt2())
