"""The corpus Tiny Shakespeare: 40,000 lines of his plays in one file (Karpathy 2015).

Encoded for GPT-2 it is split as llm.c splits it: an end-of-text token before each section (sections are
separated by an empty line), the first 32,768 tokens for validation, the other 305,260 for training.
"""

import numpy as np

from gpt2.data.tokenizer import Tokenizer
from gpt2.storage.download import cache_folder, data_folders, fetch, find

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
FILE = "tinyshakespeare.txt"
VALIDATION_TOKENS = 32768


def read() -> str:
    """The text (1,115,394 characters), from GPT2_DATA_DIR, the cache folder, or the network, in this order.

    Raises UserError where none of them has it; the message says which file to put where.
    """
    path = find(FILE, SHA256, data_folders()) or fetch(URL, cache_folder() / FILE, SHA256)
    return path.read_bytes().decode("ascii")


def split_for_gpt2(text: str, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Training tokens and validation tokens in llm.c's split, for a tokenizer with an end-of-text token."""
    sections = text.split("\n\n")
    parts: list[np.ndarray] = []
    for i, section in enumerate(sections):
        last = i == len(sections) - 1
        parts.append(np.array([tokenizer.end_of_text]))
        parts.append(tokenizer.encode(section if last else section + "\n\n"))
    tokens = np.concatenate(parts)
    return tokens[VALIDATION_TOKENS:], tokens[:VALIDATION_TOKENS]
