"""Corrections of a hand-written backward in structure: another axis, another order, a transpose.

Each function takes a recorded backward and one of its values, and yields (what is wrong, the array that the
value would be without it).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from ..graph import Node
from ..ops import evaluate
from .by_hand import ByHand


def products(b: ByHand, n: Node) -> Iterator[tuple[str, np.ndarray]]:
    """Products of matrices: one of them transposed, or the other order."""
    if n.op == "transpose" and n.args[0].shape == n.shape:
        yield _exchanged(b, n), b.values[n.args[0]]
    if n.op == "matmul" and len(n.args) == 2:
        (x, y), (first, second) = n.args, b.of(*n.args)
        text = f"in {b.text(x)} @ {b.text(y)}, "
        is_square = [v.ndim > 1 and v.shape[-1] == v.shape[-2] for v in (first, second)]
        if is_square[0]:
            yield text + _exchanged(b, x), np.swapaxes(first, -1, -2) @ second
        if is_square[1]:
            yield text + _exchanged(b, y), first @ np.swapaxes(second, -1, -2)
        if is_square[0] and first.shape == second.shape:
            yield text + "the operands are in the wrong order", second @ first


def _exchanged(b: ByHand, x: Node) -> str:
    while x.op == "transpose":
        x = x.args[0]
    return f"{b.text(x)} and its transpose are taken for each other"


def other_axes(b: ByHand, n: Node) -> Iterator[tuple[str, np.ndarray]]:
    """A sum, a mean or an extreme over another axis, where the shapes still broadcast."""
    axes = n.attrs.get("axes") or ()
    if n.op not in ("sum", "max", "min") or not n.attrs.get("keepdims"):
        return
    x = b.values[n.args[0]]
    count = np.prod([x.shape[k] for k in axes])
    for k in range(x.ndim):
        if axes != (k,):
            value = evaluate(n.op, [x], {**n.attrs, "axes": (k,)})
            wrong = f"{'axis' if len(axes) == 1 else 'axes'} {', '.join(map(str, axes))}"
            text = f"the {n.op} of {b.text(n.args[0])} is over {wrong} where axis {k} is meant"
            yield text, value
            if n.op == "sum":
                yield text.replace("sum", "mean", 1), value * (count / x.shape[k])


def first_of_axis(b: ByHand, n: Node) -> Iterator[tuple[str, np.ndarray]]:
    """The first entry along an axis where the sum is meant."""
    if n.op == "slice":
        x = n.args[0]
        for k, (start, stop, _) in enumerate(n.attrs["index"]):
            if (start, stop) == (0, 1) and x.shape[k] > 1 and x.size == n.size * x.shape[k]:
                text = f"the first of axis {k} of {b.text(x)} is taken where the sum is meant"
                yield text, b.values[x].sum(k, keepdims=True)


def softmaxes(b: ByHand, n: Node) -> Iterator[tuple[str, np.ndarray]]:
    """The gradient of a softmax without its sum."""
    if n.op == "multiply":
        for p in b.of(*n.args):
            for axis in range(p.ndim if p.shape == n.shape else 0):
                if np.allclose(p.sum(axis), 1.0):
                    text = (
                        "the softmax's sum term is missing: with p = softmax(s), "
                        "ds = p * (dp - sum(p * dp)), and only p * dp is there"
                    )
                    yield text, b.values[n] - p * b.values[n].sum(axis, keepdims=True)


def orders(b: ByHand, n: Node) -> Iterator[tuple[str, np.ndarray]]:
    """Concatenated parts in another order, or one left out; axes that are exchanged, or not."""
    if n.op == "assemble" and 1 < len(n.args) < 5:
        parts = b.of(*n.args)
        for order in permutations(range(len(parts))):
            fits = all(parts[i].shape == p.shape for i, p in zip(order, parts))
            if fits and order != tuple(range(len(parts))):
                value = evaluate(n.op, [parts[i] for i in order], n.attrs)
                yield f"the parts of {b.whole(n)} are in the wrong order", value
        for k in range(len(parts)):
            value = evaluate(n.op, [p * (i != k) for i, p in enumerate(parts)], n.attrs)
            yield f"a part of {b.whole(n)} should be zero", value
    if n.op == "reshape":
        x, name = b.values[n.args[0]], b.text(n.args[0])
        for k in range(n.ndim - 1):
            shape = [*n.shape[:k], n.shape[k + 1], n.shape[k], *n.shape[k + 2 :]]
            text = f"{name} is reshaped where it has to be reshaped and its axes exchanged"
            yield text, x.reshape(shape).swapaxes(k, k + 1)
        for k in range(x.ndim - 1):
            yield (
                f"{name} is reshaped without its axes being exchanged first",
                x.swapaxes(k, k + 1).reshape(n.shape),
            )
    if n.args and {n.op, n.args[0].op} == {"reshape", "transpose"}:
        start = n.args[0].args[0]
        yield f"the axes of {b.text(start)} should not be exchanged", b.values[start].reshape(n.shape)


KINDS = products, other_axes, first_of_axis, softmaxes, orders
