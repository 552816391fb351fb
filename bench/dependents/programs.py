"""The third-party programs: where each comes from, and which of its tests use autograd (programs.toml)."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Suite(NamedTuple):
    """A package with tests; programs.toml says what the fields are."""

    name: str
    source: str
    folder: str
    tests: Sequence[str]
    installed: Sequence[str] = ()
    only: str = ""


def read() -> list[Suite]:
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return [Suite(**suite) for suite in content["suites"]]


SUITES = read()

# autograd's examples. prelude.py replaces data_mnist, which downloads its digits
EXAMPLES = ("HIPS/autograd", "HIPS+autograd", "examples")
NOT_EXAMPLES = {"__init__.py", "data.py", "data_mnist.py"}
