"""Random worlds that change between calls: the answer is always the current one.

tests.long.seeds makes a hundred thousand changes."""

import builtins

import numpy as np
import pytest

from gpt2 import autodiff as ad
from tests.support.slow import rest_slow
from tests.support.worlds.random_worlds import ACTING, KINDS, STEPS, check_acting, check_world

UNDERSTOOD = (
    "a_dict a_list a_set a_frozenset an_array array_as_operand a_dtype scalar instance instance_with_slots "
    "data_class namespace named_tuple enumeration class_made_at_run_time class_itself function bound_method "
    "a_partial module functions_inside"
).split()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(KINDS))
def test_things_of_one_kind(name):
    """Functions that are understood are not recorded at each call, or this would not test guards."""
    understood = sum(check_world(seed, [name]) for seed in range(3))
    assert understood > STEPS or name not in UNDERSTOOD


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", rest_slow(range(0, 120, 20)))
def test_random_worlds(start):
    understood = sum(map(check_world, range(start, start + 20)))
    assert understood > 2 * STEPS, "the test is for a guard that holds now and then"


@pytest.mark.parametrize("name", sorted(ACTING))
def test_functions_that_act_run_at_each_call(name):
    check_acting(name)


def test_nothing_stays_changed():
    """The worlds put back what they did to NumPy and to the built-in names."""
    assert divmod(7, 2) == (3, 1) and np.maximum(1, 2) == 2
    assert not hasattr(np, "rate_of_the_fuzzer") and not hasattr(builtins, "rate_of_the_fuzzer")
    assert ad.compile(lambda x: np.maximum(x, 1.0))(0.0) == 1.0
