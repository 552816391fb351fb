"""A compiler for gradients in 300 lines: it reads a forward in NumPy and writes its backward in NumPy.

    python examples/compiler.py [LAYER]         prints a layer's derived backward; without a name, LayerNorm's

It derives those of GPT-2's seven layers from their forwards as they stand, equal to the ones by hand up to
rounding. docs/compiler.md says how gpt2/autodiff, the project's compiler, makes these steps general and fast.
"""

import ast
import itertools
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import attrgetter

import numpy as np

from gpt2.layers import LAYERS
from gpt2.layers.cases import Sizes, at


# ---- 1. Graph: a program is a list of operations, each with its arguments and the type of its result
@dataclass(eq=False)  # compared by identity
class Node:
    """An input, a constant, or an operation on other nodes. It never changes: a new result is a new node."""

    op: str
    args: tuple = ()
    static: dict = field(default_factory=dict)  # settings, such as axis=(0,)
    value: np.ndarray | float | None = None  # in the recorded run; its shape and dtype are the node's type
    name: str = ""  # of the variable that holds it


def make(op, *args, **static):
    """The node of an operation. Its value is computed now, by the text that will be emitted."""
    values = {f"x{i}": arg.value for i, arg in enumerate(args)}
    return Node(op, args, static, eval(text(list(values), op, static), RUNTIME, values))


def text(names, op, static):
    """The NumPy expression of an operation on arguments of these names."""
    if op in TEXTS:
        return TEXTS[op](*names, **static)
    return f"np.{op}({', '.join([*names, *(f'{key}={value}' for key, value in static.items())])})"


def in_order(nodes, order=None):
    """These nodes and all from which they are computed, arguments first."""
    order = {} if order is None else order
    for node in nodes:
        if node not in order:
            in_order(node.args, order)
            order[node] = None
    return list(order)


SYMBOLS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "matmul": "@"}
TEXTS = {op: f"({{}} {symbol} {{}})".format for op, symbol in SYMBOLS.items()} | {
    "negative": "(-{})".format,
    "reshape": "{}.reshape({shape})".format,
    "transpose": "{}.transpose({axes})".format,
    "index": lambda x, *ids, key: f"{x}[{key.format(*ids)}]",
    "scatter": lambda g, *ids, key, shape: f"scatter({shape}, np.s_[{key.format(*ids)}], {g})",
    "put": lambda x, v, steps: f"put({x}, lambda x: {reduce(lambda x, s: text([x], *s), steps, 'x')}, {v})",
}


def scatter(shape, key, g):
    """Zeros with g added where x[key] reads; twice, where it reads twice."""
    x = np.zeros(shape, g.dtype)
    np.add.at(x, key, g)
    return x


def put(x, view, value):
    """A copy of x with a value where view(x) looks, as in put(x, lambda x: x[1:], value)."""
    x = x.copy()
    view(x)[...] = value
    return x


RUNTIME = {"np": np, "scatter": scatter, "put": put}  # what emitted programs call


# ---- 2. Record: run the forward once on objects that stand for arrays, and note each operation
# NumPy hands np.exp(x) and x + y to an object's __array_ufunc__, np.sum(x) to its __array_function__. An `if`
# sees the recorded values, so the program is that of the path taken.
class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array. Writing to it makes a new node; the old one stays as it is. A view has no node,
    only its base and the steps that lead from there, so it always reads the newest."""

    def __init__(self, own, base=None, steps=()):
        self.own, self.base, self.steps = own, self if base is None else base, steps

    @property
    def node(self):
        return reduce(lambda node, step: make(step[0], node, **step[1]), self.steps, self.base.own)

    def view(self, op, **static):
        after = make(op, self.node, **static)
        if after.value.size and not np.shares_memory(self.node.value, after.value):
            return Array(after)  # NumPy copies here
        return Array(None, self.base, (*self.steps, (op, static)))

    def __array_ufunc__(self, ufunc, method, *inputs, out=(None,)):
        if method != "__call__":
            raise NotImplementedError(f"np.{ufunc.__name__}.{method} cannot be recorded")
        result = record(ufunc.__name__, *inputs)
        if out[0] is not None:
            out[0][...] = result
        return result if out[0] is None else out[0]

    def __array_function__(self, function, types, args, kwargs):
        return FUNCTIONS[function.__name__](*args, **kwargs)

    def __getitem__(self, key):
        key, ids = text_of_key(key)
        return record("index", self, *ids, key=key) if ids else self.view("index", key=key)

    def __setitem__(self, key, value):  # x[k] += y ends with x[k] = x[k], which changes nothing
        key, ids = text_of_key(key)
        if ids or (view := self.view("index", key=key)).own:
            raise NotImplementedError("a write to x[array] or to a single number cannot be recorded")
        if not (isinstance(value, Array) and value.base is view.base and value.steps == view.steps):
            self.base.own = record("put", self.base, value, steps=view.steps).own

    def reshape(self, *shape):
        return self.view("reshape", shape=self.node.value.reshape(*shape).shape)

    def transpose(self, *axes):
        return self.view("transpose", axes=axes or tuple(range(self.ndim))[::-1])

    def swapaxes(self, a, b):
        axes = list(range(self.ndim))
        axes[a], axes[b] = axes[b], axes[a]
        return self.transpose(*axes)

    def __bool__(self):
        return bool(self.node.value)

    T = property(transpose)
    shape, ndim = property(attrgetter("node.value.shape")), property(attrgetter("node.value.ndim"))
    size, dtype = property(attrgetter("node.value.size")), property(attrgetter("node.value.dtype"))


def record(op, *args, **static):
    """The Array of an operation on Arrays, plain arrays and numbers."""
    nodes = [arg.node if isinstance(arg, Array) else Node("constant", value=arg) for arg in args]
    frame = sys._getframe()
    while frame and frame.f_globals.get("__package__") != "gpt2.layers":  # whose variables have the names
        frame = frame.f_back
    for name, value in frame.f_locals.items() if frame else ():
        if isinstance(value, Array) and value.own:
            value.own.name = value.own.name or name
    return Array(make(op, *nodes, **static))


def text_of_key(key):
    """An index as text, such as "1:, None", with {0} for the first array in it; and these arrays."""
    texts, ids = [], []
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, Array | np.ndarray):
            texts.append(f"{{{len(ids)}}}")
            ids.append(part)
        elif isinstance(part, slice):
            texts.append(f"{part.start}:{part.stop}:{part.step}".replace("None", "").removesuffix(":"))
        else:
            texts.append("..." if part is ... else str(part))
    return ", ".join(texts), ids


def reduction(op, x, axis=None, keepdims=False):
    """np.sum and its like: an operation that keeps the axes, reshaped unless they are to be kept."""
    axes = range(x.ndim) if axis is None else np.atleast_1d(axis) % x.ndim
    out = record(op, x, axis=tuple(map(int, axes)), keepdims=True)
    return out if keepdims else out.reshape([n for a, n in enumerate(x.shape) if a not in axes])


FUNCTIONS = {
    **{op: partial(reduction, op) for op in ("sum", "max", "min")},
    "mean": lambda x, **axes: (total := np.sum(x, **axes)) * (total.size / x.size),
    "where": lambda condition, a, b: record("where", condition, a, b),
    "broadcast_to": lambda x, shape: record("broadcast_to", x, shape=shape),
    "empty_like": lambda x, shape=None: Array(Node("constant", value=np.zeros(shape or x.shape, x.dtype))),
    "take_along_axis": lambda x, ids, axis: x[(*np.indices(ids.shape)[:-1], ids)],  # along the last axis
}

# ---- 3. Rules: from g, the gradient of a result, to those of its arguments; recorded like a forward
RULES = {
    "input": lambda g, out: (),
    "constant": lambda g, out: (),
    "add": lambda g, out, a, b: (g, g),
    "subtract": lambda g, out, a, b: (g, -g),
    "multiply": lambda g, out, a, b: (g * b, g * a),
    "divide": lambda g, out, a, b: (g / b, -g * out / b),
    "negative": lambda g, out, x: (-g,),
    "exp": lambda g, out, x: (g * out,),
    "log": lambda g, out, x: (g / x,),
    "sqrt": lambda g, out, x: (0.5 * g / out,),
    "tanh": lambda g, out, x: (g * (1.0 - out * out),),
    "matmul": lambda g, out, a, b: (g @ b.swapaxes(-1, -2), a.swapaxes(-1, -2) @ g),
    "where": lambda g, out, c, a, b: (None, np.where(c, g, 0.0), np.where(c, 0.0, g)),
    "sum": lambda g, out, x, **axes: (np.broadcast_to(g, x.shape),),
    "max": lambda g, out, x, **axes: (g * (x == out) / np.sum(x == out, **axes),),  # equal ones share it
    "broadcast_to": lambda g, out, x, shape: (g,),
    "reshape": lambda g, out, x, shape: (g.reshape(x.shape),),
    "transpose": lambda g, out, x, axes: (g.transpose(*np.argsort(axes).tolist()),),
    "index": lambda g, out, x, *ids, key: (record("scatter", g, *ids, key=key, shape=x.shape),),
    "put": lambda g, out, x, v, steps: (record("put", g, 0.0, steps=steps), Array(None, g, steps)),  # a view
}
RULES["min"] = RULES["max"]


# ---- 4. Derive: the chain rule, from the last node to the first
def derive(out, dout, inputs):
    """The node of d sum(dout * out) / d input for each of the inputs."""
    grads = {out: Array(dout)}
    for node in reversed(in_order([out])):  # at its turn, all its users have handed it their share
        if node in grads:
            g, args = grads[node], [Array(arg) for arg in node.args]
            g.own.name = g.own.name or node.name and f"d{node.name}"
            for arg, share in zip(args, RULES[node.op](g, Array(node), *args, **node.static)):
                if share is not None and np.result_type(arg.own.value).kind == "f":
                    share = unbroadcast(share, np.shape(arg.own.value))  # maybe a view: no own, but a node
                    grads[arg.own] = Array((grads[arg.own] + share if arg.own in grads else share).node)
    return [grads.get(node, Array(Node("constant", value=np.zeros_like(node.value)))).node for node in inputs]


def unbroadcast(g, shape):
    """g summed over the axes along which an argument of this shape was repeated. No rule mentions them."""
    extra = g.ndim - len(shape)
    axes = [a for a, n in enumerate(g.shape) if a < extra or shape[a - extra] != n]
    g = np.sum(g, axis=axes, keepdims=True) if axes else g
    return g.reshape(shape) if extra else g


# ---- 5. Simplify: fold constants, compute equal nodes once, leave out what no output needs
def simplify(outputs):
    """The same outputs from fewer nodes."""
    new, known = {}, {}
    for node in in_order(outputs):
        args = tuple(new[arg] for arg in node.args)
        better = Node(node.op, args, node.static, node.value, node.name) if args else node
        if args and all(arg.op == "constant" for arg in args):
            better = Node("constant", value=node.value)
        key = (node.op, args, repr(node.static)) if args else node
        if better.op == "constant":
            value = better.value
            key = type(value), np.result_type(value), np.shape(value), np.asarray(value).tobytes()
        new[node] = known.setdefault(key, better)
    return [new[out] for out in outputs]


# ---- 6. Emit: a line of NumPy for each node, or a part of a line if it is used once
def emit(name, parameters, outputs):
    """The text of a function of these parameters, and its constant arrays by their names."""
    results, names, constants, lines, serial = [*outputs.values()], {}, {}, [], itertools.count(1)
    uses = Counter(results + [arg for node in in_order(results) for arg in node.args])
    for node in in_order(results):
        value = text([names[arg] for arg in node.args], node.op, node.static) if node.args else node.name
        if node.op == "constant":
            value = repr(node.value) if np.ndim(node.value) == 0 else f"constant{len(constants)}"
            constants[value] = node.value
        elif node.args and (uses[node] > 1 or node in results or len(value) > 70):
            variable = node.name or "t"
            while variable in {*names.values(), *parameters, *RUNTIME}:
                variable = f"{node.name or 't'}{next(serial)}"
            lines.append(f"{variable} = {value}")
            value = variable
        names[node] = value
    returned = ", ".join(names[outputs[p]] if p in outputs else "None" for p in parameters[1:])
    source = "\n    ".join([f"def {name}({', '.join(parameters)}):", *lines, f"return ({returned},)"])
    return ast.unparse(ast.parse(source)), constants  # without the parentheses that are not needed


def backward_of(forward, *inputs, **static):
    """backward(dout, *inputs) -> gradients, of forward(*inputs, **static) -> (out, saved); and its source."""
    parameters = forward.__code__.co_varnames[: len(inputs)]
    nodes = {p: x if x is None else Node("input", value=x, name=p) for p, x in zip(parameters, inputs)}
    result = forward(*(node and Array(node) for node in nodes.values()), **static)
    if not isinstance(result, tuple):
        raise TypeError("a forward returns a tuple (out, saved), in which saved may be ()")
    out = result[0].node
    floats = {p: node for p, node in nodes.items() if node and node.value.dtype.kind == "f"}  # else None
    dout = Node("input", value=np.ones_like(out.value), name="dout")
    grads = dict(zip(floats, simplify(derive(out, dout, list(floats.values())))))
    name = forward.__name__.replace("forward", "backward").replace("<lambda>", "backward")
    source, constants = emit(name, ["dout", *nodes], grads)
    exec(source, namespace := RUNTIME | constants)
    return namespace[name], source


if __name__ == "__main__":
    layer = sys.argv[1] if len(sys.argv) > 1 else "layernorm"
    if layer not in LAYERS:
        sys.exit(f"no layer is called {layer!r}: {', '.join(LAYERS)}")
    case = at(Sizes(B=2, T=5, C=12, OC=7, NH=3, V=11, max_t=8))[layer]
    print(backward_of(LAYERS[layer].forward, *case.inputs(), **case.static)[1])
