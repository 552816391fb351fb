"""Questions about values and functions are answered as by plain Python, or refused (tests/support/random)."""

import abc
import collections

import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.programs import derived
from gpt2.autodiff.record import interception, record, value_type
from gpt2.autodiff.record.value import Recorded
from tests.support.random.questions import check, write


def test_none_is_answered_wrongly():
    found = collections.Counter(check(write(seed)) for seed in range(600))
    assert found["right"] > 450


def names_but(left):
    """The names that are replaced while something is recorded, without those that `left` says are left."""
    return [(n, own, own if left(n, own) else others) for n, own, others in interception._names]


FAULTS = {
    "functions compared by `is` are replaced too": ([record, derived], "compared", lambda *args: ()),
    "a value has its own attributes": ([interception], "_names", names_but(lambda n, own: "hasattr" in own)),
    "abstract classes": ([interception], "_names", names_but(lambda n, own: n is vars(abc))),
    "names of types": ([value_type], "check_type_not_asked", lambda frame: None),
    "a Python complex is conjugated to one of NumPy's": ([Recorded], "weak", False),
}


@pytest.mark.parametrize("owners, name, fault", FAULTS.values(), ids=FAULTS)
def test_planted_faults_are_noticed(owners, name, fault, monkeypatch):
    for owner in owners:
        monkeypatch.setattr(owner, name, fault)
    with pytest.raises(AssertionError):
        for seed in range(3000):
            check(write(seed))


def test_type_of_a_comparison_is_refused():
    """The questions come to it once in some ten thousand."""

    def f(x):
        v = x == x
        return x * (2.0 if type(v) is bool else 3.0)

    with pytest.raises(ad.AutodiffError, match="type"):
        ad.compile(f)(1.5)
