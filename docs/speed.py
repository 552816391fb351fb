"""The tables and pictures of docs/speed.md, from figures that are kept: `python -m docs.speed`.

    python -m bench.step --sizes 4x128-B12T64 --json small.json     measure
    python -m docs.speed --machine "AMD EPYC, Zen 5" small.json     keep what was measured, in docs/speed.json
    python -m docs.speed                                            write tables and pictures once more

Of a size that is measured again, the new figures take the place of the old ones. A test compares the page and
the pictures with what this makes.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from bench import drawing
from bench.harness.contenders import CONTENDERS, ENGINE
from docs import house
from gpt2.errors import counted

FIGURES = house.ROOT / "docs" / "speed.json"
PAGE = house.ROOT / "docs" / "speed.md"
# The page has each machine's tables between marks, and before them a summary of all
MARKED = re.compile(r"(<!-- figures: ([^\n]+?) -->\n\n).*?(\n<!-- end -->)", re.DOTALL)
SUMMARY = "all machines"

# What the picture shows, from top to bottom in each group; "peak" is the lower bound
BARS = ("torch-tuned", "torch-compile-tuned", "jax", "llmc", "manual", "whole", "shares", "processes", "peak")
TITLES = {"torch-tuned": "PyTorch, tuned", "peak": "products alone"}  # where a shorter one says enough
OWN = tuple(name for name, contender in CONTENDERS.items() if contender.module == ENGINE)
# Size, in the order of the page -> what the picture calls it
WORDS = {
    "4x128-B12T64": "4 layers, 128 wide; 12 x 64 letters",
    "default": "4 layers, 128 wide; 8 x 64 GPT-2 tokens",
    "8x256-B8T128": "8 layers, 256 wide; 8 x 128 tokens",
    "6x384-B12T256": "6 layers, 384 wide; 12 x 256 tokens",
    "124M-B4T64": "GPT-2, 12 layers, 768 wide; 4 x 64 tokens",
    "124M-B4T256": "GPT-2, 12 layers, 768 wide; 4 x 256 tokens",
    "124M-B1T1024": "GPT-2, 12 layers, 768 wide; 1 x 1024 tokens",
}
MOST = 2.0  # a ratio from which on a bar is cut
ABREAST = 3  # sizes beside each other in a table


def condensed(result: dict, machine: str) -> dict:
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
        "vocabulary": result["vocab_size"],
        "reference": result["reference"],
        "machine": machine,
        "rounds": heat["rounds_counted"],
        "others": heat["others"],
        "rows": rows,
    }


def kept() -> list[dict]:
    """All figures: a dict for each machine, size and number of threads, in the order of the page."""
    known = {name: i for i, name in enumerate(WORDS)}
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    return sorted(figures, key=lambda one: (known.get(one["size"], len(known)), -one["threads"]))


def figures(machine: str) -> list[dict]:
    """Those of one machine."""
    return [one for one in kept() if one["machine"] == machine]


def machines() -> list[str]:
    """Those of which the page has tables, in its order."""
    return [name for _, name, _ in MARKED.findall(PAGE.read_text(encoding="utf-8")) if name != SUMMARY]


def keep(paths: list[str], machine: str) -> None:
    """Take up the results of bench.step in these files, as measured on this machine."""
    all_figures = {(one["machine"], one["size"], one["threads"]): one for one in kept()}
    for path in paths:
        for result in json.loads(Path(path).read_text(encoding="utf-8"))["results"]:
            all_figures[machine, result["size"], result["threads"]] = condensed(result, machine)
    FIGURES.write_text(json.dumps(list(all_figures.values()), indent=1) + "\n", encoding="utf-8")


# ---- The tables --------------------------------------------------------------------------------------------


def table(machine: str) -> str:
    """Ratios with quartiles, then memory: a block of text for each few sizes, as narrow as a phone."""
    columns = figures(machine)
    return "\n<!-- -->\n\n".join(block(columns[i : i + ABREAST]) for i in range(0, len(columns), ABREAST))


def block(columns: list[dict]) -> str:
    """A column for each size, a row for each contender by bench.step's names."""
    batches = [re.findall("B.*", one["size"]) for one in columns]  # none in "default"
    heads = [
        ["", *(one["size"].split("-")[0] for one in columns)],
        ["", *("".join(batch) for batch in batches)],
        ["", *(counted(one["threads"], "thread") for one in columns)],
        ["vocabulary", *(str(one["vocabulary"]) for one in columns)],
        ["rounds", *(str(one["rounds"]) for one in columns)],
        ["others, %", *(f"{100 * one['others']:.0f}" for one in columns)],
        ["fastest PyTorch, ms", *(milliseconds(one["rows"][one["reference"]]["ms"]) for one in columns)],
    ]
    names = [name for name in CONTENDERS if any(name in one["rows"] for one in columns)]
    times, memory = [], []
    for name in names:
        rows = [one["rows"].get(name) for one in columns]
        times.append([name, *(f"{row['ratio'][0]:.2f}" if row else "-" for row in rows)])
        times.append(["", *("{:.2f}-{:.2f}".format(*row["ratio"][1:]) if row else "" for row in rows)])
        if name != "peak":  # which trains nothing
            memory.append([name, *(str(row["mib"]) if row else "-" for row in rows)])
    first = max(len(name) for name in ("fastest PyTorch, ms", *names))

    def text(rows: list[list[str]]) -> str:
        lines = (row[0].ljust(first) + "".join(f"{cell:>11}" for cell in row[1:]) for row in rows)
        return "\n".join(f"    {line}".rstrip() for line in lines)

    ratios = f"    time relative to it: median, quartiles\n{text(times)}"
    return f"{text(heads)}\n\n{ratios}\n\n    memory, MiB\n{text(memory)}\n"


def milliseconds(ms: float) -> str:
    return f"{ms:.1f}" if ms < 1000 else f"{ms:.0f}"


def summary() -> str:
    """For each machine a row for each size: ratios of the fastest own way, of `whole` and of `manual`."""
    sizes = [f"{one['size']}, {one['threads']}" for one in kept()]
    first = max(map(len, [*sizes, *machines()]))
    blocks = []
    for machine in machines():
        lines = [machine.ljust(first) + f"{'fastest':>9}{'whole':>7}{'manual':>8}"]
        for one in figures(machine):
            ratios = {name: one["rows"][name]["ratio"][0] for name in OWN if name in one["rows"]}
            whole = min(ratios[name] for name in ("whole", "whole-haswell") if name in ratios)
            name = f"{one['size']}, {one['threads']}"
            lines.append(f"{name:{first}}{min(ratios.values()):9.2f}{whole:7.2f}{ratios['manual']:8.2f}")
        blocks.append("\n".join(f"    {line}" for line in lines) + "\n")
    return "\n".join(blocks)


def page() -> str:
    """docs/speed.md with the tables of today's figures between their marks."""

    def filled(match: re.Match) -> str:
        begin, name, end = match.groups()
        return begin + (summary() if name == SUMMARY else table(name)) + end

    return MARKED.sub(filled, PAGE.read_text(encoding="utf-8"))


# ---- The pictures ------------------------------------------------------------------------------------------


def bar(name: str, row: dict, title: str = "") -> drawing.Bar:
    """A contender's bar: its ratio, coloured by whether it is this engine, a peer, or the lower bound."""
    colour = "own" if name in OWN else "limit" if name == "peak" else "peer"
    ratio = row["ratio"][0]
    return drawing.Bar(title or row["title"].replace("gpt2 ", ""), ((colour, ratio),), f"{ratio:.2f}")


def place(machine: str) -> Path:
    """Where the picture of a machine is."""
    return house.ROOT / "docs" / "pictures" / f"speed-{re.sub('[^a-z0-9]+', '-', machine.lower())}.svg"


def picture(machine: str) -> str:
    """Bars of the step time relative to the fastest PyTorch, two threads, a group for each size.

    Narrow, so that a phone shows its letters at three quarters of their size; the site shows it wider.
    """
    groups = {
        WORDS.get(one["size"], one["size"]): [
            bar(name, one["rows"][name], TITLES.get(name, "")) for name in BARS if name in one["rows"]
        ]
        for one in figures(machine)
        if one["threads"] == 2
    }
    title = f"A step beside PyTorch's, {machine}"
    keys = {"own": "this engine", "peer": "peers", "limit": "its matrix products alone"}
    below = "Relative to the fastest PyTorch: medians of rounds; two threads."
    return drawing.adaptive(
        drawing.svg(drawing.bars(title, groups, keys, 480, 170, MOST, rule=1.0, below=below, right=60))
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.speed", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", help="written by bench.step --json")
    parser.add_argument("--machine", help="the processor on which they were measured, as the page calls it")
    options = parser.parse_args(argv)
    if options.files:
        if not options.machine:
            parser.error("--machine: name the processor on which these files were measured")
        keep(options.files, options.machine)
    PAGE.write_text(page(), encoding="utf-8")
    for machine in machines():
        place(machine).write_text(picture(machine), encoding="utf-8")


if __name__ == "__main__":
    main()
