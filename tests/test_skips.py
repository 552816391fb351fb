"""Where nothing may be missing, a skip is a failure (tests/conftest.py)."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from docs import house

TESTS = Path(__file__).resolve().parent

SKIPS = """
import pytest

def test_a_package_that_is_missing():
    pytest.importorskip("no_such_package")

@pytest.mark.skipif(True, reason="a reason of its own")
def test_marked():
    pass

def test_without_a_browser():
    pytest.skip("NOT CHECKED IN A BROWSER: none is installed")

def test_without_the_corpus():
    pytest.skip("needs tinyshakespeare: no network")

@pytest.mark.xfail
def test_that_is_expected_to_fail():
    assert False
"""


def outcome(folder, **environment):
    """(counts, skips by reason): the last two lines of pytest for SKIPS and a module that skips itself."""
    (folder / "test_skips.py").write_text(SKIPS)
    (folder / "test_module.py").write_text('import pytest\npytest.importorskip("no_such_package")\n')
    said = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GPT2_REQUIRE_PEERS", "GPT2_DATA_DIR", "TIKTOKEN_CACHE_DIR")
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "conftest",
        "--continue-on-collection-errors",
        "--rootdir",
        str(folder),
        str(folder),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**said, "PYTHONPATH": str(TESTS), **environment},
    )
    *_, reasons, counts = done.stdout.splitlines()
    return counts.split(" in ")[0], reasons


@pytest.mark.slow
def test_a_skip_is_a_failure_where_nothing_may_be_missing(tmp_path):
    counts, reasons = outcome(tmp_path)
    assert counts == "5 skipped, 1 xfailed"
    assert reasons == (
        "skipped: not installed: no_such_package (2); pip install -e '.[peers]' brings them; "
        "a reason of its own (1); NOT CHECKED IN A BROWSER (1); needs tinyshakespeare (1)"
    )
    assert outcome(tmp_path, GPT2_REQUIRE_PEERS="1")[0] == "1 failed, 2 skipped, 1 xfailed, 2 errors"
    there = {"GPT2_REQUIRE_PEERS": "1", "GPT2_DATA_DIR": "/data"}  # so the corpus has to be there as well
    assert outcome(tmp_path, **there)[0] == "2 failed, 1 skipped, 1 xfailed, 2 errors"


# What a test may import without asking: what `pip install -e '.[test]'` brings, and what lies here
PROJECT = tomllib.loads((TESTS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BROUGHT = [
    re.match(r"[\w-]+", requirement)[0].replace("-", "_")
    for requirement in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]
] + ["attr", "regex"]  # of attrs and of tiktoken
HERE = "gpt2 tests bench docs data train examples support".split()
THERE = {*sys.stdlib_module_names, *BROUGHT, *HERE}


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: path.stem)
def test_what_need_not_be_installed_is_asked_for_before_it_is_imported(path):
    """Else pytest ends with an error, and runs no test, where PyTorch or JAX is not installed."""
    for statement in house.parsed(path).body:
        if "importorskip" in (text := ast.unparse(statement)) or "allow_module_level" in text:
            return
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            names = [statement.module]
        else:
            continue
        assert {name.partition(".")[0] for name in names} <= THERE, text
