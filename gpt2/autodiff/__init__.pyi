"""The names of the package, for type checkers, and for __init__.py, which loads them on first use."""

from . import tree
from .check.check_grads import BackwardMismatch, check_backward, check_grads
from .custom.custom import callback, checkpoint, custom_jvp, custom_vjp, stop_gradient
from .enzyme import Active, Const, Duplicated, autodiff
from .errors import AutodiffError, ConvergenceError
from .implicit.equations import fixed_point, root
from .implicit.linear_solve import custom_linear_solve
from .interop import as_numpy, from_jax, from_torch, to_jax, to_torch
from .loops.parallel_map import parallel_map
from .loops.scan import scan
from .loops.while_loop import while_loop
from .ops.anomaly import AnomalyError
from .programs.compile import compile
from .programs.fixed import Fixed, FixedPair
from .programs.flops import flops
from .programs.repeated import repeated
from .reuse.watch import watch
from .run.blas import axpby, blas_kernels, limit_blas_threads
from .run.caches import cache_bytes, in_cache
from .run.remembered import Choices, processor, remember
from .run.threads import get_threads, prefer_threads, run_apart, run_on_threads, set_threads
from .show.explain import Explanation, explain
from .show.origins import Origins
from .show.readable import readable_source
from .show.shown import drawing, source, stages, why_recorded
from .sparse import sparse_jacobian
from .switches import Options, detect_anomaly, options
from .tracebacks import full_tracebacks
from .transforms.forward import ggnvp, hvp, jvp
from .transforms.gradient import elementwise_grad, grad, value_and_grad
from .transforms.jacobian import hessian, jacfwd, jacobian, jacrev
from .transforms.vjp import vjp
from .transforms.vmap import vmap

__all__ = [
    "Active",
    "AnomalyError",
    "AutodiffError",
    "BackwardMismatch",
    "Choices",
    "Const",
    "ConvergenceError",
    "Duplicated",
    "Explanation",
    "Fixed",
    "FixedPair",
    "Options",
    "Origins",
    "as_numpy",
    "autodiff",
    "axpby",
    "blas_kernels",
    "cache_bytes",
    "callback",
    "check_backward",
    "check_grads",
    "checkpoint",
    "compile",
    "custom_jvp",
    "custom_linear_solve",
    "custom_vjp",
    "detect_anomaly",
    "drawing",
    "elementwise_grad",
    "explain",
    "fixed_point",
    "flops",
    "from_jax",
    "from_torch",
    "full_tracebacks",
    "get_threads",
    "ggnvp",
    "grad",
    "hessian",
    "hvp",
    "in_cache",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jvp",
    "limit_blas_threads",
    "options",
    "parallel_map",
    "prefer_threads",
    "processor",
    "readable_source",
    "remember",
    "repeated",
    "root",
    "run_apart",
    "run_on_threads",
    "scan",
    "set_threads",
    "source",
    "sparse_jacobian",
    "stages",
    "stop_gradient",
    "to_jax",
    "to_torch",
    "tree",
    "value_and_grad",
    "vjp",
    "vmap",
    "watch",
    "while_loop",
    "why_recorded",
]
