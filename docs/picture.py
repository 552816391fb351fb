"""Draws names and the arrows between them as an SVG: in floors, each arrow pointing down.

    draw([Panel("gpt2", arrows), ...]) -> the text of the file

An arrow that follows from others is left out: where a needs b and b needs c, a may know c as well. Names of
a floor are put in an order in which few arrows cross (Sugiyama, Tagawa and Toda 1981), and an arrow over
several floors passes between the boxes of those between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench import drawing
from bench.drawing import LIGHT
from docs.house import Arrows, floors

CHARACTER, SMALL, HEIGHT, ROW, GAP, MARGIN, TITLE = 8.2, 6.4, 44, 84, 20, 28, 40  # pixels
SWEEPS = 48


@dataclass(frozen=True)
class Panel:
    """A part of the picture: its title, what knows what, some words for each name, the names to be lit."""

    title: str
    arrows: Arrows
    words: Mapping[str, str]
    lit: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Point:
    """A name on its floor, or the place where the arrow (a, b) passes one."""

    floor: int
    name: str
    words: str = ""
    arrow: tuple[str, str] | None = None

    @property
    def width(self) -> float:
        return 8.0 if self.arrow else max(CHARACTER * len(self.name), SMALL * len(self.words)) + 24


def needed(arrows: Mapping[str, set[str]]) -> Arrows:
    """The arrows without those that follow from others."""
    below: dict[str, set[str]] = {}
    for floor in floors(arrows):
        for name in floor:
            below[name] = set().union(*({b} | below[b] for b in arrows[name]))
    return {a: {b for b in known if not any(b in below[c] for c in known)} for a, known in arrows.items()}


# ---- Where things go ---------------------------------------------------------------------------------------

Way = tuple[Point, ...]  # an arrow as the points that it passes, downwards


def points_of(arrows: Arrows, words: Mapping[str, str]) -> tuple[list[list[Point]], list[Way]]:
    """The rows of points from the ground up, and the arrows."""
    rows = [[Point(i, name, words[name]) for name in sorted(row)] for i, row in enumerate(floors(arrows))]
    home = {point.name: point for row in rows for point in row}
    ways = []
    for a in sorted(arrows):
        for b in sorted(arrows[a]):
            between = [Point(h, "", "", (a, b)) for h in range(home[a].floor - 1, home[b].floor, -1)]
            for point in between:
                rows[point.floor].append(point)
            ways.append((home[a], *between, home[b]))
    return rows, ways


def placed(rows: list[list[Point]], ways: list[Way]) -> dict[Point, float]:
    """The middle of each point, in pixels from the left.

    Sweeps down and up move the points of each row to the middle of those that they are linked to: in the
    row before, by which the row is also ordered so that few arrows cross, and in later sweeps on both sides.
    """
    above: dict[Point, list[Point]] = {point: [] for row in rows for point in row}
    below = {point: [] for point in above}
    for way in ways:
        for upper, lower in zip(way, way[1:]):
            below[upper].append(lower)
            above[lower].append(upper)
    x: dict[Point, float] = {}
    for row in rows:
        x.update(zip(row, apart(row, [0.0] * len(row))))
    for sweep in range(2 * SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            before = below if sweep % 2 else above
            near = {p: before[p] if sweep < SWEEPS else above[p] + below[p] for p in row}
            middle = {p: sum(x[o] for o in near[p]) / len(near[p]) if near[p] else x[p] for p in row}
            if sweep < SWEEPS:
                row.sort(key=middle.__getitem__)
            x.update(zip(row, apart(row, [middle[point] for point in row])))
    left = min(x[point] - point.width / 2 for point in x)
    return {point: round(at - left + MARGIN, 1) for point, at in x.items()}


def apart(row: list[Point], wanted: list[float]) -> list[float]:
    """The places nearest to those wanted at which the points of a row, in this order, keep apart."""
    offsets = [0.0]
    for left, right in zip(row, row[1:]):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + GAP)
    blocks: list[list[float]] = []  # [mean, count]: neighbours that push each other stand together
    for place, offset in zip(wanted, offsets):
        blocks.append([place - offset, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            mean, count = blocks.pop()
            before = blocks[-1]
            before[:] = (before[0] * before[1] + mean * count) / (before[1] + count), before[1] + count
    flat = [mean for mean, count in blocks for _ in range(int(count))]
    return [place + offset for place, offset in zip(flat, offsets)]


# ---- The picture -------------------------------------------------------------------------------------------


def draw(panels: list[Panel]) -> str:
    """The panels one above the other, for light and dark surroundings."""
    layouts = []
    for panel in panels:
        rows, ways = points_of(needed(panel.arrows), panel.words)
        layouts.append((panel, len(rows), placed(rows, ways), ways))
    width = max(at + point.width / 2 for _, _, x, _ in layouts for point, at in x.items()) + MARGIN
    height = MARGIN + sum(TITLE + ROW * count + MARGIN for _, count, _, _ in layouts)
    with drawing.look():
        figure = drawing.canvas(width, height, "")
        axes = drawing.place(figure, 0, 0, width, height)
        axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
        top = float(MARGIN)
        for panel, count, x, ways in layouts:
            axes.text(MARGIN, top + 6, panel.title, fontsize=16, fontweight="bold")
            at = {point: (x[point], top + TITLE + ROW * (count - 1 - point.floor)) for point in x}
            for way in ways:
                _arrow(axes, way[0].name, way[-1].name, [at[point] for point in way])
            for point in x:
                if not point.arrow:
                    _box(axes, point, *at[point], point.name in panel.lit)
            top += TITLE + ROW * count + MARGIN
    figure.set_label(" and ".join(panel.title for panel in panels))
    return drawing.adaptive(drawing.svg(figure))


def _arrow(axes: Any, start: str, end: str, points: list[tuple[float, float]]) -> None:
    """From the lower edge of a box to the upper edge of another, past the floors between."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    curves = []
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        middle = (y0 + HEIGHT + y1) / 2
        curves += [(x0, y0 + HEIGHT), (x0, middle), (x1, middle), (x1, y1)]
    codes = [Path.LINETO, Path.CURVE4, Path.CURVE4, Path.CURVE4] * (len(points) - 1)
    codes[0] = Path.MOVETO
    arrow = FancyArrowPatch(path=Path(curves, codes), arrowstyle="-|>", mutation_scale=9, linewidth=1.2)
    arrow.set_color(LIGHT["grey"])
    axes.add_patch(arrow)
    drawing.hint(arrow, f"{start} imports {end}")


def _box(axes: Any, point: Point, x: float, y: float, lit: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=6"
    box = FancyBboxPatch((x - point.width / 2, y), point.width, HEIGHT, boxstyle=style)
    box.set(facecolor=LIGHT["lit" if lit else "panel"], edgecolor=LIGHT["own" if lit else "grey"])
    axes.add_patch(box)
    axes.text(x, y + 19, point.name, ha="center", fontsize=14)
    axes.text(x, y + 35, point.words, ha="center", fontsize=12, color=LIGHT["soft"])
