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


def compared_functions(monkeypatch):
    """All functions of NumPy's are replaced, also those that are compared by `is`."""
    for module in (record, derived):
        monkeypatch.setattr(module, "compared", lambda f, objects: ())


def attributes(monkeypatch):
    """A recorded value has its own attributes."""
    names = [(n, own, own if "hasattr" in own else others) for n, own, others in interception._names]
    monkeypatch.setattr(interception, "_names", names)


def abstract_classes(monkeypatch):
    names = [(n, own, own if n is vars(abc) else others) for n, own, others in interception._names]
    monkeypatch.setattr(interception, "_names", names)


def names_of_types(monkeypatch):
    monkeypatch.setattr(value_type, "check_type_not_asked", lambda frame: None)


def types_of_results(monkeypatch):
    """A Python complex is conjugated to one of NumPy's."""
    monkeypatch.setattr(Recorded, "weak", False)


PLANTS = [compared_functions, attributes, abstract_classes, names_of_types, types_of_results]


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_faults_are_noticed(plant, monkeypatch):
    plant(monkeypatch)
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
