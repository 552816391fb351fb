"""Tokenizers as this program stores them: JSON in the folder of a run, and in its checkpoints."""

import base64
import json
import re
from pathlib import Path

from gpt2.data.tokenizer import ANY_CHARACTER, END_OF_TEXT, FORMAT, FORMAT_OF_FILES, GPT2_PIECES, Tokenizer
from gpt2.data.tokenizer_json import from_state
from gpt2.errors import UserError, os_errors, reason


def load(path: str | Path) -> Tokenizer:
    """The tokenizer that `Tokenizer.save` wrote to `path`. Raises UserError for anything else."""
    path = Path(path)
    with os_errors(path):
        content = path.read_bytes()
    return from_json(path, content)


def from_json(path: str | Path, content: bytes) -> Tokenizer:
    """The tokenizer of the result of `to_json`, read from `path`. Raises UserError for anything else."""
    try:
        fields = json.loads(content)
        if isinstance(fields, dict) and fields.get("format") == FORMAT_OF_FILES:
            return from_state(fields, str(path))
        # looked at before it is built: tiktoken itself panics on invalid ranks
        if not isinstance(fields, dict) or fields.get("format") != FORMAT:
            raise ValueError(f"expected the format {FORMAT!r}")
        name, pattern, special = fields["name"], fields["pattern"], fields["special"]
        ranks = [base64.b64decode(token, validate=True) for token in fields["ranks"]]
        distinct = set(ranks)
        if not re.fullmatch("gpt2|byte|char|bpe:[0-9]+", name) or pattern not in (GPT2_PIECES, ANY_CHARACTER):
            raise ValueError("unknown name or pattern")
        if not ranks or len(distinct) != len(ranks) or b"" in distinct:
            raise ValueError("ranks are empty or repeated")
        if name == "char" and any(len(token.decode()) != 1 for token in ranks):
            raise ValueError("a rank of char is not one character")
        if name != "char" and not all(bytes([b]) in distinct for b in range(256)):
            raise ValueError("a single byte has no rank")
        if special not in ({}, {END_OF_TEXT: len(ranks)}):
            raise ValueError("special tokens do not follow the ranks")
        return Tokenizer(name, pattern, ranks, special).sized(int(fields.get("size", 0)))
    except UserError:  # which is a ValueError
        raise
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError) as error:
        raise UserError(f"{path}: not a tokenizer written by this program ({reason(error)})") from None
