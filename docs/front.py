"""The three pictures of README.md, each for light and for dark surroundings: `python -m docs.front`.

    layernorm   a forward, its backward by hand and the derived one, from gpt2/layers and from the compiler
    step        the time of a training step beside peers, from docs/speed.json, where docs.speed keeps it
    run         the losses of a run and its sample, from docs/run.json

    python -m docs.front runs/NAME      keep another run in docs/run.json first

A test compares the files with what this makes.
"""

from __future__ import annotations

import ast
import html
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from bench import drawing
from bench.drawing import LIGHT
from docs import house, speed
from gpt2 import layers
from gpt2.commands import certificate
from gpt2.commands.explain import highlight

FOLDER = house.ROOT / "docs" / "pictures"
RUN = house.ROOT / "docs" / "run.json"
WIDTH = 976  # pixels, as all that follow; GitHub shows a README about 840 wide
CHARACTER, LINE, PAD = 7.25, 18, 16
SANS = '"Helvetica Neue", Arial, sans-serif'
MONO = "Menlo, Consolas, monospace"
# Kinds of code -> their colours
KINDS = {"k": "keyword", "s": "soft", "c": "comment", "n": "number", "f": "name"}


# ---- A layer, three times ----------------------------------------------------------------------------------


def document(height: float, label: str, lines: list[str]) -> str:
    """An SVG file of this height with these elements; label says what is seen to who cannot see it."""
    style = [
        f"text {{ font: 14px {SANS}; fill: {LIGHT['text']}; }}",
        ".title { font-weight: 600; font-size: 16px; }",
        f".soft {{ font-size: 13px; fill: {LIGHT['soft']}; }}",
        f".code {{ font: 12px {MONO}; white-space: pre; }}",
        *(f".code .{kind} {{ fill: {LIGHT[colour]}; }}" for kind, colour in KINDS.items()),
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
            f'height="{height:g}" role="img" aria-label="{html.escape(label)}">',
            "  <style>",
            *(f"    {line}" for line in style),
            "  </style>",
            f'  <rect width="{WIDTH}" height="{height:g}" fill="{LIGHT["paper"]}"/>',
            *(f"  {line}" for line in lines),
            "</svg>",
            "",
        ]
    )


def words(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    """A line of text with its base line at y."""
    named = f' class="{kind}"' if kind else ""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text{named} x="{x:g}" y="{y:g}"{where}>{html.escape(text)}</text>'


def code(x: float, y: float, source: str) -> list[str]:
    """Python in colours, a <text> a line, the first base line at y."""
    coloured = re.sub("<(/?)span", r"<\1tspan", highlight.python(source)).split("\n")
    return [
        f'<text class="code" xml:space="preserve" x="{x:g}" y="{y + LINE * i:g}">{line}</text>'
        for i, line in enumerate(coloured)
        if line.strip()
    ]


def box(x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{LIGHT["panel"]}" '
        f'stroke="{LIGHT["edge"]}"/>'
    )


def plain(function: Callable) -> str:
    """The source of a function without docstring, comments and checks of its arguments."""
    source = textwrap.dedent(inspect.getsource(function))
    tree = ast.parse(source)
    lines = source.rstrip().split("\n")
    for part in tree.body[0].body:
        said = isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
        if said or any(isinstance(inner, ast.Raise) for inner in ast.walk(part)):
            lines[part.lineno - 1 : part.end_lineno] = [None] * (part.end_lineno - part.lineno + 1)
    return "\n".join(re.sub("  #.*", "", line) for line in lines if line is not None)


def three() -> list[tuple[str, str, str]]:
    """Heading, remark and source of the forward, of the backward by hand, and of the derived one."""
    layer = layers.LAYERS["layernorm"]
    derived = (
        "def layernorm_backward" + certificate.derived_source("layernorm").split("def layernorm_backward")[1]
    )
    return [
        ("A layer's forward", "plain NumPy; its check of shapes is left out here", plain(layer.forward)),
        ("Its backward by hand", "worked out by a person", plain(layer.backward)),
        ("Its backward derived", "written by the compiler from the forward", derived.rstrip()),
    ]


def layernorm() -> str:
    (forward, *backwards), gap = three(), 16
    lines, top = [], 0.0
    half = (WIDTH - gap) / 2
    below = 44 + 26 + LINE * (forward[2].count("\n") + 1) + 14
    most = max(source.count("\n") + 1 for _, _, source in backwards)
    places = [
        (0.0, top, WIDTH, forward),
        (0.0, below, half, backwards[0]),
        (half + gap, below, half, backwards[1]),
    ]
    for x, y, width, (heading, remark, source) in places:
        count = forward[2].count("\n") + 1 if source is forward[2] else most
        lines.append(words(x, y + 24, heading, "title"))
        lines.append(words(x + width, y + 24, remark, "soft", "end"))
        lines.append(box(x + 0.5, y + 36, width - 1, LINE * count + 20))
        lines += code(x + PAD, y + 58, source)
    label = "The forward of layernorm, its backward written by hand, and the one that the compiler derived"
    return document(below + 36 + LINE * most + 22, label, lines)


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
    title = "Time of a training step by that of the fastest PyTorch: shorter is better"
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

PICTURES = {"layernorm": layernorm, "step": step, "run": run}


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
