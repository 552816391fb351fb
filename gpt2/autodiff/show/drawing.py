"""A graph as a picture: an SVG with a line for each value in order, and an arc to it from each argument.

Scalar constants stand in the lines of their users. Text and lines take the colour of the page around.
"""

from __future__ import annotations

from html import escape

from ..graph import Graph, Node, const_value, is_scalar_const, node_names, type_text
from .runnable import runnable_source

CHARACTER, HEIGHT, ROW, MARGIN, ARC = 7.4, 24, 32, 8, 16  # pixels; ARC: how far an arc over a row bends out
MOST = 80  # values; a picture of more is unreadable


def shown(graph: Graph, name: str, source: str) -> str:
    """A program as HTML for a notebook: readable source, and folded its graph and the source that runs."""
    readable = runnable_source(graph, name) or source
    folded = {"its graph": drawing(graph)}
    if readable != source:
        folded["the program that runs"] = f"<pre>{escape(source.rstrip())}</pre>"
    details = (f"<details><summary>{title}</summary>{html}</details>" for title, html in folded.items())
    return "".join([f"<pre>{escape(readable.rstrip())}</pre>", *details])


def drawing(graph: Graph) -> str:
    """The SVG; or a line with the number of values, if there are too many for a picture."""
    boxes = [n for n in graph.nodes if not is_scalar_const(n)]
    if len(boxes) > MOST:
        return f"<p>{escape(graph.name)}: {len(boxes)} values, too many for a picture</p>"
    names = node_names(graph)
    rows = {n: row for row, n in enumerate(boxes)}
    arcs = [(rows[a], rows[n]) for n in boxes for a in dict.fromkeys(n.args) if a in rows]
    # an arc bends out less than in proportion to the rows between
    bends = [ARC * (lower - upper) ** 0.7 for upper, lower in arcs]
    left = MARGIN + max(bends, default=0.0)
    texts = {n: f"{names.get(n, '')}: {type_text(n)} = {_formula(n, names)}" for n in boxes}
    width = CHARACTER * max(map(len, texts.values()), default=0) + 16
    parts = []
    for bend, arc in zip(bends, arcs):
        y1, y2 = (MARGIN + ROW * row + HEIGHT / 2 for row in arc)
        path = f"M{left:.1f},{y1 + 4:.0f}C{left - bend:.1f},{y1 + 4:.0f} {left - bend:.1f},{y2 - 4:.0f} "
        path += f"{left:.1f},{y2 - 4:.0f}"
        parts.append(f'<path d="{path}" stroke="currentColor" stroke-opacity="0.45"/>')
    ends = {*graph.inputs, *graph.outputs}
    for n in boxes:
        y = MARGIN + ROW * rows[n]
        colour, opacity = ("#2f81f7", 0.22) if n in ends else ("currentColor", 0.07)
        parts.append(
            f'<rect x="{left:.1f}" y="{y:.0f}" width="{width:.1f}" height="{HEIGHT}" rx="5" fill="{colour}" '
            f'fill-opacity="{opacity}" stroke="currentColor" stroke-opacity="0.4"/>'
            f'<text x="{left + 8:.1f}" y="{y + 16:.0f}" font-family="monospace" font-size="12" '
            f'fill="currentColor">{escape(texts[n])}</text>'
        )
    right, down = left + width + MARGIN, 2 * MARGIN + ROW * len(boxes)
    size = f'viewBox="0 0 {right:.0f} {down}" style="max-width: {right:.0f}px; width: 100%"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} fill="none">{"".join(parts)}</svg>'


def _formula(n: Node, names: dict[Node, str]) -> str:
    """The op and its arguments by name."""
    if n.op in ("input", "const"):
        return "input" if n.op == "input" else "constant"
    arguments = [f"{const_value(a):.4g}" if is_scalar_const(a) else names.get(a, "?") for a in n.args]
    return f"{n.op}({', '.join(arguments)})"
