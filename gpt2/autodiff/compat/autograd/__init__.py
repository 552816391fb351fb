"""HIPS autograd's names, with this compiler behind them.

    import gpt2.autodiff.compat.autograd.numpy as np
    from gpt2.autodiff.compat.autograd import elementwise_grad, grad, jacobian

A program that must stay as it is runs with `python -m gpt2.autodiff.compat.autograd program.py`, or inside
`with installed():`, which put these modules under the name `autograd`. docs/from-autograd.md says what
differs.
"""

# ruff: noqa: F401  these are autograd's names
import sys

from . import core, tracer
from .builtins import dict, isinstance, list, tuple, type
from .differential_operators import (
    checkpoint,
    deriv,
    elementwise_grad,
    grad,
    grad_and_aux,
    grad_named,
    hessian,
    hessian_tensor_product,
    hessian_vector_product,
    holomorphic_grad,
    jacobian,
    make_ggnvp,
    make_hvp,
    make_jvp,
    make_vjp,
    multigrad_dict,
    tensor_jacobian_product,
    value_and_grad,
    vector_jacobian_product,
)
from .install import installed
from .tracer import primitive

# Modules of autograd whose names are here in another one
for _name, _module in {"extend": core, "util": tracer}.items():
    sys.modules[f"{__name__}.{_name}"] = globals()[_name] = _module
