"""The page docs/studies.md and its pictures, made from bench/studies/figures.md: `python -m docs.studies`.

    python -m bench.studies --out FOLDER                  measure; FOLDER/studies.md is the report
    python -m docs.studies                                draw, and write the page: the report less its tables
    python -m docs.studies FOLDER/studies.md              the same, with the studies of this report taken over

A picture has a row of dots for each row of its tables, with quartiles, and a line at 1 where ratios are
drawn. It is 560 wide, to be read on a phone as well. A test compares page and pictures with what this makes.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import drawing
from bench.studies.markdown import cell_text
from docs import house

PAGE = house.ROOT / "docs" / "studies.md"
FOLDER = house.ROOT / "docs" / "pictures"
REPORT = house.ROOT / "bench" / "studies" / "figures.md"
# The page's first sentence
PURPOSE = (
    "Judge by measurements whether a derived backward keeps up with one written by hand, and what each part "
    "of the compiler contributes."
)
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Picture:
    """What is drawn of a study.

    series    for each: how the table's title begins, the column's name, and what it is called
    label     how many columns at a table's left name a row
    """

    study: str
    name: str
    title: str
    series: tuple[tuple[str, str, str], ...]
    log: bool = False
    label: int = 1
    times: bool = False


DERIVED = "forward and backward, derived / manual"
STEPS = "time, relative to 0.18"
LATER = "Time of a later call, relative to the derived program"
BOTH = "Time relative to simplifying before and after differentiating"
CUBIC = "x^3 + 4 x^2 - 10 = 0"
LOOPS = "Layers, forward and backward, B=4, T=64, one"
# fmt: off
PICTURES = (
    Picture("layers", "layers", "Forward and backward, derived by manual", tuple(
        (f"Layers, B=4, T=64, {threads}", DERIVED, threads) for threads in ("1 thread", "2 threads"))),
    Picture("layers", "model", "Loss and all gradients of the model, by manual", (
        ("The whole model", "auto / manual", "auto: layer by layer"),
        ("The whole model", "whole / manual", "whole: one program"))),
    Picture("optimise-first", "optimise-first", BOTH, (
        ("Time of result", "after / both", "only after"),
        ("Time of result", "neither / both", "not at all"))),
    Picture("scalar", "scalar", "Median time of a derivative", (
        ("f(x) = 5 x^10: time", "later call", "5 x^10"),
        ("g(x) = 3 x^3 (cos x - 10 x): time", "later call", "3 x^3 (cos x - 10 x)"),
        ("h(x) = exp((5 x / 2) sin(x)^exp(x)): time", "later call", "exp(5/2 x sin(x)^exp(x))")),
        log=True, times=True),
    Picture("roots", "roots", f"{CUBIC}: time relative to derivatives by hand",
        ((f"{CUBIC}: from", "relative to by hand", ""),), log=True, label=2),
    Picture("eam", "eam", "Time relative to the gradient by hand", tuple(
        (size, "by gradient by hand", size) for size in ("100 coordinates", "1000 coordinates")), log=True),
    Picture("programs", "programs", LATER, tuple(
        (LATER, f"{peer} / derived", peer) for peer in ("HIPS autograd", "JAX, jit", "PyTorch")), log=True),
    Picture("parallel", "parallel", "Speed-up of the gradient over one thread",
        (("parallel_map", "speed-up of the gradient", ""),), label=2),
    Picture("memory", "memory", "Time of a step by the price of a kept byte, ns", (
        ("GPT-2 124M, T=256: measured", STEPS, "T=256"),
        ("GPT-2 124M, T=1024, 3 blocks, vocabulary 8192: measured", STEPS, "T=1024, 3 blocks"))),
    Picture("enzyme", "enzyme", "Forward and backward, derived by written by hand, one thread", (
        (LOOPS, "derived / by hand", "here"), (LOOPS, "Enzyme / by hand", "C++ and Enzyme")), log=True),
)
# fmt: on


# ---- The page's tables -------------------------------------------------------------------------------------


def sections(text: str) -> dict[str, str]:
    """Study -> its part of the page."""
    _, *parts = re.split(r"^## ", text, flags=re.M)
    return {part.split("\n", 1)[0].strip(): part for part in parts}


def table(section: str, title: str) -> list[dict[str, str]]:
    """The rows of the one table whose title begins so, as dicts by the names of columns."""
    found = re.findall(rf"^<summary>{re.escape(title)}.*?</summary>\n\n((?:\|.*\n)+)", section, re.M)
    if len(found) != 1:
        raise ValueError(f"docs/studies.md: {len(found)} tables begin with {title!r}, expected one")
    head, _, *rows = (
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in found[0].splitlines()
    )
    return [dict(zip(head, row)) for row in rows]


def value(cell: str, times: bool) -> tuple[float, float, float] | None:
    """Median and quartiles of "0.96 [0.91 1.03]", or of a time with its unit; None for an empty cell."""
    found = re.match(r"(\d[\d.e+,-]*)(?: (ns|us|ms|s)\b)?(?: \[(\S+) (\S+)\])?$", cell)
    if not found:
        return None
    unit = SECONDS[found[2]] if times else 1.0
    middle = float(found[1].replace(",", "")) * unit
    low, high = (float(part.replace(",", "")) * unit if part else middle for part in (found[3], found[4]))
    return middle, low, high


def rows_of(picture: Picture, section: str) -> dict[str, list]:
    """Label -> (median, low, high) of each series, or None."""
    found: dict[str, list] = {}
    for k, (title, column, _) in enumerate(picture.series):
        for row in table(section, title):
            label = ", ".join(list(row.values())[: picture.label])
            found.setdefault(label, [None] * len(picture.series))
            found[label][k] = value(row[column], picture.times)
    return {label: values for label, values in found.items() if any(values)}


# ---- Drawing -----------------------------------------------------------------------------------------------


def draw(picture: Picture, section: str) -> str:
    """The picture, which follows the browser's colour scheme, as text."""
    rows, names = rows_of(picture, section), [name for _, _, name in picture.series]
    text = partial(cell_text, unit="s" if picture.times else "x")
    figure = drawing.dots(picture.title, rows, names, text, log=picture.log, one=not picture.times)
    return drawing.adaptive(drawing.svg(figure))


# ---- The files ---------------------------------------------------------------------------------------------


def place(picture: Picture) -> Path:
    return FOLDER / f"study-{picture.name}.svg"


def page() -> str:
    """The report without its tables, with each study's pictures below its question."""
    text = re.sub(r"<details.*?</details>\n\n?", "", REPORT.read_text(encoding="utf-8"), flags=re.S)
    text = text.replace("\n\n", f"\n\n{PURPOSE}\n\n", 1)
    for name in sections(text):
        shown = [picture for picture in PICTURES if picture.study == name]
        pictures = "".join(f"![{picture.title}](pictures/{place(picture).name})\n\n" for picture in shown)
        found = re.search(rf"^## {re.escape(name)}\n\n\*\*Question\.\*\* .*\n\n", text, re.M)
        text = text[: found.end()] + pictures + text[found.end() :]
    return text.rstrip() + "\n"


def taken_over(text: str, report: str) -> str:
    """The report with the studies of another one: each in the place of an older one, new ones behind.

    The head says when the others were measured; what is taken over says its own day.
    """
    head, *_ = re.split(r"^## ", text, flags=re.M)
    found = sections(text)
    (day,) = re.findall(r"Measured on (\S+)\. ", report)
    for name, part in sections(report).items():
        found[name] = re.sub(r"\bIt took (\d+ s)", rf"Measured on {day}, in \1", part.rstrip()) + "\n\n"
    return head + "".join(f"## {part.rstrip()}\n\n" for part in found.values()).rstrip() + "\n"


def main(reports: list[str]) -> None:
    for path in reports:
        text = REPORT.read_text(encoding="utf-8")
        REPORT.write_text(taken_over(text, Path(path).read_text(encoding="utf-8")), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    parts = sections(REPORT.read_text(encoding="utf-8"))
    for picture in PICTURES:
        place(picture).write_text(draw(picture, parts[picture.study]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
