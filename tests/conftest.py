"""Where the tests find data, and what no test may touch: the network and the user's own cache folder."""

import os
from pathlib import Path

import pytest

os.environ["GPT2_OFFLINE"] = "1"

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    """A cache folder for this session alone; child processes inherit it."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("GPT2_CACHE_DIR")
    os.environ["GPT2_CACHE_DIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["GPT2_CACHE_DIR"]
    else:
        os.environ["GPT2_CACHE_DIR"] = before


@pytest.fixture(scope="session")
def shakespeare():
    """The text of tinyshakespeare; tests that need the real corpus are skipped where it is not to be had."""
    from data import tinyshakespeare
    from gpt2.errors import UserError
    try:
        return tinyshakespeare.read()
    except UserError as error:
        pytest.skip(f"needs tinyshakespeare: {error}")


@pytest.fixture(scope="session")
def gpt2_tokenizer():
    """GPT-2's tokenizer; tests that need the real vocabulary are skipped where it is not to be had."""
    from gpt2 import tokenizer
    from gpt2.errors import UserError
    try:
        return tokenizer.gpt2()
    except UserError as error:
        pytest.skip(f"needs GPT-2's vocabulary: {error}")


@pytest.fixture
def prose(tmp_path):
    """A text file of about 20,000 characters that needs no network: (path, text)."""
    words = "the king and queen of a far country went to see what news the sea may bring, naïve".split()
    lines = [" ".join(words[(i * 7 + j * j) % len(words)] for j in range(9)) for i in range(400)]
    text = "\n".join(lines) + "\n"
    path = tmp_path / "prose.txt"
    path.write_text(text, encoding="utf-8", newline="\n")
    return path, text
