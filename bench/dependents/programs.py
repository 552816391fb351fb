"""Which programs: where each comes from, and which of its tests use autograd."""

from __future__ import annotations

from typing import NamedTuple


class Suite(NamedTuple):
    """A package with tests. `source`: a name on PyPI, or owner/name on GitHub; `folder`: of the checkout."""

    name: str
    source: str
    folder: str
    tests: tuple[str, ...]
    installed: tuple[str, ...] = ()  # what pip installs for it
    without: str = ""  # pytest's -k, for tests that need what is not installed


SUITES = (
    Suite("autograd's own tests", "HIPS/autograd", "HIPS+autograd", ("tests",)),
    Suite(
        "autograd-gamma",
        "CamDavidsonPilon/autograd-gamma",
        "CamDavidsonPilon+autograd-gamma",
        ("tests",),
        ("autograd-gamma==0.5.0",),
    ),
    Suite("grcwa", "grcwa==0.1.2", "grcwa-0.1.2", ("tests",), ("grcwa==0.1.2",)),
    Suite(
        "ceviche",
        "fancompute/ceviche",
        "fancompute+ceviche",
        (
            "tests/test_primitives.py",
            "tests/test_param_opt.py",
            "tests/test_gradients_fdfd.py",
            "tests/test_gradients_fdfd_complex.py",
            "tests/test_gradients_fdtd.py",
        ),
        ("ceviche==0.1.3",),
    ),
    Suite(
        "pymanopt",
        "pymanopt==2.2.1",
        "pymanopt-2.2.1",
        ("tests/backends/test_autograd.py", "tests/optimizers", "tests/manifolds"),
        ("pymanopt==2.2.1",),
    ),
    Suite(
        "lifelines",
        "lifelines==0.30.3",
        "lifelines-0.30.3",
        ("lifelines/tests/test_estimation.py", "lifelines/tests/test_npmle.py"),
        ("lifelines==0.30.3", "flaky"),
        "not Breslow",
    ),
    Suite(
        "surpyval",
        "surpyval==0.25",
        "surpyval-0.25",
        ("surpyval/tests/univariate",),
        ("surpyval==0.25",),
    ),
)

# autograd's examples. data_mnist fetches its digits from the network, so they get invented ones
EXAMPLES = ("HIPS/autograd", "HIPS+autograd", "examples")
NOT_EXAMPLES = {"__init__.py", "data.py", "data_mnist.py"}
