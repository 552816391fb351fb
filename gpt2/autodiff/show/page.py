"""Explained functions as one self-contained page of HTML."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template

from .highlight import STYLE as CODE_STYLE
from .highlight import graph, lines, python
from .panels import Panels, SourcePart

STAGES = {
    "recorded": "the NumPy calls of one run of the forward, one typed value a line",
    "simplified": "constants folded, equal values merged, divisions by constants made products",
    "differentiated": "the chain rule applied from the output back to each input",
    "simplified again": "duplicate and unused values of the derivative removed",
    "forward": "the forward part, with the values that it keeps for the backward",
    "backward": "the part that needs the output's gradient; cheap values are recomputed, not kept",
    "forward, emitted": "as it runs, at these sizes",
    "backward, emitted": "as it runs, at these sizes",
}
MARKS = {"+": "new", "-": "gone"}


@dataclass(frozen=True)
class Section:
    """What a page shows of one function.

    about         what it does
    mathematics   formulas and references, folded away
    emitted       (title, source) of the programs that run
    checks        () -> (title, HTML), folded away
    """

    name: str
    about: str
    mathematics: str
    panels: Panels
    emitted: Sequence[tuple[str, str]]
    checks: Callable[[], tuple[str, str]]


def page(sections: Sequence[Section], title: str, intro: str) -> str:
    links = " &middot; ".join(f'<a href="#{s.name}">{s.name}</a>' for s in sections)
    return Template(_file("page.html")).substitute(
        title=title,
        intro=intro,
        links=f"<nav><p>{links}</p></nav>" if len(sections) > 1 else "",
        style=_file("page.css") + CODE_STYLE,
        script=_file("page.js"),
        body="\n".join(map(_section, sections)),
    )


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _section(s: Section) -> str:
    shown = s.panels
    figures = [
        _figure("forward", "forward", shown.forward),
        *([_figure("manual", "backward, by hand", shown.manual)] if shown.manual else []),
        _figure("derived", "derived by the compiler", shown.derived),
    ]
    mathematics = _folded("The mathematics", f"<pre>{escape(s.mathematics)}</pre>") if s.mathematics else ""
    newline = "\n"
    return f"""<section class="layer" id="{s.name}">
<h2>{s.name}</h2>
<p>{escape(s.about)}</p>
{mathematics}
<div class="three" style="--n: {len(figures)}">
{newline.join(figures)}
</div>
<div class="kept"><button type="button" hidden>Close</button><p aria-live="polite">The numbers are those of \
a run in float64 on {escape(shown.shapes)}.</p><div class="three"></div></div>
{_stages(s)}
{_folded(*s.checks())}
</section>"""


def _folded(title: str, html: str) -> str:
    return f'<details class="box"><summary>{title}</summary>{html}</details>'


def _figure(panel: str, title: str, statements: Sequence[SourcePart]) -> str:
    coloured = iter(lines(python("\n".join(s.source for s in statements))))
    parts = [[next(coloured) for _ in s.source.split("\n")] for s in statements]
    body = "".join(_statement(s, part, panel == "forward") for s, part in zip(statements, parts))
    head = f"<figcaption>{title}</figcaption>"
    return f'<figure data-panel="{panel}">{head}<div class="code">{body}</div></figure>'


def _statement(s: SourcePart, coloured: Sequence[str], is_forward: bool) -> str:
    first, *rest = [_line(html, text) for html, text in zip(coloured, s.source.split("\n"))]
    if s.folded:
        inner = f"<summary>{first}</summary>{''.join(rest)}"
        return f'<details class="fold">{inner}</details>' if rest else first
    data = {
        "line": str(s.line) if is_forward and s.line else "",
        "from": " ".join(map(str, s.origins)),
        "values": s.values,
    }
    return f'<div class="st"{_attributes(data)}>{first}{"".join(rest)}</div>'


def _attributes(data: dict[str, str]) -> str:
    return "".join(f' data-{name}="{escape(value)}"' for name, value in data.items() if value)


def _line(coloured: str, text: str, kind: str = "", data: str = "") -> str:
    indent = len(text) - len(text.lstrip())
    style = f' style="--in:{indent}"' if indent else ""
    return f'<div class="ln{kind}"{style}{data}>{coloured}</div>'


def _stages(s: Section) -> str:
    parts = []
    for stage in s.panels.stages:
        marks = [line.mark for line in stage.lines]
        counts = [f"{marks.count(mark)} {word}" for mark, word in MARKS.items() if mark in marks]
        changed = f": <b>{', '.join(counts)}</b>" if counts else ""
        parts.append((stage.title, changed, _graph(stage.lines)))
    for title, text in s.emitted:
        coloured = zip(lines(python(text)), text.split("\n"))
        parts.append((title, "", "".join(_line(html, line) for html, line in coloured)))
    radios = [f'<label><input type="radio" name="{s.name}">{title}</label>' for title, _, _ in parts]
    buttons = [f'<button type="button">{text}</button>' for text in ("Previous", "Next")]
    stages = [
        f'<div class="stage"><h4>{title}</h4><p>{STAGES.get(title, title)}{changed}</p>'
        f'<div class="code">{body}</div></div>'
        for title, changed, body in parts
    ]
    legend = "<legend>The compiler, stage by stage</legend>"
    return "\n".join([f'<fieldset class="steps">{legend}', *buttons, *radios, "</fieldset>", *stages])


def _graph(graph_lines: Iterable) -> str:
    rows = []
    for line in graph_lines:
        data = _attributes({"from": " ".join(map(str, sorted(line.origins)))})
        kind = f" {MARKS[line.mark]}" if line.mark in MARKS else ""
        rows.append(_line(f"{line.mark} {graph(line.text)}", "  " + line.text, kind, data))
    return "".join(rows)
