"""docs/speed.md: its table and its picture are of the figures that are kept."""

import re

import pytest

from docs import speed
from tests.support.pictures import said, words

STALE = "run: python -m docs.speed"


def test_the_page_is_up_to_date():
    assert speed.PAGE.read_text(encoding="utf-8") == speed.page(), STALE


def test_the_picture_is_up_to_date():
    pytest.importorskip("matplotlib")
    assert said(speed.PICTURE.read_text(encoding="utf-8")) == said(speed.picture()), STALE


def test_the_picture_has_a_bar_for_each_contender_that_took_part():
    words = said(speed.PICTURE.read_text(encoding="utf-8"))
    ratios = [word for word in words if re.fullmatch(r"\d\.\d\d", word)]
    shown = [one for one in speed.figures() if one["threads"] == 2]
    wanted = [one["rows"][name]["ratio"][0] for one in shown for name in speed.BARS if name in one["rows"]]
    assert ratios == [f"{ratio:.2f}" for ratio in wanted] and wanted


def test_a_bar_that_is_too_long_is_cut(monkeypatch):
    """llm.c's plain loops may take several times as long: the other bars stay long enough to be compared."""
    pytest.importorskip("matplotlib")
    figures = speed.figures()
    slow = {**figures[0]["rows"]["torch-tuned"], "title": "llm.c", "ratio": [9.0, 9.0, 9.0]}
    changed = [{**one, "rows": {**one["rows"], "llmc": slow}} for one in figures]
    monkeypatch.setattr(speed, "figures", lambda: changed)
    shown = words(speed.picture())
    assert sum(word == "//" for word, *_ in shown) == sum(one["threads"] == 2 for one in figures)
    assert len({x for word, _, x in shown if word == "9.00"}) == 1  # all end at the same place


def test_ratios_are_to_the_fastest_pytorch_of_the_run():
    for one in speed.figures():
        peers = {name: row["ms"] for name, row in one["rows"].items() if name.startswith("torch")}
        assert one["reference"] == min(peers, key=peers.get)
        assert one["rows"][one["reference"]]["ratio"] == [1.0, 1.0, 1.0]
