"""autograd.differential_operators: gradients, Jacobians and products with them.

Each is an operator on functions of one argument, extended to functions of many by unary_to_nary: arguments
that are not differentiated are passed as they are. Recordings are kept with the function (wrap_util.Unary)
and used again as long as the values that they depend on are the same.
"""

from __future__ import annotations

import inspect
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from ...custom.custom import checkpoint as _checkpoint
from ...record.value import Recorded
from ...transforms import gradient
from ...transforms import jacobian as jacobians
from ...transforms.forward import jvp as forward
from ...tree import flatten
from . import core, objects
from .core import answer, floating
from .wrap_util import Unary, get_name, unary_to_nary


def _derived(unary: Unary, name: str, transform: Callable, result: Callable, **options: Any) -> Callable:
    """transform(unary), kept with the Unary under this name.

    result   result(name, the function's result) checks it, and returns what is differentiated
    """
    if name not in unary.derived:

        def checked(x, *others):
            return result(name, unary(x, *others))

        unary.derived[name] = transform(_compiled_later(checked), **options)
    return unary.derived[name]


def _at(x: Any, unary: Unary, *how: Any, **options: Any) -> Any:
    """The derived function at x, and at the other arguments of this call that are recorded with it."""
    return _derived(unary, *how, **options)(floating(x), *unary.recorded_others())


def _compiled_later(f: Callable) -> Callable:
    """Mark f to be compiled from its second call on: most functions that grad returns are called once."""
    f.compiles_when_called_again = True  # type: ignore[attr-defined]
    return f


# ---- What is differentiated of a function's result ---------------------------------------------------------


def _any(name: str, ans: Any) -> Any:
    """The result, with autograd's warning if it does not depend on the input."""
    if not any(type(x) is Recorded for x in flatten(ans)[0]):
        warnings.warn("Output seems independent of input.", stacklevel=2)
    return ans


def _scalar(name: str, ans: Any) -> Any:
    """A result with one real number, reshaped to ()."""
    plain = isinstance(ans, (np.ndarray, np.generic, float, complex, int))
    if not plain or np.size(ans) != 1 or np.iscomplexobj(ans) or isinstance(ans, (bool, np.bool_)):
        got = f"an array of shape {np.shape(ans)}" if plain else f"a {ans.__class__.__name__}"
        got = "a complex number" if plain and np.iscomplexobj(ans) else got
        raise TypeError(
            f"{name} is for functions with one real number as their result, and this one gives {got}. There "
            "are jacobian, elementwise_grad and holomorphic_grad"
        )
    return np.reshape(_any(name, ans), ()) if np.shape(ans) else _any(name, ans)


def _scalar_and_itself(name: str, ans: Any) -> tuple:
    return _scalar(name, ans), ans


def _first_of_two(name: str, ans: Any) -> tuple:
    value, aux = ans
    return _scalar(name, value), aux


def _real_part(name: str, ans: Any) -> Any:
    return _scalar(name, np.real(ans))


def _real(name: str, ans: Any) -> Any:
    if any(np.iscomplexobj(leaf) for leaf in flatten(ans)[0]):
        raise TypeError(f"{name} is for functions with real results")
    return _any(name, ans)


# ---- Operators ---------------------------------------------------------------------------------------------


def _of_object(name: str, fun: Callable, x: Any) -> tuple[Any, Any]:
    """(fun's result, its gradient) with respect to an object of a registered class."""
    vjp, ans = objects.make_vjp(fun, x, lambda ans: _scalar(name, ans))
    return ans, vjp(1.0)


@unary_to_nary
def grad(fun: Callable, x: Any) -> Any:
    """The gradient of a function with one real number as its result, in the structure of the argument.

    grad(fun, argnum=0)(*args): argnum is the argument's position, or a tuple of several. The result may have
    any shape of one entry; a function of anything larger is a TypeError.
    """
    if objects.is_object(x):
        return _of_object("grad", fun, x)[1]
    if isinstance(x, (list, tuple, dict)) and not flatten(floating(x))[0]:
        _scalar("grad", fun(x))
        return x
    return _at(x, fun, "grad", gradient.grad, _scalar)


@unary_to_nary
def value_and_grad(fun: Callable, x: Any) -> tuple[Any, Any]:
    """(fun's result, its gradient), as scipy.optimize.minimize(..., jac=True) takes them."""
    if objects.is_object(x):
        return _of_object("value_and_grad", fun, x)
    both = _at(x, fun, "value_and_grad", gradient.value_and_grad, _scalar_and_itself, has_aux=True)
    (_, ans), gradients = both
    return ans, gradients


@unary_to_nary
def elementwise_grad(fun: Callable, x: Any) -> Any:
    """The gradient of the sum of the results: d out[i] / d x[i] where f works element by element."""
    return _at(x, fun, "elementwise_grad", gradient.elementwise_grad, _real)


@unary_to_nary
def deriv(fun: Callable, x: Any) -> Any:
    """The derivative in the direction of ones, in forward mode."""
    x = floating(x)
    return forward(fun, (x,), (core.vspace(x).ones(),))[1]


@unary_to_nary
def jacobian(fun: Callable, x: Any) -> Any:
    """All partial derivatives, of shape out.shape + in.shape."""
    return _at(x, fun, "jacobian", jacobians.jacobian, _any)


@unary_to_nary
def hessian(fun: Callable, x: Any) -> Any:
    """The Jacobian of the Jacobian."""

    def twice(f):
        return jacobians.jacobian(_compiled_later(jacobians.jacobian(f)))

    return _at(x, fun, "hessian", twice, _any)


@unary_to_nary
def holomorphic_grad(fun: Callable, x: Any) -> Any:
    """df/dz of a holomorphic function."""
    if not np.iscomplexobj(x):
        warnings.warn("Input to holomorphic_grad is not complex", stacklevel=2)
    return _at(x, fun, "holomorphic_grad", gradient.grad, _real_part)


@unary_to_nary
def grad_and_aux(fun: Callable, x: Any) -> tuple[Any, Any]:
    """(gradient of the first of two results, the second as it is)."""
    return _at(x, fun, "grad_and_aux", gradient.grad, _first_of_two, has_aux=True)


make_vjp = unary_to_nary(core.make_vjp)
make_jvp = unary_to_nary(core.make_jvp)


@unary_to_nary
def make_jvp_reversemode(fun: Callable, x: Any) -> Callable:
    """jvp(v) is the derivative in the direction v, without the value."""
    both = core.make_jvp(fun, x)

    def jvp(v):
        return both(v)[1]

    return jvp


@unary_to_nary
def make_hvp(fun: Callable, x: Any) -> tuple[Callable, Any]:
    """(hvp, gradient): hvp(v) is the Hessian at x times v."""
    return core.make_vjp(grad(fun), x)


def make_ggnvp(f: Callable, g: Callable | None = None, f_argnum: Any = 0) -> Callable:
    """make_ggnvp(f, g)(*args)(v) is the generalised Gauss-Newton matrix of g(f(x)) times v.

    g is half the sum of squares, unless one is given.
    """
    outer = g if g is not None else lambda x: 0.5 * np.sum(x**2, axis=-1)

    @unary_to_nary
    def products(f, x):
        f_vjp, f_x = core.make_vjp(f, x)
        f_jvp = core.make_jvp(f, x)
        g_hvp, _ = core.make_vjp(grad(outer), f_x)

        def ggnvp(v):
            return f_vjp(g_hvp(f_jvp(v)[1]))

        return ggnvp

    return products(f, f_argnum)


def hessian_tensor_product(fun: Callable, argnum: Any = 0) -> Callable:
    """product(*args, tensor): the Hessian of fun with respect to an argument, times a tensor of its shape."""
    unary = Unary(fun, argnum)

    def run(unary, x, tensor):
        x = floating(x)
        return forward(_derived(unary, "grad", gradient.grad, _scalar), (x,), (answer(tensor, x),))[1]

    def product(*args, **kwargs):
        return unary.within(args[:-1], kwargs, run, args[-1])

    return product


hessian_vector_product = hessian_tensor_product


def tensor_jacobian_product(fun: Callable, argnum: Any = 0) -> Callable:
    """product(*args, tensor): the tensor times the Jacobian of fun, over all axes of the tensor."""
    unary = Unary(fun, argnum)

    def contracted(x, tensor):
        return np.tensordot(tensor, unary(x), axes=np.ndim(tensor))

    derived = jacobians.jacobian(_compiled_later(contracted))

    def run(unary, x, tensor):
        return derived(floating(x), floating(tensor))

    def product(*args, **kwargs):
        return unary.within(args[:-1], kwargs, run, args[-1])

    return product


vector_jacobian_product = tensor_jacobian_product


def grad_named(fun: Callable, argname: str) -> Callable:
    """The gradient with respect to a positional argument of this name."""
    return grad(fun, list(inspect.signature(fun).parameters).index(argname))


def multigrad_dict(fun: Callable) -> Callable:
    """The gradients with respect to all arguments at once, in an OrderedDict by the names of the arguments.

    For *args the entry is a tuple, for **kwargs a dict. Arguments without numbers are not differentiated, and
    their entries are None.
    """
    signature = inspect.signature(fun)

    def gradients(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = OrderedDict(bound.arguments)
        moving = {k: v for k, v in arguments.items() if flatten(v)[0]}

        def of_all(gradients_of):
            call = inspect.BoundArguments(signature, OrderedDict({**arguments, **gradients_of}))
            return fun(*call.args, **call.kwargs)

        gradients_of = grad(of_all)(moving)
        return OrderedDict((k, gradients_of.get(k)) for k in arguments)

    return gradients


def checkpoint(fun: Callable) -> Callable:
    """fun with a backward that keeps only its arguments and recomputes the rest."""
    checkpointed = _checkpoint(fun)
    checkpointed.__name__ = get_name(fun)
    return checkpointed
