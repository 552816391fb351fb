"""Token files that other programs made: llm.c's shards, and nanoGPT's folder.

X_train.bin                  X_val.bin lies beside it
'fineweb_train_*.bin'        a pattern: fineweb_val_*.bin beside them, as llm.c's scripts name them
a folder                     with train.bin and val.bin: nanoGPT's, or one that `gpt2 data` wrote
"""

import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpt2.data import sources, stored
from gpt2.data import tokenizer as tokenizers
from gpt2.data.tokenizer import Tokenizer
from gpt2.data.tokens import FORMATS, read_tokens
from gpt2.errors import UserError, os_errors
from gpt2.storage import pickles

META = "meta.pkl"  # nanoGPT's: the characters of a vocabulary


@dataclass(frozen=True)
class Found:
    """Token files.

    name         of the corpus; val_name: as --val-data gave it
    train, val   their paths
    raw          whether they have no header
    words        the Tokenizer beside them, or None
    """

    name: str
    train: list[Path]
    val: list[Path]
    raw: bool = False
    words: Tokenizer | None = None
    val_name: str = ""


def find(data: str, val_data: str = "") -> Found | None:
    """The token files that --data and --val-data name; None if they name texts.

    Raises UserError if files are missing, damaged, or of two kinds.
    """
    if os.path.isdir(data) and os.path.exists(os.path.join(data, "train.bin")):  # False for impossible names
        return _of_folder(Path(data), val_data)
    if not any(name.endswith(".bin") for name in sources.names_of(data)):
        return None
    train = sources.files_of(data)
    if other := [path for path in train if path.suffix != ".bin"]:
        raise UserError(f"--data {other[0]}: a text among token files (.bin); give one kind of files")
    val = sources.files_of(val_data, "--val-data") if val_data else _validation_of(train)
    read_tokens(train), read_tokens(val)
    return Found(sources.absolute(data), train, val, val_name=val_data and sources.absolute(val_data))


def _validation_of(train):
    """The files to validate on that lie beside those to train on."""
    first = train[0]
    if "train" not in first.name:
        raise UserError(
            f"--data {first}: expected a name with 'train' in it, so that the validation file "
            "has the same name with 'val'; or name it with --val-data"
        )
    val = first.with_name("val".join(first.name.rsplit("train", 1)))
    if len(train) == 1 and (val.exists() or not re.search(r"\d", val.name)):
        return [val]
    pattern = "*".join(map(glob.escape, re.split(r"\d+", val.name)))
    if found := sorted(val.parent.glob(pattern)):
        return found
    raise UserError(f"--data {first}: no validation file {pattern} beside it; name one with --val-data")


def _of_folder(folder, val_data):
    train, meta, saved = folder / "train.bin", folder / META, folder / "tokenizer.json"
    val = sources.files_of(val_data, "--val-data") if val_data else [folder / "val.bin"]
    with os_errors(train), open(train, "rb") as file:
        magic = int.from_bytes(file.read(4), "little")
    raw = magic not in [first for first, _ in FORMATS.values()]
    words = None
    if raw and meta.exists():
        words = tokenizer_of(meta)
    elif not raw and saved.exists():
        words = stored.load(saved)
    read_tokens(train, raw), read_tokens(val, raw)
    name = val_data and sources.absolute(val_data)
    return Found(str(folder.resolve()), [train], val, raw, words, name)


def tokenizer_of(meta: Path) -> Tokenizer:
    """The tokenizer of nanoGPT's meta.pkl, which maps ids to characters. No code in the file runs."""
    content = pickles.load(meta)
    characters = content.get("itos") if isinstance(content, dict) else None
    if not isinstance(characters, dict) or sorted(characters) != list(range(len(characters))):
        raise UserError(f"{meta}: expected nanoGPT's dict with 'itos', the characters by their ids")
    spelt = [characters[i] for i in range(len(characters))]
    single = all(isinstance(c, str) and len(c) == 1 for c in spelt)
    if not spelt or not single or len(set(spelt)) != len(spelt):
        raise UserError(f"{meta}: 'itos' has other entries than one character each")
    return Tokenizer("char", tokenizers.ANY_CHARACTER, [c.encode() for c in spelt])
