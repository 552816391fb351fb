"""Corpora by name, and `prepare`, which writes their token files.

    tinyshakespeare    downloaded on first use, or found in GPT2_DATA_DIR
    stdlib             the source of Python's standard library: on every machine, no network
    path/to/file.txt   any UTF-8 text; also several files, folders, patterns and other kinds: see sources.py
    path/to/file.jsonl     a text a line, or a conversation: see conversations.py
    path/to/X_train.bin    token files of llm.c and nanoGPT: see shards.py
    auto               tinyshakespeare if available, else stdlib

Command: python -m gpt2.data CORPUS [--tokenizer NAME] writes the files and says where they are.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from gpt2.data import conversations, huggingface, named, shards, sources, stored
from gpt2.data import tokenizer as tokenizers
from gpt2.data.conversations import Template
from gpt2.data.documents import Documents, arrays_of
from gpt2.data.shards import Prepared
from gpt2.data.tokens import read_tokens, write_token_stream
from gpt2.errors import UserError, os_errors, reason, suggestion
from gpt2.storage import files, runs
from gpt2.storage.download import cache_folder, sha256_of
from gpt2.storage.files import made_folder, write_atomically
from gpt2.storage.lock import turn

# Name -> its text
NAMED = {"tinyshakespeare": lambda: named.tinyshakespeare(), "stdlib": lambda: named.stdlib()}
FILES = ("train.bin", "val.bin", "tokenizer.json")
INDICES = ("train.npz", "val.npz")  # of conversations
LOCK = ".tokens.lock"
RECORD = "made.json"  # checksums of the text and of the files, to detect damage
VALIDATION_SHARE = 0.1  # of the text, from its end, unless the corpus defines a split


def prepare(
    corpus: str | Path = "auto",
    tokenizer: str | tokenizers.Tokenizer = "auto",
    folder: str | Path | None = None,
    *,
    val_data: str = "",
    val_fraction: float = VALIDATION_SHARE,
    template: str = "",
) -> Prepared:
    """Encode `corpus` with `tokenizer`, write its two token files, and return a Prepared.

    tokenizer is a name, the path of a tokenizer of transformers, or a Tokenizer, such as that of the weights
    to start from.
    val_data      the corpus to validate on, named like `corpus`; by default a part of that, from its end
    val_fraction  the size of this part; of several documents it has whole ones
    template      of conversations, see conversations.py

    Intact files from an earlier call with the same text and tokenizer are reused. `folder` is where they lie,
    by default one in the cache folder. Raises UserError if text or vocabulary is missing.
    """
    if isinstance(tokenizer, str | Path) and not tokenizers.is_name(tokenizer) and os.path.exists(tokenizer):
        tokenizer = huggingface.alone(tokenizer)
    if not isinstance(tokenizer, tokenizers.Tokenizer):
        tokenizer = tokenizers.check_name(tokenizer)
    if (found := shards.find(str(corpus), val_data, tokenizer)) is not None:
        return found
    notes: list[str] = []
    name, text = text_of(str(corpus), notes)
    if tokenizer == "auto":  # always bytes for the fallback corpus
        instead = "using the byte tokenizer instead of GPT-2's"
        has_gpt2 = name != "stdlib" and _is_at_hand(tokenizers.gpt2, notes, instead)
        tokenizer = "gpt2" if has_gpt2 else "byte"
    val_name, val = text_of(val_data, notes, "--val-data") if val_data else ("", None)
    job = _Job(text, val, val_fraction, Template(template) if text.paths else None)
    hint = ""
    if folder is None:
        files.sweep_below(cache_folder() / "tokens")  # large, and perhaps of a text that is not used again
        stem = Path(name).stem if name.endswith(".txt") else Path(name).name
        used = str(tokenizer)
        if isinstance(tokenizer, tokenizers.Tokenizer):
            used = f"{tokenizer.name}{_digest(tokenizer)[:8]}"
        # cut, as names of files have at most 255 bytes; the digest tells texts apart
        folder = cache_folder() / "tokens" / f"{stem[:40]}-{used.replace(':', '')}-{job.digest[:16]}"
        hint = "; set GPT2_CACHE_DIR to a folder that can be written"
    else:
        _check_replaced(Path(folder))
    folder = Path(folder)
    try:
        if (used := _earlier_files(folder, job, tokenizer)) is None:
            with turn(made_folder(folder) / LOCK):  # if ranks start together, one encodes the text
                used = _earlier_files(folder, job, tokenizer) or _write_files(folder, job, tokenizer)
    except UserError as error:
        raise UserError(f"{error.as_flag}{hint}") from None
    return Prepared(
        name,
        folder / FILES[0],
        folder / FILES[1],
        used,
        notes,
        options={"val_data": val_name, "template": job.template.text if job.template else ""},
        indices=(folder / INDICES[0], folder / INDICES[1]) if job.template else None,
        files=[*text.summary(), *(val.summary() if val else ())],
    )


@dataclass
class _Job:
    """What to encode: a text, another to validate on or a fraction of it, the template of conversations."""

    text: Documents
    val: Documents | None
    fraction: float
    template: Template | None

    @property
    def digest(self) -> str:
        """A digest of all that decides the token files, but for the tokenizer."""
        if self.val is None and self.fraction == VALIDATION_SHARE and self.template is None:
            return self.text.digest
        parts = [self.text.digest, self.val and self.val.digest, self.fraction]
        return hashlib.sha256(repr([*parts, self.template and self.template.text]).encode()).hexdigest()

    @property
    def names(self) -> list[str]:
        """The names of its files, the tokenizer's last."""
        return [*FILES[:2], *(INDICES if self.template else ()), FILES[2]]


def _earlier_files(folder: Path, job: _Job, tokenizer: Any) -> tokenizers.Tokenizer | None:
    """The tokenizer of the files in `folder`, if they are those of this job; else None."""
    paths = [folder / name for name in job.names]
    try:
        saved = stored.load(paths[-1])
        given = isinstance(tokenizer, tokenizers.Tokenizer)
        matches = _digest(saved) == _digest(tokenizer) if given else saved.name == tokenizer
        if matches and json.loads((folder / RECORD).read_bytes()) == _record(job.digest, paths):
            return saved
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
            (read_tokens if name.endswith(".bin") else stored.load)(folder / name)
        except UserError as error:
            raise UserError(
                f"{error.as_flag}; it would be replaced: remove it, or give another folder"
            ) from None


def _write_files(folder: Path, job: _Job, tokenizer: Any) -> tokenizers.Tokenizer:
    """Write the files of a job to `folder`, with the tokenizer, which is returned."""
    paths = [folder / name for name in job.names]
    used = _tokenizer_of(job, tokenizer)
    if job.template is None:
        for path, arrays in zip(paths, _encode(job, used)):
            write_token_stream(path, arrays, used.vocab_size)
    for name, index, examples in zip(FILES, INDICES, _examples(job)) if job.template else ():
        lengths, counts = [], []

        def arrays_of_examples(examples=examples, lengths=lengths, counts=counts):
            for messages in examples:
                tokens, counted = conversations.tokens_of(messages, job.template, used)
                lengths.append(len(tokens))
                counts.append(counted)
                yield tokens

        write_token_stream(folder / name, arrays_of_examples(), used.vocab_size)
        conversations.write_index(folder / index, lengths, counts)
    used.save(paths[-1])
    write_atomically(folder / RECORD, json.dumps(_record(job.digest, paths)).encode())
    return used


def _record(text, paths):
    """The contents of RECORD: SHA-256 of the text, and of each file."""
    return {"text": text, **{path.name: sha256_of(path) for path in paths}}


def text_of(corpus: str, notes: list[str], flag: str = "--data") -> tuple[str, Documents]:
    """The corpus' absolute name, and its Documents."""
    if corpus == "auto":
        corpus = choose(notes)
    if corpus in NAMED:
        text = NAMED[corpus]()
        return corpus, Documents(corpus, [("", lambda: _parts_of(text))])
    if not any(sign in corpus for sign in "/\\.*,") and not os.path.exists(corpus):
        text = f"{flag} {corpus}: no such corpus or file; corpora: auto, tinyshakespeare, stdlib"
        raise UserError(text + suggestion(corpus, ["auto", *NAMED]))
    try:
        name, paths = sources.absolute(corpus), sources.files_of(corpus, flag)
    except (OSError, ValueError, RuntimeError) as error:  # an impossible name, a link that leads to itself
        if isinstance(error, UserError):
            raise
        raise UserError(f"{flag} {corpus}: {reason(error)}") from None
    if conversations.are_in(paths):
        return name, Documents(name, [(path.name, partial(_lines, path)) for path in paths], paths)
    return name, Documents(name, [(path.name, _reader(path)) for path in paths])


def _reader(path):
    """A function that returns the pieces of a file at each call."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):  # a pipe is read once
        text = "".join(sources.pieces(path))
        return lambda: _parts_of(text)
    return partial(sources.documents, path)


def _lines(path):
    """The lines of a file of conversations as documents, for its digest. Raises UserError if one is none."""
    for number, line in enumerate(sources.lines(path)):
        conversations.messages_of(line)
        if number:
            yield None
        yield json.dumps(line, ensure_ascii=False)


def choose(notes: list[str]) -> str:
    """The corpus for `auto`: tinyshakespeare, or stdlib with a note that says why."""
    instead = "training on the source of Python's standard library instead of tinyshakespeare"
    return "tinyshakespeare" if _is_at_hand(named.tinyshakespeare, notes, instead) else "stdlib"


def _is_at_hand(read, notes, instead):
    """Whether `read` works; else a note says why, and what is used instead."""
    try:
        read()
    except UserError as error:
        notes.append(f"{reason(error).split(';')[0]}; {instead}")  # without the advice that follows
        return False
    return True


def _parts_of(text):
    return (text[start : start + sources.CHUNK] for start in range(0, len(text), sources.CHUNK))


def _digest(tokenizer):
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


def _tokenizer_of(job, tokenizer):
    """The Tokenizer of a job; made of its text, unless it is a given one or needs none."""
    if isinstance(tokenizer, tokenizers.Tokenizer):
        return tokenizer
    # `char` counts the characters of the whole text, as nanoGPT does, so that validation can be encoded;
    # merges are learnt from the training part alone.
    task = "making the vocabulary of"
    if job.template is not None:
        train, val = _examples(job)
        seen = chain(train, val) if tokenizer == "char" else train
        return tokenizers.make(tokenizer, (t for m in seen for t, _ in job.template.segments(m)))
    whole = tokenizer == "char" or job.val is not None
    seen, _ = job.text.halves(job.text.length if whole else job.text.cut(job.fraction), task)
    if tokenizer == "char" and job.val is not None:
        seen = chain(seen, job.val.pieces())
    return tokenizers.make(tokenizer, ("\n" if piece is None else piece for piece in seen))


def _encode(job, used):
    """The training tokens and the validation tokens of a job, both as consecutive arrays."""
    text, val = job.text, job.val
    if text.name == "tinyshakespeare" and used.name == "gpt2" and used.end_of_text is not None and not val:
        parts = named.split_for_gpt2("".join(text.pieces()), used)
        return [[part] for part in parts]
    train, rest = text.halves(text.length if val else text.cut(job.fraction), "tokenizing")
    if val is not None:
        rest, _ = val.halves(val.length, "tokenizing the validation text")
    return arrays_of(train, used), arrays_of(rest, used)


def _examples(job):
    """The messages of each conversation to train on, and of each to validate on."""
    train, val = (chain(*map(sources.lines, text.paths)) for text in (job.text, job.val or job.text))
    if job.val is None:
        count = len(job.text.borders) + 1
        if count == 1:
            raise UserError(f"--data {job.text.name}: one conversation; add others, or --val-data")
        cut = min(max(1, round(count * (1 - job.fraction))), count - 1)
        train, val = islice(train, cut), islice(val, cut, None)
    return map(conversations.messages_of, train), map(conversations.messages_of, val)
