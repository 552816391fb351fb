"""The studies: their measuring, their report, and all of them at small sizes from end to end."""

import json
import os
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from bench import drawing
from bench.studies import STUDIES, allocations, load, measure, numbers, study
from bench.studies.__main__ import read
from bench.studies.markdown import markdown, table_text
from bench.studies.measure import Sample, interleave, memory
from bench.studies.page import figure, page
from bench.studies.study import Column, Report, Result, Series, from_json, to_json
from gpt2.errors import UserError
from tests.support import browser as chromium
from tests.support.pictures import said

ROOT = Path(__file__).parents[2]


# ---- Measuring ---------------------------------------------------------------------------------------------


def test_a_sample_describes_its_numbers():
    sample = Sample([4.0, 1.0, 2.0, 3.0], first=9.0)
    assert (sample.median, sample.mean, sample.min, sample.max, sample.n) == (2.5, 2.5, 1.0, 4.0, 4)
    assert np.isclose(sample.variance, 5 / 3) and np.isclose(sample.std**2, sample.variance)
    assert (sample.q1, sample.q3) == (1.75, 3.25)
    # the second round was twice as slow for both: no matter for the ratio
    assert Sample([1.0, 2.0]).over(Sample([2.0, 4.0])).values == [0.5, 0.5]


def test_functions_take_turns(monkeypatch):
    """Each is called in every round, the first call is kept apart, and calls fill a turn together."""
    clock = iter(range(10**6))
    tick = 2.0**-13
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) * tick)
    seen = []
    found = interleave(
        {"a": lambda: seen.append("a"), "b": lambda: seen.append("b")},
        seconds=1e3,
        rounds=5,
        turn_s=10 * tick,
    )
    assert {name: (s.n, s.first) for name, s in found.items()} == dict.fromkeys("ab", (5, tick))
    # a call takes one tick, so ten fill a turn; one before it, and three to find that out
    assert seen.count("a") == seen.count("b") == 3 + 5 * 11
    assert np.allclose(found["a"].values, tick / 10)


@pytest.mark.slow
def test_memory_counts_arrays_and_bytes():
    x = np.ones(10_000)
    used = memory(lambda: np.sqrt(x * 2.0 + 1.0))
    # sqrt writes over no temporary of ours: three arrays, two of them alive at the peak, one at the end
    assert used.arrays == 3 and used.array_bytes == 3 * x.nbytes
    assert 2 * x.nbytes <= used.peak_bytes < 2.1 * x.nbytes
    assert x.nbytes <= used.kept_bytes < 1.1 * x.nbytes
    out = np.empty_like(x)
    again = memory(lambda: np.sqrt(x, out=out))
    assert again.arrays == 0 and again.peak_bytes < 1000


def test_arrays_outlive_the_count():
    kept = []
    assert allocations.counted(lambda: kept.append(np.arange(1000) + 1)) == (2, 16_000)
    assert kept.pop().sum() == 500_500
    assert allocations.counted(lambda: np.zeros(1000)[::2].copy()) == (2, 12_000)


def test_threads_are_put_back():
    from gpt2.autodiff.run import threads

    with measure.threads(2):
        assert threads.get_threads() == 2
    assert threads.get_threads() == 1


# ---- Telling -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "unit", "text"),
    [
        (0.00123456, "s", "1.23 ms"),
        (2.5e-7, "s", "250 ns"),
        (61.0, "s", "61.0 s"),
        (0.0, "s", "0 s"),
        (1536, "B", "1.54 kB"),
        (0, "B", "0 B"),
        (0.987654, "x", "0.988"),
        (12, "", "12"),
        (1234567, "", "1,234,567"),
        (1e-12, "", "1.00e-12"),
        (None, "s", "-"),
        ("none", "s", "none"),
        (float("nan"), "x", "nan"),
        (Sample([0.001, 0.002, 0.003]), "s", "2.00 ms [1.50 2.50]"),
        (Sample([0.9996, 1.0004]), "x", "1.00 [1.00 1.00]"),
    ],
)
def test_numbers_are_shown_with_three_digits(cell, unit, text):
    assert numbers.cell_text(cell, unit) == text


def sample_result():
    result = Result()
    table = result.table("Time & <space>", "name | time [s]", "bytes [B]", note="A.")
    assert table.columns == [Column("name"), Column("time", "s"), Column("bytes", "B")]
    table.add("a|b", Sample([1e-3, 2e-3, 3e-3], 0.5), np.int64(2048))
    table.add("c<d", None, 0)
    result.plot(
        "Lines",
        "n",
        "s",
        [Series("a", [1, 10], [Sample([1.0, 2.0]), np.float64(3.0)]), Series("b", [1, 10], [None, 4.0])],
        log_x=True,
        log_y=True,
    )
    result.plot("Rows", "layer", "ratio", [Series("a", [0, 1], [0.5, 2.0])], ticks=["x", "y"])
    result.note("f is `faster`,   by far.")
    result.missing["ghost"] = "pip install ghost"
    result.listings.append(study.Listing("f", [("forward", "def f(x):\n    return x < 1  # small\n")]))
    result.load = {"others": 0.25}
    result.machine = {"cpu": "one", "cores": 2, "memory_gb": 1, "python": "3", "blas": "b", "packages": {}}
    return result


def report_of(result):
    return Report(result.machine, {"quick": True, "threads": 1}, {"layers": result}, {"eam": "out of memory"})


def test_a_result_survives_json():
    result = sample_result()
    assert from_json(json.loads(json.dumps(to_json(result)))) == result


def test_markdown_has_everything():
    text = markdown(report_of(sample_result()))
    for part in (
        load("layers").question,
        "2.00 ms [1.50 2.50]",
        "2.05 kB",
        "a\\|b",
        "of 3 samples",
        "25%",
        "ghost",
        "f is `faster`, by far.",
        "return x < 1",
        "Failed: out of memory",
        "mean nothing",
    ):
        assert part in text
    lines = table_text(sample_result().tables[0]).splitlines()
    assert len({len(line) for line in lines}) == 1 and len(lines) == 4


def test_a_row_has_as_many_cells_as_columns():
    with pytest.raises(ValueError, match="2 cells for 3 columns"):
        sample_result().tables[0].add(1, 2)


def test_a_peer_that_is_not_installed_is_named():
    result = Result()
    assert result.peer("json") is json and not result.missing
    assert result.peer("no_such_package") is None
    assert "pip install no_such_package" in result.missing["no_such_package"]


def test_plots_have_their_points_and_units():
    pytest.importorskip("matplotlib")
    lines, rows = (figure(plot) for plot in sample_result().plots)
    words = said(lines[lines.index("<svg") : -len("</figure>")])
    assert {"a: 1.5 s at 1", "a: 3 s at 10", "b: 4 s at 10", "n", "time"} <= set(words)
    assert "<figcaption>Lines</figcaption>" in lines and "x: 0.5" in rows and "y: 2" in rows
    assert figure(study.Plot("none", "x", "y", [Series("a", [1], [None])])) == ""


@pytest.mark.parametrize("ticks", [None, ["a", "b"]])
def test_a_line_at_one_where_a_plot_is_of_ratios(ticks):
    pytest.importorskip("matplotlib")

    def drawn(y):
        return figure(study.Plot("p", "x", y, [Series("a", [0, 1], [0.5, 2.0])], ticks=ticks))

    dark_lines = [
        drawn(y).count(f"stroke: {drawing.LIGHT['text']}")
        for y in ("ratio of times", "time of a / time of b", study.SECONDS)
    ]
    assert dark_lines == [1, 1, 0]


# ---- From end to end ---------------------------------------------------------------------------------------


def run(*flags):
    return subprocess.run(
        [sys.executable, "-m", "bench.studies", *flags], cwd=ROOT, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The folder of a quick run of everything."""
    folder = tmp_path_factory.mktemp("studies")
    done = run("--quick", "--seconds", "1", "--out", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_study_runs_and_is_reported(quick):
    report = read(quick / "studies.json")
    assert list(report.results) == list(STUDIES) and not report.failed
    for name, result in report.results.items():
        assert load(name).name == name
        # What notes and tables compare may not be installed; the study then says what is missing
        assert (result.tables and result.notes) or result.missing, name
        assert all(table.rows for table in result.tables), name
        assert result.seconds > 0 and result.machine["packages"]["numpy"] == np.__version__
    text = (quick / "studies.md").read_text()
    assert all(f"\n## {name}\n" in text for name in STUDIES)


def test_declared_times_of_all_studies_together_are_below_half_an_hour():
    assert sum(load(name).seconds for name in STUDIES) <= 1500


@pytest.mark.slow
def test_reports_can_be_made_again(quick, tmp_path):
    done = run("--from", str(quick / "studies.json"), "--out", str(tmp_path), "parallel")
    assert done.returncode == 0, done.stderr
    assert list(read(tmp_path / "studies.json").results) == ["parallel"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["rots"], "roots"),
        (["--threads", "999"], "cores"),
        (["--seconds", "-1"], "seconds"),
        (["--from", "nowhere.json"], "nowhere.json"),
        (["--from", "pyproject.toml"], "not a report"),
    ],
)
def test_a_users_mistake_is_one_line(flags, said):
    done = run(*flags)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and said in done.stderr


def test_studies_are_found_by_name():
    with pytest.raises(UserError, match="optimise-first"):
        load("optimize-first")


# ---- The page, in a browser --------------------------------------------------------------------------------


class Page(HTMLParser):
    """Rows of every table, how many pictures and sources there are, and all that a page could load."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.counts, self.loads, self.cell = [], {}, [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.loads += [
            value
            for name, value in attributes
            if name in ("src", "href", "srcset") and not value.startswith("#")
        ]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.cell = ""

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.tables[-1][-1].append(self.cell)
            self.cell = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell += data


@pytest.mark.slow
def test_the_page_loads_nothing(quick):
    text = (quick / "studies.html").read_text()
    found = Page(text)
    assert found.loads == [] and not found.counts.keys() & {"script", "link", "img", "iframe"}
    assert not re.search(r"url\((?!#)|@import", text)


def test_the_page_escapes_what_it_shows():
    pytest.importorskip("markdown")
    pytest.importorskip("matplotlib")
    text = page(report_of(sample_result()))
    assert "Time &amp; &lt;space&gt;" in text and "c&lt;d" in text and "<code>faster</code>" in text
    assert "a|b" in text and "Failed: out of memory" in text and '<a href="#eam">' in text


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """browser(*flags): run a headless Chromium and return what it prints."""
    program = chromium.program()
    profile = tmp_path_factory.mktemp("profile")

    def browser(*flags):
        command = [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            *flags,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return browser


@pytest.mark.slow
def test_a_browser_shows_the_tables(quick, browser):
    """What Chromium makes of the page has every table, row, plot and source of the results."""
    shown = Page(browser("--dump-dom", (quick / "studies.html").as_uri()))
    results = read(quick / "studies.json").results.values()
    tables = [table for result in results for table in result.tables]
    assert [len(rows) for rows in shown.tables] == [1 + len(table.rows) for table in tables]
    for rows, table in zip(shown.tables, tables):
        assert rows[0] == [column.name for column in table.columns]
        for cells, row in zip(rows[1:], table.rows):
            assert cells == [numbers.cell_text(cell, c.unit) for cell, c in zip(row, table.columns)]
    assert shown.counts["figure"] == sum(len(result.plots) for result in results)
    assert shown.counts["pre"] == sum(len(x.texts) for result in results for x in result.listings) > 0


@pytest.mark.slow
def test_a_phone_scrolls_downwards_only(quick, browser, tmp_path):
    """At 390 pixels nothing is wider than the screen; measured by a script that is put into a copy."""
    script = "<script>document.title = document.documentElement.scrollWidth + '/' + innerWidth</script>"
    copy = tmp_path / "copy.html"
    copy.write_text((quick / "studies.html").read_text().replace("</body>", script + "</body>"))
    shown = browser("--window-size=390,844", "--dump-dom", copy.as_uri())
    width, screen = map(int, re.search(r"<title>(\d+)/(\d+)</title>", shown).groups())
    assert width <= screen <= 500


@pytest.mark.slow
def test_a_browser_draws_the_page(quick, browser, tmp_path):
    """A screenshot that is not blank, and pages on paper."""
    picture, paper = tmp_path / "page.png", tmp_path / "page.pdf"
    browser("--window-size=1200,2400", f"--screenshot={picture}", (quick / "studies.html").as_uri())
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 50_000  # a blank one has some 15 kB
    browser(f"--print-to-pdf={paper}", (quick / "studies.html").as_uri())
    assert len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes())) > 3


# ---- pytest-benchmark --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_microbenchmarks_are_grouped_described_and_compared(tmp_path):
    """pytest bench/ --benchmark-only: one group a layer with the facts of the run; then compared."""
    few = [
        "-k",
        "gelu",
        "--bench-batch",
        "B1T8",
        "--benchmark-max-time=0.01",
        "--benchmark-min-rounds=2",
        f"--benchmark-storage=file://{tmp_path}",
        "-p",
        "no:cacheprovider",
    ]

    # a worker of xdist measures nothing
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}

    def bench(*flags):
        return subprocess.run(
            [sys.executable, "-m", "pytest", "bench/", "--benchmark-only", *few, *flags],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
        )

    saved = bench("--benchmark-save=before")
    assert saved.returncode == 0, saved.stdout
    (file,) = tmp_path.rglob("*_before.json")
    rows = json.loads(file.read_text())["benchmarks"]
    assert {row["group"] for row in rows} == {"gelu B1T8, 1 thread"}
    assert {row["name"].partition("[")[0] for row in rows} >= {"test_forward", "test_manual", "test_derived"}
    for row in rows:
        info = row["extra_info"]
        assert (info["threads"], info["dtype"], info["shapes"]) == (1, "float32", [[1, 8, 3072]])
        assert info["numpy"] == np.__version__ and info["blas"] and info["cpu"]
    compared = bench("--benchmark-compare")
    assert compared.returncode == 0 and "test_derived[gelu] (0001_before)" in compared.stdout, compared.stdout
