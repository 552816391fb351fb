"""Small functions, one for each construct of Python that a function of a user's may hold: constructs.txt.

    name -- body of f(x) -- what must hold, if not: it is recorded once

x is an array of three numbers; ` ;; ` ends a line of the body. constructs_world.txt has the world that it
reads, how that changes, and names of built-in functions that are the module's own afterwards. What must
hold is the same on each Python: `again: why it is recorded at each call`, or `error: what it says`. A name
that ends in `3.14+` is a construct of that version. Value and derivative are compared with those of the
function itself, also after the world has changed.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.tables import sections

TABLE = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")

WORLD, CHANGE, SHADOWS = (
    "\n".join(lines) for lines in sections(str(Path(__file__).with_name("constructs_world"))).values()
)


@dataclass
class Construct:
    name: str
    body: str
    expected: str  # "reused", "again: why" or "error: what it says"
    since: tuple[int, int]

    @property
    def here(self) -> bool:
        """Whether this Python has it."""
        return self.since <= sys.version_info[:2]

    def world(self) -> dict:
        """A world of its own, and f in it."""
        lazy = "lazy import math as LAZY\n" if sys.version_info >= (3, 15) else ""
        names: dict = {"__name__": __name__}
        exec(lazy + WORLD, names)
        lines = "".join(f"    {line}\n" for line in self.body.split(" ;; "))
        exec(compile(f"def f(x):\n{lines}", f"<{self.name}>", "exec", dont_inherit=True), names)
        return names


def _parsed(line: str) -> Construct:
    name, body, *expected = line.split(" -- ")
    version = name.rpartition(" ")[2]
    since = ast.literal_eval(version[:-1].replace(".", ",")) if version.endswith("+") else (3, 11)
    return Construct(name, body, *(expected or ["reused"]), since)


CONSTRUCTS = [_parsed(line) for line in TABLE.splitlines() if line]
