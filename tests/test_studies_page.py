"""docs/studies.md has the pictures of the tables in bench/studies/figures.md, and no tables."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from docs import studies

STALE = "run: python -m docs.studies"
TEXT = studies.PAGE.read_text(encoding="utf-8")
REPORT = studies.REPORT.read_text(encoding="utf-8")
SVG = "{http://www.w3.org/2000/svg}"


def test_the_page_is_up_to_date():
    assert studies.page() == TEXT, STALE


@pytest.mark.parametrize("path, text", studies.files().items(), ids=lambda value: getattr(value, "name", ""))
def test_the_pictures_are_up_to_date(path, text):
    assert path.read_text(encoding="utf-8") == text, STALE


def test_every_study_has_pictures_first_and_its_tables_in_the_report():
    tables = studies.sections(REPORT)
    for name, part in studies.sections(TEXT).items():
        assert part.index("<picture>") < part.index("**What came out.**"), name
        assert "<details" in tables[name] and not re.search(r"^\|", part, re.M), name


@pytest.mark.parametrize("picture", studies.PICTURES, ids=lambda picture: picture.name)
def test_a_picture_has_a_dot_for_each_figure(picture):
    part = studies.sections(REPORT)[picture.study]
    rows = studies.rows_of(picture, part)
    tree = ElementTree.fromstring(studies.draw(picture, part, studies.LIGHT))
    keys = sum(bool(series.name) for series in picture.series)
    dots = tree.findall(f"{SVG}circle")
    assert len(dots) == keys + sum(v is not None for values in rows.values() for v in values)
    for text in tree.iter(f"{SVG}text"):  # nothing is cut off, in a generous estimate
        width = 6.9 * len(text.text) * (1.2 if text.get("class") == "title" else 1)
        x = float(text.get("x"))
        left = {"end": x - width, "middle": x - width / 2}.get(text.get("text-anchor"), x)
        assert left > -6 and left + width < studies.WIDTH + 6, text.text


def test_dots_stand_where_their_numbers_are():
    picture = next(p for p in studies.PICTURES if p.name == "model")
    part = studies.sections(REPORT)["layers"]
    tree = ElementTree.fromstring(studies.draw(picture, part, studies.LIGHT))
    dots = [
        (float(d[0].text.rsplit(": ", 1)[1]), float(d.get("cx")))
        for d in tree.iter(f"{SVG}circle")
        if re.search(r": [\d.]+$", d[0].text)
    ]
    assert len(dots) == 8 and [x for _, x in sorted(dots)] == sorted(x for _, x in dots)


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
