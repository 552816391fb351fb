"""A report as Markdown: for each study its question, notes, method, and collapsed tables.

`python -m docs.studies` draws pictures of these tables for docs/studies.md.
"""

import html

from bench.harness import ratios
from bench.studies import load
from bench.studies.numbers import cell_text, conditions, counts_text, load_text


def markdown(report):
    """The text of the report."""
    parts = [
        "# The studies",
        "`python -m bench.studies` makes this report. docs/benchmarks.md says how.",
        " ".join(conditions(report)),
    ]
    for name, result in report.results.items():
        parts += study_text(name, result)
    parts += [f"## {name}\n\nFailed: {why}" for name, why in report.failed.items()]
    return "\n\n".join(parts) + "\n"


def study_text(name, result):
    study = load(name)
    method = f"**Method.** {study.method} {load_text(result)}"
    parts = [f"## {name}", f"**Question.** {study.question}"]
    if result.notes:
        parts.append("**What came out.**\n\n" + "\n".join(f"- {note}" for note in result.notes))
    parts.append(method)
    for table in result.tables:
        below = [text for text in (counts_text(table), table.note) if text]
        parts.append(folded(table.title, "\n\n".join([table_text(table), *below])))
    parts += [f"Rows are missing: {package} ({why})." for package, why in result.missing.items()]
    return parts


def folded(title, text):
    """A collapsed section, for GitHub and for the site."""
    title = html.escape(title, quote=False)
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>'


def table_text(table):
    """The table in Markdown, its columns aligned so that the source can be read."""
    head = [column.name for column in table.columns]
    rows = [
        [
            cell_text(cell, column.unit).replace("|", "\\|").replace("<", "&lt;")
            for cell, column in zip(row, table.columns)
        ]
        for row in table.rows
    ]
    head, *rows = ratios.aligned([head, *rows])
    rule = ["-" * len(head[0]), *("-" * (len(cell) - 1) + ":" for cell in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))
