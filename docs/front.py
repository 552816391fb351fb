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


def picture() -> str:
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


def files() -> dict[Path, str]:
    """Path -> text of the picture's files, for light and for dark surroundings."""
    return drawing.pair(FOLDER, "run", picture())


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        keep(Path(folder))
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
