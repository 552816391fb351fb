"""Pages that programs make, and their pictures, are up to date: docs/speed.md, studies.md and models.md."""

import json

import pytest

from docs import speed, studies
from tests.support.pictures import said

STALE = "run: python -m docs."
REPORT = studies.REPORT.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [speed, studies])
def test_page_is_up_to_date(page):
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), STALE + page.__name__


def test_every_row_of_the_page_of_models_is_made_again(peers):
    """What is read, trained and written back."""
    pytest.importorskip("peft")
    from docs import models

    assert models.page() == models.PAGE.read_text(encoding="utf-8"), STALE + "models"


def test_every_measured_machine_is_on_the_page():
    assert {one["machine"] for one in speed.kept()} == set(speed.machines())


@pytest.mark.parametrize("machine", speed.machines())
def test_picture_is_up_to_date(machine):
    pytest.importorskip("matplotlib")
    assert said(speed.place(machine).read_text(encoding="utf-8")) == said(speed.picture(machine)), (
        STALE + "speed"
    )
    assert f"pictures/{speed.place(machine).name}" in speed.PAGE.read_text(encoding="utf-8")


def test_ratios_are_relative_to_the_fastest_pytorch():
    for one in speed.kept():
        peers = {name: row["ms"] for name, row in one["rows"].items() if name.startswith("torch")}
        assert one["reference"] == min(peers, key=peers.get)
        assert one["rows"][one["reference"]]["ratio"] == [1.0, 1.0, 1.0]


def test_new_measurements_replace_those_of_their_machine_size_and_threads(monkeypatch, tmp_path):
    monkeypatch.setattr(speed, "FIGURES", tmp_path / "speed.json")
    old = [
        {"machine": machine, "size": "default", "threads": threads, "rows": {}}
        for machine in ("this", "that")
        for threads in (1, 2)
    ]
    speed.FIGURES.write_text(json.dumps(old))
    load = {"rounds_counted": 5, "others": 0.0}
    row = {"title": "gpt2 whole", "ms": {"median": 3.0}, "peak_bytes": 0}
    row["to_torch"] = {"median": 0.5, "q1": 0.4, "q3": 0.6}
    result = {"size": "default", "threads": 2, "vocab_size": 9, "reference": "torch", "heats": [load]}
    (tmp_path / "new.json").write_text(json.dumps({"results": [{**result, "rows": {"whole": row}}]}))
    speed.keep([str(tmp_path / "new.json")], "that")
    kept = {(one["machine"], one["threads"]): one["rows"] for one in speed.kept()}
    assert len(kept) == 4 and [key for key, rows in kept.items() if rows] == [("that", 2)]
    assert kept["that", 2]["whole"]["ratio"] == [0.5, 0.4, 0.6]


@pytest.mark.parametrize("picture", studies.PICTURES, ids=lambda picture: picture.name)
def test_pictures_are_up_to_date(picture):
    pytest.importorskip("matplotlib")
    drawn = studies.draw(picture, studies.sections(REPORT)[picture.study])
    assert said(studies.place(picture).read_text(encoding="utf-8")) == said(drawn), STALE + "studies"


def test_report_of_one_study_replaces_its_section():
    page = "# Top\n\nMeasured on 2026-01-01. Two.\n\n## one\n\nIt took 3 s.\n\n## two\n\nIt took 4 s, all.\n"
    report = "# Top\n\nMeasured on 2026-02-02. One.\n\n## one\n\nIt took 5 s, some.\n\n## three\n\nNew.\n"
    assert studies.taken_over(page, report) == (
        "# Top\n\nMeasured on 2026-01-01. Two.\n\n## one\n\nMeasured on 2026-02-02, in 5 s, some.\n\n"
        "## two\n\nIt took 4 s, all.\n\n## three\n\nNew.\n"
    )
