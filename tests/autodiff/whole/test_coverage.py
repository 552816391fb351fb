"""Every NumPy function that the documentation names is differentiated, in both modes, to second order."""

import operator
import re
import subprocess
import sys

import numpy as np
import pytest

from docs import coverage
from gpt2.autodiff.check.check_grads import check_grads
from gpt2.autodiff.ops import OPS
from tests.support.calls.numpy_calls import CALLS, CONSTANT
from tests.support.calls.op_samples import samples_of

TEXT = coverage.PAGE.read_text(encoding="utf-8")
OTHERS = TEXT.split("## Functions without a rule, and why")[1]
WITHOUT = re.findall(r"np\.[\w.]*\w", " ".join(re.findall(r"^\| (np.*?) \|", OTHERS.split("### ")[0], re.M)))


def has(name):
    """Whether this NumPy has the function, "np.linalg.inv" say."""
    try:
        operator.attrgetter(name.removeprefix("np."))(np)
    except AttributeError:
        return False
    return True


def arguments(shapes):
    rng = np.random.default_rng(0)

    def draw(shape):
        return rng.uniform(0.3, 2.0, shape) * rng.choice([-1.0, 1.0], size=shape)

    return tuple(draw(s) if isinstance(s, tuple) else s for s in shapes)


# Functions that came after NumPy 2.0, where this is an older one
MISSING = {name for name in CALLS if not has(name)}


@pytest.mark.parametrize("name", CALLS)
def test_derivatives(name):
    if name in MISSING:
        pytest.skip(f"NumPy {np.__version__} has no {name}")
    for f, *shapes in CALLS[name]:
        check_grads(f, arguments(shapes), order=2)


def test_every_function_on_the_page_is_called():
    listed = {name for names in coverage.supported_functions().values() for name in names}
    rows = {f"np.{name}" for name, op in list(OPS.items()) if samples_of(name)}  # ufuncs are tested there
    assert listed - rows - set(CALLS) - CONSTANT == set()
    assert set(CALLS) - MISSING - listed == set()


# Functions that NumPy had up to 2.4
GONE = set(WITHOUT) - {name for name, _ in coverage.public_functions()}


@pytest.mark.skipif(
    bool(MISSING or GONE), reason=f"the page is made with another NumPy than {np.__version__}"
)
def test_the_page_is_up_to_date():
    assert coverage.page() == TEXT, "run: python -m docs.coverage"


def test_every_public_function_is_recorded_or_has_its_reason():
    """One reason each, and none for a function that is recorded."""
    given = set(WITHOUT)
    assert len(given) == len(WITHOUT)
    without = set(coverage.without_rule())
    assert not without - given, f"neither recorded nor in the table of reasons: {sorted(without - given)}"
    there = {name for name, _ in coverage.public_functions()}
    both = given & there - without
    assert not both, f"recorded, so take them out of the table of reasons: {sorted(both)}"
    cells = re.findall(r"^\| (np\..*?) \|", OTHERS.split("### ")[1], re.M)
    assert set(coverage.public_modules()) - set(", ".join(cells).split(", ")) == set()
    assert len(there) > 300


# what is not a NumPy function, but a part of that library
INTERNAL = {
    "__getitem__", "_array_from_scalar_or_array", "_make_dict", "array_from_args", "concatenate_args",
    "container_take", "container_untake", "covector", "dot_adjoint_0", "dot_adjoint_1", "inner_prod",
    "make_sequence", "mut_add", "scalar_mul", "sequence_extend_left", "sequence_extend_right", "sparse_add",
    "tensordot_adjoint_0", "tensordot_adjoint_1", "truncate_pad", "untake", "make_diagonal", "astype",
}  # fmt: skip


def test_what_hips_autograd_differentiates_is_covered():
    pytest.importorskip("autograd")
    # in a fresh interpreter: rules enter its table on import, those of autograd.scipy as well
    program = """
import autograd.numpy.fft, autograd.numpy.linalg
from autograd.core import primitive_vjps
print(*{getattr(f, "__name__", "") for f in primitive_vjps})"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    theirs = set(run.stdout.split()) - INTERNAL
    assert len(theirs) > 100
    ours = {name.rsplit(".", 1)[-1] for names in coverage.supported_functions().values() for name in names}
    assert theirs - {"amax", "amin"} - ours == set() and {"max", "min"} <= ours
