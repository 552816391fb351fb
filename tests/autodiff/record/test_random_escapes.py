"""Random functions that take plain numbers out of recorded values: refused, or differentiated as written."""

import collections
import sys

import pytest

from gpt2.autodiff.record import plain_numbers, recorder
from tests.support.random.escapes import check, write

Flow = plain_numbers._Flow


def test_none_is_silently_wrong():
    found = collections.Counter(check(write(seed)) for seed in range(150))
    assert found["right"] > 75 and found["refused"] > 20


def harmless(*names):
    """A number is not followed beyond these instructions."""
    effect = Flow.effect

    def faulty(self, ins, state):
        if ins.opname not in names:
            return effect(self, ins, state)
        n = ins.arg or 0
        pops = {"BUILD_LIST": n, "BUILD_MAP": 2 * n, "CALL": n + 2, "STORE_SUBSCR": 3, "YIELD_VALUE": 1}
        return pops.get(ins.opname, 2), ins.opname != "STORE_SUBSCR", "ends"

    return Flow, "effect", faulty


def without_handlers(self, *args, init=Flow.__init__):
    init(self, *args)
    self.handlers = []


def without_callers(*args, fate=plain_numbers._fate):
    return fate(*args).replace(plain_numbers.RETURNS, plain_numbers.DECIDES)


def in_place_like_others(self, ins, state, computed=Flow.computed):
    pops, pushes, what = computed(self, ins, state)
    return pops, pushes, "passes" if what == "loses" and ins.argrepr.endswith("=") else what


inner_comprehensions = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="comprehensions, the functions inside of these programs, are inlined"
)


# What is replaced and by what, and the program that notices it first
@pytest.mark.parametrize("owner, name, fault, first", [
    (*harmless("BINARY_OP"), 35),
    (*harmless("BUILD_LIST"), 41),
    (*harmless("BUILD_MAP"), 685),
    (*harmless("BUILD_TUPLE", "UNPACK_SEQUENCE"), 74),
    (*harmless("CALL"), 35),
    (*harmless("STORE_SUBSCR"), 230),
    (Flow, "stored", lambda self, ins, state: state.after(ins.opname != "DELETE_FAST"), 11),
    (Flow, "__init__", without_handlers, 131),
    pytest.param(Flow, "check_inner", lambda self, name: None, 11, marks=inner_comprehensions),
    (plain_numbers, "JUMPS", frozenset(), 35),
    (plain_numbers, "_fate", without_callers, 42),
    (plain_numbers, "_SHOW_VARIABLES", frozenset(), 1080),
    (recorder.Recorder, "has_derivative", lambda self, node: False, 11),
    (Flow, "computed", in_place_like_others, 556),
])  # fmt: skip
def test_planted_faults_are_noticed(owner, name, fault, first, monkeypatch):
    """By the program that noticed first, or by one of the next."""
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(AssertionError):
        for seed in range(first, first + 2000):
            check(write(seed))
