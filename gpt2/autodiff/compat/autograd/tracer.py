"""autograd.tracer: primitives, and the values behind recorded ones.

A primitive is a function with its own derivative rule (core.py sets it), which becomes one op of a recording.
"""

from __future__ import annotations

import functools
import graphlib
import operator
from builtins import type as class_of
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ...custom.custom import custom_jvp, custom_vjp
from ...graph import Node as GraphNode
from ...ops import evaluate
from ...record.record import record
from ...record.value import Recorded, value_of
from ...tree import flatten, unflatten
from . import objects


def isbox(x: Any) -> bool:
    """Whether x is a recorded value, or a box of an object."""
    return class_of(x) is Recorded or objects.is_box(x)


def getval(x: Any) -> Any:
    """The plain value behind a recorded one. The recording is then valid for this value only."""
    if class_of(x) is not Recorded:
        return x._value if objects.is_box(x) else x
    value = value_of(x)
    if isinstance(value, np.ndarray):
        value = value.copy()
        x._read(value.copy(), "array")
    else:
        x._read(value, "float")
    return value


class Primitive:
    """A function with its own derivative rules, whose inside is not recorded."""

    _is_autograd_primitive = True

    def __init__(self, fun: Callable):
        functools.update_wrapper(self, fun)
        if not hasattr(self, "__name__"):
            self.__name__ = class_of(fun).__name__
        self.fun = fun
        self.vjp: Callable | None = None  # (argnums, ans, args, kwargs) -> g -> gradients, in core.py
        self.jvp: Callable | None = None  # (argnums, tangents, ans, args, kwargs) -> tangent
        self._recording_rule: set[int] = set()

    def _reuse_roots(self) -> tuple:
        return (self.fun, self.vjp, self.jvp)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for box in filter(objects.is_box, args):
            return box._tape.result(self, args, kwargs)
        if any(map(isbox, flatten(kwargs)[0])):
            raise TypeError(
                f"{self.__name__}: a primitive takes values that are differentiated by position, and here "
                f"one was given by name ({', '.join(kwargs)})"
            )
        argnums = [i for i, x in enumerate(args) if any(map(isbox, flatten(x)[0]))]
        if not argnums:
            return self.fun(*args, **kwargs)
        return self._with_rule(argnums, args, kwargs)(*(args[i] for i in argnums))

    def _with_rule(self, argnums: list[int], args: tuple, kwargs: dict) -> Callable:
        """A function of the recorded arguments alone, with a rule; the others are bound."""

        def whole(xs):
            return subvals(args, zip(argnums, xs))

        def fun(*xs):
            return self.fun(*whole(xs), **kwargs)

        def moving(xs):
            """Which of them have a derivative, as they have real or complex numbers."""
            kinds = [[np.result_type(value_of(leaf)).kind for leaf in flatten(x)[0]] for x in xs]
            return [k for k, of_leaves in enumerate(kinds) if {"f", "c"} & {*of_leaves}]

        def vjp_rule(dout, ans, *xs):
            numbers = moving(xs)
            grads = self.vjp([argnums[k] for k in numbers], ans, whole(xs), kwargs)(dout)  # type: ignore[misc]
            by_place = dict(zip(numbers, grads))
            return tuple([_shaped(by_place.get(k), x) for k, x in enumerate(xs)])

        def jvp_rule(primals, tangents):
            ans = self(*whole(primals), **kwargs)
            numbers = moving(primals)
            places, moved = [argnums[k] for k in numbers], [tangents[k] for k in numbers]
            return ans, self.jvp(places, moved, ans, whole(primals), kwargs)  # type: ignore[misc]

        fun.__name__ = fun.__qualname__ = self.__name__
        if self.vjp is None and self.jvp is None:
            raise NotImplementedError(
                f"the primitive {self.__name__} has no rule for its arguments {argnums}. Give it one with "
                f"defvjp({self.__name__}, ...)"
            )
        custom: Any = custom_jvp(fun) if self.vjp is None else custom_vjp(fun)
        if self.vjp is not None:
            custom.defvjp(vjp_rule)
        if self.jvp is not None:
            custom.defjvp(jvp_rule)
        custom.recording_rule = self._recording_rule
        return custom


def _shaped(d: Any, x: Any) -> Any:
    """A gradient with one entry in the argument's shape: rules may return 1.0 for array([1.0])."""
    if d is None or not isinstance(x, (np.ndarray, np.generic, float, complex)) or np.shape(d) == np.shape(x):
        return d
    return np.reshape(d, np.shape(x)) if np.size(d) == np.size(x) == 1 else d


def primitive(f_raw: Callable) -> Callable:
    """A function whose inside is not recorded; core.defvjp or core.defjvp sets its derivative.

    It runs on plain values and may do anything, such as calling a library written in C.
    """
    return Primitive(f_raw)


def notrace_primitive(f_raw: Callable) -> Callable:
    """A function of the plain values behind its arguments, with no derivative."""

    @functools.wraps(f_raw)
    def plainly(*args, **kwargs):
        return f_raw(*map(getval, args), **kwargs)

    return plainly


def refusing(why: str) -> Any:
    """A function in place of one of autograd's that has no counterpart; `why` begins with its name."""

    def refuse(*args, **kwargs):
        raise NotImplementedError(f"autograd.{why}")

    return refuse


register_notrace = refusing(
    "tracer.register_notrace: this compiler has one kind of recording. A function without derivative is "
    "notrace_primitive(f), or takes ad.stop_gradient(x)"
)
new_box = refusing(
    "tracer.new_box: recorded values are made by the compiler alone. A function with a rule of its own is a "
    "primitive"
)


class _BoxType(type):
    def __instancecheck__(cls, x: Any) -> bool:
        if cls in objects.BOXES.values():
            return class_of(x) is cls
        return isbox(x)


class Box(metaclass=_BoxType):
    """The class of recorded values, for isinstance(x, Box). A subclass of it and of another class can be
    registered as the box of that class's objects; `_value` is the object.
    """

    _value: Any

    @classmethod
    def register(cls, value_type: Any) -> None:
        objects.enter(objects.BOXES, "autograd.tracer.Box.register", value_type, cls)


class Node:
    """Base class of the nodes that `trace` creates, one for each operation."""

    __init__ = initialize_root = refusing("tracer.Node is to be derived from")

    @classmethod
    def new_root(cls, *args: Any, **kwargs: Any) -> Any:
        root = cls.__new__(cls)
        root.initialize_root(*args, **kwargs)
        return root


def trace(start_node: Any, fun: Callable, x: Any) -> tuple[Any, Any]:
    """fun(x) and the node of its result, with a node for each op of the recorded graph that depends on x.

    Returns (value, None) if the result does not. The ops are this compiler's (docs/ops.md).
    """
    rec = record(fun, (x,))
    leaves, _ = flatten(x)
    if len(leaves) != 1 or rec.out_tree.size != 1:
        raise NotImplementedError("autograd.tracer.trace: of functions from one array to one array")
    operands = rec.operands(leaves)
    values: dict[GraphNode, Any] = dict(zip(rec.graph.inputs, operands))
    nodes = {rec.graph.inputs[0]: start_node}
    for n in rec.graph.nodes:
        if n.op == "const":
            values[n] = np.asarray(n.value, n.dtype)[()]
        elif n.op != "input":
            args = [values[a] for a in n.args]
            values[n] = evaluate(n.op, args, n.attrs)
            argnums = tuple(i for i, a in enumerate(n.args) if a in nodes)
            if argnums:
                parents = tuple(nodes[n.args[i]] for i in argnums)
                node = class_of(start_node)
                nodes[n] = node(values[n], _named(n.op), tuple(args), dict(n.attrs or {}), argnums, parents)
    out = rec.graph.outputs[0]
    return unflatten(rec.out_tree, [values[out]]), nodes.get(out)


def _named(op: str) -> Callable:
    """A function with an op's name, for a Node."""

    def function(*args, **kwargs):
        return evaluate(op, args, kwargs)

    function.__name__ = op
    return function


# ---- autograd.util ---------------------------------------------------------------------------------------


def subvals(x: Sequence, ivs: Iterable[tuple[int, Any]]) -> tuple:
    """x as a tuple, with the values of (position, value) in place."""
    entries = list(x)
    for i, v in ivs:
        entries[i] = v
    return tuple(entries)


def subval(x: Sequence, i: int, v: Any) -> tuple:
    return subvals(x, [(i, v)])


def func(f: Any) -> Any:
    return f


def toposort(end_node: Any, parents: Any = operator.attrgetter("parents")) -> Iterator:
    """The ancestors of end_node in topological order, from end_node backwards."""
    graph: dict = {}
    todo = [end_node]
    while todo:
        node = todo.pop()
        if node not in graph:
            graph[node] = tuple(parents(node))
            todo.extend(graph[node])
    return reversed([*graphlib.TopologicalSorter(graph).static_order()])
