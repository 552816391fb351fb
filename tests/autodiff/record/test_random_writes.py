"""Writes of every kind into arrays of every dtype give NumPy's bits, or its error (tests/support/random)."""

import collections

import pytest

from gpt2.autodiff.record import interception, ufunc_methods, value
from gpt2.autodiff.record.functions import inplace, shape
from tests.support.random.writes import check, write


def test_none_is_silently_wrong():
    found = collections.Counter(check(write(seed)) for seed in range(300))
    assert found["right"] > 150


FAULTS = {
    "y.flat[a:b] is a view": ([value.Flat], "__getitem__", lambda self, key: self.base.reshape(-1)[key]),
    "np.add.at casts what is added": ([ufunc_methods], "_adds_in", lambda dtype, values: dtype),
    "whether NumPy refuses a number is asked in the first call alone": (
        [value, inplace, shape, interception], "note_conversion", lambda *args, **scalars: None
    ),
    "what is written may overlap": ([value, inplace], "check_apart", lambda *args, **options: None),
}  # fmt: skip


@pytest.mark.parametrize("owners, name, fault", FAULTS.values(), ids=FAULTS)
def test_planted_faults_are_noticed(owners, name, fault, monkeypatch):
    for owner in owners:
        monkeypatch.setattr(owner, name, fault)
    with pytest.raises(AssertionError):
        for seed in range(3000):
            check(write(seed))
