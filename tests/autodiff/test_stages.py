"""The stages of the compiler know each other as tests/house.py's table says, and no more."""

import pytest

from docs import house
from tests.house import STAGES, stage

FILES = {name: path for name, path in house.files().items() if stage(name)}
# Imports inside functions, each with its reason: a circle could hide in one
INSIDE_FUNCTIONS = {
    ("gpt2.autodiff.interplay", "torch"): "a package that need not be there, and is asked for by name",
    ("gpt2.autodiff.interplay", "jax"): "as above",
    (
        "gpt2.autodiff.emit.numexpr",
        "numexpr",
    ): "one of two backends for elementwise work, loaded when it is asked for",
    (
        "gpt2.autodiff.record.ufuncs",
        "gpt2.autodiff.ops.special",
    ): "SciPy's rules, loaded where SciPy is, when one of its ufuncs is first recorded",
}
CASES = pytest.mark.parametrize("module", sorted(FILES))


def known_by(module):
    """The stages that a module's imports lead to, in functions or not."""
    found = {house.longest(i.target, FILES) for i in house.imports(FILES[module])}
    return {stage(name) for name in found if name} - {stage(module)}


def test_every_stage_has_a_row():
    assert set(STAGES) == {stage(name) for name in FILES}


def test_no_row_names_a_stage_below_it():
    """So there is no circle of stages, and no arrow back up."""
    order = list(STAGES)
    for name, known in STAGES.items():
        assert known <= set(order[: order.index(name)]), name


@CASES
def test_arrows_between_the_stages(module):
    assert known_by(module) <= STAGES[stage(module)]


def test_every_allowed_arrow_is_needed():
    """An arrow that nothing needs any more is to be taken out of the table, so that it does not come back."""
    needed = {name: set() for name in STAGES}
    for module in FILES:
        needed[stage(module)] |= known_by(module)
    assert needed == STAGES


def test_no_import_hides_in_a_function():
    """Both ways: none that is not in the table, and no row that is out of date."""
    found = {(name, i.target) for name, path in FILES.items() for i in house.imports(path) if i.inside}
    assert found == set(INSIDE_FUNCTIONS)
