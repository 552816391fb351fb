"""Writes of every kind into arrays of every dtype give NumPy's bits, or its error (tests/support/random)."""

import collections

import pytest

from gpt2.autodiff.record import interception, ufunc_methods, value
from gpt2.autodiff.record.functions import inplace, shape
from tests.support.random.writes import check, write


def test_none_is_silently_wrong():
    found = collections.Counter(check(write(seed)) for seed in range(300))
    assert found["right"] > 150


def flat_views(monkeypatch):
    """y.flat[a:b] is a view."""
    monkeypatch.setattr(value.Flat, "__getitem__", lambda self, key: self.base.reshape(-1)[key])


def casts_first(monkeypatch):
    """np.add.at casts what is added to the dtype of the array."""
    monkeypatch.setattr(ufunc_methods, "_adds_in", lambda dtype, values: dtype)


def forgets_errors(monkeypatch):
    """Whether NumPy refuses a number is asked in the first call alone."""
    for module in (value, inplace, shape, interception):
        monkeypatch.setattr(module, "note_conversion", lambda *args, **scalars: None)


def reads_what_is_written(monkeypatch):
    """A write may overlap the values that it writes."""
    for module in (value, inplace):
        monkeypatch.setattr(module, "check_apart", lambda *args, **options: None)


@pytest.mark.parametrize("plant", [flat_views, casts_first, forgets_errors, reads_what_is_written])
def test_planted_faults_are_noticed(plant, monkeypatch):
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(3000):
            check(write(seed))
