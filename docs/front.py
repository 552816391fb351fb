"""The picture of a run in README.md, for light and for dark surroundings: `python -m docs.front`.

It shows the losses in docs/run.json, which has the sample of the run too.

    python -m docs.front runs/NAME      keep another run in docs/run.json first

docs/demo.py draws the moving one. A test compares the files with what this makes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench import drawing
from bench.drawing import LIGHT
from docs import house

FOLDER = house.ROOT / "docs" / "pictures"
RUN = house.ROOT / "docs" / "run.json"
WIDTH = 480  # pixels: legible on a phone, too

# The sizes of which README gives the range
SIZES = ("4x128-B12T64", "default", "8x256-B8T128", "124M-B4T64")


def fastest(rows: dict, names: tuple[str, ...]) -> str:
    """The contender among these that took the least, by the ratio within rounds."""
    return min((name for name in names if name in rows), key=lambda name: rows[name]["ratio"][0])


# ---- A run -------------------------------------------------------------------------------------------------


def keep(folder: Path) -> None:
    """Take up a run: every loss, the validations, the last sample, and how long its steps took."""
    points = [
        json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    samples = [point["sample"] for point in points if "sample" in point]
    kept = {
        "loss": [[p["step"], round(p["loss"], 4)] for p in points if "loss" in p],
        "val_loss": [[p["step"], round(p["val_loss"], 4)] for p in points if "val_loss" in p],
        "seconds": round(sum(p.get("seconds", 0.0) for p in points), 1),
        "sample": samples[-1] if samples else "",
    }
    text = json.dumps(kept).replace("]], ", "]],\n ").replace('{"', '{\n "').replace('"}', '"\n}')
    RUN.write_text(text.replace(', "', ',\n "') + "\n", encoding="utf-8")


def run() -> str:
    kept = json.loads(RUN.read_text(encoding="utf-8"))
    with drawing.look():
        figure = drawing.canvas(WIDTH, 270, "Loss, in nats per token")
        axes = drawing.place(figure, 34, 44, WIDTH - 44, 180)
        axes.plot(*zip(*kept["loss"]), color=LIGHT["peer"], linewidth=1.5, label="training")
        label = f"validation: {kept['val_loss'][-1][1]:.2f} in the end"
        axes.plot(*zip(*kept["val_loss"]), "o-", color=LIGHT["own"], markersize=8, clip_on=False, label=label)
        axes.grid(axis="y")
        axes.set(xlabel="step", xlim=(0, kept["loss"][-1][0]))
        axes.legend(loc="upper right")
    figure.set_label("The losses of a run of the default command")
    return drawing.svg(figure)


def first_speech() -> str:
    """The first speech of the sample, whole."""
    return json.loads(RUN.read_text(encoding="utf-8"))["sample"].strip().partition("\n\n")[0]


# ---- The files ---------------------------------------------------------------------------------------------

PICTURES = {"run": run}


def files(name: str) -> dict[Path, str]:
    """Path -> text of the files of a picture, for light and for dark surroundings."""
    return drawing.pair(FOLDER, name, PICTURES[name]())


def main(folders: list[str]) -> None:
    for folder in folders:
        keep(Path(folder))
    for name in PICTURES:
        for path, text in files(name).items():
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
