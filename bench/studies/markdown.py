"""A report as Markdown: for each study its question, notes, method, and collapsed tables.

Numbers have three digits and a suitable unit. `python -m docs.studies` draws pictures of these tables for
docs/studies.md.
"""

import html
import math

from bench.harness import ratios
from bench.harness.program import machine_line
from bench.studies import load
from bench.studies.study import BYTES, COUNT, RATIO, SECONDS, Sample
from gpt2.errors import counted


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
    took = "The load of others is not known on this system."
    if (others := result.load.get("others")) is not None:
        took = f"It took {result.seconds:.0f} s, in which others used {others:.0%} of the machine."
    method = f"**Method.** {study.method} {took}"
    parts = [f"## {name}", f"**Question.** {study.question}"]
    if result.notes:
        parts.append("**What came out.**\n\n" + "\n".join(f"- {note}" for note in result.notes))
    parts.append(method)
    for table in result.tables:
        counts = sorted({cell.n for row in table.rows for cell in row if isinstance(cell, Sample)})
        n = "" if not counts else str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        below = [text for text in (n and f"Medians and [quartiles] of {n} samples.", table.note) if text]
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
    rows = [[cell_text(cell, column.unit) for cell, column in zip(row, table.columns)] for row in table.rows]
    rows = [[text.replace("|", "\\|").replace("<", "&lt;") for text in row] for row in rows]
    head, *rows = ratios.aligned([head, *rows])
    rule = ["-" * len(head[0]), *("-" * (len(cell) - 1) + ":" for cell in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


# ---- Numbers ----------------------------------------------------------------------------------------------

_SCALES = {
    SECONDS: ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    BYTES: ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
}


def cell_text(cell, unit):
    """A cell of a table: a number with its unit, a Sample as median and [quartiles], - for None."""
    if cell is None:
        return "-"
    if isinstance(cell, Sample):
        scale, name = scale_of(cell.median, unit)  # all three in the unit of the median
        middle, low, high = (number(x / scale) for x in (cell.median, cell.q1, cell.q3))
        return f"{f'{middle} {name}'.rstrip()} [{low} {high}]"
    if isinstance(cell, (str, bool)):
        return str(cell)
    scale, name = scale_of(cell, unit)
    return f"{number(cell if scale == 1.0 else cell / scale)} {name}".rstrip()


def scale_of(value, unit):
    """(divisor, unit): the unit in which the value is shown."""
    if unit in (RATIO, COUNT):
        return 1.0, ""
    if unit not in _SCALES:
        return 1.0, unit
    for scale, name in _SCALES[unit]:
        if abs(value) >= scale:
            return scale, name
    return _SCALES[unit][0] if value == 0 and unit == SECONDS else _SCALES[unit][-1]


def number(x):
    """Three significant digits; an int in full."""
    if isinstance(x, int):
        return f"{x:,}"
    if x == 0 or not math.isfinite(x):
        return f"{x:g}"
    x = float(f"{x:.3g}")  # before its digits are counted: 0.9996 is 1.00
    if 1e-3 <= abs(x) < 1e6:
        return f"{x:,.{max(0, 2 - math.floor(math.log10(abs(x))))}f}"
    return f"{x:.2e}"


def conditions(report):
    """Sentences about the machine and the run."""
    lines = [machine_line(report.machine).replace("; float32", "") + "."]
    if "date" in report.options:
        lines.append(f"Measured on {report.options['date']}.")
    threads = report.options.get("threads")
    lines.append(f"At most {counted(threads, 'thread')}.")
    if report.options.get("quick"):
        lines.append("A quick run at small sizes, to check that everything works: its numbers mean nothing.")
    return lines
