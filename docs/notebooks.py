"""Runs the notebooks of examples/ and keeps their outputs: `python -m docs.notebooks`, or some by name.

What differs from run to run without a reason (times, counters, ids) is left out. The metadata of a cell that
draws have the picture's alternative text, `alt`, where nbconvert looks for it. Beside the outputs stands a
fingerprint of the code that they are of, by which a test says that they are stale.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from docs import compiler_lesson, house

FOLDER = house.ROOT / "examples"


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def code_of(content: dict) -> list[str]:
    """The sources of the code cells, in order."""
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def fingerprint(content: dict) -> str:
    """Of the code: 16 hexadecimal digits."""
    return hashlib.sha256("\n\n".join(code_of(content)).encode()).hexdigest()[:16]


def cleaned(content: dict) -> dict:
    """The notebook with what belongs to it, and the fingerprint of its code."""
    cells = []
    for number, cell in enumerate(content["cells"]):
        about = {key: text for key, text in cell["metadata"].items() if key == "alt"}
        kept = {"cell_type": cell["cell_type"], "id": f"cell-{number}", "metadata": about}
        kept["source"] = cell["source"]
        if cell["cell_type"] == "code":
            outputs = [output for output in cell["outputs"] if output.get("name") != "stderr"]  # bars
            kept |= {"execution_count": cell["execution_count"], "outputs": outputs}
            for output in kept["outputs"]:
                output.get("metadata", {}).clear()
        cells.append(kept)
    about = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "code": fingerprint(content),
    }
    return {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def main(names: list[str]) -> None:
    import nbformat
    from nbclient import NotebookClient

    for path in notebooks():
        if names and path.stem not in names:
            continue
        notebook = nbformat.read(path, as_version=4)
        if path.stem == "compiler_lesson":
            make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
            notebook.cells = [make[kind](source) for kind, source in compiler_lesson.cells()]
            notebook.cells[-2].metadata["alt"] = compiler_lesson.PICTURE
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
        content = cleaned(json.loads(nbformat.writes(notebook)))
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.relative_to(house.ROOT)}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
