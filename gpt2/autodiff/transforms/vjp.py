"""Reverse mode in two steps: ad.vjp gives the result and a pullback."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..derive.differentiate import vjp_graph
from ..errors import AutodiffError
from ..graph import Graph, Node
from ..ops import input_node
from ..pipeline import Halves, Pipeline
from ..programs.arguments import _described, _dtype, float_leaves
from ..programs.derived import derived_of
from ..programs.wiring import Arguments, Interpreted, Out, Transform, Wiring, output_buffers, result_outs
from ..record import recorder
from ..record.record import Recording, inline
from ..record.value import Recorded
from ..switches import current_options
from ..tracebacks import of_user
from ..tree import Leaf, Tree, matched, numbered


@dataclass
class VjpWiring(Wiring):
    """`graph` has the results and the gradients; its inputs are those of f, then the cotangents."""

    # for each result a node of its type, or None: it has no derivative
    cotangents: list = field(default_factory=list)
    back: Wiring | None = None  # of the gradients

    def split(self, pipeline: Pipeline, joint: Graph) -> Halves:
        """Forward and backward of the joint graph; the forward does not return its inputs."""
        n_inputs = len(joint.inputs) - sum(n is not None for n in self.cotangents)
        return pipeline.split(joint, n_inputs, len(joint.outputs) - len(self.back.outs), hand_on_inputs=False)


@dataclass
class Pair:
    """The two programs of ad.vjp, and where the backward's operands come from."""

    forward: Any  # a Program or ScalarProgram
    backward: Any
    saved: list[tuple[str, int]]

    def exchanged(self, values: Sequence) -> Pair:
        return Pair(self.forward.exchanged(values), self.backward.exchanged(values), self.saved)

    @property
    def source(self) -> str:
        return f"{self.forward.source}\n\n{self.backward.source}"


class Vjp(Transform):
    """Called with the arguments of f. The result is (out, pullback)."""

    name, suffix, takes_out, reverse = "vjp", "vjp", False, True

    def __init__(self, pure: bool = False):
        self.pure = pure

    def key(self) -> tuple:
        return type(self), self.pure

    def wiring(self, rec: Recording, call: Arguments, f: Callable) -> VjpWiring:
        wrt_of_args = [float_leaves(self.name, call, f, k, strict=False) for k in range(len(call.args))]
        wrt = [i for w in wrt_of_args for i in w.leaves]
        outs = result_outs(rec)
        results = Graph(rec.graph.inputs, rec.graph.outputs[: rec.n_results], rec.graph.name)
        nodes = [results.outputs[o.index] for o in outs]
        moves = [n.dtype.kind in "fc" for n in nodes]
        joint = vjp_graph(results, wrt, [o.index for o, has in zip(outs, moves) if has])

        def like(n: Node) -> Node:  # which would keep the whole graph
            return input_node(n.shape, n.dtype)

        gradients = [like(results.inputs[i]) for i in wrt]
        back_outs = [Out(i, kind) for i, kind in enumerate(kind for w in wrt_of_args for kind in w.kinds)]
        tree = Tree.of(*(w.tree for w in wrt_of_args))
        back = Wiring(Graph([], gradients, "pullback"), [], [], tree, back_outs)
        cotangents = [like(n) if has else None for n, has in zip(nodes, moves)]
        return VjpWiring(joint, *call.sources(rec), rec.out_tree, outs, cotangents=cotangents, back=back)

    def compile(self, wiring: VjpWiring, pipeline: Pipeline, scalar: bool) -> Pair:
        halves = wiring.split(pipeline, pipeline.prepared(wiring.graph))
        name = wiring.graph.name.removesuffix("_vjp")
        forward = pipeline.emitted(halves.forward, f"{name}_forward", half="forward")
        backward = pipeline.emitted(halves.backward, f"{name}_backward", half="backward")
        return Pair(forward, backward, halves.saved)

    def execute(self, pair: Pair, wiring: VjpWiring, leaves: Sequence, outside: Sequence, out: Any) -> tuple:
        operands = [*(leaves[i] for i in wiring.feed), *outside]
        return self.finish(wiring, operands, pair.forward(*operands), pair.saved, pair.backward)

    def uncompiled(self, wiring: VjpWiring) -> Pair:
        pipeline = Pipeline(wiring.graph.name, current_options())
        halves = wiring.split(pipeline, pipeline.prepared(wiring.graph))
        return Pair(Interpreted(halves.forward), Interpreted(halves.backward), halves.saved)

    def inline(self, wiring: VjpWiring, leaves: Sequence) -> tuple[Any, Pullback]:
        """In a function that is differentiated in turn calls are not inlined: they keep their rules."""
        halves = wiring.split(Pipeline(wiring.graph.name, current_options()), wiring.graph)
        operands = wiring.operands(leaves)
        results = inline(halves.forward, operands)
        return self.finish(wiring, operands, results, halves.saved, Interpreted(halves.backward))

    def finish(
        self, wiring: VjpWiring, operands: Sequence, results: Sequence, origins: Sequence, back: Callable
    ) -> tuple[Any, Pullback]:
        saved = [(operands if where == "input" else results)[i] for where, i in origins]
        # what the caller holds may be written to before the pullback is called
        held = {id(x) for x in (*results[: len(wiring.outs)], *(() if self.pure else operands))}
        saved = [x.copy() if isinstance(x, np.ndarray) and id(x) in held else x for x in saved]
        return wiring.result(results), Pullback(wiring, saved, back)


class Pullback:
    """From a cotangent of the result to the gradients of the arguments. It can be called many times.

    pullback(dout, out=None) -> a tuple with an entry for each argument of f, in its structure; None for
    integers and other values without a derivative. dout has the structure of f's result; None in it is zero.
    """

    def __init__(self, wiring: VjpWiring, saved: list, program: Any):
        self._wiring, self._saved, self.program = wiring, saved, program

    def __deepcopy__(self, memo: dict) -> Pullback:
        return Pullback(self._wiring, copy.deepcopy(self._saved, memo), self.program)

    @property
    def source(self) -> str:
        """The NumPy source that runs."""
        return self.program.source

    def __call__(self, dout: Any, out: Any = None) -> tuple:
        wiring = self._wiring
        operands = [*self._saved, *matched_cotangents(wiring, dout)]
        inside = type(self.program) is Interpreted and recorder.current() is not None
        if inside or any(type(x) is Recorded for x in operands):
            if out is not None:
                raise AutodiffError(
                    "pullback: out= writes into plain arrays; inside a function that is being "
                    "differentiated use the result"
                )
            results = inline(self.program.graph, operands)
        else:
            results = self.program(*operands, out=output_buffers("pullback", wiring.back, out))
        return wiring.back.result(results)


def matched_cotangents(wiring: VjpWiring, dout: Any) -> list:
    """The cotangents as the backward takes them, one for each floating-point result."""

    def fail(path, expected, got):
        raise AutodiffError(f"pullback: the cotangent{path} is {_described(got)}, expected {expected}")

    def unlike(path, expected, got):
        fail(path, f"{expected}, like the result", got)

    cotangents: list = [None] * wiring.tree.size
    for leaf, d, path in matched(numbered(wiring.tree), dout, unlike):
        if isinstance(leaf, Leaf):
            cotangents[leaf.index] = _cotangent(wiring.cotangents[leaf.index], d, partial(fail, path))
    return [ct for ct, node in zip(cotangents, wiring.cotangents) if node is not None]


def _cotangent(node: Node | None, d: Any, fail: Callable) -> Any:
    """The cotangent of one result in its dtype; None for a result without a derivative."""
    if node is None:
        if d is not None and _dtype(d).kind in "fc" and np.any(getattr(d, "value", d)):
            fail("None: that result has no derivative", d)
        return None
    if d is None:
        return np.zeros(node.shape, node.dtype)
    if isinstance(d, (tuple, list, dict)) or np.shape(getattr(d, "value", d)) != node.shape:
        fail(f"of shape {node.shape}, that of the result", d)
    if type(d) is Recorded:
        return d.astype(node.dtype)
    if _dtype(d).kind == "c" and node.dtype.kind != "c":
        fail(f"real, as the result is {node.dtype}", d)
    return np.asarray(d, node.dtype)


@of_user
def vjp(f: Callable, *args: Any, pure: bool = False) -> tuple[Any, Pullback]:
    """The value of f, and its pullback: (f(*args), pullback). See Pullback.

    The forward program keeps what the backward is quicker to be handed than to compute again. Arguments that
    it needs are copied, as the caller may write to them before calling the pullback; not with pure=True,
    which promises that they stay (and what it promises in ad.compile).

        >>> out, pullback = ad.vjp(lambda x, y: x * y, np.array([1.0, 2.0]), np.array([3.0, 4.0]))
        >>> pullback(np.ones(2))
        (array([3., 4.]), array([1., 2.]))
    """
    return derived_of(f, Vjp(pure), pure).entry(args, {})
