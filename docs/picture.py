"""Draws names and the arrows between them as an SVG: in floors, each arrow pointing down.

    draw([Panel("gpt2", arrows), ...]) -> the text of the file

An arrow that follows from others is left out: where a needs b and b needs c, a may know c as well. Names of
a floor are put in an order in which few arrows cross (Sugiyama, Tagawa and Toda 1981), and an arrow over
several floors passes between the boxes of those between.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass

from docs.house import Arrows, floors

CHARACTER, SMALL, HEIGHT, ROW, GAP, MARGIN, TITLE = 8.2, 6.4, 44, 84, 20, 28, 40  # pixels
SWEEPS = 12

STYLE = """\
    .paper { fill: #ffffff; }
    .box { fill: #eef2f7; stroke: #64748b; }
    .lit { fill: #dbeafe; stroke: #2563eb; }
    .arrow { fill: none; stroke: #64748b; stroke-width: 1.3; }
    .head { fill: #64748b; }
    text { font: 14px ui-sans-serif, system-ui, "Helvetica Neue", Arial, sans-serif; fill: #0f172a; }
    .small { font-size: 12px; fill: #475569; }
    .title { font-weight: 600; font-size: 16px; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; }
      .box { fill: #1e293b; stroke: #94a3b8; }
      .lit { fill: #1e3a5f; stroke: #60a5fa; }
      .arrow { stroke: #94a3b8; }
      .head { fill: #94a3b8; }
      text { fill: #e6edf3; }
      .small { fill: #a8b3c1; }
    }"""


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


# ---- The file ----------------------------------------------------------------------------------------------


def draw(panels: list[Panel]) -> str:
    """The panels one above the other, for light and dark surroundings."""
    drawn, top, width = [], MARGIN, 0.0
    for panel in panels:
        lines, panel_width, height = _panel(panel, top)
        drawn += lines
        top += height
        width = max(width, panel_width)
    size = f'viewBox="0 0 {width:g} {top}" width="{width:g}" height="{top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    marker = (
        '    <marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto"><path class="head" d="M0,0.5 L8,4 L0,7.5 z"/></marker>'
    )
    paper = f'  <rect class="paper" width="{width:g}" height="{top}"/>'
    parts = [head, "  <style>", STYLE, "  </style>", "  <defs>", marker, "  </defs>", paper, *drawn, "</svg>"]
    return "\n".join(parts) + "\n"


def _panel(panel: Panel, top: int) -> tuple[list[str], float, int]:
    """The lines of a panel whose upper edge is at `top`; its width and height."""
    rows, ways = points_of(needed(panel.arrows), panel.words)
    above, below = links_of(ways)
    rows = ordered(rows, above, below)
    x = placed(rows, above, below)
    last = top + TITLE + ROW * (len(rows) - 1)
    y = {point: last - ROW * point.floor for point in x}
    lines = ["  " + _text("title", MARGIN, top + 6, panel.title)]
    lines += [f'  <path class="arrow" marker-end="url(#head)" d="{_curve(way, x, y)}"/>' for way in ways]
    for point in (point for row in rows for point in row if not point.arrow):
        kind = "lit" if point.name in panel.lit else "box"
        lines.append(
            f'  <rect class="{kind}" x="{x[point] - point.width / 2:g}" y="{y[point]}" '
            f'width="{point.width:g}" height="{HEIGHT}" rx="6"/>'
            + _text("", x[point], y[point] + 19, point.name)
            + _text("small", x[point], y[point] + 35, point.words)
        )
    width = max(x[point] + point.width / 2 for point in x) + MARGIN
    return lines, width, TITLE + ROW * len(rows) + MARGIN


def _text(kind: str, x: float, y: float, words: str) -> str:
    anchor = "" if kind == "title" else ' text-anchor="middle"'
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{anchor}>{html.escape(words)}</text>'


def _curve(way: tuple[Point, ...], x: dict[Point, float], y: dict[Point, int]) -> str:
    """An arrow's way: from the lower edge of a box, past the floors between, to the upper edge of another."""
    text = f"M{x[way[0]]:g},{y[way[0]] + HEIGHT}"
    for upper, lower in zip(way, way[1:]):
        start, end = y[upper] + HEIGHT, y[lower]
        middle = (start + end) // 2
        text += f" C{x[upper]:g},{middle} {x[lower]:g},{middle} {x[lower]:g},{end}"
        if lower is not way[-1]:
            text += f" V{end + HEIGHT}"
    return text
