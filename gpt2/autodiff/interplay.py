"""Functions and arrays of other libraries: PyTorch and JAX, both ways.

    ad.from_torch(f)     a function of tensors, or a module, as one of arrays, with PyTorch's gradient
    ad.to_torch(f)       a function of arrays as one of tensors, through which loss.backward() leads
    ad.from_jax(f)       a function of JAX's arrays as one of NumPy's, with JAX's gradient
    ad.to_jax(f)         a function of arrays as one that jax.grad and jax.jit take
    ad.as_numpy(tree)    a tree in which arrays of other libraries are NumPy's, in the same memory

Each uses the public interface of its package alone, which is imported when the function is called. What goes
over is values: for derivatives of the first order, computed by the library that knows the function.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from .api.custom import custom_vjp
from .api.vjp import vjp
from .errors import AutodiffError
from .tree import flatten, tree_map, unflatten

# ---- Arrays ----------------------------------------------------------------------------------------------


def as_numpy(tree: Any) -> Any:
    """The tree with every array of another library as NumPy's: through __array__ or its interface, or DLPack.

    Memory is shared where the library can share it. A tensor that requires a gradient is refused: the link to
    it would be cut.

        >>> import torch
        >>> ad.as_numpy({"x": torch.ones(2), "y": (np.ones(2), 3)})
        {'x': array([1., 1.], dtype=float32), 'y': (array([1., 1.]), 3)}
    """
    if isinstance(tree, (tuple, list, dict)):
        parts = tree.values() if isinstance(tree, dict) else tree
        made = [as_numpy(x) for x in parts]
        return dict(zip(tree, made)) if isinstance(tree, dict) else type(tree)(made)
    if isinstance(tree, (np.ndarray, np.generic, float, complex, int, str)) or tree is None:
        return tree
    if getattr(tree, "requires_grad", False):
        raise AutodiffError(
            "as_numpy: a tensor that requires a gradient; pass x.detach(), or use ad.from_torch"
        )
    if hasattr(tree, "__array__") or hasattr(tree, "__array_interface__"):
        return np.asarray(tree)
    if hasattr(tree, "__dlpack__"):
        return np.from_dlpack(tree)
    return tree


def _is_real(x: Any) -> bool:
    return np.result_type(x).kind in "fc"


# ---- PyTorch ---------------------------------------------------------------------------------------------


def from_torch(f: Callable) -> Callable:
    """A function of tensors, as one of arrays that is differentiated with PyTorch's own gradient.

    Of a torch.nn.Module it is a function of (params, *inputs), whose `params` has the module's parameters as
    arrays by name. Tensors are made in the CPU's memory, without a copy. The function runs again for its
    gradient. Results are one tensor, or a tuple of them; a derivative of second order is refused.

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


def _from_torch(torch: types.ModuleType, f: Callable, name: str) -> custom_vjp:
    def tensors(args, grad):
        def tensor(x):
            made = torch.from_numpy(np.array(x, copy=True))
            return made.requires_grad_() if grad and _is_real(x) else made

        return tree_map(tensor, args)

    def arrays(out):
        return tuple(map(arrays, out)) if isinstance(out, tuple) else out.detach().cpu().numpy()

    def run(*args):
        with torch.no_grad():
            return arrays(f(*tensors(_plain(args), False)))

    def rule(dout, out, *args):
        args = _plain(args)
        given = tensors(args, True)
        with torch.enable_grad():
            found = f(*given)
        outs, douts = (found, dout) if isinstance(found, tuple) else ((found,), (dout,))
        pairs = [(o, d) for o, d in zip(outs, douts) if o.requires_grad]
        leaves, tree = _tensors_of(torch, given)
        moving = [x for x in leaves if x.requires_grad]
        grads = torch.autograd.grad(
            [o for o, _ in pairs],
            moving,
            [torch.from_numpy(np.array(d)).to(o.dtype) for o, d in pairs],
            allow_unused=True,
        )
        made = {id(x): np.zeros(tuple(x.shape)) if g is None else g.numpy() for x, g in zip(moving, grads)}
        return tree([made.get(id(x)) for x in leaves])

    run.__name__ = name
    adapted = custom_vjp(run)
    adapted.defvjp(rule)
    return adapted


def _plain(args: Any) -> Any:
    """The arguments as arrays. A recorded one is refused here, so that the function runs as plain Python."""
    leaves, tree = flatten(args)
    return unflatten(tree, [np.asarray(x) for x in leaves])


def _tensors_of(torch: types.ModuleType, args: Any) -> tuple[list, Callable]:
    """The tensors in nested tuples, lists and dicts, and what puts other things in their places."""
    leaves: list = []

    def walk(x):
        if isinstance(x, torch.Tensor):
            leaves.append(x)
        elif isinstance(x, (tuple, list, dict)):
            for part in x.values() if isinstance(x, dict) else x:
                walk(part)

    def put(x, values):
        if isinstance(x, torch.Tensor):
            return next(values)
        if isinstance(x, dict):
            return {k: put(v, values) for k, v in x.items()}
        return type(x)([put(v, values) for v in x]) if isinstance(x, (tuple, list)) else x

    walk(args)
    return leaves, lambda values: put(args, iter(values))


def to_torch(f: Callable) -> Callable:
    """A function of arrays, as one of tensors: a torch.autograd.Function with the gradient derived here.

    Positional arguments are tensors in the CPU's memory, or anything else, which f gets as it is. The result
    is one array, or a tuple of them. Its gradient cannot be differentiated again by PyTorch.

        >>> import torch
        >>> x = torch.zeros(2, requires_grad=True)
        >>> ad.to_torch(lambda x: np.sum(np.sin(x)))(x).backward()
        >>> x.grad
        tensor([1., 1.])
    """
    import torch

    class Derived(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            given = [x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else x for x in args]
            if not any(ctx.needs_input_grad):
                out = f(*given)
            else:
                out, ctx.pull = vjp(f, *given)
            several = isinstance(out, tuple)
            made = [torch.from_numpy(np.array(x)) for x in (out if several else (out,))]
            ctx.several, ctx.kinds = several, [np.asarray(x).dtype for x in (out if several else (out,))]
            ctx.mark_non_differentiable(*[x for x in made if not (x.is_floating_point() or x.is_complex())])
            return tuple(made) if several else made[0]

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *douts: Any) -> Any:
            given = [d.numpy() if k.kind in "fc" else None for d, k in zip(douts, ctx.kinds)]
            grads = ctx.pull(tuple(given) if ctx.several else given[0])
            return tuple(
                torch.from_numpy(np.array(g)) if wanted and g is not None else None
                for g, wanted in zip(grads, ctx.needs_input_grad)
            )

    @functools.wraps(f)
    def of_tensors(*args):
        return Derived.apply(*args)

    return of_tensors


# ---- JAX -------------------------------------------------------------------------------------------------


def from_jax(f: Callable) -> Callable:
    """A function of JAX's arrays, as one of NumPy's that is differentiated with jax.vjp.

    JAX computes in float32 unless jax_enable_x64 is set. The function runs again for its gradient.

        >>> import jax.numpy as jnp
        >>> ad.grad(ad.from_jax(lambda x: jnp.sum(jnp.sin(x))))(np.zeros(2, np.float32))
        array([1., 1.], dtype=float32)
    """
    import jax

    def run(*args):
        return _of_jax(f(*_plain(args)))

    def rule(dout, out, *args):
        args = _plain(args)
        found, pull = jax.vjp(f, *args)
        douts = jax.tree.map(lambda d, o: np.asarray(d, o.dtype), dout, found)
        grads = pull(douts)
        return jax.tree.map(lambda g, x: np.asarray(g) if _is_real(x) else None, grads, args)

    def _of_jax(out):
        return jax.tree.map(np.asarray, out)

    run.__name__ = getattr(f, "__name__", "f")
    adapted = custom_vjp(run)
    adapted.defvjp(rule)
    return adapted


def to_jax(f: Callable) -> Callable:
    """A function of arrays, as one that JAX differentiates and compiles: a jax.custom_vjp over callbacks.

    Its arguments and results may be trees of arrays. f runs once on zeros of the arguments' types, which
    tells the types of its results. Not for jax.vmap's batches, nor derivatives of second order.

        >>> import jax
        >>> jax.grad(ad.to_jax(lambda x: np.sum(np.sin(x))))(np.zeros(2, np.float32))
        Array([1., 1.], dtype=float32)
    """
    import jax

    def dtype_of(x):
        return x.dtype if hasattr(x, "dtype") else np.result_type(x)

    def type_of(x):
        return jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.canonicalize_dtype(dtype_of(x)))

    def types_of(tree):
        return jax.tree.map(type_of, tree)

    def like(tree, wanted):
        return jax.tree.map(lambda x, t: np.asarray(x, t.dtype), tree, wanted)

    def called(args):
        blank = jax.tree.map(lambda x: np.zeros(np.shape(x), dtype_of(x)), args)
        wanted = types_of(f(*blank))
        return jax.pure_callback(lambda args: like(f(*jax.tree.map(np.asarray, args)), wanted), wanted, args)

    @jax.custom_vjp
    def of_jax(*args):
        return called(args)

    def forward(*args):
        return called(args), args

    def backward(args, dout):
        wanted = types_of(args)

        def pulled(args, dout):
            args = jax.tree.map(np.asarray, args)
            grads = vjp(f, *args)[1](jax.tree.map(np.asarray, dout))
            return like(jax.tree.map(np.asarray, tuple(grads)), wanted)

        return jax.pure_callback(pulled, wanted, args, dout)

    of_jax.defvjp(forward, backward)

    @functools.wraps(f)
    def checked(*args):
        for k, x in enumerate(args):
            if not all(np.dtype(dtype_of(leaf)).kind in "fc" for leaf in jax.tree.leaves(x)):
                raise AutodiffError(
                    f"to_jax: argument {k} has integers, which have no gradient. Bind them with "
                    "functools.partial"
                )
        return of_jax(*args)

    return checked
