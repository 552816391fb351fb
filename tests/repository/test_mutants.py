"""Tests notice a small mistake in a backward or a rule: a sample here, all in tests/long/mutate.py."""

import functools
import time

import pytest

from tests.support.mutants import checks, planting
from tests.support.mutants.checks import HUNG, caught, passes
from tests.support.mutants.planting import EXPLAINED, explanation

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mutants():
    return {group: find() for group, find in planting.GROUPS.items()}


def test_there_are_enough_mutants(mutants):
    assert len(mutants["layers"]) + len(mutants["model"]) >= 300 and len(mutants["table"]) >= 300
    assert {m.module for m in mutants["layers"]} == {f"gpt2.layers.{name}" for name in planting.LAYERS}


@pytest.mark.parametrize("group, every", [("layers", 41), ("model", 31), ("table", 131), ("chain", 61)])
def test_sample_of_mutants_is_caught(mutants, group, every):
    sample = [m for m in mutants[group][::every] if explanation(m) is None]
    assert len(sample) >= 4
    for m in {m.tests: m for m in sample}.values():
        passes(m)
    assert not [str(m) for m in sample if caught(m) is None]


def test_mutant_is_removed_again(mutants):
    m = next(m for m in mutants["layers"] if m.before == "norm * scale" and m.after == "norm / scale")
    assert caught(m) == "test_backward_is_the_slope[layernorm]"
    passes(m)


def test_endless_mutant_is_recognised(mutants, monkeypatch):
    """By processor time, not by the clock: on a busy machine a slow test is not a caught mutant."""

    def endless():
        while True:
            pass

    monkeypatch.setattr(checks, "SECONDS", 0.05)
    for test, result in ((endless, HUNG), (functools.partial(time.sleep, 0.2), None)):
        monkeypatch.setattr(checks, "checks", lambda m, test=test: [("a test", test)])
        assert caught(mutants["layers"][0]) == result


def test_explained_mutants_exist(mutants):
    """An explanation without a mutant is left over from code that is gone."""
    keys = [m.key for group in mutants.values() for m in group]
    for explained in EXPLAINED:
        assert any(all(e is None or e == k for e, k in zip(explained, key)) for key in keys), explained
