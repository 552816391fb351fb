"""The corpora that have a name: Tiny Shakespeare, and the source of Python's standard library."""

import sysconfig
from pathlib import Path

import numpy as np

from gpt2.data.tokenizer import Tokenizer
from gpt2.errors import UserError
from gpt2.storage.download import cache_folder, data_folders, fetch, find

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
FILE = "tinyshakespeare.txt"
VALIDATION_TOKENS = 32768
LONGEST = 4 << 20  # characters; plenty for a short run, and encoded in about a second


def tinyshakespeare() -> str:
    """40,000 lines of Shakespeare (Karpathy 2015), from GPT2_DATA_DIR, the cache folder, or the network.

    Raises UserError where none of them has it; the message says which file to put where.
    """
    path = find(FILE, SHA256, data_folders()) or fetch(URL, cache_folder() / FILE, SHA256)
    return path.read_bytes().decode("ascii")


def split_for_gpt2(text: str, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Training tokens and validation tokens of Tiny Shakespeare as llm.c splits it.

    An end-of-text token comes before each section, which an empty line ends. The first 32,768 tokens are for
    validation, the other 305,260 for training.
    """
    sections = text.split("\n\n")
    parts: list[np.ndarray] = []
    for i, section in enumerate(sections):
        last = i == len(sections) - 1
        parts.append(np.array([tokenizer.end_of_text]))
        parts.append(tokenizer.encode(section if last else section + "\n\n"))
    tokens = np.concatenate(parts)
    return tokens[VALIDATION_TOKENS:], tokens[:VALIDATION_TOKENS]


def stdlib() -> str:
    """The modules in the top folder of Python's library, in order of their names, at most LONGEST characters.

    Every machine has it. Results are comparable only for the same version of Python.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    parts = []
    size = 0
    for path in sorted(folder.glob("*.py")):
        try:
            parts.append(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue  # one unreadable module does not matter
        size += len(parts[-1])
        if size >= LONGEST:
            break
    if size < 100_000:
        raise UserError(
            f"--data stdlib: {folder} holds {size} characters of Python source (an embedded "
            "Python keeps it compiled); give a text file with --data path/to/file.txt"
        )
    return "".join(parts)[:LONGEST]
