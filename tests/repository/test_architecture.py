"""docs/architecture.md and its picture: true, complete, and with every arrow pointing down."""

import re
from collections import Counter

import pytest

from bench.studies.rooms import ROOMS
from docs import architecture, house, picture
from tests.support.pictures import said

STALE = "run: python -m docs.architecture"
TEXT = architecture.PAGE.read_text(encoding="utf-8")
PARTS = {
    "gpt2": [architecture.sections()["gpt2, in the order of a run"]],
    "gpt2/autodiff": [
        architecture.sections()["gpt2/autodiff, in the order of a call"],
        architecture.sections()["Beside the core"],
    ],
}


def lines_of(names):
    """How many lines these rooms of the compiler have."""
    folder = house.ROOT / "gpt2" / "autodiff"
    files = [f for name in names for f in ((folder / name).rglob("*.py"), [folder / f"{name}.py"])]
    found = [path for some in files for path in some if path.is_file()]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in found)


@pytest.mark.parametrize(
    "names, where", [(architecture.STAGES, "are the core, some"), (architecture.EXTRAS, "Some")]
)
def test_the_sizes_on_the_page_are_right(names, where):
    (said_lines,) = re.findall(rf"{where} ([\d,]+) lines(?: that|\. Read)", TEXT)
    assert abs(int(said_lines.replace(",", "")) - lines_of(names)) <= 1000


@pytest.mark.slow
def test_picture_is_up_to_date():
    pytest.importorskip("matplotlib")
    assert said(architecture.PICTURE.read_text(encoding="utf-8")) == said(architecture.picture()), STALE


@pytest.mark.parametrize("folder", architecture.ROOMS)
def test_every_room_is_named(folder):
    """Each on one line, and no room that is gone."""
    listed = [name for name, _ in architecture.ROOM.findall("\n".join(PARTS[folder]))]
    inside = (house.ROOT / folder).iterdir()
    rooms = {p.stem for p in inside if p.suffix == ".py" or (p / "__init__.py").exists()} - {"__init__"}
    assert set(listed) == rooms == set(architecture.ROOMS[folder]) and len(listed) == len(set(listed))


def test_a_word_names_one_class():
    """Of all classes of gpt2, but those named after other tools and those of the exercises."""
    classes = [
        (path.relative_to(house.ROOT / "gpt2").as_posix(), word)
        for name, path in house.files().items()
        if not name.startswith(("gpt2.autodiff.compat.", "gpt2.commands.exercises.sheets."))
        for word in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.M)
    ]
    found = Counter(word for _, word in classes)
    assert not [word for word, count in found.items() if count > 1], "a word with two meanings"
    words = architecture.sections()["Words with one meaning"]
    defined = re.findall(r"^\| (\w+) \| .* \| `(.*)` \|$", words, re.M)
    assert len(defined) > 10 and {(file, word) for word, file in defined} <= {*classes}


def test_what_stands_beside_gpt2_is_there():
    beside = re.findall(r"^- `(.*?)`: ", architecture.sections()["Beside gpt2"], re.M)
    assert len(beside) > 5 and all((house.ROOT / name).exists() for name in beside)


@pytest.mark.parametrize("number", [0, 1])
def test_arrows_point_down_and_boxes_do_not_touch(number):
    panel = architecture.panels()[number]
    rows, ways = picture.points_of(picture.needed(panel.arrows), panel.words)
    x = picture.placed(rows, ways)
    for way in ways:
        assert [point.floor for point in way] == [*range(way[0].floor, way[-1].floor - 1, -1)]
    for row in rows:
        edges = sorted((x[p] - p.width / 2, x[p] + p.width / 2) for p in row)
        assert edges[0][0] > 0
        assert all(begin > end + 10 for (_, end), (begin, _) in zip(edges, edges[1:]))


CALLS = re.findall(r"^- `(\S+\.py): (\w+)`: ", architecture.sections()["Two calls, followed"], re.M)


@pytest.mark.parametrize("file, name", CALLS)
def test_the_calls_that_are_followed_are_there(file, name):
    text = (house.ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^ *(?:def|class) {name}\b", text, re.M), (file, name)


def test_the_compiler_page_says_what_each_room_adds():
    page = (house.ROOT / "docs" / "compiler.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \| ([\d,]+) \|", page, re.M)
    packages = {room for room in architecture.STAGES if (house.ROOT / "gpt2" / "autodiff" / room).is_dir()}
    assert [room for room, _ in rows] == list(ROOMS)
    assert {room for room, _ in rows} == packages | {*architecture.EXTRAS}
    for room, lines in rows:
        now, written = lines_of([room]), int(lines.replace(",", ""))
        assert abs(now - written) <= max(100, written / 5), room
