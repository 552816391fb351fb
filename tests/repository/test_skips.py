"""GPT2_REQUIRE_PEERS=1 turns skips into failures, GPT2_PASSED leaves tests out (tests/conftest.py)."""

import os
import subprocess
import sys

import pytest

from tests import ROOT

TESTS = ROOT / "tests"

SKIPS = """
import pytest

def test_a_package_that_is_missing():
    pytest.importorskip("no_such_package")

@pytest.mark.skipif(True, reason="another reason")
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
    """(counts, skips by reason): pytest's last two lines for SKIPS and a module that skips itself."""
    (folder / "test_skips.py").write_text(SKIPS)
    (folder / "test_module.py").write_text('import pytest\npytest.importorskip("no_such_package")\n')
    unset = ("GPT2_PASSED", "GPT2_REQUIRE_PEERS", "GPT2_DATA_DIR", "TIKTOKEN_CACHE_DIR")
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    environment = {**inherited, "PYTHONPATH": str(TESTS), **environment}
    flags = "-m pytest -q -p conftest --continue-on-collection-errors --rootdir".split()
    command = [sys.executable, *flags, str(folder), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    *_, reasons, counts = done.stdout.splitlines()
    return counts.split(" in ")[0], reasons


@pytest.mark.slow
def test_skip_is_a_failure_where_peers_are_required(tmp_path):
    counts, reasons = outcome(tmp_path)
    assert counts == "5 skipped, 1 xfailed"
    assert reasons == (
        "skipped: not installed: no_such_package (2); pip install -e '.[peers]' brings them; "
        "another reason (1); NOT CHECKED IN A BROWSER (1); needs tinyshakespeare (1)"
    )
    assert outcome(tmp_path, GPT2_REQUIRE_PEERS="1")[0] == "1 failed, 2 skipped, 1 xfailed, 2 errors"
    # requires the corpus as well
    counts, _ = outcome(tmp_path, GPT2_REQUIRE_PEERS="1", GPT2_DATA_DIR="/data")
    assert counts == "2 failed, 1 skipped, 1 xfailed, 2 errors"
    (tmp_path / "passed").write_text("test_skips.py::test_marked\nanother.py::test_marked\n")
    assert outcome(tmp_path, GPT2_PASSED=str(tmp_path / "passed"))[0] == "4 skipped, 1 deselected, 1 xfailed"
