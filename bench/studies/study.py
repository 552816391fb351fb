"""Study and Result: a question with its method, and its tables, plots and notes.

    def run(options):                                   # options: Options
        result = Result()
        table = result.table("Time of f", "method | time [s] | bytes [B]")
        table.add("derived", sample, 1024)              # sample: measure.Sample
        result.plot("Time", x="elements", y="s", series=[Series("derived", sizes, samples)])
        result.note("The derived gradient takes 1.1 times as long as the manual one.")
        if (jax := result.peer("jax")) is not None: ...  # else its rows are named as missing
        return result

    STUDY = Study("roots", "What does ... cost?", "Every method from x0 = ...", run, seconds=30)

A Result can be saved as JSON and loaded, so that reports are rebuilt without measuring again.
"""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.studies.measure import Sample
from gpt2.parallel.cores import cores

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
class Series:
    """One line of a plot. ys: numbers or Samples, whose quartiles are then drawn as well; None is a gap."""

    name: str
    xs: Sequence[float]
    ys: Sequence

    def __post_init__(self):
        self.xs = [_plain(x) for x in self.xs]
        self.ys = [_plain(y) for y in self.ys]


@dataclass
class Plot:
    """A line plot; with `ticks`, which name the values 0, 1, ... of x, a dot plot with a row for each."""

    title: str
    x: str
    y: str
    series: list[Series]
    log_x: bool = False
    log_y: bool = False
    ticks: list[str] | None = None


@dataclass
class Listing:
    """Sources side by side: pairs of a heading and Python text."""

    title: str
    texts: list[tuple[str, str]]


@dataclass
class Result:
    """The results of a study. one.py fills in machine, load, seconds and options."""

    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    listings: list[Listing] = field(default_factory=list)
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

    def plot(self, title, x, y, series, log_x=False, log_y=False, ticks=None):
        self.plots.append(Plot(title, x, y, list(series), log_x, log_y, ticks))

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


# ---- JSON --------------------------------------------------------------------------------------------------


def to_json(result):
    """A Result as dicts, lists, numbers and text."""
    return dataclasses.asdict(result)


def from_json(content):
    """The inverse of to_json."""
    tables = [
        Table(
            t["title"],
            [Column(**c) for c in t["columns"]],
            [[_read(cell) for cell in row] for row in t["rows"]],
            t["note"],
        )
        for t in content["tables"]
    ]
    plots = [
        Plot(
            **{**p, "series": [Series(s["name"], s["xs"], [_read(y) for y in s["ys"]]) for s in p["series"]]}
        )
        for p in content["plots"]
    ]
    listings = [Listing(x["title"], [tuple(pair) for pair in x["texts"]]) for x in content["listings"]]
    return Result(**{**content, "tables": tables, "plots": plots, "listings": listings})


def _read(cell):
    return Sample(cell["values"], cell["first"]) if isinstance(cell, dict) else cell
