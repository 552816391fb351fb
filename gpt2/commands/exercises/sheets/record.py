"""Step 2 of a compiler: run a function, and note each operation.

A function in NumPy is called with objects that stand for arrays. NumPy hands `np.exp(x)` and `x + y` to their
method __array_ufunc__, with the ufunc's name (add, multiply, matmul, exp ...), and `np.sum(x)` to
__array_function__. So nothing of the function is read, and an `if` in it sees the values of this run.

Write `record(op, *args)`: the Array of a new node. Its arguments are the nodes of `args`, where a number or
an array becomes a node "constant"; its value is what `function_of(op)` returns for the values of these.
"""

import numpy as np

from gpt2.commands.exercises.sheets.order import Node


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for the value of a node."""

    def __init__(self, node):
        self.node = node

    def __array_ufunc__(self, ufunc, method, *args):
        return record(ufunc.__name__, *args)

    def __array_function__(self, function, types, args, kwargs):
        return record(function.__name__, *args)

    @property
    def shape(self):
        return np.shape(self.node.value)


def fit(g, x):
    """g in the shape of x: summed along the axes where x was repeated, repeated where x was summed."""
    for _ in range(np.ndim(g) - np.ndim(x)):
        g = np.sum(g, axis=0)
    for axis, n in enumerate(np.shape(x)):
        if np.ndim(g) and n == 1:
            g = np.sum(g, axis=axis, keepdims=True)
    return np.broadcast_to(g, np.shape(x))


def function_of(op):
    return fit if op == "fit" else getattr(np, op)


def record(op, *args):
    nodes = [a.node if isinstance(a, Array) else Node("constant", value=np.asarray(a)) for a in args]
    value = function_of(op)(*[node.value for node in nodes])
    return Array(Node(op, *nodes, value=value))


HINTS = (
    "Of each argument a.node if it is an Array, else Node('constant', value=a). Then a Node of all these.",
    "value = function_of(op)(*[node.value for node in nodes]); then Array(Node(op, *nodes, value=value)).",
)


def judge(names):
    """What is wrong with the answer in a file of these names, or None."""
    record, Array = names["record"], names["Array"]
    x = Array(Node("input", value=np.array([0.5, -2.0]), name="x"))
    cases = {
        "record('exp', x)": ("exp", x),
        "record('multiply', x, 3.0)": ("multiply", x, 3.0),
        "record('subtract', 1.0, x)": ("subtract", 1.0, x),
        "record('add', np.array([1.0, 2.0]), x)": ("add", np.array([1.0, 2.0]), x),
        "record('sum', x)": ("sum", x),
    }
    for call, (op, *args) in cases.items():
        result = record(op, *args)
        if type(result).__name__ != "Array":
            return f"{call} is a {type(result).__name__}, expected an Array"
        node, plain = result.node, [a.node.value if isinstance(a, Array) else a for a in args]
        if node.op != op or len(node.args) != len(args):
            return f"{call} has a node {node.op!r} of {len(node.args)} arguments"
        for arg, given in zip(node.args, args):
            if isinstance(given, Array) and arg is not given.node:
                return f"{call}: the argument of the node is another node than x's"
            if not isinstance(given, Array) and (arg.op, arg.args) != ("constant", ()):
                return f"{call}: {given} is a node {getattr(arg, 'op', arg)!r}, expected a 'constant'"
            if not isinstance(given, Array) and not np.array_equal(arg.value, given):
                return f"{call}: the constant has the value {arg.value}, expected {given}"
        expected = function_of(op)(*plain)
        if not np.array_equal(node.value, expected):
            return f"{call} has the value {node.value}, expected {expected}"
    return None
