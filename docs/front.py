"""Two pictures of README.md, each for light and for dark surroundings: `python -m docs.front`.

    step        the time of a training step beside peers, from docs/speed.json, where docs.speed keeps it
    run         the losses of a run and its sample, from docs/run.json

    python -m docs.front runs/NAME      keep another run in docs/run.json first

docs/demo.py draws the third. A test compares the files with what this makes.
"""

from __future__ import annotations

import html
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from docs import house, speed
from gpt2.commands.explain import highlight

FOLDER = house.ROOT / "docs" / "pictures"
RUN = house.ROOT / "docs" / "run.json"
WIDTH = 976  # pixels, as all that follow; GitHub shows a README about 840 wide
CHARACTER, LINE, PAD = 7.25, 18, 16
SANS = 'ui-sans-serif, system-ui, "Helvetica Neue", Arial, sans-serif'
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


@dataclass(frozen=True)
class Palette:
    """The colours of a picture; those of code are GitHub's kinds: keyword, string, comment, number, name."""

    name: str
    paper: str
    panel: str
    edge: str
    text: str
    soft: str
    own: str
    peer: str
    limit: str
    k: str
    s: str
    c: str
    n: str
    f: str


LIGHT = Palette(
    "light",
    *("#ffffff", "#f6f8fa", "#d0d7de", "#1f2328", "#57606a", "#2563eb", "#c3ccd6", "#cf222e"),
    *("#8250df", "#57606a", "#6e7781", "#0a5ca8", "#953800"),
)
DARK = Palette(
    "dark",
    *("#0d1117", "#151b23", "#3d444d", "#e6edf3", "#9aa4af", "#58a6ff", "#4b5563", "#ff7b72"),
    *("#c4a3ff", "#a5adb6", "#8b949e", "#79c0ff", "#ffa657"),
)


# ---- What all of them are made of --------------------------------------------------------------------------


def document(palette: Palette, height: float, label: str, lines: list[str], width: int = WIDTH) -> str:
    """An SVG file of width by height with these elements; label says what is seen to who cannot see it."""
    p = palette
    style = [
        f"text {{ font: 14px {SANS}; fill: {p.text}; }}",
        f".title {{ font-weight: 600; font-size: 16px; }} .soft {{ font-size: 13px; fill: {p.soft}; }}",
        f".code {{ font: 12px {MONO}; white-space: pre; }}",
        *(f".code .{kind} {{ fill: {getattr(p, kind)}; }}" for kind in "kscnf"),
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" '
            f'height="{height:g}" role="img" aria-label="{html.escape(label)}">',
            "  <style>",
            *(f"    {line}" for line in style),
            "  </style>",
            f'  <rect width="{width}" height="{height:g}" fill="{p.paper}"/>',
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


def box(palette: Palette, x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{palette.panel}" '
        f'stroke="{palette.edge}"/>'
    )


# ---- The time of a step ------------------------------------------------------------------------------------

BAR, LEFT, RIGHT = 20, 300, 150
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


def bars_of(one: dict) -> list[tuple[str, str, dict]]:
    """Kind, name and figures of each bar of a size: PyTorch, other peers, this engine, the limit."""
    rows = one["rows"]
    torch, own = rows[one["reference"]], rows[fastest(rows, speed.OWN)]
    found = [("peer", f"fastest PyTorch: {torch['title'].removeprefix('PyTorch ')}", torch)]
    found += [("peer", rows[name]["title"], rows[name]) for name in ("jax", "llmc") if name in rows]
    found.append(("own", own["title"].replace("gpt2", "this engine:"), own))
    if "peak" in rows:
        found.append(("limit", "limit: its matrix products", rows["peak"]))
    return found


def step(palette: Palette) -> str:
    groups = [one for one in speed.figures() if one["threads"] == 2 and one["size"] in SIZES]
    bars = [bars_of(one) for one in groups]
    most = min(LONGEST, max(row["ratio"][0] for group in bars for _, _, row in group))
    scale = (WIDTH - LEFT - RIGHT) / most
    lines = [words(0, 24, "Step time relative to the fastest PyTorch: shorter is better", "title")]
    y = 40.0
    for one, group in zip(groups, bars):
        lines.append(words(0, y + 20, SIZES[one["size"]], "soft"))
        y += 28
        for kind, title, row in group:
            ratio = row["ratio"][0]
            length = scale * min(ratio, LONGEST)
            colour = getattr(palette, kind)
            how = (
                f'fill="{colour}"'
                if kind != "limit"
                else f'fill="none" stroke="{colour}" stroke-dasharray="4 3"'
            )
            lines.append(words(LEFT - 10, y + 15, title, "", "end"))
            lines.append(
                f'<rect x="{LEFT}" y="{y + 2:g}" width="{length:.1f}" height="{BAR - 4}" rx="2" {how}/>'
            )
            if ratio > LONGEST:  # a gap near its end says that the bar is longer than there is room for
                cut = LEFT + length - 22
                lines.append(f'<path d="M{cut:g} {y + BAR:g}l6 {-BAR}h5l-6 {BAR}z" fill="{palette.paper}"/>')
            lines.append(
                words(LEFT + length + 8, y + 15, f"{ratio:.2f} · {_milliseconds(row['ms'])}", "soft")
            )
            y += BAR + 2
        y += 8
    mark = LEFT + scale
    lines.insert(
        1,
        f'<line x1="{mark:.1f}" x2="{mark:.1f}" y1="40" y2="{y:g}" stroke="{palette.edge}"/>',
    )
    threads = (
        "Forward, backward, clipping and AdamW in float32; two threads of one machine, contenders in turns."
    )
    lines.append(words(0, y + 16, threads, "soft"))
    return document(palette, y + 30, "Bars: the time of a training step beside PyTorch and JAX", lines)


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


def run(palette: Palette) -> str:
    kept = json.loads(RUN.read_text(encoding="utf-8"))
    left, right, top, bottom = 44.0, 520.0, 50.0, 300.0
    losses, checks = kept["loss"], kept["val_loss"]
    last = losses[-1][0]
    high = max(y for _, y in losses + checks)
    low = min(y for _, y in losses + checks)
    ticks = range(int(low), int(high) + 2, 2)
    first, past = float(ticks[0]), max(float(ticks[-1]), high)

    def at(point: list[float]) -> str:
        x, y = point
        across, up = x / last, (y - first) / (past - first)
        return f"{left + (right - left) * across:.1f},{bottom - (bottom - top) * up:.1f}"

    lines = [words(0, 24, "Loss, in nats per token", "title")]
    for tick in ticks:
        y = float(at([0, tick]).split(",")[1])
        lines.append(f'<line x1="{left:g}" x2="{right:g}" y1="{y:g}" y2="{y:g}" stroke="{palette.edge}"/>')
        lines.append(words(left - 8, y + 5, str(tick), "soft", "end"))
    for tick in range(0, last + 1, 100):
        lines.append(words(float(at([tick, first]).split(",")[0]), bottom + 20, str(tick), "soft", "middle"))
    lines.append(words((left + right) / 2, bottom + 40, "step", "soft", "middle"))
    curve = " ".join(map(at, losses))
    lines.append(f'<polyline points="{curve}" fill="none" stroke="{palette.peer}" stroke-width="1.5"/>')
    curve = " ".join(map(at, checks))
    lines.append(f'<polyline points="{curve}" fill="none" stroke="{palette.own}" stroke-width="2.5"/>')
    lines += [
        f'<circle cx="{at(p).split(",")[0]}" cy="{at(p).split(",")[1]}" r="4" fill="{palette.own}"/>'
        for p in checks
    ]
    lines.append(words(right - 8, top + 22, "training", "soft", "end"))
    lines.append(
        f'<line x1="{right - 100:g}" x2="{right - 70:g}" y1="{top + 17:g}" y2="{top + 17:g}" '
        f'stroke="{palette.peer}" stroke-width="2"/>'
    )
    said = f"validation: {checks[-1][1]:.2f} in the end"
    lines.append(words(right - 8, top + 46, said, "soft", "end"))
    lines.append(
        f'<circle cx="{right - 20 - 6.4 * len(said):g}" cy="{top + 41:g}" r="4" fill="{palette.own}"/>'
    )
    sample = kept["sample"].strip().split("\n")[:15]
    shown = sample[: len(sample) - sample[::-1].index("")]  # whole speeches
    lines.append(words(560, 24, "What it writes then", "title"))
    lines.append(box(palette, 560.5, 36, WIDTH - 561, 304))
    lines += [
        f'<text class="code" xml:space="preserve" x="576" y="{60 + LINE * i}">{html.escape(line)}</text>'
        for i, line in enumerate(shown)
        if line
    ]
    return document(
        palette, 352, "The losses of a run of the default command, and the text that it ends with", lines
    )


# ---- The files ---------------------------------------------------------------------------------------------

PICTURES = {"step": step, "run": run}


def files() -> dict[Path, str]:
    """Path -> text of all files."""
    return {
        FOLDER / f"{name}-{palette.name}.svg": draw(palette)
        for name, draw in PICTURES.items()
        for palette in (LIGHT, DARK)
    }


def main(folders: list[str]) -> None:
    for folder in folders:
        keep(Path(folder))
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
