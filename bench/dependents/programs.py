"""The third-party programs: where each comes from, and which of its tests use autograd."""

from __future__ import annotations

from typing import NamedTuple


class Suite(NamedTuple):
    """A package with tests. `source`: a name on PyPI, or owner/name on GitHub; `folder`: of the checkout."""

    name: str
    source: str
    folder: str
    tests: tuple[str, ...]
    installed: tuple[str, ...] = ()  # packages that pip installs for it
    only: str = ""  # pytest's -k: tests that use autograd and have their requirements installed


# surpyval's tests that mention autograd, and those of its distributions
OF_SURPYVAL = (
    "test_autograd_gamma_compat_shapes",
    "utils/test_autograd_where",
    "utils/test_incomplete_beta",
    "utils/test_normal",
    "univariate/parametric/test_custom_distribution",
    "univariate/parametric/test_distributions_math",
    "univariate/parametric/test_distribution_tails",
    "univariate/parametric/test_censored_hessian",
    "univariate/parametric/test_shared_signatures",
    "univariate/parametric/test_discrete",
    "univariate/parametric/test_fit",
    "univariate/regression/test_exact_information",
    "univariate/regression/test_proportional_hazards",
    "univariate/regression/test_frailty",
    "recurrent/test_cox_lewis",
    "recurrent/test_renewal",
    "multivariate/test_archimedean",
)
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
        "Parametric or Exponential or LogNormal or LogLogistic or Weibull or GeneralizedGamma or AFT or "
        "CustomRegression or MixtureCure or npmle",
    ),
    Suite(
        "surpyval",
        "surpyval==0.25",
        "surpyval-0.25",
        tuple(f"surpyval/tests/{name}.py" for name in OF_SURPYVAL),
        ("surpyval==0.25",),
    ),
)

# autograd's examples. prelude.py replaces data_mnist, which downloads its digits
EXAMPLES = ("HIPS/autograd", "HIPS+autograd", "examples")
NOT_EXAMPLES = {"__init__.py", "data.py", "data_mnist.py"}
