"""A small mistake in a backward or a rule is noticed: a sample here, all 2135 in tests/long/mutate.py."""

import functools
import time

import pytest

from tests.support import mutants, mutation_checks
from tests.support.mutation_checks import HUNG, caught, passes
from tests.support.survivors import EXPLAINED, explanation

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def groups():
    return {
        "layers": mutants.of_layers(),
        "model": mutants.of_model(),
        "table": mutants.of_table(),
        "chain": mutants.of_chain(),
    }


def test_there_are_enough_of_them(groups):
    assert len(groups["layers"]) + len(groups["model"]) >= 300 and len(groups["table"]) >= 300
    assert {m.module for m in groups["layers"]} == {f"gpt2.layers.{name}" for name in mutants.LAYERS}


@pytest.mark.parametrize("group, every", [("layers", 41), ("model", 31), ("table", 131), ("chain", 61)])
def test_a_sample_is_caught(groups, group, every):
    sample = [m for m in groups[group][::every] if explanation(m) is None]
    assert len(sample) >= 4
    for m in {m.tests: m for m in sample}.values():
        passes(m)
    assert not [str(m) for m in sample if caught(m) is None]


def test_what_is_planted_is_taken_out_again(groups):
    m = next(m for m in groups["layers"] if m.before == "norm * scale" and m.after == "norm / scale")
    assert caught(m) == "test_backward_is_the_slope[layernorm]"
    passes(m)


def test_what_does_not_end_is_told_apart(groups, monkeypatch):
    """By the time that it works, not by the clock: a busy machine makes no mistake noticed."""

    def works_for_ever():
        while True:
            pass

    monkeypatch.setattr(mutation_checks, "SECONDS", 0.05)
    for test, text in ((works_for_ever, HUNG), (functools.partial(time.sleep, 0.2), None)):
        monkeypatch.setattr(mutation_checks, "checks", lambda m, test=test: [("a test", test)])
        assert caught(groups["layers"][0]) == text


def test_explanations_are_of_mistakes_that_exist(groups):
    """An explanation that fits nothing is left over from code that is gone."""
    keys = [m.key for group in groups.values() for m in group]
    for explained in EXPLAINED:
        assert any(all(e is None or e == k for e, k in zip(explained, key)) for key in keys), explained
