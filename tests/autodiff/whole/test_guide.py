"""The examples of the guide give what the guide says."""

import doctest
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "autodiff.md"


def test_examples():
    failed, tried = doctest.testfile(str(GUIDE), module_relative=False)
    assert tried > 20
    assert not failed
