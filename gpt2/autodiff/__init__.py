"""An automatic-differentiation compiler for NumPy functions.

    from gpt2 import autodiff as ad

    ad.grad(f)(x)     ad.value_and_grad(f)(x)     ad.vjp(f, x)     ad.jvp(f, (x,), (dx,))     ad.compile(f)(x)

f is ordinary NumPy. It is recorded, differentiated as a graph, optimised, and written out as a NumPy program,
which ad.source shows. docs/autodiff.md is the guide.
"""

import importlib
import os
import sys
import threading

# Loaded on first use: importing the compiler costs nothing until it compiles.
_EXPORTS = {
    "custom.callback": "callback",
    "programs.compile": "compile",
    "programs.flops": "flops",
    "custom.custom": "checkpoint custom_jvp custom_vjp stop_gradient",
    "enzyme": "Active Const Duplicated autodiff",
    "programs.fixed": "Fixed FixedPair",
    "transforms.forward": "ggnvp hvp jvp",
    "transforms.gradient": "elementwise_grad grad value_and_grad",
    "implicit.equations": "fixed_point root",
    "transforms.jacobian": "hessian jacfwd jacobian jacrev",
    "implicit.linear_solve": "custom_linear_solve",
    "loops.parallel_map": "parallel_map",
    "programs.repeated": "repeated",
    "loops.scan": "scan",
    "sparse": "sparse_jacobian",
    "show.shown": "drawing source stages why_recorded",
    "transforms.vjp": "vjp",
    "transforms.vmap": "vmap",
    "loops.while_loop": "while_loop",
    "check.check_grads": "BackwardMismatch check_backward check_grads",
    "errors": "AutodiffError ConvergenceError",
    "interop": "as_numpy from_jax from_torch to_jax to_torch",
    "ops.anomaly": "AnomalyError",
    "show.origins": "Origins",
    "show.readable": "readable_source",
    "reuse.watch": "watch",
    "run.axpby": "axpby",
    "run.blas": "blas_kernels limit_blas_threads",
    "run.caches": "cache_bytes in_cache",
    "run.remembered": "Choices processor remember",
    "run.threads": "get_threads prefer_threads run_apart run_on_threads set_threads",
    "switches": "Options detect_anomaly options",
    "tracebacks": "full_tracebacks",
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names.split()}

# What JAX and autograd call them
_SYNONYMS = {
    "jit": "compile",
    "make_jaxpr": "stages",
    "fori_loop": "scan",
    "make_vjp": "vjp",
    "make_jvp": "jvp",
    "deriv": "grad",
    "gradient": "grad",
}

_ROOMS = ("tree",)  # used by their own names, as ad.tree.map

__all__ = sorted([*_HOME, *_ROOMS])


# A fork waits until no thread imports: in the child that thread, and with it the module, would never be done
_importing = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release
    )


def __getattr__(name):
    if name in _ROOMS:
        with _importing:
            return importlib.import_module(f".{name}", __name__)
    if name not in _HOME:
        found = {"name": name, "obj": sys.modules[__name__]}  # with which Python says what may be meant
        other = f"; here it is ad.{_SYNONYMS[name]}" if name in _SYNONYMS else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{other}", **found)
    with _importing:
        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
