"""Parameters of tests: which of them the default run takes, which CI, and which tests.long.variants alone."""

import os
from collections.abc import Iterable

import pytest

ALL_VARIANTS = "GPT2_ALL_VARIANTS"  # the environment variable that tests.long.variants sets


def rest_slow(values: Iterable, keep: int = 1) -> list:
    """The first `keep` as they are, and the others with the mark `slow`."""
    values = list(values)
    return values[:keep] + [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for value in values[keep:]
    ]


def sampled(sample: Iterable, values: Iterable) -> list:
    """The sample, or with `python -m tests.long.variants` all of the values."""
    return list(values if ALL_VARIANTS in os.environ else sample)
