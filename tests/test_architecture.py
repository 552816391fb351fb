"""docs/architecture.md and its picture: up to date, complete, and with every arrow pointing down."""

import ast
import re
from collections import Counter

import pytest

from docs import architecture, house, picture
from tests.support.pictures import said

STALE = "run: python -m docs.architecture"


def rooms(folder):
    """Names of the packages and modules directly below a folder, but for the folder's own."""
    below = (house.ROOT / folder).iterdir()
    return {p.stem for p in below if p.suffix == ".py" or (p / "__init__.py").exists()} - {"__init__"}


def test_the_page_is_up_to_date():
    assert architecture.PAGE.read_text(encoding="utf-8") == architecture.page(), STALE


@pytest.mark.slow
def test_the_picture_is_up_to_date():
    pytest.importorskip("matplotlib")
    assert said(architecture.PICTURE.read_text(encoding="utf-8")) == said(architecture.picture()), STALE


@pytest.mark.parametrize("folder", architecture.ROOMS)
def test_every_room_is_named(folder):
    """Each with one sentence, and no room that is gone."""
    named = architecture.ROOMS[folder]
    assert set(named) == rooms(folder), "docs/architecture.py: a sentence for each room"
    text = architecture.PAGE.read_text(encoding="utf-8")
    for name, room in named.items():
        assert len(re.findall(rf"^- `{folder}/{name}(?:/|\.py)`: ", text, re.M)) == 1
        assert room.sentence.endswith(".")


def classes():
    """Module:class of all classes of gpt2, but for what stands in for the names of other tools."""
    for name, path in house.files().items():
        if not name.startswith("gpt2.autodiff.compat."):
            for x in house.parsed(path).body:
                if isinstance(x, ast.ClassDef):
                    yield path.relative_to(house.ROOT / "gpt2").as_posix(), x.name


def test_a_word_names_one_class():
    found = Counter(name for _, name in classes())
    assert not [name for name, count in found.items() if count > 1], "a word with two meanings"
    assert {(file, word) for word, (file, _) in architecture.WORDS.items()} <= {*classes()}


def test_what_stands_beside_gpt2_is_there():
    assert all((house.ROOT / name).exists() for name in architecture.BESIDE)


def test_every_room_and_arrow_is_drawn():
    words = said(architecture.PICTURE.read_text(encoding="utf-8"))
    for panel in architecture.panels():
        arrows = {f"{a} imports {b}" for a, below in picture.needed(panel.arrows).items() for b in below}
        assert {*panel.words, *arrows} <= set(words) and len(arrows) > 15


@pytest.mark.parametrize("panel", architecture.panels(), ids=lambda panel: panel.title)
def test_every_arrow_points_down_and_no_two_boxes_touch(panel):
    layout = picture.layout(panel)
    for way in layout.ways:
        heights = [y for _, y in layout.path(way)]
        assert heights == sorted(heights)
    edges = [(p, layout.x[p] - p.width / 2, layout.x[p] + p.width / 2) for p in layout.boxes()]
    for p, left, right in edges:
        assert 0 < left and right < layout.width
        assert not any(p.floor == q.floor and left < begin < right + 10 for q, begin, _ in edges)


def test_arrows_that_follow_from_others_are_left_out():
    arrows = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"d"}}
    assert picture.needed(arrows) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"d"}}


def test_crossings_are_undone():
    arrows = {"a": {"y"}, "b": {"x"}, "c": {"x", "y"}, "x": set(), "y": set()}
    rows, ways = picture.points_of(arrows, dict.fromkeys(arrows, ""))
    above, below = picture.links_of(ways)
    assert picture.crossings(rows, below) > 0
    assert picture.crossings(picture.ordered(rows, above, below), below) == 0


def test_the_first_six_files_are_few_lines():
    counts = [
        len((house.ROOT / path).read_text(encoding="utf-8").splitlines()) for path in architecture.FIRST
    ]
    assert len(counts) == 6 and max(counts) <= 200 and sum(counts) <= 900
