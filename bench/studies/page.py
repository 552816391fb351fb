"""A report as a self-contained HTML page without scripts: its Markdown, with plots.

Needs the packages markdown and matplotlib.
"""

import html
import re

from bench import drawing
from bench.studies.markdown import markdown
from bench.studies.numbers import axis_text
from bench.studies.study import Sample
from gpt2.commands.explain import highlight

STYLE = """\
body { margin: 0 auto; padding: 1rem; max-width: 60rem }
body { font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; background: #fff; color: #1f2328 }
h2 { margin-top: 3rem; border-top: 1px solid #888; padding-top: 1rem }
summary, figcaption { font-weight: 600; margin: 1rem 0 0.5rem }
table, pre { display: block; overflow: auto; max-height: 34rem; font-size: 0.8rem }
td, th { padding: 0.2rem 0.7rem; border-bottom: 1px solid #8886; white-space: nowrap }
svg { width: 100%; max-width: 40rem; height: auto }
.k { color: #8250df } .s { color: #0a7d33 } .c { color: #6e7781 } .n { color: #0a5ca8 } .f { color: #953800 }
@media (prefers-color-scheme: dark) {
  body { background: #0d1117; color: #e6edf3 } a { color: #58a6ff }
  .k { color: #c4a3ff } .s { color: #7ee2a8 } .n { color: #79c0ff } .f { color: #ffa657 }
}
@media print { table, pre { max-height: none; white-space: pre-wrap; font-size: 6.5pt } }
"""


def page(report):
    """The HTML of the page: a table of contents, and the studies with plots, tables and sources."""
    from markdown import Markdown
    from markdown.extensions.toc import TocExtension

    text = markdown(report, drawn=figure).replace("\n\n", "\n\n[TOC]\n\n", 1)
    text = text.replace("<details", "<details open")
    extensions = ["tables", "fenced_code", "md_in_html", "sane_lists", TocExtension(toc_depth="2-2")]
    html_text = Markdown(extensions=extensions).convert(text)
    html_text = re.sub('<code class="language-python">(.*?)</code>', _coloured, html_text, flags=re.S)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>The studies</title>\n'
        f"<style>\n{STYLE}{drawing.rules()}\n</style></head>\n<body>\n{html_text}\n</body></html>\n"
    )


def _coloured(match):
    return f"<code>{highlight.python(html.unescape(match[1]).rstrip())}</code>"


# ---- Plots -------------------------------------------------------------------------------------------------


def figure(plot):
    """HTML of a plot with its title, or "" if it has no points."""
    series = {one.name: _points(one) for one in plot.series}
    if not any(series.values()):
        return ""
    across, up = (lambda x, axis=axis: axis_text(x, axis)[0] for axis in (plot.x, plot.y))
    names = tuple(axis_text(1.0, axis)[1] for axis in (plot.x, plot.y))
    ratio = plot.y.startswith("ratio of") or " / time" in plot.y  # draws a line at 1
    if plot.ticks:
        rows = {
            tick: [dict(points).get(k) for points in series.values()] for k, tick in enumerate(plot.ticks)
        }
        drawn = drawing.dots("", rows, list(series), up, plot.log_y, ratio, names[1])
    else:
        drawn = drawing.lines("", series, names, (across, up), (plot.log_x, plot.log_y), ratio)
    drawn.set_label(plot.title)
    text = drawing.svg(drawn)
    caption = html.escape(plot.title)
    return f"<figure><figcaption>{caption}</figcaption>\n{text[text.index('<svg') :]}</figure>"


def _points(series):
    """(x, spread of y) for each point, gaps left out."""
    return [
        (x, (y.median, y.q1, y.q3) if isinstance(y, Sample) else (y, y, y))
        for x, y in zip(series.xs, series.ys)
        if y is not None and (isinstance(y, Sample) or y == y)
    ]
