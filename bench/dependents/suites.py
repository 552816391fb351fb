"""The tests of a package, run with autograd and with this compiler under its name."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

from .programs import Suite

HERE = ["-m", "gpt2.autodiff.compat.autograd"]
PYTEST = ["-m", "pytest", "-q", "-c", os.devnull, "--rootdir=.", "--noconftest", "-p", "no:cacheprovider"]


class Outcome(NamedTuple):
    """Of each test "", or why it failed; and the seconds all took."""

    tests: dict[str, str]
    seconds: float


def outcome(python: str, here: bool, suite: Suite, folder: Path, limit: float) -> Outcome:
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch) / "found.xml"
        words = [*PYTEST, f"--junitxml={found}", *(["-k", suite.without] if suite.without else [])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
        begin = time.perf_counter()
        try:
            subprocess.run(
                [python, *(HERE if here else []), *words, *suite.tests],
                cwd=folder,
                env=env,
                timeout=limit,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return Outcome({}, limit)
        seconds = time.perf_counter() - begin
        return Outcome(read(found) if found.exists() else {}, seconds)


def read(path: Path) -> dict[str, str]:
    """The tests of a report in JUnit's format; skipped ones are left out."""
    found = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("skipped") is not None:
            continue
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        name = f"{case.get('classname')}::{case.get('name')}"
        found[name] = "" if bad is None else (bad.get("message") or "failed").strip().split("\n")[0]
    return found


def compared(suite: Suite, theirs: Outcome, ours: Outcome) -> tuple[str, list[str]]:
    """A line of the table, and the tests that pass with autograd alone, each with the reason."""
    passed = {k for k, why in theirs.tests.items() if not why}
    lost = sorted(k for k in passed if ours.tests.get(k, "was not run"))
    here = sum(not why for why in ours.tests.values())
    verdict = "unchanged" if theirs.tests and not lost else f"{len(lost)} do not"
    cells = (
        suite.name,
        suite.source,
        f"{len(passed)} of {len(theirs.tests)}",
        f"{here} of {len(ours.tests)}",
        verdict,
        f"{theirs.seconds:.0f} s",
        f"{ours.seconds:.0f} s",
    )
    return "| " + " | ".join(cells) + " |", [f"{k}: {ours.tests.get(k, 'was not run')[:160]}" for k in lost]


def report(
    suites: list[Suite], checkouts: Path, python: str = sys.executable, limit: float = 600
) -> list[str]:
    """The table in Markdown, and below it what is lost."""
    lines = [
        "| package | source | with autograd | here | passes | autograd | here |",
        "|---|---|---|---|---|---|---|",
    ]
    notes = []
    for suite in suites:
        folder = checkouts / suite.folder
        theirs, ours = (outcome(python, here, suite, folder, limit) for here in (False, True))
        line, lost = compared(suite, theirs, ours)
        lines.append(line)
        notes += [f"- {suite.name}: {text}" for text in lost]
        print(line, *notes[len(notes) - len(lost) :], sep="\n", flush=True)
    return [*lines, "", *notes]
