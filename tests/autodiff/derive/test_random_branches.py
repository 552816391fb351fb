"""Random programs of guarded branches: gradients are those of the branches taken, without nan or infinity."""

import collections

import pytest

from gpt2.autodiff.derive import chain_rule
from gpt2.autodiff.derive.chain_rule import Masked
from tests.support.random.branches import check, write


def test_none_is_silently_wrong():
    found = collections.Counter(check(write(seed)) for seed in range(60))
    assert found["right"] > 40


def masks_that_meet(monkeypatch):
    """Gradients under two masks are added up, and counted everywhere."""
    total = chain_rule.total

    def faulty(parts):
        g = total(parts)
        return g.applied() if len(parts) > 1 and isinstance(g, Masked) and g.mask is None else g

    monkeypatch.setattr(chain_rule, "total", faulty)


def masks_in_masks(monkeypatch):
    monkeypatch.setattr(Masked, "under", lambda g, mask, side: Masked(g.applied(), mask, side))


def casts(monkeypatch):
    monkeypatch.setattr(Masked, "through", lambda g, linear, arg: linear(g.applied()))


@pytest.mark.parametrize("plant", [masks_that_meet, masks_in_masks, casts])
def test_planted_faults_are_noticed(plant, monkeypatch):
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(100):
            check(write(seed))
