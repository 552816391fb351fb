"""Functions and arrays of other libraries: PyTorch and JAX, both ways.

Each uses only the public interface of its package, which is imported when the function is called. Values are
passed; a gradient is computed by the library that knows the function, and is such a function again, so that
there are derivatives of any order.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .custom.custom import custom_vjp
from .errors import AutodiffError
from .transforms.vjp import vjp
from .tree import flatten, tree_map, unflatten


def as_numpy(tree: Any) -> Any:
    """The tree with every array of another library as NumPy's: through __array__ or its interface, or DLPack.

    Memory is shared where the library can share it. A tensor that requires a gradient is refused, as it would
    be detached.

        >>> import torch
        >>> ad.as_numpy({"x": torch.ones(2), "y": (np.ones(2), 3)})
        {'x': array([1., 1.], dtype=float32), 'y': (array([1., 1.]), 3)}
    """
    return _mapped(_as_array, tree)


def _as_array(x: Any) -> Any:
    if isinstance(x, (np.ndarray, np.generic, float, complex, int, str)):
        return x
    if getattr(x, "requires_grad", False):
        raise AutodiffError(
            "as_numpy: a tensor that requires a gradient; pass x.detach(), or use ad.from_torch"
        )
    if hasattr(x, "__array__") or hasattr(x, "__array_interface__"):
        return np.asarray(x)
    return np.from_dlpack(x) if hasattr(x, "__dlpack__") else x


def _mapped(f: Callable, tree: Any) -> Any:
    """f of everything in nested tuples, lists and dicts."""
    if isinstance(tree, dict):
        return {key: _mapped(f, x) for key, x in tree.items()}
    return type(tree)([_mapped(f, x) for x in tree]) if isinstance(tree, (tuple, list)) else f(tree)


def from_torch(f: Callable) -> Callable:
    """A function of tensors, as one of arrays that is differentiated with PyTorch's own gradient.

    Of a torch.nn.Module it is a function of (params, *inputs), whose `params` has the module's parameters as
    arrays by name. Tensors are copies in the CPU's memory. The function runs again for its gradient. Results
    are one tensor, or a tuple of them. There are derivatives of any order.

        >>> import torch
        >>> f = ad.from_torch(lambda x: torch.sum(torch.sin(x)))
        >>> ad.grad(f)(np.zeros(2))
        array([1., 1.])
    """
    import torch

    if isinstance(f, torch.nn.Module):
        module = f

        def called(params, *inputs):
            return torch.func.functional_call(module, params, inputs)

        adapted = _from_torch(torch, called, type(module).__name__)
        params = {k: p.detach().cpu().numpy().copy() for k, p in module.named_parameters()}
        adapted.params = params  # type: ignore[attr-defined]
        return adapted
    return _from_torch(torch, f, getattr(f, "__name__", "f"))


def _from_torch(torch: Any, f: Callable, name: str, recording_rule: set | None = None) -> custom_vjp:
    def run(*args):
        with torch.no_grad():
            out = f(*tree_map(lambda x: torch.from_numpy(x.copy()), _plain(args)))
        leaves, tree = _tensors_of(torch, out)
        return tree([x.detach().cpu().numpy() for x in leaves])

    def rule(dout, out, *args):
        pulled = functools.partial(_torch_gradient, torch, f)
        return _from_torch(torch, pulled, name, adapted.recording_rule)(dout, args)

    adapted = _adapted(run, rule, name, recording_rule)
    return adapted


def _torch_gradient(torch: types.ModuleType, f: Callable, dout: Any, args: tuple) -> tuple:
    """The gradient with respect to all tensors in args, in their structure; integers stay as they are."""
    leaves, tree = _tensors_of(torch, args)
    real = [x.is_floating_point() or x.is_complex() for x in leaves]
    with torch.enable_grad():
        grows = [r and not x.requires_grad for x, r in zip(leaves, real)]
        inputs = [x.detach().requires_grad_() if grow else x for x, grow in zip(leaves, grows)]
        results = f(*tree(inputs))
        outs, _ = _tensors_of(torch, results)
        douts: list = []  # None for a result that has no derivative
        _mapped(douts.append, dout)
        requested = zip(outs, douts, strict=True)
        pairs = [(o, d.to(o.dtype)) for o, d in requested if d is not None and o.requires_grad]
        moving = [x for x, r in zip(inputs, real) if r]
        grads = [None] * len(moving)
        if pairs:
            outs, douts = zip(*pairs)
            grads = torch.autograd.grad(outs, moving, douts, create_graph=True, allow_unused=True)
    whole = iter([torch.zeros_like(x) if g is None else g for x, g in zip(moving, grads)])
    return tree([next(whole) if r else x for x, r in zip(inputs, real)])


def _adapted(run: Callable, rule: Callable, name: str, recording_rule: set | None) -> custom_vjp:
    """A function that runs as it is, with a rule. Its derivatives share `recording_rule` with it."""
    run.__name__ = name
    adapted = custom_vjp(run)
    adapted.defvjp(rule)
    adapted.recording_rule = set() if recording_rule is None else recording_rule
    return adapted


def _plain(args: Any) -> Any:
    """The arguments as arrays. Recorded ones are refused, so that the function runs as plain Python."""
    leaves, tree = flatten(args)
    return unflatten(tree, [np.asarray(x) for x in leaves])


def _tensors_of(torch: types.ModuleType, args: Any) -> tuple[list, Callable]:
    """The tensors in nested tuples, lists and dicts, and a function that puts other values in place."""
    leaves: list = []
    _mapped(lambda x: leaves.append(x) if isinstance(x, torch.Tensor) else None, args)

    def put(values):
        rest = iter(values)
        return _mapped(lambda x: next(rest) if isinstance(x, torch.Tensor) else x, args)

    return leaves, put


def to_torch(f: Callable) -> Callable:
    """A function of arrays, as one of tensors: a torch.autograd.Function with the gradient derived here.

    Positional arguments are tensors in the CPU's memory, or anything else, which f gets as it is. The result
    is one array, or a tuple of them. With create_graph=True the gradient can be differentiated again.

        >>> import torch
        >>> x = torch.zeros(2, requires_grad=True)
        >>> ad.to_torch(lambda x: np.sum(np.sin(x)))(x).backward()
        >>> x.grad
        tensor([1., 1.])
    """
    import torch

    class Derived(torch.autograd.Function):  # type: ignore[name-defined]
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            arrays = [x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else x for x in args]
            if not any(ctx.needs_input_grad):
                out = f(*arrays)
            else:
                out, ctx.pull = vjp(f, *arrays)
            several = isinstance(out, tuple)
            outs = [torch.from_numpy(np.array(x)) for x in (out if several else (out,))]
            ctx.several, ctx.kinds = several, [np.asarray(x).dtype for x in (out if several else (out,))]
            ctx.mark_non_differentiable(*[x for x in outs if not (x.is_floating_point() or x.is_complex())])
            ctx.args = [None if isinstance(x, torch.Tensor) else x for x in args]
            ctx.save_for_backward(*(x for x in args if isinstance(x, torch.Tensor)))
            return tuple(outs) if several else outs[0]

        @staticmethod
        def backward(ctx: Any, *douts: Any) -> Any:
            if torch.is_grad_enabled():
                return _torch_once_more(f, ctx, douts)
            cotangents = [d.numpy() if k.kind in "fc" else None for d, k in zip(douts, ctx.kinds)]
            grads = ctx.pull(tuple(cotangents) if ctx.several else cotangents[0])
            return tuple(
                torch.from_numpy(np.array(g)) if wanted and g is not None else None
                for g, wanted in zip(grads, ctx.needs_input_grad)
            )

    @functools.wraps(f)
    def of_tensors(*args):
        return Derived.apply(*args)

    return of_tensors


def _torch_once_more(f: Callable, ctx: Any, douts: Sequence) -> tuple:
    """The gradient as a function of tensors, which can be differentiated again."""
    saved = iter(ctx.saved_tensors)
    args = [next(saved) if x is None else x for x in ctx.args]
    wanted = [k for k, needed in enumerate(ctx.needs_input_grad) if needed]
    real = [k for k, kind in enumerate(ctx.kinds) if kind.kind in "fc"]

    def pulled(*values):
        cotangents = dict(zip(real, values[len(args) :]))
        whole = tuple(cotangents.get(k) for k in range(len(ctx.kinds)))
        grads = vjp(f, *values[: len(args)])[1](whole if ctx.several else whole[0])
        return tuple(grads[k] for k in wanted)

    gradients = dict(zip(wanted, to_torch(pulled)(*args, *(douts[k] for k in real))))
    return tuple(gradients.get(k) for k in range(len(args)))


def from_jax(f: Callable) -> Callable:
    """A function of JAX's arrays, as one of NumPy's that is differentiated with jax.vjp.

    JAX computes in float32 unless jax_enable_x64 is set. The function runs again for its gradient. There are
    derivatives of any order.

        >>> import jax.numpy as jnp
        >>> ad.grad(ad.from_jax(lambda x: jnp.sum(jnp.sin(x))))(np.zeros(2, np.float32))
        array([1., 1.], dtype=float32)
    """
    return _from_jax(f, set())


def _from_jax(f: Callable, recording_rule: set) -> custom_vjp:
    import jax

    def run(*args):
        return jax.tree.map(np.asarray, f(*_plain(args)))

    def pulled(dout, args):
        """The gradients; an integer for one, which has none."""
        out, pull = jax.vjp(f, *args)
        no_gradient = jax.dtypes.float0
        grads = pull(jax.tree.map(lambda o, d: np.zeros(o.shape, no_gradient) if d is None else d, out, dout))
        return jax.tree.map(lambda g, x: x if g.dtype == no_gradient else g, grads, args)

    def rule(dout, out, *args):
        return _from_jax(pulled, recording_rule)(dout, args)

    return _adapted(run, rule, getattr(f, "__name__", "f"), recording_rule)


def to_jax(f: Callable) -> Callable:
    """A function of arrays, as one that JAX differentiates and compiles: a jax.custom_vjp over callbacks.

    Its arguments and results may be trees of arrays. f runs once on zeros of the arguments' types, to learn
    the types of its results. Under jax.vmap it runs for one example after another.

        >>> import jax
        >>> jax.grad(ad.to_jax(lambda x: np.sum(np.sin(x))))(np.zeros(2, np.float32))
        Array([1., 1.], dtype=float32)
    """
    import jax

    def types_of(tree):
        dtype_of = jax.dtypes.canonicalize_dtype
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), dtype_of(_dtype_of(x))), tree)

    def run(function, wanted, *args):
        def on_arrays(*args):
            results = function(*jax.tree.map(np.asarray, args))
            return jax.tree.map(lambda x, t: np.asarray(x, t.dtype), results, wanted)

        return jax.pure_callback(on_arrays, wanted, *args, vmap_method="sequential")

    @jax.custom_vjp
    def of_jax(*args):
        blank = jax.tree.map(lambda x: np.zeros(np.shape(x), _dtype_of(x)), args)
        return run(f, types_of(f(*blank)), *args)

    def pulled(args, dout):
        return tuple(vjp(f, *args)[1](dout))

    def backward(args, dout):
        if all(leaf.dtype != jax.dtypes.float0 for leaf in jax.tree.leaves(dout)):
            return to_jax(pulled)(args, dout)  # which can be differentiated again
        return run(pulled, types_of(args), args, dout)

    of_jax.defvjp(lambda *args: (of_jax(*args), args), backward)

    @functools.wraps(f)
    def checked(*args):
        for k, x in enumerate(args):
            if not all(np.dtype(_dtype_of(leaf)).kind in "fc" for leaf in jax.tree.leaves(x)):
                raise AutodiffError(
                    f"to_jax: argument {k} has integers, which have no gradient. Bind them with "
                    "functools.partial"
                )
        return of_jax(*args)

    return checked


def _dtype_of(x: Any) -> Any:
    return x.dtype if hasattr(x, "dtype") else np.result_type(x)
