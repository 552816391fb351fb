"""The graph: typed SSA over NumPy values.

    graph  = inputs, nodes, outputs
    node   = op, arguments (nodes), attributes (static), and a type: shape and dtype
    attrs  = hashable Python values only, so that equal nodes can be found by hashing

Nodes are immutable. Ids increase from arguments to results, so sorting by `id` is a topological order, and
the order in which the user's program ran. Passes are functions from graph to graph.

Most ops give one array. The few that give several (eigh, svd, slogdet, scan) make a tuple node, whose `shape`
and `dtype` are tuples of shapes and dtypes; `item` nodes take it apart.
"""

from __future__ import annotations

import ast
import itertools
import keyword
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any

import numpy as np

from . import hidden

_ids = itertools.count()


def next_id() -> int:
    """A number below the id of every node made from now on."""
    return next(_ids)


class GraphError(Exception):
    """An invalid graph: a bug in a pass, never the user's fault."""


class Immutable:
    """Base class of immutable objects: copy.copy and copy.deepcopy return the object itself."""

    __slots__ = ()

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError(
            f"a {type(self).__name__} of gpt2.autodiff cannot be pickled; pickle the function it was made "
            "from, or the derived function (such as ad.grad(f)): it is compiled again where it is loaded"
        )


class Node(Immutable):
    """One value of the program. `name` is a hint for printing, `loc` is (file, line, function) or None.

    `derived` says that differentiation made it, which decides how it may be computed (ops/exactness.py).
    """

    __slots__ = ("id", "op", "args", "attrs", "shape", "dtype", "name", "loc", "derived", "_key", "_frozen")

    def __init__(
        self,
        op: str,
        args: tuple,
        attrs: dict,
        shape: tuple,
        dtype: Any,
        name: str | None = None,
        loc: tuple | None = None,
        derived: bool = False,
    ):
        self.id = next(_ids)
        self.op = op
        self.args = args
        self.attrs = attrs
        self.shape = shape
        self.dtype = dtype
        self.name = name
        self.loc = loc
        self.derived = derived
        self._key = None
        self._frozen = None  # attrs as they are in keys

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        if isinstance(self.dtype, tuple):
            return 0  # a tuple node owns nothing that its items do not
        return self.size * self.dtype.itemsize

    @property
    def value(self) -> Any:
        """The value of a `const` node."""
        return self.attrs["value"]

    def key(self) -> tuple:
        """The key for common-subexpression elimination: nodes with equal keys compute equal values."""
        if self._key is None:
            if self.op in ("input", "const") and not is_scalar_const(self):
                self._key = (self.op, self.id)
            elif self.op == "const":
                # repr keeps -0.0 apart from 0.0, and makes every nan the same
                self._key = ("const", repr(const_value(self)), self.dtype)
            else:
                self._key = (self.op, tuple([a.id for a in self.args]), self.frozen(), self.dtype)
        return self._key

    def frozen(self) -> tuple:
        """The attributes, hashable."""
        if self._frozen is None:
            self._frozen = freeze(self.attrs) if self.attrs else ()
        return self._frozen

    def __repr__(self) -> str:
        return f"{self.name or 't'}_{self.id}: {type_text(self)}"

    # Arithmetic on nodes is entered by ops/build.py, which knows the table.
    def __bool__(self):
        raise GraphError(f"a symbolic value has no truth value: {self!r}")


_PLAIN = frozenset((bool, int, float, complex, str, type(None)))


def freeze(x: Any) -> Any:
    """A hashable stand-in for an attribute value."""
    if type(x) in _PLAIN or (type(x) is tuple and _PLAIN.issuperset(map(type, x))):
        return x
    if isinstance(x, dict):
        return tuple([(k, freeze(v)) for k, v in (sorted(x.items()) if len(x) > 1 else x.items())])
    if isinstance(x, (list, tuple)):
        return tuple([freeze(v) for v in x])
    if isinstance(x, (Graph, np.ndarray)) or callable(x):
        return id(x)
    return x


def is_scalar_const(n: Node) -> bool:
    return n.op == "const" and n.shape == ()


def const_value(n: Node) -> Any:
    """The Python number in a scalar constant."""
    return n.value.item() if isinstance(n.value, (np.ndarray, np.generic)) else n.value


class Graph(Immutable):
    """A program: `inputs` and `outputs` are tuples of nodes, `nodes` is all that the outputs need, in order.

    `name` is the user's function.
    """

    def __init__(self, inputs: Iterable[Node], outputs: Iterable[Node], name: str = "f"):
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.name = name
        self._nodes: tuple[Node, ...] | None = None
        self.kept: dict[str, Any] = {}  # what was derived from the graph: programs, a backward, ...

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node the outputs need, inputs and constants included, in topological order."""
        if self._nodes is None:
            self._nodes = tuple(reachable(self.outputs, self.inputs))
        return self._nodes

    def users(self) -> dict[Node, list[Node]]:
        """For each node, those that read it, once per reading argument."""
        users: dict[Node, list[Node]] = {n: [] for n in self.nodes}
        for n in self.nodes:
            for a in n.args:
                users[a].append(n)
        return users

    def __str__(self) -> str:
        """The graph as text, one typed line a value. Equal programs print equally: node numbers do not show.

        Below it stand the graphs of its outlined calls (passes/alike.py), each once.
        """
        bodies = dict.fromkeys(n.attrs["body"] for n in self.nodes if n.op == "outlined")
        taken: set[str] = set()
        tried: dict[str, int] = {}
        called = {body: unused_name(body.name, taken, tried) for body in bodies}
        texts = (_one_text(body, name, called) for body, name in called.items())
        return "\n\n".join([_one_text(self, self.name, called), *texts])


def reachable(outputs: Iterable[Node], inputs: Iterable[Node] = (), oldest: int = 0) -> list[Node]:
    """The inputs, the outputs, and what those are computed from, as far back as the id `oldest`, in order."""
    seen = {n.id: n for n in inputs}
    stack = [n for n in outputs if n.id not in seen]
    while stack:
        n = stack.pop()
        if n.id not in seen:
            seen[n.id] = n
            stack += [a for a in n.args if a.id >= oldest and a.id not in seen]
    return [seen[i] for i in sorted(seen)]


def postorder(
    n: Node, done: Container[Node], arguments: Callable[[Node], Iterable[Node]] = attrgetter("args")
) -> Iterator[Node]:
    """n and what it is computed from, arguments first, without those in `done`, to which the caller adds
    each."""
    stack = [n]
    while stack:
        n = stack[-1]
        missing = [a for a in arguments(n) if a not in done] if n not in done else []
        if missing:
            stack += reversed(missing)
        elif stack.pop() not in done:
            yield n


def dependent(nodes: Iterable[Node], sources: Iterable[Node]) -> set[Node]:
    """The sources, and all of these nodes, given in order, that are computed from them."""
    found = set(sources)
    for n in nodes:
        if any([a in found for a in n.args]):
            found.add(n)
    return found


def rewrite(graph: Graph, rule: Callable[[Node, tuple], Node | None]) -> Graph:
    """A new graph: `rule(node, new_args)` gives the node's replacement, or None to keep it as it is.

    Nodes are visited in order; a node whose arguments did not change and whose rule gives None stays the
    same object.
    """

    new: dict[Node, Node] = {}
    for n in graph.nodes:
        if n.op == "input":
            new[n] = n
            continue
        args = tuple([new[a] for a in n.args])
        replacement = rule(n, args)
        if replacement is None:
            replacement = n if all(map(is_, args, n.args)) else with_args(n, args)
        new[n] = replacement
    return Graph(graph.inputs, [new[o] for o in graph.outputs], graph.name)


def with_values(graph: Graph, values: Mapping[Node, Any]) -> Graph:
    """The graph with other values of these constants. All nodes are copied, in the same order."""

    def with_value(n: Node, args: tuple) -> Node:
        new = with_args(n, args)
        if n in values:
            new.attrs = {"value": values[n]}
        return new

    return rewrite(graph, with_value)


def exchanged(graph: Graph, values: Sequence) -> Graph:
    """The graph with these values in place of the hidden ones."""
    constants = [n for n in graph.nodes if n.op == "const" and hidden.is_hidden(n.value)]
    return with_values(graph, {n: values[n.value.index] for n in constants})


def with_args(n: Node, args: tuple) -> Node:
    """The same op on other arguments of the same types."""
    new = Node(n.op, args, n.attrs, n.shape, n.dtype, n.name, n.loc, n.derived)
    new._frozen = n._frozen
    return new


def remade(
    outputs: Sequence[Node], given: dict[Node, Node], make: Callable[[Node, tuple], Node] | None = None
) -> list[Node]:
    """Copies of the outputs, and of all nodes that they depend on, with other nodes in place of some.

    given   node -> its replacement; what the node was computed from is not visited
    make    make(node, new_args) -> the node that replaces it, if it is no input; else constants stay too
    """
    new = dict(given)
    for n in reachable(outputs, given):
        if n in new:
            continue
        args = tuple([new[a] for a in n.args])
        if make is not None and n.op != "input":
            new[n] = make(n, args)
        else:
            new[n] = with_args(n, args) if args else n
    return [new[o] for o in outputs]


def type_text(n: Node) -> str:
    if isinstance(n.dtype, tuple):
        return "(" + ", ".join(_one_type(s, d) for s, d in zip(n.shape, n.dtype)) + ")"
    return _one_type(n.shape, n.dtype)


def _one_type(shape, dtype) -> str:
    name = f"{dtype.kind}{8 * dtype.itemsize}" if dtype.kind in "fiuc" else str(dtype)
    return f"{name}[{','.join(map(str, shape))}]"


def node_names(graph: Graph) -> dict[Node, str]:
    """Unique readable names: the hint where there is one (numbered when taken), else t1, t2, ..."""
    names: dict[Node, str] = {}
    taken: set[str] = set()
    tried: dict[str, int] = {}
    unnamed = (f"t{k}" for k in itertools.count(1))
    for n in graph.nodes:
        if n.name is None:
            names[n] = next(name for name in unnamed if name not in taken)
            taken.add(names[n])
        else:
            names[n] = unused_name(n.name, taken, tried)
    return names


def unused_name(hint: str, taken: set[str], tried: dict[str, int]) -> str:
    """The hint, numbered if it is taken; it is taken then.

    tried   hint -> the number that was tried last: a loop gives thousands of values the same hint
    """
    name, k = hint, tried.get(hint, 1)
    while name in taken:
        k += 1
        name = f"{hint}_{k}"
    tried[hint] = k
    taken.add(name)
    return name


def source_names(graph: Graph, reserved: Container[str]) -> dict[Node, str]:
    """node_names for Python source: none is a keyword or in `reserved`, and Python can spell them all."""
    names = node_names(graph)
    taken = set(names.values())
    for n, text in names.items():
        spelled = source_name(text, reserved)
        if spelled != text:
            while spelled in taken:
                spelled += "_"
            taken.add(spelled)
            names[n] = spelled
    return names


def source_name(text: str, reserved: Container[str]) -> str:
    """The text itself where it can be a name in Python source, else it with underscores."""
    if text.isidentifier() and not keyword.iskeyword(text) and text not in reserved:
        return text
    spelled = re.sub(r"\W", "_", text) + "_"
    return spelled if spelled.isidentifier() else "_" + spelled


def _one_text(graph: Graph, name: str, called: dict[Graph, str]) -> str:
    names = node_names(graph)

    def ref(n: Node) -> str:
        return repr(const_value(n)) if is_scalar_const(n) else names[n]

    lines = [f"{name}(" + ", ".join(f"{names[i]}: {type_text(i)}" for i in graph.inputs) + ")"]
    for n in graph.nodes:
        if n.op == "input" or is_scalar_const(n):
            continue
        attrs_shown = {k: v for k, v in n.attrs.items() if k not in ("value", "of", "cuts")}
        attrs = ", ".join(
            f"{k}={called.get(v) if n.op == 'outlined' else attr_text(v)}" for k, v in attrs_shown.items()
        )
        args = [ref(a) for a in n.args]
        for k, cut in enumerate(n.attrs.get("cuts", ())):
            if cut is not None:  # the part of the argument that a call is given (derive/outlined.py)
                args[k] += f"[{':, ' * cut[0]}{cut[1]}:{cut[2]}]"
        body = ", ".join([*args, attrs] if attrs else args)
        lines.append(f"  {names[n]}: {type_text(n)} = {n.op}({body})")
    lines.append("  return " + ", ".join(map(ref, graph.outputs)))
    return "\n".join(lines)


def scalar_text(n: Node) -> str:
    """A scalar constant as a literal: weak beside arrays (NEP 50), so that their dtype is kept."""
    v = n.value
    if type(v) is hidden.Hidden:
        return repr(v)
    if isinstance(v, complex):
        # A literal equal to v, signs of zeros included: Python's -1j is -0 - 1j
        for text in (repr(v), repr(complex(0.0, v.imag))) if np.isfinite(v) else ():
            if repr(ast.literal_eval(text)) == repr(v):
                return text
        return f"complex({float_text(v.real)}, {float_text(v.imag)})"
    return float_text(v) if isinstance(v, float) else repr(v)


def float_text(v: float) -> str:
    """A number as text that Python reads in a program."""
    if np.isfinite(v):
        return repr(v)
    return "np.nan" if np.isnan(v) else ("np.inf" if v > 0 else "-np.inf")


def attr_text(v: Any) -> str:
    if isinstance(v, Graph):
        return v.name
    if callable(v):
        return getattr(v, "__name__", "fn")
    return repr(v).replace(" ", "")
