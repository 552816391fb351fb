"""Reverse mode in two steps: ad.vjp gives the result and a pullback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..derive.differentiate import vjp_graph
from ..emit.program import compile_graph
from ..errors import AutodiffError
from ..graph import Graph
from ..keep.partition import partition
from ..pipeline import prepared
from ..record.record import Recording, inline
from ..record.value import Recorded
from ..switches import current_options
from ..tree import Tree, unflatten
from .arguments import _described, _dtype, float_leaves
from .derived import derived_of
from .forward import _Leaf
from .plan import (
    Call,
    Out,
    Plan,
    Transform,
    as_kind,
    finish,
    interpreted,
    operands_of,
    output_buffers,
    result_outs,
)

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
