"""A graph as a picture: an SVG with a box for each value, below the boxes of its arguments.

Scalar constants stand in the boxes of their users. Text and lines take the colour of the page around. A
value's row is its longest distance from an input; in a row, values are put near their arguments.
"""

from __future__ import annotations

from html import escape

from ..graph import Graph, Node, const_value, is_scalar_const, node_names, type_text
from .runnable import runnable_source

CHARACTER, HEIGHT, ROW, GAP, MARGIN, THREAD = 7.4, 40, 78, 14, 8, 6  # pixels
MOST = 80  # boxes; a picture of more is unreadable
SWEEPS = 8

Point = tuple[Node, int]
Positions = dict[Point, tuple[float, float]]


def shown(graph: Graph, name: str, source: str) -> str:
    """A program as HTML for a notebook: readable source, and folded its graph and the source that runs."""
    readable = runnable_source(graph, name) or source
    parts = [f"<pre>{escape(readable.rstrip())}</pre>", _folded("its graph", drawing(graph))]
    if readable != source:
        parts.append(_folded("the program that runs", f"<pre>{escape(source.rstrip())}</pre>"))
    return "".join(parts)


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"


def drawing(graph: Graph) -> str:
    """The SVG; or a line with the number of values, if there are too many for a picture."""
    boxes = [n for n in graph.nodes if not is_scalar_const(n)]
    if len(boxes) > MOST:
        return f"<p>{escape(graph.name)}: {len(boxes)} values, too many for a picture</p>"
    names = node_names(graph)
    words = {n: (_formula(n, names), f"{names.get(n, '')}: {type_text(n)}") for n in boxes}
    widths: dict[Point, float] = {(n, 0): CHARACTER * max(map(len, words[n])) + 16 for n in boxes}
    paths, depth = paths_of(boxes)
    widths.update({point: THREAD for path in paths for point in path[1:-1]})
    positions, width, height = laid_out(paths, depth, widths)
    links = dict.fromkeys(link for path in paths for link in zip(path, path[1:]))
    parts = [_line(positions[upper], positions[lower], past=lower[1] > 0) for upper, lower in links]
    for n in boxes:
        parts.append(_box(positions[n, 0], widths[n, 0], words[n], n in graph.outputs or n in graph.inputs))
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width: {width:.0f}px; width: 100%"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} fill="none">{"".join(parts)}</svg>'


def _formula(n: Node, names: dict[Node, str]) -> str:
    """The op and its arguments by name."""
    if n.op == "input":
        return "input"
    if n.op == "const":
        return "constant"
    arguments = [f"{const_value(a):.4g}" if is_scalar_const(a) else names.get(a, "?") for a in n.args]
    return f"{n.op}({', '.join(arguments)})"


# ---- Layout ------------------------------------------------------------------------------------------------


def paths_of(boxes: list[Node]) -> tuple[list[list[Point]], dict[Point, int]]:
    """The points on the path of each arrow, downwards, and the row of every point.

    (n, 0) is the box of n, and (n, k) the position where arrows from it pass the k-th row below.
    """
    depth: dict[Point, int] = {}
    for n in boxes:
        depth[n, 0] = 1 + max((depth[a, 0] for a in n.args if (a, 0) in depth), default=-1)
    paths: list[list[Point]] = []
    for n in boxes:
        for a in dict.fromkeys(n.args):
            if (a, 0) in depth:
                between = [(a, k) for k in range(1, depth[n, 0] - depth[a, 0])]
                depth.update({point: depth[a, 0] + point[1] for point in between})
                paths.append([(a, 0), *between, (n, 0)])
    return paths, depth


def laid_out(
    paths: list[list[Point]], depth: dict[Point, int], widths: dict[Point, float]
) -> tuple[Positions, float, float]:
    """The middle of each point's upper edge, and the width and height of all."""
    rows: list[list[Point]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for point, row in depth.items():
        rows[row].append(point)
    near = _neighbours(paths)
    x = {point: at for row in rows for point, at in _side_by_side(row, widths)}
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            wanted = {p: sum(x[o] for o in near[p]) / len(near[p]) if p in near else x[p] for p in row}
            row.sort(key=wanted.__getitem__)
            middle = [at for _, at in _side_by_side(row, widths)]
            shift = (sum(wanted.values()) - sum(middle)) / len(row)
            x.update({point: at + shift for point, at in zip(row, middle)})
    left = min((x[p] - widths[p] / 2 for p in x), default=0.0) - MARGIN
    right = max((x[p] + widths[p] / 2 for p in x), default=0.0) + MARGIN
    positions = {p: (x[p] - left, MARGIN + ROW * depth[p]) for p in x}
    return positions, right - left, 2 * MARGIN + ROW * len(rows) - (ROW - HEIGHT)


def _neighbours(paths: list[list[Point]]) -> dict[Point, set[Point]]:
    """The points that are joined to each point by an arrow."""
    near: dict[Point, set[Point]] = {}
    for path in paths:
        for upper, lower in zip(path, path[1:]):
            near.setdefault(upper, set()).add(lower)
            near.setdefault(lower, set()).add(upper)
    return near


def _side_by_side(row: list[Point], widths: dict[Point, float]) -> list[tuple[Point, float]]:
    placed, at = [], 0.0
    for point in row:
        placed.append((point, at + widths[point] / 2))
        at += widths[point] + GAP
    return placed


# ---- Drawing -----------------------------------------------------------------------------------------------


def _line(start: tuple[float, float], end: tuple[float, float], past: bool) -> str:
    """From the lower edge of a row to the upper edge of the next one, or past that row."""
    (x1, y1), (x2, y2) = start, end
    y1 += HEIGHT
    bend = (y1 + y2) / 2
    path = f"M{x1:.1f},{y1:.0f}C{x1:.1f},{bend:.0f} {x2:.1f},{bend:.0f} {x2:.1f},{y2:.0f}"
    path += f"v{HEIGHT}" if past else ""
    return f'<path d="{path}" stroke="currentColor" stroke-opacity="0.45"/>'


def _box(position: tuple[float, float], width: float, words: tuple[str, str], end: bool) -> str:
    x, y = position
    colour, opacity = ("#2f81f7", 0.22) if end else ("currentColor", 0.07)
    shape = (
        f'<rect x="{x - width / 2:.1f}" y="{y:.0f}" width="{width:.1f}" height="{HEIGHT}" rx="5" '
        f'fill="{colour}" fill-opacity="{opacity}" stroke="currentColor" stroke-opacity="0.4"/>'
    )
    lines = "".join(
        f'<text x="{x:.1f}" y="{y + down:.0f}" font-family="monospace" font-size="12" text-anchor="middle" '
        f'fill="currentColor" fill-opacity="{strength}">{escape(text)}</text>'
        for text, down, strength in zip(words, (17, 33), (1, 0.65))
    )
    return shape + lines
