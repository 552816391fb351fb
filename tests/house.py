"""The rooms of gpt2, what each may import, and what it does import: `python -m tests.house`.

The tables stand here, from the ground up; tests/test_house.py, tests/test_imports.py and
tests/autodiff/test_stages.py hold the source to them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from docs import house

# What each stage of the compiler's core may know of the others. No row names one that stands below it, so
# there is no circle and no arrow back up.
CORE: dict[str, set[str]] = {
    "atoms": set(),
    "errors": set(),
    "doors": set(),
    "same": {"atoms"},
    "undo": set(),
    "switches": set(),
    "hidden": set(),
    "graph": {"hidden"},
    "run": set(),
    "tree": {"errors", "same"},
    "ops": {"errors", "graph", "hidden"},
    "record": {"atoms", "doors", "errors", "graph", "ops", "tree", "undo"},
    "derive": {"errors", "graph", "ops"},
    "passes": {"graph", "hidden", "ops", "switches"},
    "keep": {"graph", "ops", "passes"},
    "emit": {"doors", "graph", "hidden", "ops", "run", "switches"},
    "pipeline": {"derive", "emit", "graph", "hidden", "keep", "ops", "passes", "switches", "undo"},
    "reuse": {"atoms", "emit", "graph", "ops", "pipeline", "record", "same", "undo"},
    "programs": {
        "atoms",
        "doors",
        "emit",
        "errors",
        "graph",
        "hidden",
        "ops",
        "pipeline",
        "record",
        "reuse",
        "same",
        "switches",
        "tree",
    },
    "custom": {"derive", "errors", "graph", "ops", "pipeline", "programs", "record", "tree"},
    "loops": {"programs", "derive", "errors", "graph", "ops", "pipeline", "record", "run", "tree"},
    "transforms": {
        "programs",
        "derive",
        "errors",
        "graph",
        "loops",
        "ops",
        "pipeline",
        "record",
        "switches",
        "tree",
    },
    "implicit": {
        "programs",
        "custom",
        "derive",
        "errors",
        "graph",
        "ops",
        "pipeline",
        "record",
        "transforms",
        "tree",
    },
}
# What stands beside the core, and what of it and of the core each room may know. The core knows none of them.
BESIDE: dict[str, set[str]] = {
    "check": {"derive", "graph", "ops", "record", "tree"},
    "enzyme": {"programs", "derive", "errors", "graph", "ops", "record", "tree"},
    "interop": {"custom", "errors", "transforms", "tree"},  # PyTorch's and JAX's functions and arrays
    "random": {"errors", "ops", "record"},
    "show": {"programs", "emit", "errors", "graph", "ops", "pipeline", "record", "switches", "transforms"},
    "sparse": {"programs", "errors", "transforms"},
    # where SciPy is installed, and asked for by name
    "scipy": {
        "programs",
        "custom",
        "errors",
        "graph",
        "implicit",
        "loops",
        "ops",
        "pipeline",
        "record",
        "transforms",
        "tree",
    },
    # names of other tools
    "compat": {
        "custom",
        "graph",
        "ops",
        "record",
        "same",
        "scipy",
        "transforms",
        "tree",
    },  # names of other tools
}
STAGES = {
    **CORE,
    **BESIDE,
    # gpt2.autodiff: the public names
    "door": {
        "check",
        "programs",
        "custom",
        "enzyme",
        "errors",
        "implicit",
        "interop",
        "loops",
        "ops",
        "reuse",
        "run",
        "show",
        "sparse",
        "switches",
        "transforms",
    },
}
# What each part of gpt2 may know of the others, in the same way
PARTS: dict[str, set[str]] = {
    "output": set(),
    "hints": set(),
    "errors": {"output"},
    "cli": {"errors", "hints", "output"},
    "layers": set(),
    "autodiff": set(),
    "storage": {"errors", "hints"},
    "data": {"cli", "errors", "hints", "storage"},
    "machine": set(),
    "backward": {"layers", "autodiff", "errors"},
    # Of autodiff the threads, and what watches a function: the derived backwards come by `backward`
    "model": {"autodiff", "backward", "errors", "layers", "storage"},
    "sampling": {"data", "errors", "model"},
    "parallel": {"autodiff", "errors", "hints", "machine", "model"},  # of autodiff the threads
    "weights": {"data", "errors", "hints", "model", "storage"},
    "library": {"data", "model", "weights"},
    "train": {
        "autodiff",  # its threads, what it has measured, and how many operations a forward has
        "cli",
        "data",
        "errors",
        "hints",
        "machine",
        "model",
        "output",
        "parallel",
        "sampling",
        "storage",
        "weights",
    },
    "door": {"autodiff", "library", "model", "sampling", "train"},  # gpt2: the public names
    "__main__": {"door", "errors", "hints", "output"},  # it starts the commands by name
    "commands": {
        "__main__",  # completion has the list of commands
        "autodiff",
        "backward",
        "cli",
        "data",
        "errors",
        "hints",
        "layers",
        "machine",
        "model",
        "output",
        "parallel",
        "sampling",
        "storage",
        "train",
        "weights",
    },
}


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


def section(title: str, rooms: Mapping[str, Mapping[str, int]], order: list[str]) -> list[str]:
    """Lines: how many rooms, arrows, arrows back up and circles; then a line a room, from the ground up."""
    found = house.circles(rooms)
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
    lines = section("gpt2, by parts", parts, list(PARTS))
    lines += ["", *section("gpt2/autodiff, by stages", stages, list(STAGES))]
    lines += ["", section("gpt2, by files", files, house.depth_first(files))[0].replace("rooms", "files")]
    lines += [f"  circle: {', '.join(circle)}" for circle in house.circles(files)]
    return "\n".join(lines)


def main(argv=None) -> None:
    argparse.ArgumentParser(prog="python -m tests.house", description=__doc__.split("\n")[0]).parse_args(argv)
    print(report())


if __name__ == "__main__":
    main()
