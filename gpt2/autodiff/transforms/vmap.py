"""ad.vmap: a function of one example as a function of many, without a loop. `batched` makes its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import AutodiffError
from ..graph import Graph, Node
from ..loops.map_op import map_node
from ..ops import OPS, apply, input_node
from ..ops.leads import Batch, NoRule, broadcasting
from ..ops.subgraph import inputs_like, items
from ..ops.table import is_elementwise
from ..programs.arguments import is_int
from ..programs.bodies import body_graph, operands_of_body, recorded_for_slices
from ..programs.compile import Compile
from ..programs.derived import derived_function
from ..programs.wiring import argument_text
from ..record.record import inline
from ..record.source_lines import error_here
from ..record.value import Recorded, value_of
from ..tree import Tree, flatten, is_container, unflatten


def vmap(f: Callable, in_axes: Any = 0, out_axes: Any = 0, *, pure: bool = False) -> Callable:
    """f for many examples at once: the derived function takes and gives arrays with one more axis.

    in_axes    which axis of each argument counts the examples; None: the argument is the same for all. One
               int or None for all arguments, or a tuple or list with an entry for each, which may itself be
               nested as far as the argument is: {"w": None, "x": 0}
    out_axes   where the axis goes in the results: an int, or nested as the result is. None: the result is the
               same for all examples, and is given once
    pure       see ad.compile

    f is recorded for one example, and every operation is done for all of them. Keyword arguments with arrays
    are mapped over their first axis. A function that cannot stand for all examples (it branches on values,
    draws random numbers, prints) runs once for each, in order, as a loop would. Nests with every other
    transform and with itself.

        >>> ad.vmap(np.dot, in_axes=(0, None))(np.eye(2), np.array([3.0, 4.0]))
        array([3., 4.])
    """
    return derived_function(f, Vmap(in_axes, out_axes), pure)


class Vmap(Compile):
    """The function for all examples, whose recording inlines the batched graph of one."""

    name, suffix = "vmap", "vmap"

    def __init__(self, in_axes: Any, out_axes: Any):
        self.in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        self.out_axes = out_axes
        for name, axes in (("in_axes", self.in_axes), ("out_axes", out_axes)):
            for axis in flatten(axes, lambda x: not is_container(x))[0]:
                if axis is not None and not is_int(axis):
                    raise AutodiffError(f"vmap: {name} has {axis!r}, expected ints and None")

    def key(self) -> tuple:
        return type(self), flatten(self.in_axes)[1], flatten(self.out_axes)[1]

    def function(self, f: Callable) -> Callable:
        def mapped(*args, **kwargs):
            return _mapped(f, args, kwargs, self.in_axes, self.out_axes)

        mapped.__name__ = getattr(f, "__name__", "f")
        return mapped


def _mapped(f: Callable, args: tuple, kwargs: dict, in_axes: Any, out_axes: Any) -> Any:
    leaves, tree = flatten((args, kwargs))
    per_argument = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
    if len(per_argument) != len(args):
        raise error_here(
            f"vmap: in_axes has {len(per_argument)} entries, but {_name(f)} was called with {len(args)} "
            f"positional argument{'s' if len(args) != 1 else ''}"
        )
    axes = _axes_of(tree, (per_argument, 0), "in_axes")  # None: the same for all examples
    names = [_argument(f, path) for path in tree.paths()]
    n = _examples(f, leaves, axes, names)
    moved = [x if not a else np.moveaxis(x, a, 0) for x, a in zip(leaves, axes)]
    flags = [a is not None for a in axes]
    rec, out_tree, results = recorded_for_slices("vmap", f, moved, tree, flags, n)
    differs = [True] * len(results)
    if rec is not None:
        one = body_graph(rec)
        graph, differs = batched(one, flags + [False] * (len(one.inputs) - len(axes)), n)
        values = zip(operands_of_body(one, moved, rec), graph.inputs, strict=True)
        results = inline(graph, [x if hasattr(x, "dtype") else np.asarray(x, i.dtype) for x, i in values])
    rows = zip(results, differs, _axes_of(out_tree, out_axes, "out_axes"), out_tree.paths(), strict=True)
    return unflatten(out_tree, [_with_axis_at(f, x, h, a, n, path) for x, h, a, path in rows])


def _name(f) -> str:
    return getattr(f, "__name__", None) or type(f).__name__


def _argument(f: Callable, path: tuple) -> str:
    group, key, *rest = path
    if group == 0:
        return argument_text(f, key, rest)
    return key + "".join(f"[{p!r}]" for p in rest)


def _examples(f: Callable, leaves, axes, names) -> int:
    """How many examples there are, which all arguments agree on."""
    sizes: dict[int, str] = {}
    for x, axis, name in zip(leaves, axes, names):
        if axis is None:
            continue
        shape = np.shape(value_of(x))
        if not -len(shape) <= axis < len(shape):
            got = f"shape {shape}" if shape else "no axes: it is a number"
            raise error_here(
                f"vmap: in_axes names axis {axis} of {name}, which has {got}. An entry of None in in_axes "
                "says that an argument is the same for all examples"
            )
        sizes.setdefault(shape[axis], f"{name} has {shape[axis]} (axis {axis} of shape {shape})")
    if len(sizes) > 1:
        raise error_here(f"vmap: the arguments differ in the number of examples: {', '.join(sizes.values())}")
    if not sizes:
        raise error_here(
            f"vmap: no argument of {_name(f)} is mapped: in_axes has None for all of them, or they hold no "
            "array"
        )
    return next(iter(sizes))


def _axes_of(tree: Tree, axes: Any, what: str) -> list:
    """An axis or None for each leaf of the tree; `axes` may be nested less deeply."""
    if tree.is_leaf:
        if axes is not None and not is_int(axes):
            raise error_here(f"vmap: {what} has {axes!r} where an array is, expected an int or None")
        return [axes if axes is None else int(axes)]
    if tree.is_static:
        return []
    if axes is None or is_int(axes):
        return [a for child in tree.children for a in _axes_of(child, axes, what)]
    entries = _children(axes, tree)
    if entries is None:
        raise error_here(f"vmap: {what} has {axes!r}, which is not nested as the value it is for: {tree!r}")
    return [a for child, entry in zip(tree.children, entries) for a in _axes_of(child, entry, what)]


def _children(axes, tree: Tree) -> list | None:
    """The entries of `axes` for the children of a tree, where it is a container like it."""
    keys = tree.keys
    if isinstance(axes, dict):
        return [axes[k] for k in keys] if keys is not None and set(axes) == set(keys) else None
    if isinstance(axes, (tuple, list)):
        return list(axes) if keys is None and len(axes) == len(tree.children) else None
    return [getattr(axes, k, 0) for k in keys] if keys is not None and type(axes) is tree.type else None


def _with_axis_at(f: Callable, x, has: bool, axis: int | None, n: int, path: tuple):
    """A result with the axis of the examples where out_axes says."""
    if axis is None:
        if has:
            where = "".join(f"[{p!r}]" for p in path)
            raise error_here(
                f"vmap: out_axes has None for the result{where} of {_name(f)}, which differs from example to "
                "example"
            )
        return x
    if not has:
        x = np.broadcast_to(x, (n, *np.shape(x)))
        x = x if type(x) is Recorded else x.copy()
    if axis == 0:
        return x
    ndim = np.ndim(value_of(x))
    if not -ndim <= axis < ndim:
        raise error_here(
            f"vmap: out_axes names axis {axis} of a result of {_name(f)} that has {ndim} axes with that of "
            "the examples"
        )
    return np.moveaxis(x, 0, axis)


# --- graphs


def batched(
    graph: Graph, flags: Sequence[bool], n: int, known: Mapping[Node, Node] | None = None
) -> tuple[Graph, list]:
    """(the graph for n examples, a flag for each output), by the rule of each op's row (ops/leads.py).

    flags   which inputs, and outputs, differ from example to example: they get one more axis, the first
    known   nodes that are batched already

    An op without a rule becomes a `map` over the examples: a loop, slower, and right for every op.
    """
    new: dict[Node, Node | list[Node]] = dict(known or {})  # a list: the items of a tuple node
    differs: dict[Node, bool] = dict.fromkeys(new, True)
    inputs = []
    for x, has in zip(graph.inputs, flags, strict=True):
        new[x] = input_node((n, *x.shape), x.dtype, x.name) if has else x
        differs[x] = has
        inputs.append(new[x])
    for node in graph.nodes:
        if node in new:
            continue
        of_args = [differs[a] for a in node.args]
        differs[node] = any(of_args)
        new[node] = _one(node, new, of_args, n) if any(of_args) else node
    outputs = [new[o] for o in graph.outputs]
    return Graph(inputs, outputs, f"{graph.name}_vmap"), [differs[o] for o in graph.outputs]


def _one(node: Node, new: dict, flags: list[bool], n: int) -> Node | list[Node]:
    if node.op == "item":
        whole = new[node.args[0]]
        return whole[node.attrs["i"]] if isinstance(whole, list) else apply("item", whole, i=node.attrs["i"])
    args = [new[a] for a in node.args]
    rule = OPS[node.op].leads.batch or (broadcasting if is_elementwise(node.op) else None)
    b = Batch(n, flags, node, lambda graph, flags: batched(graph, flags, n))
    try:
        result = _looped(node, args, flags, n) if rule is None else rule(b, *args, **node.attrs)
    except NoRule:
        result = _looped(node, args, flags, n)
    except Exception as error:
        error.add_note(f"raised by the batch rule of {node.op}, for {node!r} with flags {list(flags)}")
        raise
    if isinstance(result, Node):
        result.name, result.loc, result.derived = node.name, node.loc, node.derived
        several = isinstance(node.dtype, tuple)
        expected = tuple((n, *s) for s in node.shape) if several else (n, *node.shape)
        if result.shape != expected or result.dtype != node.dtype:
            text = f"gave {result!r}, expected {expected} {node.dtype}"
            raise AssertionError(f"the batch rule of {node.op} {text}")
    return result


def _looped(node: Node, args: list[Node], flags: list[bool], n: int) -> Node | list[Node]:
    """The op example by example."""
    inner = inputs_like(node.args)
    one = apply(node.op, *inner, **node.attrs)
    outputs = items(one) if isinstance(one.dtype, tuple) else [one]
    order = sorted(range(len(args)), key=lambda k: not flags[k])  # those with the axis first
    body = Graph([inner[k] for k in order], outputs, node.op)
    stacked = map_node(body, [args[k] for k in order], n, sum(flags))
    return stacked if isinstance(one.dtype, tuple) else stacked[0]
