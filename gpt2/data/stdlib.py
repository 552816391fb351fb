"""The corpus stdlib: the source of Python's own standard library, which every machine has.

The modules in the top folder, in order of their names, joined. The text differs a little from one Python
to the next, so results are comparable only for the same version.
"""

import sysconfig
from pathlib import Path

from gpt2.errors import UserError

LONGEST = 4 << 20  # characters; plenty for a short run, and encoded in about a second


def read() -> str:
    """The text, at most LONGEST characters."""
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
