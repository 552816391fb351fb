"""Two pictures of README.md, each for light and for dark surroundings: `python -m docs.front`.

    step        the time of a training step beside peers, from docs/speed.json, where docs.speed keeps it
    run         the losses of a run and its sample, from docs/run.json

    python -m docs.front runs/NAME      keep another run in docs/run.json first

docs/demo.py draws the third. A test compares the files with what this makes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench import drawing
from bench.drawing import LIGHT
from docs import house, speed

FOLDER = house.ROOT / "docs" / "pictures"
RUN = house.ROOT / "docs" / "run.json"
WIDTH = 976  # pixels, as all that follow; GitHub shows a README about 840 wide
LINE, PAD = 18, 16

# ---- The time of a step ------------------------------------------------------------------------------------

LONGEST = 1.5  # a ratio from which on a bar is cut
SIZES = {
    "4x128-B12T64": "4 blocks of 128 channels, 12 x 64 letters",
    "default": "the default command's model, 8 x 64 tokens",
    "8x256-B8T128": "8 blocks of 256 channels, 8 x 128 tokens",
    "124M-B4T64": "GPT-2, 124 million parameters, 4 x 64 tokens",
}


def fastest(rows: dict, names: tuple[str, ...]) -> str:
    """The contender among these that took the least, by the ratio within rounds."""
    return min((name for name in names if name in rows), key=lambda name: rows[name]["ratio"][0])


def bars_of(one: dict) -> list[drawing.Bar]:
    """The bars of a size: PyTorch, other peers, this engine, the limit."""
    rows, own = one["rows"], fastest(one["rows"], speed.OWN)
    torch = rows[one["reference"]]["title"].removeprefix("PyTorch ")
    titles = {one["reference"]: f"fastest PyTorch: {torch}", "jax": rows.get("jax", {}).get("title", "")}
    titles |= {"llmc": "llm.c", own: rows[own]["title"].replace("gpt2", "this engine:")}
    titles["peak"] = "limit: its matrix products"
    return [
        speed.bar(
            name, rows[name], title, f"{rows[name]['ratio'][0]:.2f} · {_milliseconds(rows[name]['ms'])}"
        )
        for name, title in titles.items()
        if name in rows
    ]


def step() -> str:
    groups = {
        SIZES[one["size"]]: bars_of(one)
        for one in speed.figures()
        if one["threads"] == 2 and one["size"] in SIZES
    }
    title = "Step time relative to the fastest PyTorch: shorter is better"
    below = (
        "Forward, backward, clipping and AdamW in float32; two threads of one machine, contenders in turns."
    )
    return drawing.svg(drawing.bars(title, groups, {}, WIDTH, 300, LONGEST, rule=1.0, below=below))


def _milliseconds(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.2f} s"


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
        figure = drawing.canvas(WIDTH, 352, "Loss, in nats per token")
        axes = drawing.place(figure, 44, 50, 476, 250)
        axes.plot(*zip(*kept["loss"]), color=LIGHT["peer"], linewidth=1.5, label="training")
        said = f"validation: {kept['val_loss'][-1][1]:.2f} in the end"
        axes.plot(*zip(*kept["val_loss"]), "o-", color=LIGHT["own"], markersize=8, clip_on=False, label=said)
        axes.grid(axis="y")
        axes.set(xlabel="step", xlim=(0, kept["loss"][-1][0]))
        axes.legend(loc="upper right")
        text = drawing.place(figure, 560, 36, WIDTH - 562, 304)
        text.set(xticks=[], yticks=[], xlim=(0, WIDTH - 562), ylim=(304, 0), facecolor=LIGHT["panel"])
        drawing.title(figure, 560, "What it writes then")
        for i, line in enumerate(speeches(kept["sample"])):
            text.text(PAD, 24 + LINE * i, line, family="monospace", fontsize=12)
    figure.set_label("The losses of a run of the default command, and the text that it ends with")
    return drawing.svg(figure)


def speeches(sample: str) -> list[str]:
    """The lines of the sample's first speeches, none of them cut."""
    lines = sample.strip().split("\n")[:15]
    return lines[: len(lines) - lines[::-1].index("")]


# ---- The files ---------------------------------------------------------------------------------------------

PICTURES = {"step": step, "run": run}


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
