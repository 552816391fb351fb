"""Run autograd's examples with autograd and with this compiler; compare their output and their times."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from .suites import ONE_THREAD

# prelude.py replaces data_mnist, which downloads its digits
EXAMPLES = ("HIPS/autograd", "HIPS+autograd", "examples")
NOT_EXAMPLES = {"__init__.py", "data.py", "data_mnist.py"}
PRELUDE = Path(__file__).with_name("prelude.py")
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf")
TOLERANCE = 1e-6
END = "end of the program"


class Printed(NamedTuple):
    """Output of a run: (seconds, line) for each line, and the last line of standard error if it failed."""

    lines: list[tuple[float, str]]
    error: str


def printed(python: str, which: str, program: Path, seconds: float) -> Printed:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, **ONE_THREAD, "PYTHONPATH": path, "GPT2_LIMIT": str(seconds)}
        command = [python, str(PRELUDE), which, program.name]
        ended = subprocess.run(command, cwd=program.parent, stdout=out, stderr=err, env=env).returncode
        failed = ended > 0  # below 0: killed at the limit of CPU time
        out.seek(0)
        err.seek(0)
        lines = err.read().strip().split("\n")
        rows = [line.split("\t", 1) for line in out.read().split("\n") if "\t" in line]
    return Printed([(float(t), text) for t, text in rows], lines[-1] if failed else "")


def difference(a: str, b: str) -> float:
    """The largest relative difference between the numbers of two lines; inf if their words differ."""
    if NUMBER.sub("#", a) != NUMBER.sub("#", b):
        return math.inf
    worst = 0.0
    for x, y in zip(map(float, NUMBER.findall(a)), map(float, NUMBER.findall(b))):
        if x != y and not (math.isnan(x) and math.isnan(y)):
            worst = max(worst, abs(x - y) / max(abs(x), abs(y), 1e-12))
    return worst


def row(name: str, theirs: Printed, ours: Printed) -> tuple[str, str, str, str, str]:
    """A row of the table: example, whether numbers agree, lines compared, both times up to the last line."""
    if bool(ours.error) != bool(theirs.error):
        where = "here" if ours.error else "with autograd"
        return name, f"fails {where}: {(ours.error or theirs.error)[:90]}", "", "", ""
    n = min(len(theirs.lines), len(ours.lines))
    if n == 0:
        return name, "nothing printed in the time given", "0", "", ""
    errors = [difference(a, b) for (_, a), (_, b) in zip(theirs.lines, ours.lines)]
    first = next((k for k, error in enumerate(errors) if error > TOLERANCE), None)
    ended = theirs.lines[n - 1][1] == END and ours.lines[n - 1][1] == END
    same = "yes" if first is None else f"to line {first + 1}, where they differ by {errors[first]:.1g}"
    if theirs.error:
        same += f"; then fails with both: {ours.error[:90]}"
    times = [f"{p.lines[n - 1][0]:.2f} s" for p in (theirs, ours)]
    return name, same, f"{n}{', all' if ended else ''}", *times


def report(checkouts: Path, python: str, seconds: float) -> None:
    """Run the examples in a copy of their folder, as they write pictures into it, and print the table."""
    print("| example | same numbers | lines | autograd | here |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        folder = Path(scratch) / "examples"
        shutil.copytree(checkouts / EXAMPLES[1] / EXAMPLES[2], folder)
        for program in sorted(path for path in folder.rglob("*.py") if path.name not in NOT_EXAMPLES):
            runs = [pool.submit(printed, python, which, program, seconds) for which in ("autograd", "here")]
            cells = row(str(program.relative_to(folder)), *(run.result() for run in runs))
            print("| " + " | ".join(cells) + " |", flush=True)
