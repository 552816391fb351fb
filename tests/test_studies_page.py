"""docs/studies.md has the pictures of the tables in bench/studies/figures.md, and no tables."""

import re

import pytest

from docs import studies
from tests.support.pictures import beyond, said

STALE = "run: python -m docs.studies"
TEXT = studies.PAGE.read_text(encoding="utf-8")
REPORT = studies.REPORT.read_text(encoding="utf-8")


def test_the_page_is_up_to_date():
    assert studies.page() == TEXT, STALE


@pytest.mark.parametrize("picture", studies.PICTURES, ids=lambda picture: picture.name)
def test_the_pictures_are_up_to_date(picture):
    pytest.importorskip("matplotlib")
    for path, text in studies.files(picture, studies.sections(REPORT)[picture.study]).items():
        assert said(path.read_text(encoding="utf-8")) == said(text), STALE


def test_every_study_has_pictures_first_and_its_tables_in_the_report():
    tables = studies.sections(REPORT)
    for name, part in studies.sections(TEXT).items():
        assert part.index("<picture>") < part.index("**What came out.**"), name
        assert "<details" in tables[name] and not re.search(r"^\|", part, re.M), name


@pytest.mark.parametrize("picture", studies.PICTURES, ids=lambda picture: picture.name)
def test_a_picture_has_a_dot_for_each_figure(picture):
    rows = studies.rows_of(picture, studies.sections(REPORT)[picture.study])
    text = (studies.FOLDER / f"study-{picture.name}-light.svg").read_text(encoding="utf-8")
    words = said(text)
    for label, values in rows.items():
        assert label in words
        assert sum(word.startswith(f"{label}: ") for word in words) == sum(map(bool, values)), label
    assert all(series.name in words for series in picture.series if series.name)
    assert not beyond(text, studies.drawing.WIDTH, 6.6)


@pytest.mark.parametrize(
    "cell, times, wanted",
    [
        ("0.962 [0.911 1.03]", False, (0.962, 0.911, 1.03)),
        ("1.01 us", True, (1.01e-6, 1.01e-6, 1.01e-6)),
        ("1,144", False, (1144.0, 1144.0, 1144.0)),
        ("1,200 [1,144 1,300]", False, (1200.0, 1144.0, 1300.0)),
        ("-", False, None),
        ("", False, None),
    ],
)
def test_cells_are_read(cell, times, wanted):
    found = studies.value(cell, times)
    assert found == (wanted and pytest.approx(wanted))


def test_a_report_of_one_study_is_taken_over():
    page = "# Top\n\nMeasured on 2026-01-01. Two.\n\n## one\n\nIt took 3 s.\n\n## two\n\nIt took 4 s, all.\n"
    report = "# Top\n\nMeasured on 2026-02-02. One.\n\n## one\n\nIt took 5 s, some.\n\n## three\n\nNew.\n"
    assert studies.taken_over(page, report) == (
        "# Top\n\nMeasured on 2026-01-01. Two.\n\n## one\n\nMeasured on 2026-02-02, in 5 s, some.\n\n"
        "## two\n\nIt took 4 s, all.\n\n## three\n\nNew.\n"
    )
