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
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from gpt2.data import conversations, huggingface, shards, sources, stdlib, stored, textfile, tinyshakespeare
from gpt2.data import tokenizer as tokenizers
from gpt2.data.conversations import Examples, Template
from gpt2.data.documents import Documents, arrays_of
from gpt2.data.tokens import read_tokens, write_token_stream
from gpt2.errors import UserError, os_errors, reason, suggestion
from gpt2.storage import files, runs
from gpt2.storage.download import cache_folder, sha256_of
from gpt2.storage.files import made_folder, write_atomically
from gpt2.storage.lock import turn

# Name -> its text
NAMED = {"tinyshakespeare": lambda: tinyshakespeare.read(), "stdlib": lambda: stdlib.read()}
FILES = ("train.bin", "val.bin", "tokenizer.json")
INDICES = ("train.npz", "val.npz")  # of conversations
LOCK = ".tokens.lock"
RECORD = "made.json"  # checksums of the text and of the files, to detect damage
VALIDATION_SHARE = 0.1  # of the text, from its end, unless the corpus defines a split


@dataclass(frozen=True)
class Prepared:
    """A corpus ready to train on.

    corpus       its name
    train, val   the paths of the two token files; several for shards
    tokenizer    the gpt2.data.tokenizer.Tokenizer that encoded them
    notes        why `auto` fell back to another choice, one line each
    elsewhere    whether another program made the token files
    raw          whether they have no header, as nanoGPT's
    options      of the run that trains on it: val_data and template, as resolved
    indices      of conversations: the two index files, else None
    files        [name, SHA-256] of each text, if there are several
    """

    corpus: str
    train: Any
    val: Any
    tokenizer: tokenizers.Tokenizer
    notes: list = field(default_factory=list)
    elsewhere: bool = False
    raw: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    indices: tuple[Path, Path] | None = None
    files: list = field(default_factory=list)

    def read(self, pack: bool = False) -> tuple[Any, Any]:
        """The tokens of both parts, (count,) integers; or Examples, which `pack` may join in a row."""
        parts = read_tokens(self.train, self.raw), read_tokens(self.val, self.raw)
        if self.indices is None:
            return parts
        fill = self.tokenizer.start
        train, val = (Examples.read(part, index, pack, fill) for part, index in zip(parts, self.indices))
        return train, val


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
    given = None
    if not isinstance(tokenizer, tokenizers.Tokenizer) and not tokenizers.is_name(tokenizer):
        if os.path.exists(tokenizer):
            tokenizer = huggingface.alone(tokenizer)
    if isinstance(tokenizer, tokenizers.Tokenizer):
        given = tokenizer
    else:
        tokenizers.check_name(tokenizer)
    if (found := shards.find(str(corpus), val_data)) is not None:
        return _token_files(found, tokenizer)
    notes: list[str] = []
    name, text = text_of(str(corpus), notes)
    if tokenizer == "auto":
        tokenizer = _choose_tokenizer(name, notes)
    val_name, val = text_of(val_data, notes, "--val-data") if val_data else ("", None)
    job = _Job(text, val, val_fraction, Template(template) if text.paths else None)
    hint = ""
    if folder is None:
        files.sweep_below(cache_folder() / "tokens")  # large, and perhaps of a text that is not used again
        stem = Path(name).stem if name.endswith(".txt") else Path(name).name
        used = str(tokenizer) if given is None else f"{given.name}{_digest(given)[:8]}"
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
    """What is to be encoded: a text, the one to validate on or the fraction of it, and the template of its
    conversations, or None."""

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
        matches = saved.name == tokenizer or _is_same(saved, tokenizer)
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


def _is_same(saved, tokenizer):
    return isinstance(tokenizer, tokenizers.Tokenizer) and _digest(saved) == _digest(tokenizer)


def _write_files(folder: Path, job: _Job, tokenizer: Any) -> tokenizers.Tokenizer:
    """Write the token files of a job to `folder`, with the tokenizer, which is returned."""
    paths = [folder / name for name in job.names]
    used = _tokenizer_of(job, tokenizer)
    if job.template is not None:
        _write_examples(folder, job, used)
    else:
        for path, arrays in zip((folder / FILES[0], folder / FILES[1]), _encode(job, used)):
            write_token_stream(path, arrays, used.vocab_size)
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
        text = textfile.read(path)
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
    return (text[start : start + size] for start in range(0, len(text), size))


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
    return reason(error).split(";")[0]


def _digest(tokenizer):
    """A digest that identifies a Tokenizer."""
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
        parts = tinyshakespeare.split_for_gpt2("".join(text.pieces()), used)
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


def _write_examples(folder, job, used):
    """Write the token files and the index files of a job of conversations."""
    for name, index, examples in zip(FILES, INDICES, _examples(job)):
        lengths, counts = [], []

        def arrays(examples=examples, lengths=lengths, counts=counts):
            for messages in examples:
                tokens, counted = conversations.tokens_of(messages, job.template, used)
                lengths.append(len(tokens))
                counts.append(counted)
                yield tokens

        write_token_stream(folder / name, arrays(), used.vocab_size)
        conversations.write_index(folder / index, lengths, counts)


def _token_files(found, tokenizer):
    """Token files from elsewhere: with the tokenizer beside them, or GPT-2's if no other is given."""
    given = tokenizer if isinstance(tokenizer, tokenizers.Tokenizer) else None
    own = found.words.name if found.words else "gpt2"
    if given is None and tokenizer not in ("auto", own):
        raise UserError(f"--tokenizer {tokenizer}: {found.train[0]} is already encoded, with {own}")
    words = given or found.words or tokenizers.gpt2()
    train, val = (paths[0] if len(paths) == 1 else paths for paths in (found.train, found.val))
    options = {"val_data": found.val_name, "template": ""}
    return Prepared(found.name, train, val, words, elsewhere=True, raw=found.raw, options=options)
