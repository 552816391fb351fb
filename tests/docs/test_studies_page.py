"""docs/studies.md shows pictures of the tables in bench/studies/figures.md, and no tables."""

import pytest

from docs import studies
from tests.support.pictures import said

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


def test_report_of_one_study_replaces_its_section():
    page = "# Top\n\nMeasured on 2026-01-01. Two.\n\n## one\n\nIt took 3 s.\n\n## two\n\nIt took 4 s, all.\n"
    report = "# Top\n\nMeasured on 2026-02-02. One.\n\n## one\n\nIt took 5 s, some.\n\n## three\n\nNew.\n"
    assert studies.taken_over(page, report) == (
        "# Top\n\nMeasured on 2026-01-01. Two.\n\n## one\n\nMeasured on 2026-02-02, in 5 s, some.\n\n"
        "## two\n\nIt took 4 s, all.\n\n## three\n\nNew.\n"
    )
