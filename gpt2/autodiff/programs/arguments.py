"""Checks argnums, and finds the arguments to differentiate with respect to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from ..errors import AutodiffError
from ..tree import Leaf, Tree
from .wiring import Arguments, Transform, argument_text, result_kind


def is_int(k: Any) -> TypeGuard[int]:
    return isinstance(k, (int, np.integer)) and not isinstance(k, bool)


def checked_argnums(name: str, argnums: int | Sequence[int]) -> int | tuple[int, ...]:
    """An int or a tuple of ints."""
    if isinstance(argnums, (tuple, list)) and argnums and all(map(is_int, argnums)):
        return tuple(map(int, argnums))
    if is_int(argnums):
        return int(argnums)
    raise AutodiffError(f"{name}: argnums is {argnums!r}, expected an int or a tuple of ints")


@dataclass
class Wrt:
    """The leaves to differentiate with respect to. `tree` and `kinds`: the form of their gradients."""

    leaves: list[int]
    kinds: list[str]
    tree: Tree


def differentiated(transform: Transform, call: Arguments, f: Callable) -> Wrt:
    """The leaves of the arguments in argnums. Integers among them are an error."""
    single = isinstance(transform.argnums, int)
    n = len(call.args)
    leaves, kinds, trees = [], [], []
    for k in (transform.argnums,) if single else transform.argnums:
        if not -n <= k < n:
            named = "; those given by name have no derivative" if call.kwargs else ""
            raise AutodiffError(
                f"{transform.name}: argnums={transform.argnums!r}, but the function was called with "
                f"{n} positional argument{'s' if n != 1 else ''}{named}"
            )
        k %= n
        wrt = float_leaves(transform.name, call, f, k)
        leaves += wrt.leaves
        kinds += wrt.kinds
        trees.append(wrt.tree)
    return Wrt(leaves, kinds, trees[0] if single else Tree.of(*trees))


# by which arrays of other libraries are recognized
_FOREIGN = ("__array__", "__array_interface__", "__dlpack__")


def float_leaves(name: str, call: Arguments, f: Callable, k: int, strict: bool = True) -> Wrt:
    """The differentiable leaves of argument k."""
    numbers, tree = call.leaf_range(k), call.subtree(k)
    if not numbers and strict:
        got, hint = _without_numbers(tree)
        raise AutodiffError(
            f"{name}: {argument_text(f, k)} is {got}; derivatives are taken with respect to "
            f"floating-point numbers and arrays{hint}"
        )
    chosen = []
    for i, path in zip(numbers, tree.paths()):
        if _dtype(call.leaves[i]).kind in "fc":
            chosen.append(i)
        elif strict:
            raise AutodiffError(
                f"{name}: {argument_text(f, k, path)} has dtype {_dtype(call.leaves[i])}; derivatives are "
                "taken with respect to floating-point arrays. Convert it with x.astype(float), or leave it "
                "out of argnums"
            )
    kinds = [result_kind(call.leaves[i]) for i in chosen]
    wanted = set(chosen)
    return Wrt(chosen, kinds, tree.only(i in wanted for i in numbers))


def _without_numbers(tree: Tree) -> tuple[str, str]:
    """(description of an argument without leaves, hint what to do), for the error."""
    statics = tree.statics()
    alone = tree.is_static
    foreign = next((v for v in statics if any(hasattr(v, name) for name in _FOREIGN)), None)
    if foreign is not None:
        kind = f"a {type(foreign).__module__.partition('.')[0]}.{type(foreign).__name__}"
        got = kind if alone else f"a {tree.kind.__name__} with {kind}"
        return got, ". Pass NumPy's, ad.as_numpy(x); of a tensor with a gradient ad.as_numpy(x.detach())"
    whole = next((v for v in statics if type(v) in (int, bool)), None)
    attributes = getattr(tree.value, "__dict__", {}) if alone else {}
    if whole is None and any(isinstance(v, float | np.ndarray) for v in attributes.values()):
        name = type(tree.value).__name__
        hint = f"decorate the class {name} with @ad.tree.register"
        return f"a {name}", f". To differentiate by its attributes, {hint}"
    if alone:
        return repr(tree.value), f": pass {float(whole)}" if whole is not None else ""
    if not statics:
        return f"an empty {tree.kind.__name__}", ""
    hint = f": write {float(whole)} for {whole!r}" if whole is not None else ""
    return f"a {tree.kind.__name__} with nothing to differentiate in it", hint


def _dtype(x) -> np.dtype:
    return getattr(x, "dtype", None) or np.asarray(x).dtype


def _described(value) -> str:
    if isinstance(value, Leaf):
        return "an array"
    if hasattr(value, "shape"):
        return f"of shape {value.shape}"
    if isinstance(value, (tuple, list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)
