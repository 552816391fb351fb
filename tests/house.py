"""The rooms of gpt2 and what each imports: `python -m tests.house` prints it.

What each may import stands in pyproject.toml, and import-linter holds the source to that.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from docs import house


def stage(module: str) -> str | None:
    """The stage of the compiler that a module of it belongs to; None for what is no part of it."""
    parts = module.split(".")
    if parts[:2] != ["gpt2", "autodiff"]:
        return None
    return parts[2] if len(parts) > 2 else "door"


def part(module: str) -> str:
    """The part of gpt2 that a module belongs to: a folder or a file at its top, or the door, gpt2 itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "door"


def section(title: str, rooms: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Lines: how many rooms, arrows, arrows back up and circles; then a line a room, from the ground up."""
    found, order = house.circles(rooms), house.depth_first(rooms)
    up = house.back_up(rooms, order)
    arrows = sum(map(len, rooms.values()))
    lines = [f"{title}: {len(rooms)} rooms, {arrows} arrows, {len(up)} back up, {len(found)} circles"]
    for room in order:
        others = ", ".join(f"{other} {n}" for other, n in sorted(rooms.get(room, {}).items()))
        lines.append(f"  {room:12}{'-> ' + others if others else ''}".rstrip())
    lines += [f"  back up: {a} -> {b}" for a, b in up]
    lines += [f"  circle: {', '.join(circle)}" for circle in found]
    return lines


def report() -> str:
    """Rooms, arrows, arrows back up and circles of gpt2, of its compiler, and of all files."""
    arrows = house.arrows()
    stages = house.between(arrows, stage)
    files = {name: dict.fromkeys(targets, 1) for name, targets in arrows.items()}
    parts = house.between(arrows, part)
    lines = section("gpt2, by parts", parts)
    lines += ["", *section("gpt2/autodiff, by stages", stages)]
    lines += ["", section("gpt2, by files", files)[0].replace("rooms", "files")]
    lines += [f"  circle: {', '.join(circle)}" for circle in house.circles(files)]
    return "\n".join(lines)


def main(argv=None) -> None:
    argparse.ArgumentParser(prog="python -m tests.house", description=__doc__.split("\n")[0]).parse_args(argv)
    print(report())


if __name__ == "__main__":
    main()
