"""The picture of docs/architecture.md, from the imports of gpt2: `python -m docs.architecture`.

The page is written by hand. Its lines name the rooms and say a few words for the picture, as in
"- `gpt2/data/` (text to tokens): tokenizers, ...". A room without such words is not drawn. Tests compare the
picture with what this makes, and the page's rooms with the folders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from docs import house
from docs.picture import Panel, draw

PAGE = house.ROOT / "docs" / "architecture.md"
PICTURE = house.ROOT / "docs" / "pictures" / "architecture.svg"
ROOM = re.compile(r"^- `(?:gpt2/)(?:autodiff/)?(\w+)(?:/|\.py)`(?: \((.*?)\))?: \S", re.M)


def sections() -> dict[str, str]:
    """Title -> text of the page's parts."""
    _, *parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)
    return dict(part.split("\n", 1) for part in parts)


def rooms(title: str) -> dict[str, str]:
    """Name of each room that a part of the page lists -> its words in the picture."""
    return dict(ROOM.findall(sections()[title]))


PARTS = rooms("gpt2, in the order of a run")
STAGES = rooms("gpt2/autodiff, in the order of a call")
EXTRAS = rooms("Beside the core")
ROOMS = {"gpt2": PARTS, "gpt2/autodiff": {**STAGES, **EXTRAS}}


def picture() -> str:
    return draw(panels())


def panels() -> list[Panel]:
    arrows = house.arrows()
    return [
        panel("gpt2", arrows, PARTS, 1, lit=frozenset({"autodiff"})),
        panel("inside gpt2/autodiff", arrows, ROOMS["gpt2/autodiff"], 2),
    ]


def panel(title: str, arrows: house.Arrows, rooms: Mapping[str, str], depth: int, lit=frozenset()) -> Panel:
    """The rooms below gpt2 (depth 1) or gpt2.autodiff (2) that have words, with the arrows between them."""
    words = {name: text for name, text in rooms.items() if text}
    package = ["gpt2", "autodiff"][:depth]

    def room_of(module: str) -> str | None:
        parts = module.split(".")
        name = parts[depth] if len(parts) > depth and parts[:depth] == package else None
        return name if name in words else None

    found = house.between(arrows, room_of)
    return Panel(title, {name: set(found.get(name, ())) for name in words}, words, lit)


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
