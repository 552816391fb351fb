"""The tables of docs/models.md: `python -m docs.models`, which takes PyTorch, transformers and peft.

Each row is made by a function that has the model written by the library that it is from, reads it, compares
what both compute, trains a step, writes it back, and lets that library read it again. A module of
tests/support/which has a TITLE, the heading of its FIRST column, and rows().
"""

import re
import tempfile
from pathlib import Path
from types import ModuleType

from tests.support.which import adapters, checkpoints, configs, tokenizers

PAGE = Path(__file__).with_suffix(".md")
MODULES = (configs, adapters, checkpoints, tokenizers)
COLUMNS = ("read", "trained", "written back")


def page(modules: tuple[ModuleType, ...] = MODULES) -> str:
    """The page with the table of each module as it is today."""
    text = PAGE.read_text(encoding="utf-8")
    for module in modules:
        part = re.search(rf"^## {re.escape(module.TITLE)}\n\n(?:[^|\n].*\n+)*((?:\|.*\n)+)", text, re.M)
        assert part is not None, f"{PAGE}: no section {module.TITLE!r} with a table"
        text = text[: part.start(1)] + table(module) + text[part.end(1) :]
    return text


def table(module: ModuleType) -> str:
    """The table of a module, whose rows are made now."""
    columns = (module.FIRST, *COLUMNS)
    lines = [columns, ["---"] * len(columns)]
    for what, cells in module.rows().items():
        with tempfile.TemporaryDirectory() as folder:
            lines.append([what, *cells(Path(folder))])
    return "".join(f"| {' | '.join(cells).rstrip()} |\n" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
