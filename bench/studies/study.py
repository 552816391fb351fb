"""Study and Result: a question with its method, and its tables and notes.

    def run(options):                                   # options: Options
        result = Result()
        table = result.table("Time of f", "method | time [s] | bytes [B]")
        table.add("derived", sample, 1024)              # sample: measure.Sample
        result.note("The derived gradient takes 1.1 times as long as the manual one.")
        if (jax := result.peer("jax")) is not None: ...  # else its rows are named as missing
        return result

    STUDY = Study("roots", "What does ... cost?", "Every method from x0 = ...", run, seconds=30)

Tables, Samples and the rest are dataclasses, which become JSON by dataclasses.asdict.
"""

import contextlib
import dataclasses
import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench import studies
from bench.harness import machine
from bench.studies.measure import Sample
from gpt2.machine import cores

# Units that the report scales: seconds to us or ms, bytes to kB or MB. Any other is printed as it is.
SECONDS, BYTES, RATIO, COUNT = "s", "B", "x", ""


@dataclass(frozen=True)
class Options:
    """How a study runs.

    quick     small sizes and short times, for tests
    threads   the most threads that it uses
    seconds   about how long it may take; 0 for `Study.seconds`
    """

    quick: bool = False
    threads: int = field(default_factory=cores)
    seconds: float = 0.0


@dataclass(frozen=True)
class Study:
    """name: on the command line. question, method: a paragraph of plain text each. run(options) -> Result.

    seconds: of a whole run on two cores, about; all studies together take less than half an hour.
    """

    name: str
    question: str
    method: str
    run: Callable[[Options], "Result"]
    seconds: float = 60.0


@dataclass(frozen=True)
class Column:
    """A column of a table. unit: s, B, x of a ratio, or any other text; "" of a count or a text."""

    name: str
    unit: str = ""


@dataclass
class Table:
    """Rows of cells, each a str, a number, a Sample, or None if empty."""

    title: str
    columns: list[Column]
    rows: list[list] = field(default_factory=list)
    note: str = ""

    def add(self, *cells):
        if len(cells) != len(self.columns):
            raise ValueError(f"table {self.title!r}: {len(cells)} cells for {len(self.columns)} columns")
        self.rows.append([_plain(cell) for cell in cells])


@dataclass
class Result:
    """The results of a study. `measured` fills in machine, load, seconds and options."""

    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    machine: dict = field(default_factory=dict)
    load: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    seconds: float = 0.0

    def table(self, title, *heads, note=""):
        """Add and return a Table. heads: columns with their units, such as "layer | forward [s]"."""
        names = [name for head in heads for name in head.split(" | ")]
        parts = [name.strip().removesuffix("]").partition(" [") for name in names]
        self.tables.append(Table(title, [Column(name, unit) for name, _, unit in parts], note=note))
        return self.tables[-1]

    def note(self, text):
        """Add a sentence or two of results."""
        self.notes.append(" ".join(text.split()))

    def peer(self, package):
        """The module of an optional package; None if it is missing, which the report then mentions."""
        try:
            return importlib.import_module(package)
        except ImportError as error:
            self.missing[package] = f"pip install {package} ({error})"
            return None


@dataclass
class Report:
    """Results by name of study, and the errors of studies that failed."""

    machine: dict
    options: dict
    results: dict[str, Result] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def _plain(cell):
    """NumPy scalars as Python numbers, for JSON."""
    return cell.item() if hasattr(cell, "item") and not isinstance(cell, Sample) else cell


def from_json(content):
    """The Report that dataclasses.asdict turned into this JSON. Raises KeyError or TypeError for others."""
    report = Report(**{field.name: content[field.name] for field in dataclasses.fields(Report)})
    for name, result in report.results.items():
        report.results[name] = result = Result(**result)
        result.tables = [Table(**table) for table in result.tables]
        for table in result.tables:
            table.columns = [Column(**column) for column in table.columns]
            for row in table.rows:
                row[:] = [Sample(**cell) if isinstance(cell, dict) else cell for cell in row]
    return report


def measured(name, options):
    """The Result of a study, with machine, load, time and options filled in."""
    study = studies.load(name)
    options = dataclasses.replace(options, seconds=options.seconds or study.seconds)
    others, begin = machine.Load(), time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):  # standard output is for the report
        result = study.run(options)
    result.seconds = time.perf_counter() - begin
    result.load = others.report()
    result.machine = machine.describe()
    result.options = dataclasses.asdict(options)
    return result
