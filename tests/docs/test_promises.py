"""Every promise in docs/promises.md names a test, and the tests and long runs it names exist."""

import re

from tests import ROOT

PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")


def test_every_test_named_exists():
    named = re.findall(r"`(tests/[\w/]*test_\w+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 20
    for path, test in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^def {test}\(" if test else r"^def test_", source, re.M), (path, test)


def test_every_long_run_named_exists():
    named = re.findall(r"python (?:-m tests\.long\.|tests/long/)(\w+)", PAGE)
    assert len(set(named)) >= 5
    for name in named:
        assert (ROOT / "tests" / "long" / f"{name}.py").exists(), name


def test_every_promise_names_a_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    promises = [r for r in rows if not re.match(r"\|[- |]+\|$|\| Promise \|", r)]
    assert len(promises) > 15
    for row in promises:
        promise, held_by = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert promise and re.search(r"tests[/.]", held_by), row
