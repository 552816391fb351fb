"""Loads packages beside the compiler's core, which does not import them, when they are first used."""

from __future__ import annotations

import importlib
from typing import Any


def beside(module: str) -> Any:
    """A module beside the core, by its name within gpt2.autodiff."""
    return importlib.import_module(f".{module}", __package__)
