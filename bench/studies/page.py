"""A report as one HTML page: everything is in the file, nothing is loaded, no script runs.

Wide tables and sources scroll by themselves on a narrow screen, and on paper everything is there.
"""

import html
import re
from pathlib import Path

from bench.studies import load
from bench.studies.numbers import cell_text, conditions, counts_text, load_text
from bench.studies.svg import legend, svg
from gpt2.commands.explain import highlight

STYLE = Path(__file__).with_name("page.css")


def page(report):
    """The text of the page."""
    names = [*report.results, *report.failed]
    links = "".join(f'<li><a href="#{name}">{name}</a></li>' for name in names)
    sections = [section(name, result) for name, result in report.results.items()]
    sections += [
        f'<section id="{name}"><h2>{name}</h2>{paragraph(f"Failed: {why}", "failed")}</section>'
        for name, why in report.failed.items()
    ]
    told = " ".join(conditions(report))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>The studies</title>\n<style>\n{STYLE.read_text(encoding='utf-8')}</style></head>\n<body>\n"
        f"<header><h1>The studies</h1>{paragraph(told)}"
        f"<nav><ul>{links}</ul></nav></header>\n<main>\n" + "\n".join(sections) + "\n</main></body></html>\n"
    )


def section(name, result):
    """One study: question, what came out, then plots, tables and sources."""
    study = load(name)
    parts = [
        f'<section id="{name}"><h2>{name}</h2>',
        f'<p class="question">{escaped(study.question)}</p>',
        paragraph(f"{study.method} {load_text(result)}"),
    ]
    if result.notes:
        notes = "".join(f"<li>{escaped(note)}</li>" for note in result.notes)
        parts.append(f'<h3>What came out</h3><ul class="notes">{notes}</ul>')
    parts += [paragraph(f"Rows are missing: {package} ({why}).") for package, why in result.missing.items()]
    drawn = [(plot, svg(plot)) for plot in result.plots]
    parts += [
        f"<figure><figcaption>{escaped(plot.title)}</figcaption>{legend(plot)}{picture}</figure>"
        for plot, picture in drawn
        if picture
    ]
    parts += [table_html(table) for table in result.tables]
    parts += [listing_html(listing) for listing in result.listings]
    return "\n".join([*parts, "</section>"])


def table_html(table):
    head = "".join(f'<th scope="col">{escaped(column.name)}</th>' for column in table.columns)
    rows = "\n".join(f"<tr>{row_html(row, table.columns)}</tr>" for row in table.rows)
    below = " ".join(text for text in (counts_text(table), table.note) if text)
    return (
        f"<h3>{escaped(table.title)}</h3>\n"
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>" + (paragraph(below, "below") if below else "")
    )


def row_html(row, columns):
    """The first cell names the row; of a sample the quartiles are smaller than the median."""
    cells = [escaped(cell_text(cell, column.unit)) for cell, column in zip(row, columns)]
    cells = [re.sub(r" (\[[^\]]*\])$", r" <small>\1</small>", cell) for cell in cells]
    return f'<th scope="row">{cells[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in cells[1:])


def listing_html(listing):
    """Sources side by side where there is room, one below the other where there is not."""
    texts = "".join(
        f"<div><h4>{escaped(heading)}</h4>"
        f'<pre tabindex="0"><code>{highlight.python(text.rstrip())}</code></pre></div>'
        for heading, text in listing.texts
    )
    return f'<h3>{escaped(listing.title)}</h3>\n<div class="listing">{texts}</div>'


def paragraph(text, kind=""):
    return f'<p class="{kind}">{escaped(text)}</p>' if kind else f"<p>{escaped(text)}</p>"


def escaped(text):
    """Text as HTML; what stands between backquotes is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))
