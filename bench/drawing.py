"""Plots of measurements with matplotlib, in one style for reports and for the pages of docs/.

    dots(...)    a row for each label, with a dot and quartiles for each series
    bars(...)    groups of horizontal bars, each followed by its value

Each returns a matplotlib Figure, sized in pixels. `svg` renders it in light colours, `dark` turns that dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2.pictures import LIGHT, PALETTE, SERIES, look
from gpt2.pictures import adaptive as adaptive

MARKERS = "os^Dv<>P"  # one for each series, so that colour is not the only difference
WIDTH, RIGHT, TITLE, KEY, ROW, BOTTOM = 560, 30, 34, 20, 24, 28  # pixels
CHARACTER = 7.3  # upper bound for the width of a letter
Spread = tuple[float, float, float]  # median, lower and upper quartile


def canvas(width: float, height: float, heading: str) -> Any:
    """An empty Figure, sizes in pixels, with its heading at the top left."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    figure.set_label(heading)
    figure.text(0, 1 - 20 / height, heading, fontsize=16, fontweight="bold")
    return figure


def place(figure: Any, left: float, top: float, width: float, height: float) -> Any:
    """Frameless axes in this rectangle of the figure, in pixels from its upper left corner."""
    across, down = 72 * figure.get_size_inches()
    axes = figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=8)
    axes.set_axisbelow(True)
    return axes


def hint(artist: Any, words: str) -> None:
    """Give the artist a tooltip."""
    artist.set_gid(f"hint:{words}")


# ---- Dots --------------------------------------------------------------------------------------------------


def dots(
    title: str,
    rows: Mapping[str, Sequence[Spread | None]],
    names: Sequence[str],
    text: Callable[[float], str],
    log: bool = False,
    one: bool = False,
    unit: str = "",
) -> Any:
    """Dot plot: a row for each label, with a dot for each named series. None leaves a gap.

    text   formats numbers    unit   the axis label
    one    draw a line at 1, where both sides of a ratio are equal
    """
    keys = [name for name in names if name]
    left = min(WIDTH / 2, 20 + CHARACTER * max(map(len, rows)))
    row = max(ROW, 9 * len(names) + 3)
    top, deep = (TITLE if title else 8) + KEY * len(keys), row * len(rows) + 6
    with look():
        figure = canvas(WIDTH, top + deep + BOTTOM + 20 * bool(unit), title)
        axes = place(figure, left, top, WIDTH - left - RIGHT, deep)
        for i, (label, values) in enumerate(rows.items()):
            for k, spread in enumerate(values):
                if spread:  # a dot, with a line between its quartiles
                    y, (middle, low, high) = i + (k + 1) / (len(names) + 1), spread
                    style = {"fmt": MARKERS[k % 8], "color": _colour(k), "markersize": 8, "elinewidth": 2}
                    drawn = axes.errorbar(middle, y, xerr=[[middle - low], [high - middle]], **style)
                    hint(drawn[0], f"{label}: {text(middle)}")
        axes.set(ylim=(len(rows), 0), yticks=[i + 0.5 for i in range(len(rows))], xlabel=unit)
        axes.set_yticklabels(rows, color=LIGHT["text"])
        numbers = [n for values in rows.values() for spread in values if spread for n in spread]
        _ruled(axes, numbers, text, log, one)
        for k, name in enumerate(keys):
            axes.plot([], [], MARKERS[k % 8], color=_colour(k), markersize=8, label=name)
        if keys:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def _colour(k: int) -> str:
    return LIGHT[SERIES[k % len(SERIES)]]


def _ruled(axes: Any, numbers: Sequence[float], text: Callable, log: bool, one: bool) -> None:
    """Set scale, ticks and grid to suit these numbers; with `one`, draw a thicker line at 1."""
    from matplotlib import ticker

    low, high = (edge([*numbers, 1.0] if one else numbers) for edge in (min, max))
    if log and low > 0:
        axes.set_xscale("log")
        margin = (high / low) ** 0.06 if high > low else 1.2
        limits = low / margin, high * margin
        few = high / low < 30  # then decades alone would be too sparse
        locator = ticker.LogLocator(subs=(1, 2, 5) if few else (1,), numticks=8)
        if high / low < 4:
            locator = ticker.MaxNLocator(5, steps=(1, 2, 5, 10))
    else:
        margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        limits = low - margin, high + margin
        locator = ticker.MaxNLocator(6, steps=(1, 2, 5, 10))
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.xaxis.set_major_formatter(lambda x, _: text(x))
    axes.set_xlim(limits)
    axes.xaxis.grid(True)
    if one:
        axes.axvline(1.0, color=LIGHT["text"], linewidth=1.5, zorder=1)


# ---- Bars --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """A named horizontal bar, followed by `words`: parts (colour, length) overlaid, longest first."""

    name: str
    parts: tuple[tuple[str, float], ...]
    words: str


def bars(
    title: str,
    groups: Mapping[str, Sequence[Bar]],
    keys: Mapping[str, str],
    width: float,
    left: float,
    most: float = float("inf"),
    rule: float | None = None,
    below: str = "",
    right: float = 150,
) -> Any:
    """Bar chart: groups of bars below their headings. The colour "limit" draws an outline only.

    keys   legend: colour -> its meaning      most   length at which longer bars are cut and marked
    left   pixels for the names of bars       rule   length at which a vertical line is drawn
    right  pixels for their values
    """
    deep = sum((28 if heading else 0) + 22 * len(group) + 8 for heading, group in groups.items())
    top = 38 + 26 * bool(keys)
    longest = min(most, max(length for group in groups.values() for bar in group for _, length in bar.parts))
    pixel = longest / (width - left - right)
    with look():
        figure = canvas(width, top + deep + 14 + 20 * bool(below), title)
        axes = place(figure, 0, top, width, deep)
        axes.set(xlim=(-left * pixel, longest + right * pixel), ylim=(deep, 0), xticks=[], yticks=[])
        if rule is not None:
            axes.vlines(rule, 0, deep, color=LIGHT["edge"], zorder=0)
        y = 0.0
        for heading, group in groups.items():
            if heading:
                axes.text(-left * pixel, y + 20, heading, color=LIGHT["soft"])
                y += 28
            for bar in group:
                axes.text(-10 * pixel, y + 15, bar.name, ha="right")
                for colour, length in bar.parts:
                    axes.barh(y + 11, min(length, most), 16, **_filled(colour))
                end = bar.parts[0][1]
                if end > most:
                    axes.text(
                        most - 22 * pixel, y + 17, "//", color=LIGHT["paper"], fontsize=18, fontweight="bold"
                    )
                behind = {"facecolor": LIGHT["paper"], "edgecolor": "none", "pad": 1}
                axes.text(min(end, most) + 8 * pixel, y + 15, bar.words, color=LIGHT["soft"], bbox=behind)
                y += 22
            y += 8
        figure.text(0, 10 / (72 * figure.get_size_inches()[1]), below, color=LIGHT["soft"])
        from matplotlib.patches import Patch

        patches = [Patch(**_filled(colour), label=words) for colour, words in keys.items()]
        if patches:  # the legend of colours, in a row below the title
            above = 1 - 32 / (72 * figure.get_size_inches()[1])
            where = {"loc": "upper left", "bbox_to_anchor": (0, above), "ncol": len(patches)}
            figure.legend(handles=patches, **where)
    return figure


def _filled(colour: str) -> dict:
    """The style of a bar of this colour."""
    if colour == "limit":
        return {"facecolor": "none", "edgecolor": LIGHT[colour], "linestyle": "--"}
    return {"color": LIGHT[colour]}


# ---- Files -------------------------------------------------------------------------------------------------


def svg(figure: Any) -> str:
    """The figure as SVG, in light colours."""
    file = io.StringIO()
    metadata = {"Title": figure.get_label(), **dict.fromkeys(("Creator", "Date", "Format", "Type"))}
    with look():
        figure.savefig(file, format="svg", metadata=metadata)
    text = re.sub(r'(width|height)="([\d.]+)pt"', r'\1="\2"', file.getvalue(), count=2)
    return re.sub(r'<g id="hint:([^"]*)">', r"<g><title>\1</title>", text)


def dark(text: str) -> str:
    """The dark version of an SVG in light colours."""
    colours = {light: dark for light, dark in PALETTE.values()}
    return re.sub("|".join(colours), lambda match: colours[match[0]], text)


def pair(folder: Path, name: str, text: str) -> dict[Path, str]:
    """Path -> text of NAME-light.svg and NAME-dark.svg."""
    return {folder / f"{name}-light.svg": text, folder / f"{name}-dark.svg": dark(text)}
