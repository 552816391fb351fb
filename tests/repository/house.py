"""Prints the rooms of gpt2 and what each imports: `python -m tests.repository.house`.

pyproject.toml says what each may import, and import-linter checks it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from docs import house


def stage(module: str) -> str | None:
    """The stage of the compiler that a module belongs to, or None for a module outside the compiler."""
    parts = module.split(".")
    if parts[:2] != ["gpt2", "autodiff"]:
        return None
    return parts[2] if len(parts) > 2 else "door"


def part(module: str) -> str:
    """The part of gpt2 that a module belongs to: a folder or file at its top, or "door" for gpt2 itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "door"


def section(title: str, rooms: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Lines: how many rooms and arrows; then a line a room, from the ground up."""
    order = [room for floor in house.floors(rooms) for room in floor]
    lines = [f"{title}: {len(rooms)} rooms, {sum(map(len, rooms.values()))} arrows, no circle"]
    for room in order:
        others = ", ".join(f"{other} {n}" for other, n in sorted(rooms.get(room, {}).items()))
        lines.append(f"  {room:12}{'-> ' + others if others else ''}".rstrip())
    return lines


def report() -> str:
    """Rooms and arrows of gpt2, of its compiler, and of all files. A circle is a graphlib.CycleError."""
    arrows = house.arrows()
    files = {name: dict.fromkeys(targets, 1) for name, targets in arrows.items()}
    lines = section("gpt2, by parts", house.between(arrows, part))
    lines += ["", *section("gpt2/autodiff, by stages", house.between(arrows, stage))]
    lines += ["", section("gpt2, by files", files)[0].replace("rooms", "files")]
    return "\n".join(lines)


def main(argv=None) -> None:
    summary = __doc__.split("\n")[0]
    argparse.ArgumentParser(prog="python -m tests.repository.house", description=summary).parse_args(argv)
    print(report())


if __name__ == "__main__":
    main()
