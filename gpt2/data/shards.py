"""Token files that other programs made: llm.c's shards, and nanoGPT's folder.

X_train.bin                  X_val.bin lies beside it
'fineweb_train_*.bin'        a pattern: fineweb_val_*.bin beside them, as llm.c's scripts name them
a folder                     with train.bin and val.bin: nanoGPT's, or one that `gpt2 data` wrote
"""

import glob
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpt2.data import sources, stored
from gpt2.data import tokenizer as tokenizers
from gpt2.data.conversations import Examples
from gpt2.data.tokenizer import Tokenizer
from gpt2.data.tokens import FORMATS, read_tokens
from gpt2.errors import UserError, os_errors
from gpt2.storage import pickles

META = "meta.pkl"  # nanoGPT's: the characters of a vocabulary


@dataclass(frozen=True)
class Prepared:
    """A corpus ready to train on.

    corpus       its name
    train, val   the paths of the two token files; several for shards
    tokenizer    the Tokenizer that encoded them
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
    tokenizer: Tokenizer
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


def find(data: str, val_data: str, tokenizer: str | Tokenizer) -> Prepared | None:
    """The token files that --data and --val-data name; None if they name texts.

    Raises UserError if files are missing, damaged, of two kinds, or encoded with another tokenizer.
    """
    folder, words, raw = Path(data), None, False
    in_folder = os.path.isdir(data) and os.path.exists(os.path.join(data, "train.bin"))  # no impossible name
    if in_folder:
        train = [folder / "train.bin"]
        with os_errors(train[0]), open(train[0], "rb") as file:
            magic = int.from_bytes(file.read(4), "little")
        raw = magic not in [first for first, _ in FORMATS.values()]
        meta, saved = folder / META, folder / "tokenizer.json"
        if raw and meta.exists():
            words = tokenizer_of(meta)
        elif not raw and saved.exists():
            words = stored.load(saved)
    elif any(name.endswith(".bin") for name in sources.names_of(data)):
        train = sources.files_of(data)
        if other := [path for path in train if path.suffix != ".bin"]:
            raise UserError(f"--data {other[0]}: a text among token files (.bin); give one kind of files")
    else:
        return None
    if val_data:
        val = sources.files_of(val_data, "--val-data")
    else:
        val = [folder / "val.bin"] if in_folder else _validation_of(train)
    read_tokens(train, raw), read_tokens(val, raw)
    own = words.name if words else "gpt2"
    if not isinstance(tokenizer, Tokenizer) and tokenizer not in ("auto", own):
        raise UserError(f"--tokenizer {tokenizer}: {train[0]} is already encoded, with {own}")
    train, val = (paths[0] if len(paths) == 1 else paths for paths in (train, val))
    options = {"val_data": val_data and sources.absolute(val_data), "template": ""}
    name = str(folder.resolve()) if in_folder else sources.absolute(data)
    words = tokenizer if isinstance(tokenizer, Tokenizer) else words or tokenizers.gpt2()
    return Prepared(name, train, val, words, elsewhere=True, raw=raw, options=options)


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
