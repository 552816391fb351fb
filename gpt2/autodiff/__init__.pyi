"""The names of the package, for type checkers: at run time they are loaded on first use."""

from .anomaly import AnomalyError, detect_anomaly
from .checks import check_backward, check_grads
from .custom import checkpoint, custom_jvp, custom_vjp, stop_gradient
from .enzyme import Active, Const, Duplicated, autodiff
from .errors import AutodiffError
from .maps import parallel_map
from .pipeline import options
from .runtime import get_threads, set_threads
from .scans import scan
from .show import source, stages, why_recorded
from .transforms import compile, grad, hessian, hvp, jacobian, jvp, value_and_grad, vjp

__all__ = [
    "Active",
    "AnomalyError",
    "AutodiffError",
    "Const",
    "Duplicated",
    "autodiff",
    "check_backward",
    "check_grads",
    "checkpoint",
    "compile",
    "custom_jvp",
    "custom_vjp",
    "detect_anomaly",
    "get_threads",
    "grad",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "options",
    "parallel_map",
    "scan",
    "set_threads",
    "source",
    "stages",
    "stop_gradient",
    "value_and_grad",
    "vjp",
    "why_recorded",
]
