"""The table and the picture of docs/speed.md, from figures that are kept: `python -m docs.speed`.

    python -m bench.step --sizes 4x128-B12T64 --json small.json     measure
    python -m docs.speed small.json other.json                      keep what was measured, in docs/speed.json
    python -m docs.speed                                            write table and picture once more

Of a size that is measured again, the new figures take the place of the old ones. A test compares the page and
the picture with what this makes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench import drawing
from docs import house

FIGURES = house.ROOT / "docs" / "speed.json"
PAGE = house.ROOT / "docs" / "speed.md"
PICTURE = house.ROOT / "docs" / "pictures" / "speed.svg"
# The page's two tables: of which processor, and between which marks
TABLES = {
    "own": ("<!-- figures: python -m docs.speed -->\n\n", "\n<!-- end of figures -->"),
    "avx2": ("<!-- figures without AVX-512: python -m docs.speed -->\n\n", "\n<!-- end of these figures -->"),
}

# What the picture shows, from top to bottom in each group; "peak" is the lower bound
BARS = ("torch-tuned", "torch-compile-tuned", "jax", "llmc", "whole", "shares", "processes", "peak")
TITLES = {"torch-tuned": "PyTorch, tuned", "peak": "products alone"}  # where a shorter one says enough
HASWELL = ("whole-haswell", "shares-haswell", "processes-haswell")
OWN = ("whole", "shares", "processes", "auto", "manual", "written", *HASWELL)
PEERS = (
    "torch-tuned",
    "torch-compile-tuned",
    "torch",
    "torch-fused",
    "torch-compile",
    "jax",
    "llmc",
    "autograd",
)
ROWS = (*PEERS, "written", "manual", "auto", "whole", "shares", "processes", *HASWELL, "peak")
ORDER = (
    "4x128-B12T64",
    "default",
    "8x256-B8T128",
    "6x384-B12T256",
    "124M-B4T64",
    "124M-B4T256",
    "124M-B1T1024",
)
# Size -> what the picture calls it
WORDS = {
    "4x128-B12T64": "4 layers, 128 wide; 12 x 64 letters",
    "default": "4 layers, 128 wide; 8 x 64 GPT-2 tokens",
    "8x256-B8T128": "8 layers, 256 wide; 8 x 128 tokens",
    "6x384-B12T256": "6 layers, 384 wide; 12 x 256 tokens",
    "124M-B4T64": "GPT-2, 12 layers, 768 wide; 4 x 64 tokens",
    "124M-B4T256": "GPT-2, 12 layers, 768 wide; 4 x 256 tokens",
    "124M-B1T1024": "GPT-2, 12 layers, 768 wide; 1 x 1024 tokens",
}
HEADER = ("contender", "median ms", "to PyTorch", "", "of peak", "MiB")
MOST = 2.0  # a ratio from which on a bar is cut


def condensed(result: dict, machine: str, processor: str) -> dict:
    """What is kept of one size: a row for each contender that agreed with the others, and the load."""
    rows = {}
    for name, row in result["rows"].items():
        if "disagrees" in row or f"to_{result['reference']}" not in row:
            continue
        ratio = row[f"to_{result['reference']}"]
        rows[name] = {
            "title": row["title"],
            "ms": round(row["ms"]["median"], 1),
            "ratio": [round(ratio[key], 3) for key in ("median", "q1", "q3")],
            "of_peak": round(row["of_peak"]["median"], 2) if "of_peak" in row else None,
            "mib": round(row["peak_bytes"] / 2**20),
        }
    heat = result["heats"][0]
    return {
        "size": result["size"],
        "threads": result["threads"],
        "processor": processor,
        "vocabulary": result["vocab_size"],
        "reference": result["reference"],
        "machine": machine,
        "rounds": heat["rounds_counted"],
        "others": heat["others"],
        "rows": rows,
    }


def figures(processor: str = "own") -> list[dict]:
    """What is kept of this machine, or of it as it passes for another processor, in the order of the page."""
    kept = json.loads(FIGURES.read_text(encoding="utf-8"))
    kept = [one for one in kept if one["processor"] == processor]
    known = {name: i for i, name in enumerate(ORDER)}
    return sorted(kept, key=lambda one: (known.get(one["size"], len(known)), -one["threads"]))


def keep(paths: list[str]) -> None:
    """Take up the results of bench.step in these files."""
    before = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else []
    kept = {(one["size"], one["threads"], one["processor"]): one for one in before}
    for path in paths:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        machine = content["machine"]
        processor, told = machine["passes_for"], machine["cpu"]
        for result in content["results"]:
            one = condensed(result, told, processor)
            kept[one["size"], one["threads"], processor] = one
    text = json.dumps(list(kept.values()), indent=1)
    FIGURES.write_text(text + "\n", encoding="utf-8")


# ---- The table ---------------------------------------------------------------------------------------------


def table(processor: str = "own") -> str:
    """Every size with its contenders, as indented text of equal columns."""
    lines = []
    for one in figures(processor):
        lines.append(
            f"    {one['size']}, {one['threads']} thread{'s' * (one['threads'] > 1)}, "
            f"vocabulary {one['vocabulary']}; {one['rounds']} rounds, others {100 * one['others']:.0f} %"
        )
        cells = [HEADER]
        for name in ROWS:
            if (row := one["rows"].get(name)) is None:
                continue
            median, low, high = row["ratio"]
            share = "" if row["of_peak"] is None else f"{row['of_peak']:.2f}"
            cells.append(
                (
                    row["title"],
                    f"{row['ms']:.1f}" if row["ms"] < 1000 else f"{row['ms']:.0f}",
                    f"{median:.2f}",
                    f"[{low:.2f} {high:.2f}]",
                    share,
                    str(row["mib"]),
                )
            )
        widths = [max(len(line[i]) for line in cells) for i in range(len(HEADER))]
        for line in cells:
            first, *rest = (
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths))
            )
            lines.append("      " + "  ".join([first, *rest]).rstrip())
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def page() -> str:
    """docs/speed.md with the tables of today's figures between their marks."""
    text = PAGE.read_text(encoding="utf-8")
    for processor, (begin, end) in TABLES.items():
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = before + begin + table(processor) + end + after
    return text


# ---- The picture -------------------------------------------------------------------------------------------


def bar(name: str, row: dict, title: str = "") -> drawing.Bar:
    """A contender's bar: its ratio, coloured by whether it is this engine, a peer, or the lower bound."""
    colour = "own" if name in OWN else "limit" if name == "peak" else "peer"
    ratio = row["ratio"][0]
    return drawing.Bar(title or row["title"].replace("gpt2 ", ""), ((colour, ratio),), f"{ratio:.2f}")


def picture() -> str:
    """Bars of the step time relative to the fastest PyTorch, two threads, a group for each size.

    Narrow, so that a phone shows its letters at three quarters of their size; the site shows it wider.
    """
    groups = {
        WORDS.get(one["size"], one["size"]): [
            bar(name, one["rows"][name], TITLES.get(name, "")) for name in BARS if name in one["rows"]
        ]
        for one in figures()
        if one["threads"] == 2
    }
    title = "Step time relative to the fastest PyTorch"
    keys = {"own": "this engine", "peer": "peers", "limit": "its matrix products alone"}
    below = "Shorter is better. Medians of the ratios within rounds; two threads."
    return drawing.adaptive(
        drawing.svg(drawing.bars(title, groups, keys, 480, 170, MOST, rule=1.0, below=below, right=60))
    )


def main(paths: list[str]) -> None:
    if paths:
        keep(paths)
    PAGE.write_text(page(), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
