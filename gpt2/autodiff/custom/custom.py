"""ad.custom_vjp and ad.custom_jvp; and ad.checkpoint, ad.stop_gradient and ad.callback.

A custom function may be ordinary NumPy, or call what cannot be recorded (SciPy, C, a solver that iterates
until a value is small): then it runs as plain Python, on plain arrays, when the program reaches it. Either
way one rule serves both modes (custom/call.py), and rules written in NumPy can be differentiated again.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import AutodiffError
from ..graph import Graph, remade
from ..ops import const, input_node
from ..ops.build import cast, full
from ..ops.subgraph import inputs_like, is_float, zeros_like
from ..programs.bodies import holds_for_all, operands_of_body, with_numpy_ints
from ..programs.wiring import rebuilt, result_kind, result_leaves
from ..record import recorder
from ..record.draws import plain_draws
from ..record.record import apply_op, record
from ..record.source_lines import error_here
from ..record.unevaluated import Unknown, depends_on
from ..record.value import Recorded, value_of
from ..tree import Tree, flatten, is_container, tree_map, unflatten
from .call import Checkpoint, CustomJVP, CustomVJP, call, host_graph

CHECKPOINT = Checkpoint()


def stop_gradient(x: Any) -> Any:
    """x itself, an array or a tree of arrays, as a constant for derivatives.

    >>> ad.grad(lambda x: x * ad.stop_gradient(x))(3.0)
    3.0
    """
    return tree_map(lambda leaf: apply_op("stop_gradient", leaf) if type(leaf) is Recorded else leaf, x)


def checkpoint(f: Callable) -> Callable:
    """f, whose backward keeps only the arguments and computes the rest again: memory for time.

    For a function that is differentiated through, in reverse; everywhere else it is f. Values from outside
    that f reads are kept as arguments are.

        >>> layer = ad.checkpoint(lambda x: np.tanh(np.sin(x)))
        >>> ad.grad(lambda x: np.sum(layer(x)))(np.zeros(2))
        array([1., 1.])
    """

    @functools.wraps(f)
    def checkpointed(*args, **kwargs):
        leaves, _ = flatten((args, kwargs))
        if recorder.current() is None:
            return f(*args, **kwargs)
        rec = record(f, args, kwargs)
        operands = operands_of_body(rec.graph, leaves, rec)
        if not any(type(x) is Recorded for x in operands):
            return f(*args, **kwargs)
        results = apply_op("call", *operands, graph=rec.graph, rule=CHECKPOINT)
        for leaf, new in zip(rec.written, results[rec.n_results :]):
            leaves[leaf][...] = new
        return rebuilt(rec.out_tree, results[: rec.n_results], map(result_kind, result_leaves(rec)))

    return checkpointed


def callback(f: Callable, like: Any, *args: Any) -> Any:
    """f(*args), called as plain Python each time a compiled program reaches it. f is not recorded.

    f      takes arrays, one for each of args, and gives an array or a tree of arrays, which are copied. It
           may keep a state and have side effects. The arrays that it takes are the program's own memory: good
           for as long as the call lasts, and not to be written to
    like   an array, or a tree of arrays, of the structure, shapes and dtypes that f gives

    A program calls f once for each recorded call whose result is used. f is also called while the function
    around it is recorded: by ad.Fixed at the first call with new types, by ad.compile whenever f has changed
    what that function reads. It has no derivative: if one is needed, call f in a function with a rule,
    ad.custom_vjp.

    Raises AutodiffError if f returns something that is not like `like`.

        >>> seen = []
        >>> def note(x):
        ...     seen.append(float(x[0]))
        ...     return x + len(seen)
        >>> fixed = ad.Fixed(lambda x: np.sqrt(ad.callback(note, x, x * x)))
        >>> [float(fixed(np.full(1, 4.0))[0]) for _ in range(2)], len(seen)
        ([4.242640687119285, 4.358898943540674], 3)
    """
    if not any(type(x) is Recorded for x in args):
        return f(*args)
    for x in args:
        if type(x) is Recorded and depends_on(x.node, x._rec.guessed):  # f is to see real values
            raise Unknown
    examples, tree = flatten(like)
    if not examples:
        raise error_here("callback: like has no array, and a program leaves out what gives none")
    types = [(np.shape(x), x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype) for x in examples]
    name = getattr(f, "__name__", "f")

    def function(*values):
        values = [np.asarray(x)[...] for x in values]
        for x in values:  # views: the program may use one array for two of the function around it
            x.flags.writeable = False
        results, result_tree = flatten(f(*values))
        if result_tree != tree or [(np.shape(x), getattr(x, "dtype", None)) for x in results] != types:
            returned = ", ".join(f"{getattr(x, 'dtype', type(x).__name__)} {np.shape(x)}" for x in results)
            expected = ", ".join(f"{dtype} {shape}" for shape, dtype in types)
            raise AutodiffError(f"callback: {name} gives {returned}, expected {expected}")
        return tuple(results)

    function.__name__ = name
    shapes, dtypes = zip(*types)
    results = apply_op("host", *args, function=function, shapes=shapes, dtypes=tuple(map(str, dtypes)))
    return unflatten(tree, results)


class _Custom:
    """Base class: calls the function itself, and in a recording a `call` node with the rule."""

    def __init__(self, f: Callable):
        functools.update_wrapper(self, f)
        self.f, self.name = f, getattr(f, "__name__", "f")
        self.user_rule: Callable | None = None  # it takes the arguments of f, or is the forward of a pair
        self._signature = _signature(f)
        # The threads that record the rule, which may call the function
        self.recording_rule: set[int] = set()

    def _reuse_roots(self):
        return tuple(v for v in vars(self).values() if callable(v))

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args, **kwargs):
        if not any(type(x) is Recorded for x in flatten((args, kwargs))[0]):
            return self.f(*args, **kwargs)
        if self._signature is not None:  # rules take by position all arguments that can be given so
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        if self.user_rule is None:
            kind = type(self).__name__
            give = f"@{self.name}.def{kind.removeprefix('custom_')}"
            raise error_here(f"{self.name} is a {kind} without a rule. Give it one with {give}")
        keywords = self.keywords_for_rule(kwargs)
        leaves, tree = flatten(args)
        function = functools.partial(self.f, **kwargs) if kwargs else self.f
        concrete = with_numpy_ints(map(value_of, leaves))  # Python ints and bools would be static
        with _separate_reads():
            primal = _traced(function, concrete, tree, self.name)
        rule, record_now = self.rule(primal, concrete, tree, keywords)
        thread = threading.get_ident()
        if thread not in self.recording_rule:
            try:
                self.recording_rule.add(thread)
                record_now()  # while what it reads is there, and its errors name this line
            finally:
                self.recording_rule.discard(thread)
        operands = operands_of_body(primal.graph, leaves)
        results = apply_op("call", *operands, graph=primal.graph, rule=rule)
        return rebuilt(primal.tree, results, map(result_kind, primal.examples))

    def rule(self, primal: _Traced, concrete: Sequence, tree: Tree, keywords: dict) -> tuple[Any, Callable]:
        """(the rule object of a call, a function that records its graphs; else they are when first used)."""
        raise NotImplementedError

    def keywords_for_rule(self, kwargs: dict) -> dict:
        """The keyword-only arguments, which the rule takes by name; one that it lacks has its default."""
        for name, value in kwargs.items():
            if any(type(x) is Recorded for x in flatten(value)[0]):
                raise error_here(
                    f"{self.name}: its keyword-only argument {name} is a recorded value; rules give "
                    "derivatives for positional arguments alone. Make it one"
                )
        signature = _signature(self.user_rule)
        if signature is None or any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
            return kwargs
        by_name = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        accepted = {p.name for p in signature.parameters.values() if p.kind in by_name}
        for name, value in kwargs.items():
            own = self._signature and self._signature.parameters.get(name)
            if name not in accepted and not (own and own.default is value):
                raise error_here(
                    f"{self.name}: its rule does not take {name}={value!r}, an argument of this call. "
                    f"Give the rule an argument {name} too"
                )
        return {name: value for name, value in kwargs.items() if name in accepted}


def _signature(f):
    try:
        return inspect.signature(f)
    except (TypeError, ValueError):
        return None


@contextmanager
def _separate_reads() -> Iterator[None]:
    """A context for what will run as one op: reads in it are not the outer recording's."""
    outer = recorder.current()
    with plain_draws():
        if outer is None:
            yield
            return
        lengths = len(outer.reads), len(outer.unstable)
        try:
            yield
        finally:
            del outer.reads[lengths[0] :], outer.unstable[lengths[1] :]


@dataclass
class _Traced:
    """A function as a graph of its flat arguments; `tree` and `examples` are its result's."""

    graph: Graph
    tree: Tree
    examples: list


def _traced(f: Callable, leaves, tree: Tree, name: str) -> _Traced:
    """f on unflatten(tree, leaves): recorded if that works, else as one op that calls f."""
    try:
        rec = record(f, unflatten(tree, leaves))
    except Exception:  # it is called as plain Python; an error of its own is raised now
        return _called(f, leaves, tree, name)
    if rec.lifted:
        raise error_here(
            f"{name}: a function with a rule of its own reads a recorded value that is not one of its "
            "arguments, and its rule gives no derivative for it. Pass it as an argument"
        )
    if rec.written or not holds_for_all(rec):
        return _called(f, leaves, tree, name)
    fixed = {node: const(array.copy()) for node, array in rec.captures}
    graph = Graph(rec.graph.inputs[: len(leaves)], remade(rec.graph.outputs, fixed), name)
    return _Traced(graph, rec.out_tree, result_leaves(rec))


def _called(f: Callable, leaves, tree: Tree, name: str) -> _Traced:
    """f as a `host` op: called on plain arrays and numbers when the program runs."""
    kinds = [type(x) if not isinstance(x, np.ndarray) else None for x in leaves]

    def called(values):
        """The result, flat, with Python numbers in the same places as now."""
        plain = [np.array(v) if k is None else k(np.asarray(v)[()]) for v, k in zip(values, kinds)]
        return flatten(f(*unflatten(tree, plain)))

    examples, out_tree = called(leaves)
    arrays = [np.asarray(x) for x in examples]

    def function(*values):
        results, result_tree = called(values)
        if result_tree != out_tree or any(np.shape(x) != a.shape for x, a in zip(results, arrays)):
            raise AutodiffError(
                f"{name}: its result has another structure or other shapes than when it was recorded"
            )
        return tuple(np.asarray(x, a.dtype) for x, a in zip(results, arrays))

    function.__name__ = name
    inputs = [input_node(np.shape(x), np.asarray(x).dtype) for x in leaves]
    return _Traced(host_graph(function, inputs, arrays), out_tree, examples)


class custom_vjp(_Custom):
    """Decorator: a function with a custom backward.

        @ad.custom_vjp
        def f(x, y): ...

        @f.defvjp
        def f_vjp(dout, out, x, y):     # out = f(x, y), dout the gradient of it
            return dx, dy               # one for each argument, in its structure; None is zero

    or, to keep something from the forward: f.defvjp(forward, backward), with forward(x, y) -> (out,
    residuals) and backward(residuals, dout) -> (dx, dy). Gradients of integers are None. Keyword-only
    arguments of f have no gradient; f_vjp or forward gets them by name.

    The rule is transposed for forward mode; f.defjvp, as of a custom_jvp, sets a separate one, for a backward
    that cannot be differentiated itself.

        >>> @ad.custom_vjp
        ... def clipped(x):
        ...     return x
        >>> @clipped.defvjp
        ... def clipped_vjp(dout, out, x):
        ...     return (np.clip(dout, -1.0, 1.0),)
        >>> ad.grad(lambda x: np.sum(5.0 * clipped(x)))(np.ones(2))
        array([1., 1.])
    """

    def __init__(self, f: Callable):
        super().__init__(f)
        self.backward: Callable | None = None  # of a pair
        self.forwards: custom_jvp | None = None

    def defvjp(self, first: Callable, second: Callable | None = None) -> Callable:
        """Set the rule: one function of (dout, out, *args), or a forward and a backward."""
        self.user_rule, self.backward = first, second
        return first

    def defjvp(self, rule: Callable) -> Callable:
        """Set a rule of forward mode besides the backward."""
        self.forwards = custom_jvp(self.f)
        return self.forwards.defjvp(rule)

    def rule(self, primal: _Traced, concrete: Sequence, tree: Tree, keywords: dict) -> tuple[Any, Callable]:
        def make():
            with _separate_reads():
                return self.graphs(primal, concrete, tree, keywords, rule)

        if self.forwards is None:
            rule = CustomVJP(make)
            return rule, rule.graphs
        forwards, record_forwards = self.forwards.rule(primal, concrete, tree, keywords)
        rule = CustomVJP(make, forwards)
        return rule, lambda: (rule.graphs(), record_forwards())

    def graphs(
        self, primal: _Traced, concrete: Sequence, tree: Tree, keywords: dict, rule: CustomVJP
    ) -> tuple[Graph, Graph]:
        outputs, inputs = primal.graph.outputs, primal.graph.inputs
        if self.backward is None:  # the result and the arguments are kept
            if any(n.op == "host" for n in primal.graph.nodes):
                # The derivative of the rule needs this rule for it
                outputs = call(primal.graph, rule, inputs)
            forward = Graph(inputs, [*outputs, *outputs, *inputs], f"{self.name}_forward")
            residuals = Tree.of(primal.tree, tree)
            kept = [*primal.examples, *concrete]
        else:
            start = functools.partial(self.user_rule, **keywords)  # type: ignore[arg-type]
            traced = _traced(start, concrete, tree, f"{self.name}_forward")
            if traced.tree.kind is not tuple or len(traced.tree.children) != 2:
                raise AutodiffError(
                    f"{self.name}: the forward of a custom_vjp has to return (out, residuals)"
                )
            forward, kept = traced.graph, traced.examples[len(outputs) :]
            residuals = traced.tree.children[1]
        moves = [o.dtype.kind in "fc" for o in outputs]
        cts = [np.ones(o.shape, o.dtype) for o, has in zip(outputs, moves) if has]

        def backward(*flat):
            cotangents = iter(flat[len(kept) :])
            dout = unflatten(primal.tree, [next(cotangents) if has else None for has in moves])
            values = unflatten(residuals, flat[: len(kept)])
            if self.backward is not None:
                grads = _as_rule(self.name, self.backward, "residuals, dout", values, dout)
            else:
                out, args = values
                grads = _as_rule(self.name, self.user_rule, "dout, out, *args", dout, out, *args, **keywords)
            grads = grads if isinstance(grads, (tuple, list)) else (grads,)
            if len(grads) != len(tree.children):
                raise AutodiffError(
                    f"{self.name}: its vjp rule gave {len(grads)} gradients for {len(tree.children)} "
                    "arguments"
                )
            flat_grads = [d for part, child in zip(grads, tree.children) for d in _gradients_of(child, part)]
            return [d for d, x in zip(flat_grads, concrete) if np.asarray(x).dtype.kind in "fc"]

        flat = [*kept, *cts]
        back = _traced(backward, flat, flatten(tuple(flat))[1], f"{self.name}_backward")
        return forward, _matching(self.name, back, concrete)


def _as_rule(name, rule, expected, *args, **keywords):
    """The rule's result; if it takes other arguments, an error that says how a rule is called."""
    try:
        return rule(*args, **keywords)
    except TypeError as error:
        signature = _signature(rule)
        try:
            fits = signature is None or signature.bind(*args, **keywords)
        except TypeError:
            fits = False
        if fits:
            raise
        raise AutodiffError(
            f"{name}: its rule takes {signature}, and is called with ({expected}), here {len(args)} arguments"
        ) from error


def _gradients_of(tree: Tree, d: Any) -> list:
    """The gradient of each leaf; None in the place of a container stands for all in it."""
    if d is None or tree.kind is None:
        return [d] * tree.size
    return [g for part, child in zip(tree.items_of(d), tree.children) for g in _gradients_of(child, part)]


def _matching(name: str, back: _Traced, leaves) -> Graph:
    """The backward's graph, with each gradient in the type of its argument, and zeros for None."""
    floats = [np.asarray(x) for x in leaves if np.asarray(x).dtype.kind in "fc"]
    outputs = iter(back.graph.outputs)
    results = []
    for k, (x, tree) in enumerate(zip(floats, back.tree.children)):
        if tree.is_static:  # None, or a Python int
            results.append(full(x.shape, tree.value or 0, x.dtype))
            continue
        d = next(outputs) if tree.is_leaf else None
        if d is None or d.shape != x.shape:
            got = f"a {tree.kind.__name__}" if d is None else f"a gradient of shape {d.shape}"
            raise AutodiffError(
                f"{name}: its rule gave {got} for floating-point argument {k}, which has shape {x.shape}"
            )
        results.append(cast(d, x.dtype))
    return Graph(back.graph.inputs, results, back.graph.name)


class custom_jvp(_Custom):
    """Decorator: a function with a custom forward-mode rule.

    The rule takes a tuple of the arguments and one of their tangents, None for integers; it gives the result
    and its tangent, which is linear in the tangents. Keyword-only arguments of f have no tangent; the rule
    gets them by name.

        >>> @ad.custom_jvp
        ... def square(x):
        ...     return x * x
        >>> @square.defjvp
        ... def square_jvp(primals, tangents):
        ...     (x,), (dx,) = primals, tangents
        ...     return x * x, 2 * x * dx
        >>> ad.jvp(square, (3.0,), (1.0,))
        (9.0, 6.0)
    """

    def defjvp(self, rule: Callable) -> Callable:
        self.user_rule = rule
        return rule

    def rule(self, primal: _Traced, concrete: Sequence, tree: Tree, keywords: dict) -> tuple[Any, Callable]:
        @functools.cache
        def full() -> Graph:
            with _separate_reads():
                return self.graph(primal, concrete, tree, keywords)

        def tangent(active: tuple[bool, ...]) -> Graph:
            """The user's rule with zeros for the arguments without a tangent."""
            args, dots = full().inputs[: len(concrete)], iter(full().inputs[len(concrete) :])
            pairs = [(next(dots), has) for x, has in zip(args, active) if is_float(x)]
            zeros = {d: zeros_like(d) for d, has in pairs if not has}
            inputs = [*inputs_like(primal.graph.outputs), *args, *(d for d, has in pairs if has)]
            return Graph(inputs, remade(full().outputs, zeros), full().name)

        return CustomJVP(tangent), full

    def graph(self, primal: _Traced, concrete: Sequence, tree: Tree, keywords: dict) -> Graph:
        """(*args, *tangents of the float ones) -> tangents of the float results."""
        n = len(concrete)
        moves = [np.asarray(x).dtype.kind in "fc" for x in concrete]
        tangents = [np.ones(np.shape(x), np.asarray(x).dtype)[()] for x, has in zip(concrete, moves) if has]

        def tangent(*flat):
            dots = iter(flat[n:])
            marks = [next(dots) if has else None for has in moves]
            both = unflatten(tree, flat[:n]), unflatten(tree, marks)
            pair = _as_rule(self.name, self.user_rule, "primals, tangents", *both, **keywords)
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise AutodiffError(f"{self.name}: its jvp rule has to return (out, tangent of out)")
            out, _ = flatten(pair[0])
            dout, _ = flatten(pair[1], lambda x: x is None or not is_container(x))
            floats = [i for i, x in enumerate(out) if np.dtype(getattr(x, "dtype", type(x))).kind in "fc"]
            if len(dout) not in (len(out), len(floats)):
                raise AutodiffError(
                    f"{self.name}: its jvp rule gave {len(dout)} tangents for {len(out)} results"
                )
            moved = dout if len(dout) == len(floats) else [dout[i] for i in floats]
            return out, [np.zeros_like(out[i]) if d is None else d for i, d in zip(floats, moved)]

        flat = [*concrete, *tangents]
        traced = _traced(tangent, flat, flatten(tuple(flat))[1], f"{self.name}_jvp").graph
        n_out = len(primal.graph.outputs)
        floats = [o for o in primal.graph.outputs if o.dtype.kind in "fc"]
        if len(traced.outputs) != n_out + len(floats):
            raise AutodiffError(
                f"{self.name}: the results of its jvp rule are not like those of the function"
            )
        moved = []
        for o, d in zip(floats, traced.outputs[n_out:]):
            if d.shape != o.shape:
                raise AutodiffError(
                    f"{self.name}: its jvp rule gave a tangent of shape {d.shape} for a result of shape "
                    f"{o.shape}"
                )
            moved.append(cast(d, o.dtype))
        return Graph(traced.inputs, moved, traced.name)
