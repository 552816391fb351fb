"""Tables in a text beside the module that uses them.

# section       a heading
entry           each other line is an entry; ` ;; ` stands for the end of a line within it
"""

from __future__ import annotations

from pathlib import Path


def sections(module: str) -> dict[str, list[str]]:
    """Section -> entries, of the .txt beside the module whose __file__ this is."""
    found: dict[str, list[str]] = {}
    for line in Path(module).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            entries = found[line[2:]] = []
        elif line:
            entries.append(line.replace(" ;; ", "\n"))
    return found
