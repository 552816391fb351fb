"""A roofline's table as a picture: for each layer its time, and in it the least that the machine needs."""

import html

WIDTH, LEFT, RIGHT, ROW, TOP = 760, 190, 90, 22, 84  # pixels
STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328; } .title { font-weight: 600; font-size: 15px; }
.soft { fill: #57606a; } .paper { fill: #ffffff; } .above { fill: #d0d7de; } .products { fill: #2563eb; }
.memory { fill: #0d9488; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .soft { fill: #9aa4af; } .paper { fill: #0d1117; } .above { fill: #3d444d; }
  .products { fill: #58a6ff; } .memory { fill: #2dd4bf; }
}"""
KEYS = (
    ("products", "bound by products"),
    ("memory", "bound by memory"),
    ("above", "above the bound: what a faster engine could win"),
)


def svg(result: dict, title: str) -> str:
    """The file, of one result of bench.roofline; the layers that take longest first."""
    rows = {key: row for key, row in result["rows"].items() if row["ms"] is not None}
    order = sorted(rows, key=lambda key: -rows[key]["ms"])
    scale = (WIDTH - LEFT - RIGHT) / max((row["ms"] for row in rows.values()), default=1.0)
    height = TOP + ROW * len(order) + 16
    lines = [_text(0, 20, title, "title"), *_keys()]
    for i, key in enumerate(order):
        row, y = rows[key], TOP + ROW * i
        kind, _, part = key.rpartition("/")
        lines.append(_text(LEFT - 8, y + 14, f"{kind} {part}", "", "end"))
        lines.append(_bar("above", LEFT, y, scale * row["ms"]))
        lines.append(_bar(row["by"], LEFT, y, scale * min(row["bound_ms"], row["ms"])))
        told = f"{row['ms']:.1f} ms, {row['ms'] / row['bound_ms']:.1f} x" if row["bound_ms"] else ""
        lines.append(_text(LEFT + scale * row["ms"] + 6, y + 14, told, "soft"))
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>\n{STYLE}\n</style>'
    paper = f'<rect class="paper" width="{WIDTH}" height="{height}"/>'
    return "\n".join([head, paper, *lines, "</svg>"]) + "\n"


def _keys() -> list[str]:
    lines, x = [], 0
    for kind, words in KEYS:
        lines += [_bar(kind, x, 44, 14), _text(x + 20, 58, words, "soft")]
        x += 40 + 7 * len(words)
    return lines


def _bar(kind: str, x: float, y: float, length: float) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y + 2}" width="{length:.1f}" height="{ROW - 6}" rx="2"/>'


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y}" text-anchor="{anchor}">{html.escape(words)}</text>'
