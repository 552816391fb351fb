"""Parameters of which the default run takes the first, and CI all."""

from collections.abc import Iterable

import pytest


def rest_slow(values: Iterable, keep: int = 1) -> list:
    """The first `keep` as they are, and the others with the mark `slow`."""
    values = list(values)
    return values[:keep] + [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for value in values[keep:]
    ]
