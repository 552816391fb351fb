"""The moving picture at the top of README.md: `python -m docs.demo`.

A forward is typed, its derived backward appears, a backward by hand with a planted mistake is typed and
checked, and the mistake is named. All text is what the compiler says when the pictures are made, long lines
wrapped.

Two layouts (four panels in two columns, or one below the other for narrow screens), each for light and dark
surroundings, as SVG with CSS animations: the complete picture first, then once the ten seconds in which it
comes about. Readers who prefer reduced motion see no motion.
"""

from __future__ import annotations

import html
import importlib.util
import re
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import drawing
from bench.drawing import LIGHT
from docs.front import FOLDER
from gpt2 import autodiff as ad
from gpt2.autodiff.show import highlight

LINE, PAD = 18, 16  # pixels
SOURCE = """\
import numpy as np

def gelu(x):
    u = 0.797885 * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + np.tanh(u))

def by_hand(dout, x):
    t = np.tanh(0.797885 * (x + 0.044715 * x**3))
    du = 0.5 * x * (1 - t**2) * dout
    dx = 0.5 * (1 + t) * dout
    return dx + 0.797885 * (1 + 0.044715 * x**2) * du
"""
WRONG = "(1 + 0.044715 * x**2)"  # what should be (1 + 3 * 0.044715 * x**2)
COLUMNS = 56  # characters a line
CHARACTER = 8.5  # pixels, an upper estimate for the font below
SPACING = 1.1 * LINE
SANS = '"Helvetica Neue", Arial, sans-serif'
MONO = "Menlo, Consolas, monospace"
# Kinds of code -> their colours
KINDS = {"k": "keyword", "s": "soft", "c": "comment", "n": "number", "f": "name"}
PANEL = 2 * PAD + COLUMNS * CHARACTER - 4
STILL, MOTION = 5, 10  # seconds
SECONDS = STILL + MOTION
LABEL = (
    "A forward of GELU is typed; the compiler derives its backward; a backward by hand lacks a factor 3; "
    "the check says in which line this factor is missing"
)


@dataclass(frozen=True)
class Panel:
    """A heading, its lines of text, when in the motion they appear (seconds), and whether they are typed."""

    heading: str
    lines: list[str]
    begin: float
    end: float
    typed: bool = False
    code: bool = True


def panels() -> list[Panel]:
    """The four panels, from a real run of the compiler."""
    forward, by_hand = SOURCE.split("\n\n")[1:]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gelu.py"
        path.write_text(SOURCE, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("gelu", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        x = np.random.default_rng(0).standard_normal((4, 5))
        derived = ad.source(ad.vjp(module.gelu, x)[1]).partition("def ")
        try:
            ad.check_backward(module.gelu, module.by_hand, [(x,)])
        except AssertionError as error:
            message = str(error)
    body = "def " + derived[2].rstrip()
    return [
        Panel("1  Write a forward", forward.split("\n"), 0.3, 2.2, typed=True),
        Panel("2  The compiler derives its backward", wrapped_code(body), 2.6, 3.9),
        Panel("3  Write a backward of your own", by_hand.rstrip().split("\n"), 4.3, 7.0, typed=True),
        Panel("4  ad.check_backward names your mistake", wrapped_text(message), 7.4, 7.8, code=False),
    ]


def wrapped_code(source: str) -> list[str]:
    """Lines of Python, those that are too long in parentheses and broken before an operator between terms."""
    lines = []
    for line in source.split("\n"):
        if len(line) <= COLUMNS:
            lines.append(line)
            continue
        name, _, value = line.partition(" = ")
        places = [place.end() - 1 for place in re.finditer(r" [+-](?= )", value)]
        outside = [at for at in places if value[:at].count("(") == value[:at].count(")")]
        first = max(at for at in outside if len(name) + 4 + at <= COLUMNS)
        indent = len(name) - len(name.lstrip())
        lines += [f"{name} = ({value[:first].rstrip()}", " " * (indent + 4) + value[first:] + ")"]
    return lines


def wrapped_text(text: str) -> list[str]:
    """Lines of a message, those that are too long broken between words and indented as they were."""
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        together = re.sub(r"\[.*?\]", lambda place: place[0].replace(" ", "\N{NO-BREAK SPACE}"), line)
        lines += textwrap.wrap(together, COLUMNS, subsequent_indent=indent)
    return lines


def times(panel: Panel) -> list[tuple[float, float]]:
    """When each line begins and ends to appear; a typed line takes as long as it has letters."""
    sizes = [len(line.strip()) if panel.typed else 1 for line in panel.lines]
    seconds = (panel.end - panel.begin) / sum(sizes)
    starts = [panel.begin + seconds * sum(sizes[:i]) for i in range(len(sizes))]
    return [(start, start + seconds * size) for start, size in zip(starts, sizes)]


class Animation:
    """The style sheet of a picture: keyframes within SECONDS."""

    def __init__(self) -> None:
        self.rules: list[str] = []

    def add(self, begin: float, end: float, before: str, after: str, how: str, origin: str = "") -> str:
        """The class of an element that goes from `before` to `after` between two times of the motion."""
        name = f"a{len(self.rules)}"
        still, start, stop = (f"{100 * (STILL + at) / SECONDS:.2f}%" for at in (0, begin, end))
        self.rules.append(
            f"@keyframes {name} {{ 0% {{ {after}; animation-timing-function: step-end }} "
            f"{still}, {start} {{ {before}; animation-timing-function: {how} }} "
            f"{stop}, 100% {{ {after} }} }} .{name} {{ {after}; {origin}"
            f"animation: {name} {SECONDS}s linear both }}"
        )
        return name

    def style(self) -> list[str]:
        still = "@media (prefers-reduced-motion: reduce) { * { animation: none !important } }"
        return [
            "  <style>",
            "    .code { font-size: 14px } .cause { font-weight: 600 }",
            "    .bad { fill: #cf222e33; stroke: #cf222e }",
            f"    {still}",
            *(f"    {rule}" for rule in self.rules),
            "  </style>",
        ]


# ---- Elements of SVG: matplotlib draws no animations -------------------------------------------------------


def document(width: int, height: float, label: str, lines: list[str]) -> str:
    """An SVG file of this height with these elements; label says what is seen to who cannot see it."""
    style = [
        f"text {{ font: 14px {SANS}; fill: {LIGHT['text']}; }}",
        ".title { font-weight: 600; font-size: 16px; }",
        f".soft {{ font-size: 13px; fill: {LIGHT['soft']}; }}",
        f".code {{ font: 12px {MONO}; white-space: pre; }}",
        *(f".code .{kind} {{ fill: {LIGHT[colour]}; }}" for kind, colour in KINDS.items()),
    ]
    size = f'width="{width}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" {size} role="img"'
    return "\n".join([
        f'{head} aria-label="{html.escape(label)}">',
        "  <style>", *(f"    {line}" for line in style), "  </style>",
        f'  <rect {size} fill="{LIGHT["paper"]}"/>', *(f"  {line}" for line in lines),
        "</svg>\n",
    ])  # fmt: skip


def words(x: float, y: float, text: str, kind: str) -> str:
    """A line of text with its base line at y."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{html.escape(text)}</text>'


def code(x: float, y: float, source: str) -> list[str]:
    """Python in colours, a <text> a line, the first base line at y."""
    coloured = re.sub("<(/?)span", r"<\1tspan", highlight.python(source)).split("\n")
    return [
        f'<text class="code" xml:space="preserve" x="{x:g}" y="{y + LINE * i:g}">{line}</text>'
        for i, line in enumerate(coloured)
        if line.strip()
    ]


def box(x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{LIGHT["panel"]}" '
        f'stroke="{LIGHT["edge"]}"/>'
    )


# ---- The picture -------------------------------------------------------------------------------------------


def picture(columns: int) -> str:
    """The picture in light colours, with its panels in one or two columns."""
    shown, animation, drawn, gap = panels(), Animation(), [], 16
    heights = [len(panel.lines) * SPACING + 2 * PAD for panel in shown]
    if columns == 2:  # read from left to right
        heights = [max(heights[i // 2 * 2 : i // 2 * 2 + 2]) for i in range(4)]
    top = 0.0
    for i, (panel, height) in enumerate(zip(shown, heights)):
        left = i % columns * (PANEL + gap)
        drawn.append(words(left, top + 22, panel.heading, "title"))
        drawn.append(box(left + 0.5, top + 34, PANEL - 1, height))
        drawn += _lines(panel, animation, left + PAD, top + 34 + PAD)
        if (i + 1) % columns == 0:
            top += 34 + height + 14
    width = int(columns * PANEL + (columns - 1) * gap)
    return document(width, top, LABEL, [*animation.style(), *drawn])


def _lines(panel: Panel, animation: Animation, x: float, top: float) -> list[str]:
    drawn = []
    cause = next((i for i, line in enumerate(panel.lines) if "likely cause" in line), len(panel.lines))
    coloured = code(x, 0, "\n".join(panel.lines))
    for i, (line, (begin, end)) in enumerate(zip(panel.lines, times(panel))):
        y = top + SPACING * (i + 0.72)
        text = re.sub(r' y="\d+"', f' y="{y:g}"', coloured[i])
        if not panel.code:
            text = words(x, y, line, "code" if i < cause else "code cause")
        if WRONG in line and panel.typed:
            at = x + (CHARACTER - 0.07) * line.index(WRONG)
            seen = animation.add(7.4, 7.7, "opacity: 0", "opacity: 1", "ease-in")
            drawn.append(
                f'<rect class="bad {seen}" x="{at:.1f}" y="{y - 15:.1f}" rx="4" height="{LINE + 3}" '
                f'width="{CHARACTER * len(WRONG):.1f}"/>'
            )
        if not panel.typed:
            seen = animation.add(begin, end, "opacity: 0", "opacity: 1", "ease-in")
            drawn.append(f'<g class="{seen}">{text}</g>')
            continue
        # A cover in the panel's colour shrinks to the right, a letter at a time.
        letters = len(line.strip())
        left = x + (len(line) - letters) * (CHARACTER - 0.2)
        right = x + COLUMNS * CHARACTER
        steps = f"steps({letters}, end)"
        drawn.append(text)
        width = min(right, x + len(line) * CHARACTER) - left
        origin = f"transform-origin: {left + width:.1f}px 0; "
        cover = animation.add(begin, end, "transform: scaleX(1)", "transform: scaleX(0)", steps, origin)
        drawn.append(
            f'<rect class="{cover}" x="{left:.1f}" y="{y - 15:.1f}" width="{width:.1f}" height="{LINE + 2}" '
            f'fill="{LIGHT["panel"]}"/>'
        )
    return drawn


def files() -> dict[Path, str]:
    """Path -> text of all files."""
    wide, narrow = (
        drawing.pair(FOLDER, name, picture(n)) for name, n in (("demo-wide", 2), ("demo-narrow", 1))
    )
    return wide | narrow


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
