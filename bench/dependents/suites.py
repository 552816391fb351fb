"""Run a package's tests with autograd and with this compiler in its place, and compare outcomes and times.

Times are CPU seconds, which other programs on the machine affect little.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = ["-m", "gpt2.autodiff.compat.autograd"]
PYTEST = ["-m", "pytest", "-q", "-c", os.devnull, "--rootdir=.", "--noconftest", "-p", "no:cacheprovider"]
REPORTER = ["-p", "bench.dependents.reporter"]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Suite(NamedTuple):
    """A package with tests; programs.toml says what the fields are."""

    name: str
    source: str
    folder: str
    tests: Sequence[str]
    installed: Sequence[str] = ()
    only: str = ""


TABLE = tomllib.loads(Path(__file__).with_name("programs.toml").read_text(encoding="utf-8"))
SUITES = [Suite(**suite) for suite in TABLE["suites"]]


class Outcome(NamedTuple):
    """tests: test -> "" or why it failed. seconds: of the same tests. unfinished: those over the limits."""

    tests: dict[str, str]
    seconds: dict[str, float]
    unfinished: set[str]


def outcome(python: str, here: bool, suite: Suite, folder: Path, each: float, limit: float) -> Outcome:
    """each, limit: CPU seconds for a test, and for the run, after which no further test begins."""
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = Path(scratch) / "outcomes"
        outcomes.touch()
        words = [*PYTEST, *REPORTER, *(["-k", suite.only] if suite.only else []), *suite.tests]
        path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
        bounds = {"GPT2_OUTCOMES": str(outcomes), "GPT2_EACH": str(each), "GPT2_LIMIT": str(limit)}
        env = {**os.environ, **ONE_THREAD, **bounds, "PYTHONPATH": path}
        command = [python, *(HERE if here else []), *words]
        subprocess.run(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return read(outcomes)


def read(path: Path) -> Outcome:
    """The Outcome from the file of reporter.py, skipped tests left out."""
    tests, seconds, unfinished = {}, {}, set()
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        name, outcome, why = row["test"], row["outcome"], row["why"]
        if outcome in ("passed", "failed"):
            tests[name] = "" if outcome == "passed" else why or "failed"
            seconds[name] = row["seconds"]
        elif outcome == "skipped" and ("more than" in why or "the time for all" in why):
            unfinished.add(name)
    return Outcome(tests, seconds, unfinished)


def compared(suite: Suite, theirs: Outcome, ours: Outcome) -> tuple[str, list[str]]:
    """A row of the table, and the tests that pass with autograd only, each with the reason."""
    both = theirs.tests.keys() & ours.tests.keys()
    passed = {k for k, why in theirs.tests.items() if not why}
    lost = sorted(k for k in passed if ours.tests.get(k, "not run" if k not in ours.unfinished else ""))
    gained = [k for k in both if theirs.tests[k] and not ours.tests[k]]
    verdict = "unchanged" if passed and not lost else f"all but {len(lost)}"
    verdict += f"; {len(gained)} more here" if gained else ""
    if unfinished := theirs.unfinished | ours.unfinished:
        verdict += f"; {len(unfinished)} did not end in the time ({len(theirs.unfinished)} with autograd)"
    cells = (
        suite.name,
        suite.source,
        f"{sum(not theirs.tests[k] for k in both)} of {len(both)}",
        f"{sum(not ours.tests[k] for k in both)} of {len(both)}",
        verdict,
        f"{sum(theirs.seconds[k] for k in both):.0f} s",
        f"{sum(ours.seconds[k] for k in both):.0f} s",
    )
    return "| " + " | ".join(cells) + " |", [f"{k}: {ours.tests.get(k, 'was not run')[:160]}" for k in lost]


def report(suites: list[Suite], checkouts: Path, python: str, *limits: float) -> None:
    """Print the table in Markdown; below each row the tests that fail here only, and those that lose the most
    time to autograd.
    """
    if suites:
        print("| package | source | with autograd | here | passes | autograd | here |")
        print("|---|---|---|---|---|---|---|")
    for suite in suites:
        folder = checkouts / suite.folder
        with ThreadPoolExecutor(2) as pool:
            runs = [pool.submit(outcome, python, here, suite, folder, *limits) for here in (False, True)]
            theirs, ours = (run.result() for run in runs)
        row, lost = compared(suite, theirs, ours)
        print(row, *(f"- {suite.name}: {text}" for text in lost), sep="\n")
        both = theirs.seconds.keys() & ours.seconds.keys()
        for k in sorted(both, key=lambda k: theirs.seconds[k] - ours.seconds[k])[:3]:
            print(f"  slow: {k}: {theirs.seconds[k]:.1f} s and {ours.seconds[k]:.1f} s", flush=True)
