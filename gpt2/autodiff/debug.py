"""GPT2_AD_DEBUG: an environment variable that makes the compiler say what it does, on stderr.

    1   a line for each stage: why a function is recorded, the time that the stage took, how many nodes a
        graph has, how many regions and bytes of arena a program has
    2   also the graph after each stage
    3   also the emitted source

It is read once, when the compiler is loaded.
"""

from __future__ import annotations

import os
import sys
import textwrap

VARIABLE = "GPT2_AD_DEBUG"
LEVELS = ("0", "1", "2", "3")


def level_of(text: str) -> int:
    """The level that the variable's text stands for. Raises ValueError for a text that stands for none."""
    if text not in LEVELS:
        raise ValueError(f"{VARIABLE} is {text!r}, expected one of {', '.join(LEVELS)}")
    return int(text)


LEVEL = level_of(os.environ.get(VARIABLE) or "0")


def tell(name: str, title: str, made, seconds: float, remark: str = "") -> None:
    """Write about one stage of the program called `name`: a line, and what came out if the level asks for it.

    made   a graph or a program
    """
    if not LEVEL:
        return
    facts = f"{seconds * 1e3:9.3f} ms  {measures(made)}{remark and '; ' + remark}"
    lines = [f"autodiff {name}: {title:<20} {facts}"]
    source = getattr(made, "source", None)
    if LEVEL >= (2 if source is None else 3):
        lines.append(textwrap.indent(str(made) if source is None else source, "    ").rstrip())
    print("\n".join(lines), file=sys.stderr, flush=True)


def measures(made) -> str:
    """The size of a graph, or of a program, in words."""
    if not hasattr(made, "source"):
        return f"{len(made.nodes)} nodes"
    if not hasattr(made, "n_regions"):
        return "plain Python"
    regions = "1 region" if made.n_regions == 1 else f"{made.n_regions} regions"
    return f"{regions}, {made.arena_bytes:,} bytes of arena"
