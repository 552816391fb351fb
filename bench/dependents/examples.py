"""autograd's examples under autograd and under this compiler: the same numbers, and how long until them."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

PRELUDE = Path(__file__).with_name("prelude.py")
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf")
TOLERANCE = 1e-6
END = "end of the program"


class Printed(NamedTuple):
    """What a run printed, line by line with times; and the last line of its error, if it failed."""

    lines: list[tuple[float, str]]
    error: str


def printed(python: str, which: str, program: Path, seconds: float) -> Printed:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
        command = [python, str(PRELUDE), which, program.name]
        run = subprocess.Popen(command, cwd=program.parent, stdout=out, stderr=err, env=env)
        try:
            failed = run.wait(seconds) != 0
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()
            failed = False
        out.seek(0)
        err.seek(0)
        said = err.read().strip().split("\n")
        rows = [line.split("\t", 1) for line in out.read().split("\n") if "\t" in line]
    return Printed([(float(t), text) for t, text in rows], said[-1] if failed else "")


def differs(a: str, b: str) -> float:
    """The largest relative difference of two lines' numbers; inf where their words differ."""
    if NUMBER.sub("#", a) != NUMBER.sub("#", b):
        return math.inf
    worst = 0.0
    for x, y in zip(map(float, NUMBER.findall(a)), map(float, NUMBER.findall(b))):
        if x != y and not (math.isnan(x) and math.isnan(y)):
            worst = max(worst, abs(x - y) / max(abs(x), abs(y), 1e-12))
    return worst


def row(name: str, theirs: Printed, ours: Printed) -> tuple[str, str, str, str, str]:
    """A line of the table: the example, same numbers?, lines compared, both times until the last of them."""
    if ours.error or theirs.error:
        where = "here" if not theirs.error else "with autograd" if not ours.error else "with both"
        return name, f"fails {where}: {(ours.error or theirs.error)[:90]}", "", "", ""
    n = min(len(theirs.lines), len(ours.lines))
    if n == 0:
        return name, "nothing printed in the time given", "0", "", ""
    worst, at = 0.0, n
    for k in range(n):
        d = differs(theirs.lines[k][1], ours.lines[k][1])
        if d > TOLERANCE:
            worst, at = d, k
            break
    ended = theirs.lines[n - 1][1] == END and ours.lines[n - 1][1] == END
    same = "yes" if at == n else f"to line {at + 1}, where they differ by {worst:.1g}"
    times = [f"{p.lines[n - 1][0]:.2f} s" for p in (theirs, ours)]
    return name, same, f"{n}{', all' if ended else ''}", *times


def report(folder: Path, names: list[str], python: str = sys.executable, seconds: float = 30.0) -> list[str]:
    """The table in Markdown."""
    lines = ["| example | same numbers | lines | autograd | here |", "|---|---|---|---|---|"]
    for name in names:
        program = folder / name
        runs = [printed(python, which, program, seconds) for which in ("autograd", "here")]
        lines.append("| " + " | ".join(row(name, *runs)) + " |")
        print(lines[-1], flush=True)
    return lines
