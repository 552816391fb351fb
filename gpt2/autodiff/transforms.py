"""The public transforms: what each computes for a recorded function.

    grad(f)(x)               value_and_grad(f)(x)          compile(f)(x)
    vjp(f, x) -> out, pullback                             jvp(f, (x,), (dx,)) -> out, dout
    jacobian(f)(x)           hessian(f)(x)                 hvp(f, x, v)

Each is a Transform (derive.py): from a recording to a Plan, which is a graph and the way its outputs make up
the result. All of them nest in each other, to any depth: inside a function that is being recorded, a plan's
graph becomes part of the enclosing graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .derive import derived_function, derived_of
from .differentiate import gradient_graph, gradients, pushforward, vjp_graph
from .errors import AutodiffError
from .graph import Graph, Node, reachable, with_args
from .maps import map_node
from .ops import apply, const, input_node
from .ops.build import broadcast, cast, reshape, transpose
from .passes import partition
from .pipeline import current_options, prepared
from .plan import (
    ARRAY,
    NUMBER,
    SCALAR,
    Call,
    Compile,
    Out,
    Plan,
    Transform,
    argument_text,
    as_kind,
    finish,
    interpreted,
    operands_of,
    output_buffers,
    result_kind,
    result_outs,
    select,
)
from .record import Recorded, Recording, inline
from .subgraph import zeros_like
from .tree import LEAF, Tree, leaf_paths, unflatten

# --- compile
# ------------------------------------------------------------------------------------------------------


def compile(f: Callable | None = None, *, pure: bool = False):
    """The optimised program of f itself, no derivative. Also a decorator, with or without arguments.

    Arguments are arrays, NumPy scalars, Python floats and complex numbers, and nested tuples, lists and dicts
    of these; for each combination of shapes, dtypes and structure there is a program of its own. Anything
    else among them (ints, strings, functions, settings) is a constant of the program. Results are plain
    arrays in this machine's byte order, whatever subclass or byte order an argument had.

    pure   a promise that f reads nothing but its arguments that could change, changes nothing itself, and
           calls nothing that catches exceptions which values raise. Without it each call looks whether
           closed-over and global values are still the same (reuse.py).
    """
    if f is None:
        return lambda f: derived_function(f, Compile(), pure)
    return derived_function(f, Compile(), pure)


# --- grad
# ---------------------------------------------------------------------------------------------------------


class Grad(Transform):
    """Gradients, with or without the value, of a function with one number as its result."""

    name, suffix = "grad", "grad"

    def __init__(self, argnums, value: bool, has_aux: bool):
        self.argnums = checked_argnums(self.name if not value else "value_and_grad", argnums)
        self.value = value
        self.has_aux = has_aux
        if value:
            self.name = "value_and_grad"

    def key(self) -> tuple:
        return type(self), self.argnums, self.value, self.has_aux

    def plan(self, rec: Recording, call: Call, f) -> Plan:
        wrt = differentiated(self, call, f)
        check_number(self.name, rec, wrt.leaves, self.has_aux)
        joint = gradient_graph(rec.graph, wrt.leaves)
        n = len(rec.graph.outputs)
        outs = result_outs(rec) if self.value else []
        spec = rec.out_tree.spec
        if self.has_aux and not self.value:  # (gradient, aux)
            outs, spec = result_outs(rec)[1:], spec[2][1]
        grads = [Out(n + i, k) for i, k in enumerate(wrt.kinds)]
        if self.value:
            outs, spec = outs + grads, (tuple, None, (spec, wrt.tree.spec))
        elif self.has_aux:
            outs, spec = grads + outs, (tuple, None, (wrt.tree.spec, spec))
        else:
            outs, spec = grads, wrt.tree.spec
        return select(Plan(joint, *operands_of(rec, call), Tree(spec, len(outs)), outs))


def check_number(name: str, rec: Recording, wrt: Sequence[int], has_aux: bool = False) -> None:
    """A gradient is that of one number, and of a real one where an argument is real."""
    spec = rec.out_tree.spec
    if has_aux:
        if spec is LEAF or spec[0] is not tuple or len(spec[2]) != 2:
            raise AutodiffError(
                f"{name}: with has_aux=True {rec.graph.name} has to return a pair (value, aux)"
            )
        spec = spec[2][0]
    if spec is not LEAF:
        got = (
            "None"
            if spec == ("static", None)
            else "a plain " + type(spec[1]).__name__
            if spec[0] == "static"
            else f"a {spec[0].__name__}"
        )
        hint = " (has_aux=True differentiates the first of two results)" if spec[0] is tuple else ""
        raise AutodiffError(f"{name}: {rec.graph.name} returns {got}, expected one number{hint}")
    out = rec.graph.outputs[0]
    if out.shape != ():
        raise AutodiffError(
            f"{name}: {rec.graph.name} returns an array of shape {out.shape}, expected one number. "
            "Sum it, or use ad.vjp or ad.jacobian"
        )
    if out.dtype.kind not in "fc":
        raise AutodiffError(f"{name}: {rec.graph.name} returns {out.dtype}, which has no derivative")
    real = [rec.graph.inputs[i] for i in wrt if rec.graph.inputs[i].dtype.kind == "f"]
    if real and out.dtype.kind == "c":  # its derivative is complex, the gradient of a real argument is not
        raise AutodiffError(
            f"{name}: {rec.graph.name} returns {out.dtype}, and {real[0].name} is real. Return its real or "
            "imaginary part or its absolute value, or use ad.jvp or ad.jacobian"
        )


def grad(f: Callable, argnums=0, has_aux: bool = False, *, pure: bool = False):
    """The gradient of a function whose result is one number.

    argnums   the positional argument to differentiate with respect to, or a tuple of several: then the result
              is a tuple. An argument may be a nested tuple, list or dict of arrays; its gradient has the same
              structure.
    has_aux   f returns (value, aux), and the derived function (gradient, aux)
    pure      see ad.compile

    The derived function takes out=: buffers, in the structure of the result, that the results are written
    into (None for those that are to be new arrays). For a complex argument and a real result u the gradient
    is du/dx - i du/dy, as in JAX; for a holomorphic f it is df/dz.

        >>> ad.grad(lambda x: x**3)(2.0)
        12.0
    """
    return derived_function(f, Grad(argnums, False, has_aux), pure)


def value_and_grad(f: Callable, argnums=0, has_aux: bool = False, *, pure: bool = False):
    """Like grad, with the value: the derived function returns (value, gradient), or ((value, aux),
    gradient).
    """
    return derived_function(f, Grad(argnums, True, has_aux), pure)


# --- which arguments
# ----------------------------------------------------------------------------------------------


def checked_argnums(name: str, argnums):
    """An int or a tuple of ints."""

    def ok(k):
        return isinstance(k, (int, np.integer)) and not isinstance(k, bool)

    if isinstance(argnums, (tuple, list)) and argnums and all(map(ok, argnums)):
        return tuple(map(int, argnums))
    if ok(argnums):
        return int(argnums)
    raise AutodiffError(f"{name}: argnums is {argnums!r}, expected an int or a tuple of ints")


class Wrt:
    """The leaves to differentiate with respect to. `tree` and `kinds`: how their gradients are given back."""

    def __init__(self, leaves: list[int], kinds: list[str], tree: Tree):
        self.leaves = leaves
        self.kinds = kinds
        self.tree = tree


def differentiated(transform, call: Call, f, strict: bool = True) -> Wrt:
    """The leaves of the arguments named by argnums. strict: integers among them are an error, else they are
    None.
    """
    single = isinstance(transform.argnums, int)
    n = len(call.args)
    leaves, kinds, specs = [], [], []
    for k in (transform.argnums,) if single else transform.argnums:
        if not -n <= k < n:
            raise AutodiffError(
                f"{transform.name}: argnums={transform.argnums!r}, but the function was called with "
                f"{n} positional argument{'s' if n != 1 else ''}"
            )
        k %= n
        found = float_leaves(transform.name, call, f, k, strict)
        leaves += found.leaves
        kinds += found.kinds
        specs.append(found.tree.spec)
    spec = specs[0] if single else (tuple, None, tuple(specs))
    return Wrt(leaves, kinds, Tree(spec, len(leaves)))


def float_leaves(name: str, call: Call, f, k: int, strict: bool = True) -> Wrt:
    """The differentiable leaves of argument k."""
    places, tree = call.places(k), call.subtree(k)
    if not places and strict:
        spec = tree.spec
        got = repr(spec[1]) if spec[0] == "static" else f"an empty {spec[0].__name__}"
        hint = f": pass {float(spec[1])}" if type(spec[1]) in (int, bool) else ""
        raise AutodiffError(
            f"{name}: {argument_text(f, k)} is {got}; derivatives are taken with respect to "
            f"floating-point numbers and arrays{hint}"
        )
    chosen = []
    for i, path in zip(places, leaf_paths(tree)):
        if _dtype(call.leaves[i]).kind in "fc":
            chosen.append(i)
        elif strict:
            raise AutodiffError(
                f"{name}: {argument_text(f, k, path)} has dtype {_dtype(call.leaves[i])}; derivatives are "
                "taken with respect to floating-point arrays. Convert it with x.astype(float), or leave it "
                "out of argnums"
            )
    kinds = [result_kind(call.leaves[i]) for i in chosen]
    marks = [LEAF if i in chosen else ("static", None) for i in places]
    return Wrt(chosen, kinds, Tree(_with_marks(tree.spec, iter(marks)), len(chosen)))


def inexact_inputs(graph: Graph, n: int) -> list[int]:
    """Which of the first n inputs have a derivative."""
    return [i for i, x in enumerate(graph.inputs[:n]) if x.dtype.kind in "fc"]


def _dtype(x) -> np.dtype:
    return getattr(x, "dtype", None) or np.asarray(x).dtype


def _with_marks(spec, marks):
    """The spec with its leaves replaced, and its static values by None: they have no derivative."""
    if spec is LEAF:
        return next(marks)
    if spec[0] == "static":
        return "static", None
    return spec[0], spec[1], tuple(_with_marks(c, marks) for c in spec[2])


# --- forward mode
# -------------------------------------------------------------------------------------------------


class Jvp(Transform):
    """Called with (args, tangents)."""

    name, suffix, takes_out = "jvp", "jvp", False

    def split(self, call: Call):
        return call.args[0], {}

    def plan(self, rec: Recording, call: Call, f) -> Plan:
        n = len(call.places(0))
        given = tangents_for(self.name, call, n)
        joint, feed, outside = with_tangents(rec, call, given, n)
        outs = result_outs(rec)
        m = len(rec.graph.outputs)
        moves = [rec.graph.outputs[o.index].dtype.kind in "fc" for o in outs]
        moved = [replace(o, index=m + o.index) for o, has in zip(outs, moves) if has]
        marks = iter([LEAF if has else ("static", None) for has in moves])
        spec = (tuple, None, (rec.out_tree.spec, _with_marks(rec.out_tree.spec, marks)))
        return select(Plan(joint, feed, outside, Tree(spec, len(outs) + len(moved)), outs + moved))


def jvp(f: Callable, args: Sequence, tangents: Sequence, *, pure: bool = False):
    """The value of f and its derivative in a direction: (f(*args), tangent of the result).

    tangents   one for each argument, in its structure; None (for integers and whatever else does not move) is
               zero

    A result of integers or bools has the tangent None.
    """
    for name, value in (("args", args), ("tangents", tangents)):
        if not isinstance(value, (tuple, list)):
            raise AutodiffError(
                f"jvp: {name} is {type(value).__name__}, expected a tuple with one entry per argument"
            )
    return derived_of(f, Jvp(), pure).entry((tuple(args), tuple(tangents)), {})


def with_tangents(rec: Recording, call: Call, given: dict, n: int) -> tuple[Graph, list[int], list]:
    """The forward-mode graph of a recording for tangents {argument leaf: leaf of the call, or a number}.

    Returns it with its operands: leaves of the call, and what is outside. A plan has what is outside last.
    """
    marks, inputs, feed = {}, [], []
    for i, t in given.items():
        x = rec.graph.inputs[i]
        if isinstance(t, _Leaf):
            mark = input_node(x.shape, _dtype(call.leaves[t.index]), f"d{x.name}")
            inputs.append(mark)
            feed.append(t.index)
            marks[x] = cast(mark, x.dtype)
        else:
            marks[x] = const(t, x.dtype)
    found = pushforward(rec.graph.outputs, marks)
    found = [zeros_like(o) if t is None else t for o, t in zip(rec.graph.outputs, found)]
    joint = Graph(
        [*rec.graph.inputs[:n], *inputs, *rec.graph.inputs[n:]],
        [*rec.graph.outputs, *found],
        rec.graph.name + "_jvp",
    )
    return joint, [*range(n), *feed], rec.operands(call.leaves[:n])[n:]


class _Leaf:
    """A place in the leaves of a call."""

    def __init__(self, index: int):
        self.index = index


def tangents_for(name: str, call: Call, n: int, args: int = 0, tangents: int = 1) -> dict:
    """{argument leaf: its tangent}, from two arguments of the call that have the same structure."""
    leaves = call.leaves
    numbered = unflatten(call.subtree(args), [_Leaf(i) for i in call.places(args)])
    given = unflatten(call.subtree(tangents), [_Leaf(i) for i in call.places(tangents)])
    found: dict = {}

    def fail(path, expected, got):
        raise AutodiffError(f"{name}: tangents{path} is {got}, expected {expected}")

    def walk(a, t, path):
        if t is None:
            return
        if isinstance(a, _Leaf):
            x = leaves[a.index]
            value = leaves[t.index] if isinstance(t, _Leaf) else t
            if _dtype(x).kind not in "fc":
                fail(path, f"None: the argument has dtype {_dtype(x)}", _described(value))
            if np.shape(value) != np.shape(x) or not isinstance(t, (_Leaf, int)):
                fail(path, f"shape {np.shape(x)}, that of the argument", _described(value))
            found[a.index] = t
        elif isinstance(a, dict):
            if not isinstance(t, dict) or t.keys() != a.keys():
                fail(path, f"a dict with keys {list(a)}", _described(t))
            for k in a:
                walk(a[k], t[k], f"{path}[{k!r}]")
        elif isinstance(a, (tuple, list)):
            if not isinstance(t, (tuple, list)) or len(t) != len(a):
                fail(path, f"{len(a)} entries, one for each of the arguments'", _described(t))
            for k, (x, y) in enumerate(zip(a, t)):
                walk(x, y, f"{path}[{k}]")
        elif isinstance(t, _Leaf):
            fail(path, f"None: the argument is {a!r}", _described(leaves[t.index]))

    walk(numbered, given, "")
    return found


def _described(value) -> str:
    if isinstance(value, _Leaf):
        return "an array"
    if hasattr(value, "shape"):
        return f"of shape {value.shape}"
    return (
        f"a {type(value).__name__} of {len(value)}" if isinstance(value, (tuple, list, dict)) else repr(value)
    )


class Hvp(Transform):
    """Called with (x, v)."""

    name, suffix, takes_out = "hvp", "hvp", False

    def split(self, call: Call):
        return call.args[:1], {}

    def plan(self, rec: Recording, call: Call, f) -> Plan:
        n = len(call.places(0))
        wrt = float_leaves(self.name, call, f, 0)
        check_number(self.name, rec, wrt.leaves)
        gradient = gradient_of(rec.graph, wrt.leaves)
        given = tangents_for(self.name, call, n)
        joint, feed, outside = with_tangents(replace(rec, graph=gradient), call, given, n)
        m = len(wrt.leaves)
        return select(Plan(joint, feed, outside, wrt.tree, [Out(m + i, k) for i, k in enumerate(wrt.kinds)]))


def hvp(f: Callable, x, v, *, pure: bool = False):
    """The Hessian of a scalar function f at x times v, both in the structure of x: forward over reverse.

    Costs a small multiple of the gradient; the Hessian is never formed. Pearlmutter 1994.
    """
    return derived_of(f, Hvp(), pure).entry((x, v), {})


def gradient_of(graph: Graph, wrt) -> Graph:
    """The graph of the gradient alone."""
    joint = gradient_graph(graph, wrt)
    return Graph(joint.inputs, joint.outputs[len(graph.outputs) :], joint.name)


# --- reverse mode
# -------------------------------------------------------------------------------------------------


@dataclass
class VjpPlan(Plan):
    """`graph` is the forward: results, then what is saved. `back` takes what is saved, then the
    cotangents.
    """

    back: Graph = None
    saved: list = None  # for each input of back that is saved: ("input", i) or ("output", i) of the forward
    cotangents: list = (
        None  # for each leaf of the result its type (shape, dtype), or None if it has no derivative
    )
    back_tree: Tree = None
    back_outs: list = None


class Vjp(Transform):
    """Called with the arguments of f. The result is (out, pullback)."""

    name, suffix, takes_out = "vjp", "vjp", False

    def __init__(self, pure: bool = False):
        self.pure = pure

    def key(self):
        return type(self), self.pure

    def plan(self, rec: Recording, call: Call, f) -> VjpPlan:
        found = [float_leaves(self.name, call, f, k, strict=False) for k in range(len(call.args))]
        wrt = [i for w in found for i in w.leaves]
        outs = result_outs(rec)
        moves = [rec.graph.outputs[o.index].dtype.kind in "fc" for o in outs]
        cts = [o.index for o, has in zip(outs, moves) if has]
        results = Graph(rec.graph.inputs, rec.graph.outputs[: rec.n_results], rec.graph.name)
        joint = prepared(vjp_graph(results, wrt, cts), current_options())
        fwd, back, saved = partition(joint, len(rec.graph.inputs), rec.n_results)
        places, kept = [], []
        for node in saved:
            if node in joint.inputs:
                places.append(("input", joint.inputs.index(node)))
            else:
                places.append(("output", rec.n_results + len(kept)))
                kept.append(node)
        fwd = Graph(fwd.inputs, [*fwd.outputs[: rec.n_results], *kept], rec.graph.name + "_forward")
        back = Graph(back.inputs, back.outputs, rec.graph.name + "_backward")
        tree = Tree((tuple, None, tuple(w.tree.spec for w in found)), len(wrt))
        types = [(results.outputs[o.index], o.kind) if has else None for o, has in zip(outs, moves)]
        return VjpPlan(
            fwd,
            *operands_of(rec, call),
            rec.out_tree,
            outs,
            back=back,
            saved=places,
            cotangents=types,
            back_tree=tree,
            back_outs=[Out(i, k) for i, k in enumerate(k for w in found for k in w.kinds)],
        )

    def compile(self, plan: VjpPlan, opts, name: str, scalar: bool):
        from .program import compile_graph

        return compile_graph(plan.graph, opts, plan.graph.name), compile_graph(
            plan.back, opts, plan.back.name
        )

    def execute(self, programs, plan: VjpPlan, leaves, outside, out):
        forward, back = programs
        operands = [*(leaves[i] for i in plan.feed), *outside]
        return self.finish(plan, operands, forward(*operands), back)

    def interpret(self, plan: VjpPlan, leaves, out):
        operands = plan.operands(leaves)
        results = interpreted(plan.graph, operands)
        return self.finish(plan, operands, results, lambda *a, out=None: interpreted(plan.back, a, out))

    def inline(self, plan: VjpPlan, leaves):
        operands = plan.operands(leaves)
        return self.finish(plan, operands, inline(plan.graph, operands), None)

    def finish(self, plan: VjpPlan, operands, results, back):
        saved = [operands[i] if where == "input" else results[i] for where, i in plan.saved]
        if not self.pure:
            # what the caller holds may be written to before the pullback is called
            held = {id(x) for x in (*operands, *results[: len(plan.outs)])}
            saved = [x.copy() if isinstance(x, np.ndarray) and id(x) in held else x for x in saved]
        return finish(plan, operands, results), Pullback(plan, saved, back)


class Pullback:
    """The way back from a cotangent of the result to the gradients of the arguments. It can be called many
    times.

    pullback(dout, out=None) -> a tuple with an entry for each argument of f, in its structure; None for
    integers and other values without a derivative. dout has the structure of f's result; None in it is zero.
    """

    def __init__(self, plan: VjpPlan, saved: list, program):
        self._plan = plan
        self._saved = saved
        self._program = program

    @property
    def source(self) -> str:
        """The NumPy source that runs."""
        return getattr(self._program, "source", str(self._plan.back))

    def __call__(self, dout, out=None):
        plan = self._plan
        cts = matched_cotangents(plan, dout)
        operands = [*self._saved, *cts]
        if self._program is None or any(type(x) is Recorded for x in operands):
            if out is not None:
                raise AutodiffError(
                    "pullback: out= writes into plain arrays; inside a function that is being "
                    "differentiated use the result"
                )
            results = inline(plan.back, operands)
        else:
            chosen = None
            if out is not None:
                chosen = output_buffers(
                    "pullback", Plan(plan.back, [], [], plan.back_tree, plan.back_outs), out
                )
            results = self._program(*operands, out=chosen)
        return unflatten(plan.back_tree, [as_kind(results[o.index], o.kind) for o in plan.back_outs])


def matched_cotangents(plan: VjpPlan, dout) -> list:
    """The cotangents as the backward takes them, one for each floating-point result."""
    numbered = unflatten(plan.tree, [_Leaf(i) for i in range(plan.tree.size)])
    found: list = [None] * plan.tree.size

    def fail(path, expected, got):
        raise AutodiffError(f"pullback: the cotangent{path} is {_described(got)}, expected {expected}")

    def walk(a, d, path):
        if isinstance(a, _Leaf):
            kind = plan.cotangents[a.index]
            if kind is None:
                if d is not None and _dtype(d).kind in "fc" and np.any(getattr(d, "value", d)):
                    fail(path, "None: that result has no derivative", d)
                return
            node = kind[0]
            if d is None:
                found[a.index] = np.zeros(node.shape, node.dtype)
            elif isinstance(d, (tuple, list, dict)) or np.shape(getattr(d, "value", d)) != node.shape:
                fail(path, f"of shape {node.shape}, that of the result", d)
            elif type(d) is Recorded:
                found[a.index] = d.astype(node.dtype)
            else:
                if _dtype(d).kind == "c" and node.dtype.kind != "c":
                    fail(path, f"real, as the result is {node.dtype}", d)
                found[a.index] = np.asarray(d, node.dtype)
        elif isinstance(a, dict):
            if d is not None and (not isinstance(d, dict) or d.keys() != a.keys()):
                fail(path, f"a dict with keys {list(a)}", d)
            for k in a:
                walk(a[k], None if d is None else d[k], f"{path}[{k!r}]")
        elif isinstance(a, (tuple, list)):
            if d is not None and (not isinstance(d, (tuple, list)) or len(d) != len(a)):
                fail(path, f"a {type(a).__name__} of {len(a)}, like the result", d)
            for k, x in enumerate(a):
                walk(x, None if d is None else d[k], f"{path}[{k}]")

    walk(numbered, dout, "")
    return [ct for ct, kind in zip(found, plan.cotangents) if kind is not None]


def vjp(f: Callable, *args, pure: bool = False):
    """The value of f, and its pullback: (f(*args), pullback). See Pullback.

    The forward program keeps what the backward is quicker to be handed than to compute again. Arguments that
    it needs are copied, as the caller may write to them before calling the pullback; not with pure=True,
    which promises that they stay (and what it promises in ad.compile).
    """
    return derived_of(f, Vjp(pure), pure).entry(args, {})


# --- Jacobians
# ----------------------------------------------------------------------------------------------------


class Jacobian(Transform):
    """One row of a Jacobian is one pullback, one column one tangent; all of them run as one `map` (maps.py)
    over what the forward saved. Of rows and columns the fewer are computed.
    """

    name, suffix = "jacobian", "jacobian"

    def __init__(self, argnums):
        self.argnums = checked_argnums(self.name, argnums)

    def key(self):
        return type(self), self.argnums

    def plan(self, rec: Recording, call: Call, f) -> Plan:
        wrt = differentiated(self, call, f)
        graph = Graph(rec.graph.inputs, rec.graph.outputs[: rec.n_results], rec.graph.name)
        outs = result_outs(rec)
        return self.of_graph(graph, rec, call, wrt, rec.out_tree, outs)

    def of_graph(self, graph: Graph, rec: Recording, call: Call, wrt: Wrt, out_tree: Tree, outs) -> Plan:
        for path, o in zip(leaf_paths(out_tree), outs):
            if graph.outputs[o.index].dtype.kind not in "fc":
                raise AutodiffError(
                    f"{self.name}: {rec.graph.name} returns {graph.outputs[o.index].dtype}"
                    f"{' at ' + str(path) if path else ''}, which has no derivative"
                )
        blocks = jacobian_blocks(graph, wrt.leaves, [o.index for o in outs])
        kinds = [
            [
                _block_kind(graph.outputs[o.index], o.kind, graph.inputs[i], k)
                for i, k in zip(wrt.leaves, wrt.kinds)
            ]
            for o in outs
        ]
        flat = [Out(r * len(wrt.leaves) + c, k) for r, row in enumerate(kinds) for c, k in enumerate(row)]
        spec = _product(out_tree.spec, wrt.tree.spec)
        joint = Graph(graph.inputs, [b for row in blocks for b in row], graph.name + "_jacobian")
        return Plan(joint, *operands_of(rec, call), Tree(spec, len(flat)), flat)


class Hessian(Jacobian):
    name, suffix = "hessian", "hessian"

    def plan(self, rec: Recording, call: Call, f) -> Plan:
        wrt = differentiated(self, call, f)
        check_number(self.name, rec, wrt.leaves)
        gradient = gradient_of(rec.graph, wrt.leaves)
        outs = [Out(i, k) for i, k in enumerate(wrt.kinds)]
        return self.of_graph(gradient, rec, call, wrt, wrt.tree, outs)


def _block_kind(out, out_kind: str, x, x_kind: str) -> str:
    if out.shape or x.shape:
        return ARRAY
    return NUMBER if out_kind == x_kind == NUMBER else SCALAR


def _product(outer, inner):
    """The spec with each leaf replaced by another spec."""
    if outer is LEAF:
        return inner
    return (
        outer if outer[0] == "static" else (outer[0], outer[1], tuple(_product(c, inner) for c in outer[2]))
    )


def jacobian_blocks(graph: Graph, wrt: Sequence[int], outs: Sequence[int]) -> list[list[Node]]:
    """For each output and each input the array of partial derivatives, of shape output.shape +
    input.shape.
    """
    xs, ys = [graph.inputs[i] for i in wrt], [graph.outputs[i] for i in outs]
    # a row for a real argument would keep only the real part of what a complex result has
    mixed = any(x.dtype.kind == "f" for x in xs) and any(y.dtype.kind == "c" for y in ys)
    if mixed or sum(x.size for x in xs) < sum(y.size for y in ys):
        columns = [_by_columns(x, ys) for x in xs]
        return [[column[r] for column in columns] for r in range(len(ys))]
    return [_by_rows(y, xs) for y in ys]


def _by_rows(y: Node, xs) -> list[Node]:
    """d y / d x for each x: one pullback for each element of y."""
    if not y.shape:
        return gradients([(y, const(1.0, y.dtype))], xs)
    i, unit = _unit_vector(y)
    return [
        reshape(d, (*y.shape, *x.shape)) for d, x in zip(_mapped(i, gradients([(y, unit)], xs), y.size), xs)
    ]


def _by_columns(x: Node, ys) -> list[Node]:
    """d y / d x for each y: one tangent for each element of x."""
    if not x.shape:
        found = pushforward(ys, {x: const(1.0, x.dtype)})
        return [zeros_like(y) if d is None else d for y, d in zip(ys, found)]
    i, unit = _unit_vector(x)
    found = [zeros_like(y) if d is None else d for y, d in zip(ys, pushforward(ys, {x: unit}))]
    columns = [reshape(d, (x.size, y.size)) for y, d in zip(ys, _mapped(i, found, x.size))]
    return [reshape(transpose(d, (1, 0)), (*y.shape, *x.shape)) for y, d in zip(ys, columns)]


def _unit_vector(like: Node) -> tuple[Node, Node]:
    """An index, as an input, and the array in the shape of `like` that is 1 there and 0 elsewhere."""
    i = input_node((), np.int64, "i")
    one = apply("equal", const(np.arange(like.size)), i)
    return i, reshape(cast(one, like.dtype), like.shape)


def _mapped(i: Node, results: list[Node], n: int) -> list[Node]:
    """The results for i = 0 .. n - 1, stacked. What does not depend on i is computed once, outside the
    map.
    """
    inner = {i}
    for m in reachable(results):
        if any(a in inner for a in m.args):
            inner.add(m)
    made: dict[Node, Node] = {i: i}
    outside: list[Node] = []  # what the body reads from the graph around it
    for m in reachable(results):
        if m in inner and m is not i:
            for a in m.args:
                if a not in made:
                    made[a] = a if a.op == "const" else input_node(a.shape, a.dtype, a.name)
                    outside += [] if a.op == "const" else [a]
            made[m] = with_args(m, tuple(made[a] for a in m.args))
    fixed = {k for k, r in enumerate(results) if r not in inner}
    varying = [made[r] for k, r in enumerate(results) if k not in fixed]
    body = Graph([i, *(made[a] for a in outside)], varying, "row")
    stacked = iter(map_node(body, [const(np.arange(n)), *outside], n, 1) if varying else ())
    return [broadcast(r, (n, *r.shape)) if k in fixed else next(stacked) for k, r in enumerate(results)]


def jacobian(f: Callable, argnums=0, *, pure: bool = False):
    """All partial derivatives: the derived function returns an array of shape out.shape + in.shape.

    For nested results and arguments, the result is nested: in the structure of f's result, each leaf replaced
    by the structure of the argument (for a tuple of argnums, a tuple of those).
    """
    return derived_function(f, Jacobian(argnums), pure)


def hessian(f: Callable, argnums=0, *, pure: bool = False):
    """Second derivatives of a scalar function, forward over reverse: an array of shape x.shape + x.shape.

    Nested arguments give nested results, as with jacobian: entry [a][b] is d2 f / da db.
    """
    return derived_function(f, Hessian(argnums), pure)
