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
SWEEPS = 12


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

Links = dict[Point, list[Point]]


def points_of(arrows: Arrows, words: Mapping[str, str]) -> tuple[list[list[Point]], list[tuple[Point, ...]]]:
    """The rows of points from the ground up, and each arrow as the points that it passes, downwards."""
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


def links_of(ways: list[tuple[Point, ...]]) -> tuple[Links, Links]:
    """Point -> the points above that lead to it, and those below that it leads to."""
    above: Links = {}
    below: Links = {}
    for way in ways:
        for upper, lower in zip(way, way[1:]):
            below.setdefault(upper, []).append(lower)
            above.setdefault(lower, []).append(upper)
    return above, below


def crossings(rows: list[list[Point]], below: Links) -> int:
    count = 0
    for upper, lower in zip(rows[1:], rows):
        at = {point: i for i, point in enumerate(lower)}
        ends = [[at[other] for other in below.get(point, [])] for point in upper]
        count += sum(
            y < x for i, left in enumerate(ends) for right in ends[i + 1 :] for x in left for y in right
        )
    return count


def ordered(rows: list[list[Point]], above: Links, below: Links) -> list[list[Point]]:
    """The rows in the order with the fewest crossings among those that sweeps down and up come by."""
    best = rows = [list(row) for row in rows]
    for sweep in range(2 * SWEEPS):
        links, order = (below, rows) if sweep % 2 else (above, rows[::-1])
        at = {point: i / max(1, len(row) - 1) for row in rows for i, point in enumerate(row)}
        for row in order:
            middle = {p: sum(at[o] for o in links[p]) / len(links[p]) if links.get(p) else at[p] for p in row}
            row.sort(key=middle.__getitem__)
            at.update((point, i / max(1, len(row) - 1)) for i, point in enumerate(row))
        if crossings(rows, below) < crossings(best, below):
            best = [list(row) for row in rows]
    return best


def placed(rows: list[list[Point]], above: Links, below: Links) -> dict[Point, float]:
    """The middle of each point, in pixels from the left: near those that it is linked to."""
    x = {}
    for row in rows:
        x.update(zip(row, apart(row, [0.0] * len(row))))
    for sweep in range(4 * SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            links = [[*above.get(point, []), *below.get(point, [])] for point in row]
            wanted = [sum(x[o] for o in near) / len(near) if near else x[p] for p, near in zip(row, links)]
            x.update(zip(row, apart(row, wanted)))
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


@dataclass(frozen=True)
class Layout:
    """Where a panel's boxes and arrows are, in pixels from its upper left corner."""

    x: dict[Point, float]  # the middle of a box
    y: dict[Point, float]  # its upper edge
    ways: list[tuple[Point, ...]]

    @property
    def width(self) -> float:
        return max(x + point.width / 2 for point, x in self.x.items()) + MARGIN

    @property
    def height(self) -> float:
        return max(self.y.values()) + ROW + MARGIN

    def boxes(self) -> list[Point]:
        return [point for point in self.x if not point.arrow]

    def path(self, way: tuple[Point, ...]) -> list[tuple[float, float]]:
        """Down from the lower edge of a box to the upper edge of another, by curves of four points each that
        pass the floors between.
        """
        found = []
        for upper, lower in zip(way, way[1:]):
            start, end = self.y[upper] + HEIGHT, self.y[lower]
            middle = (start + end) / 2
            found += [(self.x[upper], start), (self.x[upper], middle)]
            found += [(self.x[lower], middle), (self.x[lower], end)]
        return found


def layout(panel: Panel) -> Layout:
    rows, ways = points_of(needed(panel.arrows), panel.words)
    above, below = links_of(ways)
    rows = ordered(rows, above, below)
    x = placed(rows, above, below)
    return Layout(x, {point: TITLE + ROW * (len(rows) - 1 - point.floor) for point in x}, ways)


def draw(panels: list[Panel]) -> str:
    """The panels one above the other, for light and dark surroundings."""
    layouts = [layout(panel) for panel in panels]
    width = max(one.width for one in layouts)
    height = MARGIN + sum(one.height for one in layouts)
    with drawing.look():
        figure = drawing.canvas(width, height, "")
        axes = drawing.place(figure, 0, 0, width, height)
        axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
        top = float(MARGIN)
        for panel, one in zip(panels, layouts):
            axes.text(MARGIN, top + 6, panel.title, fontsize=16, fontweight="bold")
            for way in one.ways:
                _arrow(axes, way, [(x, y + top) for x, y in one.path(way)])
            for point in one.boxes():
                _box(axes, point, one.x[point], one.y[point] + top, point.name in panel.lit)
            top += one.height
    figure.set_label(" and ".join(panel.title for panel in panels))
    return drawing.adaptive(drawing.svg(figure))


def _arrow(axes: Any, way: tuple[Point, ...], points: list[tuple[float, float]]) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    codes = [Path.LINETO, Path.CURVE4, Path.CURVE4, Path.CURVE4] * (len(points) // 4)
    codes[0] = Path.MOVETO
    arrow = FancyArrowPatch(path=Path(points, codes), arrowstyle="-|>", mutation_scale=9, linewidth=1.2)
    arrow.set_color(LIGHT["grey"])
    axes.add_patch(arrow)
    drawing.hint(arrow, f"{way[0].name} imports {way[-1].name}")


def _box(axes: Any, point: Point, x: float, y: float, lit: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=6"
    box = FancyBboxPatch((x - point.width / 2, y), point.width, HEIGHT, boxstyle=style)
    box.set(facecolor=LIGHT["lit" if lit else "panel"], edgecolor=LIGHT["own" if lit else "grey"])
    axes.add_patch(box)
    axes.text(x, y + 19, point.name, ha="center", fontsize=14)
    axes.text(x, y + 35, point.words, ha="center", fontsize=12, color=LIGHT["soft"])
