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
    """Plant: a number is not followed beyond these instructions."""

    def plant(monkeypatch):
        effect = Flow.effect

        def faulty(self, ins, state):
            if ins.opname not in names:
                return effect(self, ins, state)
            n = ins.arg or 0
            pops = {"BUILD_LIST": n, "BUILD_MAP": 2 * n, "CALL": n + 2, "STORE_SUBSCR": 3, "YIELD_VALUE": 1}
            return pops.get(ins.opname, 2), ins.opname != "STORE_SUBSCR", "ends"

        monkeypatch.setattr(Flow, "effect", faulty)

    return plant


def forgetting_variables(monkeypatch):
    monkeypatch.setattr(Flow, "stored", lambda self, ins, state: state.after(ins.opname != "DELETE_FAST"))


def without_handlers(monkeypatch):
    init = Flow.__init__

    def faulty(self, *args):
        init(self, *args)
        self.handlers = []

    monkeypatch.setattr(Flow, "__init__", faulty)


inner_comprehensions = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="comprehensions, the functions inside of these programs, are inlined"
)


def without_functions_inside(monkeypatch):
    monkeypatch.setattr(Flow, "check_inner", lambda self, name: None)


def without_jumps(monkeypatch):
    monkeypatch.setattr(plain_numbers, "JUMPS", frozenset())


def without_callers(monkeypatch):
    fate = plain_numbers._fate
    monkeypatch.setattr(
        plain_numbers,
        "_fate",
        lambda *args: fate(*args).replace(plain_numbers.RETURNS, plain_numbers.DECIDES),
    )


def blind_to_locals(monkeypatch):
    monkeypatch.setattr(plain_numbers, "_SHOW_VARIABLES", frozenset())


def numbers_for_constants(monkeypatch):
    monkeypatch.setattr(recorder.Recorder, "has_derivative", lambda self, node: False)


def in_place_like_others(monkeypatch):
    computed = Flow.computed

    def faulty(self, ins, state):
        pops, pushes, what = computed(self, ins, state)
        return pops, pushes, "passes" if what == "loses" and ins.argrepr.endswith("=") else what

    monkeypatch.setattr(Flow, "computed", faulty)


@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (harmless("BINARY_OP"), 35),
        (harmless("BUILD_LIST"), 41),
        (harmless("BUILD_MAP"), 685),
        (harmless("BUILD_TUPLE", "UNPACK_SEQUENCE"), 74),
        (harmless("CALL"), 35),
        (harmless("STORE_SUBSCR"), 230),
        (forgetting_variables, 11),
        (without_handlers, 131),
        pytest.param(without_functions_inside, 11, marks=inner_comprehensions),
        (without_jumps, 35),
        (without_callers, 42),
        (blind_to_locals, 1080),
        (numbers_for_constants, 11),
        (in_place_like_others, 556),
    ],
)
def test_planted_faults_are_noticed(plant, first, monkeypatch):
    """By the program that noticed first, or by one of the next."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(first, first + 2000):
            check(write(seed))
