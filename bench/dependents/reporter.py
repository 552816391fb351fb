"""A pytest plugin that writes each test's outcome and CPU time as a line of JSON to the file GPT2_OUTCOMES.

A test is stopped after GPT2_EACH CPU seconds. Tests that would begin after GPT2_LIMIT CPU seconds are
skipped.
"""

import json
import os
import signal
import time

import pytest

EACH, LIMIT = float(os.environ.get("GPT2_EACH", "inf")), float(os.environ.get("GPT2_LIMIT", "inf"))
LATE = "the time for all was over"  # suites.read looks for this text


class Clock:
    begin = 0.0


def append(row):
    with open(os.environ["GPT2_OUTCOMES"], "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def too_long(signum, frame):
    pytest.skip(f"more than {EACH:g} s")


def pytest_runtest_setup(item):
    if time.process_time() > LIMIT:
        pytest.skip(LATE)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    Clock.begin = time.process_time()
    if EACH != float("inf"):
        signal.signal(signal.SIGPROF, too_long)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    if EACH != float("inf"):
        signal.setitimer(signal.ITIMER_PROF, EACH)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def pytest_runtest_logreport(report):
    if report.when != "call" and report.outcome == "passed":
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    why = crash.message if crash else report.longrepr[2] if type(report.longrepr) is tuple else ""
    if report.outcome == "failed" and not why:
        why = str(report.longrepr)
    outcome = "xfailed" if hasattr(report, "wasxfail") and report.outcome == "skipped" else report.outcome
    row = {"test": report.nodeid, "outcome": outcome, "why": why.strip().split("\n")[0][:300]}
    append({**row, "seconds": time.process_time() - Clock.begin})


def pytest_collectreport(report):
    if report.failed:
        why = str(report.longrepr).strip().split("\n")[-1][:300]
        append({"test": report.nodeid, "outcome": "failed", "why": why, "seconds": 0.0})
