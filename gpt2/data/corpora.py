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
from dataclasses import dataclass, field
from pathlib import Path

from gpt2.data import stdlib, textfile, tinyshakespeare
from gpt2.data import tokenizer as tokenizers
from gpt2.data.tokens import read_tokens, write_tokens
from gpt2.errors import UserError, suggestion
from gpt2.storage import files
from gpt2.storage.download import cache_folder, sha256_of
from gpt2.storage.files import write_atomically

NAMED = {
    "tinyshakespeare": lambda: tinyshakespeare.read(),
    "stdlib": lambda: stdlib.read(),
}  # name -> its text
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
    name, text = _text(str(corpus), notes)
    if tokenizer == "auto":
        tokenizer = _choose_tokenizer(name, notes)
    digest = hashlib.sha256(text.encode()).hexdigest()
    hint = ""
    if folder is None:
        files.sweep_below(cache_folder() / "tokens")  # large, and perhaps of a text that is not used again
        stem = Path(name).stem if name.endswith(".txt") else Path(name).name
        used = str(tokenizer) if words is None else f"{words.name}{_digest(words)[:8]}"
        folder = cache_folder() / "tokens" / f"{stem}-{used.replace(':', '')}-{digest[:16]}"
        hint = "; set GPT2_CACHE_DIR to a folder that can be written"
    folder = Path(folder)
    paths = folder / "train.bin", folder / "val.bin", folder / "tokenizer.json"
    try:
        made = tokenizers.load(paths[2])
        same = made.name == tokenizer or (words is not None and _digest(made) == _digest(words))
        if same and json.loads((folder / RECORD).read_bytes()) == _record(digest, paths):
            return Prepared(name, paths[0], paths[1], made, notes)
    except (UserError, OSError, ValueError, RecursionError):
        pass  # not made yet, or damaged: make them
    made, train, val = _encode(name, text, tokenizer)
    try:
        write_tokens(paths[0], train)
        write_tokens(paths[1], val)
        made.save(paths[2])
        write_atomically(folder / RECORD, json.dumps(_record(digest, paths)).encode())
    except UserError as error:
        raise UserError(f"{error}{hint}") from None
    return Prepared(name, paths[0], paths[1], made, notes)


def _record(text, paths):
    """What is kept beside token files: SHA-256 of the text that they were made from, and of each file."""
    return {"text": text, **{path.name: sha256_of(path) for path in paths}}


def _text(corpus, notes):
    """The corpus' name and text."""
    if corpus in NAMED:
        return corpus, NAMED[corpus]()
    if corpus == "auto":
        try:
            return "tinyshakespeare", tinyshakespeare.read()
        except UserError as error:
            notes.append(f"{_reason(error)}; training on the standard library instead of tinyshakespeare")
            return "stdlib", stdlib.read()
    if not any(sign in corpus for sign in "/\\.") and not os.path.exists(corpus):
        text = f"--data {corpus}: no such corpus or file; corpora: auto, tinyshakespeare, stdlib"
        raise UserError(text + suggestion(corpus, ["auto", *NAMED]))
    return str(Path(corpus).resolve()), textfile.read(corpus)


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


def _encode(name, text, tokenizer):
    """The tokenizer, training tokens and validation tokens of a text."""
    words = tokenizer if isinstance(tokenizer, tokenizers.Tokenizer) else None
    if name == "tinyshakespeare" and (words.name if words else tokenizer) == "gpt2":
        made = words or tokenizers.gpt2()
        return made, *tinyshakespeare.split_for_gpt2(text, made)
    cut = int(len(text) * (1 - VALIDATION_SHARE))
    if words:
        return words, words.encode(text[:cut]), words.encode(text[cut:])
    # `char` counts the characters of the whole text, as nanoGPT does, so that validation can be encoded;
    # merges are learnt from the training part alone.
    made = tokenizers.make(tokenizer, text if tokenizer == "char" else text[:cut])
    return made, made.encode(text[:cut]), made.encode(text[cut:])


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
