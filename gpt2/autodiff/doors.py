"""Doors from the compiler's core to the rooms beside it, which are loaded when one is first used.

The core imports none of these rooms, and records, derives and runs without them. docs/architecture.md lists
both.
"""

from __future__ import annotations

import importlib
from typing import Any


def beside(module: str) -> Any:
    """A module of a room beside the core, by its name within gpt2.autodiff."""
    return importlib.import_module(f".{module}", __package__)
