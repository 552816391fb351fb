"""The picture of training in README.md, for light and for dark surroundings: `python -m docs.front`.

Validation loss over seconds of training, of the recipes in docs/race.json: medians over their seeds.

    python -m docs.front FILE...      first take the curves of these reports of bench.time_to_loss

docs/demo.py draws the moving one. A test compares the files with what this makes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

from bench import drawing
from bench.drawing import LIGHT
from docs import house

FOLDER = house.ROOT / "docs" / "pictures"
RACE = house.ROOT / "docs" / "race.json"
WIDTH = 480  # pixels: legible on a phone, too
LINES = {  # recipe of bench.time_to_loss -> colour, and what it is called
    "torch-adamw": ("grey", "PyTorch, AdamW"),
    "adamw": ("green", "here, AdamW"),
    "muon": ("own", "here, Muon"),
}


def keep(reports: list[Path]) -> None:
    """Take up the curves of one report for each seed: median seconds and loss after every turn of steps."""
    curves = [json.loads(path.read_text(encoding="utf-8"))["results"][0]["curves"][0] for path in reports]
    kept = {}
    for name in LINES:
        turns = zip(*(curve[name] for curve in curves))  # as far as all seeds go
        kept[name] = [[round(median(p[i] for p in turn), 4) for i in (1, 2)] for turn in turns]
    rows = [f' "{name}": {json.dumps(points)}' for name, points in kept.items()]
    RACE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def picture() -> str:
    kept = json.loads(RACE.read_text(encoding="utf-8"))
    with drawing.look():
        figure = drawing.canvas(WIDTH, 270, "Validation loss, in nats per letter")
        axes = drawing.place(figure, 34, 44, WIDTH - 44, 180)
        for name, (colour, label) in LINES.items():
            seconds, losses = zip(*kept[name])
            axes.plot(seconds, losses, color=LIGHT[colour], linewidth=2.5, label=label)
            axes.plot(seconds[-1], losses[-1], "o", color=LIGHT[colour], markersize=8, clip_on=False)
        axes.grid(axis="y")
        axes.set(xlabel="seconds of training", xlim=(0, None), ylim=(1.8, 2.6))
        axes.legend(loc="upper right")
    figure.set_label("The validation loss over seconds of training, with Muon and with AdamW")
    return drawing.svg(figure)


def files() -> dict[Path, str]:
    """Path -> text of the picture's files, for light and for dark surroundings."""
    return drawing.pair(FOLDER, "race", picture())


if __name__ == "__main__":
    if reports := [Path(name) for name in sys.argv[1:]]:
        keep(reports)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
