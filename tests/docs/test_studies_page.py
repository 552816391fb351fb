"""docs/studies.md shows pictures of the tables in bench/studies/figures.md, and no tables."""

import re

import pytest

from docs import studies
from tests.support.pictures import beyond, said

STALE = "run: python -m docs.studies"
TEXT = studies.PAGE.read_text(encoding="utf-8")
REPORT = studies.REPORT.read_text(encoding="utf-8")


def test_page_is_up_to_date():
    assert studies.page() == TEXT, STALE


@pytest.mark.parametrize("picture", studies.PICTURES, ids=lambda picture: picture.name)
def test_pictures_are_up_to_date(picture):
    pytest.importorskip("matplotlib")
    drawn = studies.draw(picture, studies.sections(REPORT)[picture.study])
    assert said(studies.place(picture).read_text(encoding="utf-8")) == said(drawn), STALE


def test_studies_begin_with_pictures_and_have_tables_in_the_report():
    tables = studies.sections(REPORT)
    for name, part in studies.sections(TEXT).items():
        assert part.index("![") < part.index("**What came out.**"), name
        assert "<details" in tables[name] and not re.search(r"^\|", part, re.M), name


@pytest.mark.parametrize("picture", studies.PICTURES, ids=lambda picture: picture.name)
def test_picture_has_a_dot_for_each_value(picture):
    rows = studies.rows_of(picture, studies.sections(REPORT)[picture.study])
    text = studies.place(picture).read_text(encoding="utf-8")
    words = said(text)
    for label, values in rows.items():
        assert label in words
        assert sum(word.startswith(f"{label}: ") for word in words) == sum(map(bool, values)), label
    assert all(name in words for _, _, name in picture.series if name)
    assert not beyond(text, studies.drawing.WIDTH, 6.6)


@pytest.mark.parametrize(
    "cell, times, expected",
    [
        ("0.962 [0.911 1.03]", False, (0.962, 0.911, 1.03)),
        ("1.01 us", True, (1.01e-6, 1.01e-6, 1.01e-6)),
        ("1,144", False, (1144.0, 1144.0, 1144.0)),
        ("1,200 [1,144 1,300]", False, (1200.0, 1144.0, 1300.0)),
        ("-", False, None),
        ("", False, None),
    ],
)
def test_table_cells_are_parsed(cell, times, expected):
    assert studies.value(cell, times) == (expected and pytest.approx(expected))


def test_report_of_one_study_replaces_its_section():
    page = "# Top\n\nMeasured on 2026-01-01. Two.\n\n## one\n\nIt took 3 s.\n\n## two\n\nIt took 4 s, all.\n"
    report = "# Top\n\nMeasured on 2026-02-02. One.\n\n## one\n\nIt took 5 s, some.\n\n## three\n\nNew.\n"
    assert studies.taken_over(page, report) == (
        "# Top\n\nMeasured on 2026-01-01. Two.\n\n## one\n\nMeasured on 2026-02-02, in 5 s, some.\n\n"
        "## two\n\nIt took 4 s, all.\n\n## three\n\nNew.\n"
    )
