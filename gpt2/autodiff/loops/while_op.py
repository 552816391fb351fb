"""The ops `while_loop` and `while_loop_back`: loops whose number of steps is known only at run time. Their
bodies are recorded once, and the program has them once, however many steps are taken.

    while_loop(*carry, *consts; test, body, carries, keep, limit) -> (*final, steps, spacing, *kept)
    while_loop_back(*carry, *consts, steps, spacing, *kept, *dfinal; body, step, ...) -> (*dcarry, *dconsts)

`test` and `body` are graphs of (carry, consts), where consts are the values from outside that they read.

Shapes in a graph are static, so the forward keeps at most `keep` carries: each one at first, and when these
are full every second, then every fourth, and so on: kept[j] is the carry before step j * spacing. The
backward goes through these segments from the last to the first. If spacing is 1 it recomputes no carry; else
it runs each segment forward from its first carry, and divides it in the same way until its carries fit:
log(n) / log(keep) forward runs, with `keep` carries for each. Griewank and Walther 2008, Evaluating
Derivatives, chapter 12; Wang, Moin and Iaccarino 2009, Minimal repetition dynamic checkpointing algorithm,
for loops of unknown length.

The derivative of a backward follows from its meaning: J'w, where J is the Jacobian of the loop. As u'(J'w) is
(Ju)'w, its gradient is that of a forward derivative, whose loop has the tangents among its carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from ..derive.chain_rule import applied
from ..derive.differentiate import backprop, pushforward
from ..errors import AutodiffError
from ..graph import Graph, Node
from ..ops import apply, const, input_node
from ..ops.build import cast, reshape, sum_, ufunc, where
from ..ops.interpret import apart
from ..ops.leads import NoRule
from ..ops.subgraph import beside, inputs_like, items, or_zeros, result_types, splice, zeros_like
from ..ops.table import Leads, row
from ..pipeline import program_of
from .map_op import swap_first
from .scan_op import Backward, Tangents, batched_body, flags_of_all_steps, of_numbers

MOST, FEWEST = 128, 8  # carries that are kept by default
MOST_BYTES = 1 << 28  # of these carries, unless the fewest take more


def default_keep(nbytes: int) -> int:
    """The number of carries of so many bytes to keep."""
    return max(FEWEST, min(MOST, MOST_BYTES // max(nbytes, 1)))


# --- the op ---------------------------------------------------------------------------------------------


def while_node(
    test: Graph, body: Graph, carry: Sequence, consts: Sequence, keep: int, limit: int | None = None
) -> list[Node]:
    """The results of a `while_loop` node."""
    attrs = dict(test=test, body=body, carries=len(carry), keep=keep, limit=limit)
    return items(apply("while_loop", *carry, *consts, **attrs))


def too_many(limit: int, loc: tuple | None = None) -> AutodiffError:
    """The error if the limit is exceeded."""
    steps = "1 step" if limit == 1 else f"{limit} steps"
    return AutodiffError(f"while_loop: cond still holds after {steps}, the limit that was given", loc)


def _infer(*args, test: Graph, body: Graph, carries: int, keep: int, limit: int | None):
    carry = body.outputs
    shapes = [*(c.shape for c in carry), (), (), *((keep, *c.shape) for c in carry)]
    integer = np.dtype(np.int64)
    return tuple(shapes), (*(c.dtype for c in carry), integer, integer, *(c.dtype for c in carry))


def _with_test(body: Graph, test: Graph) -> Graph:
    """A step, and whether there is another one. Cached on the body."""
    graphs = body.kept.setdefault("with test", {})
    if test not in graphs:
        more = splice(test, [*body.outputs, *body.inputs[len(body.outputs) :]])
        graphs[test] = Graph(body.inputs, [*body.outputs, *more], body.name)
    return graphs[test]


def evaluate_while(
    *values: np.ndarray, test: Graph, body: Graph, carries: int, keep: int, limit: int | None
) -> tuple[np.ndarray, ...]:
    values = [np.asarray(v, i.dtype) for v, i in zip(values, body.inputs)]
    carry, consts = values[:carries], values[carries:]
    kept = _Kept(body.outputs, keep, limit)
    (more,) = program_of(test)(*values)
    body = _with_test(body, test)
    steps = 0
    if (numbers := of_numbers(body)) is not None:
        carry, consts = [c.item() for c in carry], [c.item() for c in consts]
        while more:
            kept.add(steps, carry)
            *carry, more = numbers(*carry, *consts)
            steps += 1
        carry = [np.array(c, o.dtype) for c, o in zip(carry, body.outputs)]
    else:
        # Each step reads one of two sets of buffers and writes the other
        now, then = ([np.empty(c.shape, c.dtype) for c in body.outputs[:-1]] for _ in range(2))
        again = np.empty((), bool)
        with program_of(body).borrowed() as run:
            while more:
                kept.add(steps, carry)
                run((*carry, *consts), (*now, again))
                carry, now, then = now, then, now
                more = again
                steps += 1
    return (*apart(carry, values), np.array(steps), np.array(kept.spacing), *kept.arrays)


def _keep_none_unused(read: set[int], attrs: dict) -> dict:
    """The attributes with keep=0 if nothing reads the carries, as without a derivative."""
    return attrs if any(i > attrs["carries"] for i in read) else {**attrs, "keep": 0}


class _Kept:
    """The carries that a running loop keeps: those before steps 0, spacing, 2 spacing, ..."""

    def __init__(self, like: Sequence[Node], keep: int, limit: int | None):
        self.arrays = [np.empty((keep, *c.shape), c.dtype) for c in like]
        self.keep, self.limit = keep, limit
        self.spacing = 1

    def add(self, step: int, carry: Sequence[np.ndarray]) -> None:
        """Keep the carry before this step, if it is one of those. Raises if the limit is exceeded."""
        if step == self.limit:
            raise too_many(step)
        if not self.keep or step % self.spacing:
            return
        if step // self.spacing == self.keep:  # drop every second one
            for a in self.arrays:
                a[: (self.keep + 1) // 2] = a[::2].copy()
            self.spacing *= 2
            if step % self.spacing:
                return
        for a, c in zip(self.arrays, carry):
            a[step // self.spacing] = c


# --- forward mode: the tangents are carries, too -------------------------------------------------------


def _jvp(tangents, out, *args, test: Graph, body: Graph, carries: int, keep: int, limit: int | None):
    t = Tangents(body, tangents, args, carries)

    def inputs(graph: Graph, dots: Mapping[int, Node]) -> list[Node]:
        return [*chain(*beside(graph.inputs, dots, carries))]

    wide = Graph(inputs(body, t.marks), [*body.outputs, *t.results.values()], body.name + "_jvp")
    fresh = dict(zip(t.marks, inputs_like([*t.marks.values()])))
    wide_test = Graph(inputs(test, fresh), test.outputs, test.name)
    carry, consts = beside(args, t.given, carries)
    results = while_node(wide_test, wide, carry, consts, keep, limit)
    by_output = dict(zip(t.results, results[carries:]))
    return tuple(map(by_output.get, range(len(out.shape))))


# --- reverse mode ---------------------------------------------------------------------------------------


def _vjp(g, out, *args, wanted, test: Graph, body: Graph, carries: int, keep: int, limit: int | None):
    back = Backward(body, carries, 0, [], wanted)
    results_of_loop = items(out)
    cts = [or_zeros(None if g[k] is None else applied(g[k]), results_of_loop[k]) for k in back.float_carry]
    attrs = dict(body=body, step=back.step, carries=carries, keep=keep)
    attrs |= dict(floats=tuple(back.float_carry), reads=tuple(back.read_consts))
    grads = items(apply("while_loop_back", *args, *results_of_loop[carries:], *cts, **attrs))
    by_argument = dict(zip(back.places, grads))
    return tuple(map(by_argument.get, range(len(args))))


class _BackArguments:
    """The arguments of a while_loop_back, by name."""

    def __init__(self, args: Sequence, body: Graph, carries: int):
        n = len(body.inputs)
        self.carry, self.consts = args[:carries], args[carries:n]
        self.steps, self.spacing = args[n : n + 2]
        self.kept, self.cts = args[n + 2 : n + 2 + carries], args[n + 2 + carries :]


def evaluate_back(
    *values: np.ndarray, body: Graph, step: Graph, carries: int, keep: int, floats: tuple, reads: tuple
) -> tuple[np.ndarray, ...]:
    """Goes back from the last kept carry to the first, and divides what lies between in the same way."""
    given = _BackArguments([np.asarray(v) for v in values], body, carries)
    grads = [np.array(d, body.outputs[k].dtype) for d, k in zip(given.cts, floats)]
    grads += [np.zeros(o.shape, o.dtype) for o in step.outputs[len(floats) :]]
    other = [np.empty_like(x) for x in grads]

    def go_back(kept: Sequence[np.ndarray], spacing: int, n: int) -> None:
        """Through n steps, of which every so many carries are kept."""
        nonlocal grads, other
        for start in reversed(range(0, n, spacing)):
            carry, count = [a[start // spacing, ...] for a in kept], min(spacing, n - start)
            if count > 1:
                go_back(*go_forth(carry, count), count)
            else:
                back((*grads, *carry, *given.consts), other)
                grads, other = other, grads

    def go_forth(carry: Sequence[np.ndarray], n: int) -> tuple[Sequence[np.ndarray], int]:
        """(the carries that are kept of those before n steps, their spacing)."""
        now, then = ([np.empty(c.shape, c.dtype) for c in body.outputs] for _ in range(2))
        kept = _Kept(body.outputs, min(n, max(FEWEST, keep)), None)
        kept.add(0, carry)
        for t in range(1, n):
            forth((*carry, *given.consts), now)
            carry, now, then = now, then, now
            kept.add(t, carry)
        return kept.arrays, kept.spacing

    with program_of(body).borrowed() as forth, program_of(step).borrowed() as back:
        go_back(given.kept, int(given.spacing), int(given.steps))
    return tuple(grads)


# --- the derivative of a backward -----------------------------------------------------------------------


def _counted(body: Graph, carry: Sequence, consts: Sequence, steps: Node, keep: int) -> list[Node]:
    """The final carry of a loop of so many steps, with the index of the step as one more carry."""
    n = len(carry)
    count, limit = input_node((), np.int64, "count"), input_node((), np.int64, "steps")
    inputs = [*body.inputs[:n], count, *body.inputs[n:], limit]
    wide = Graph(inputs, [*body.outputs, count + const(1, np.int64)], body.name)
    test = Graph(inputs, [ufunc("less")(count, limit)], "counted")
    results = while_node(test, wide, [*carry, const(0, np.int64)], [*consts, steps], keep)
    return results[:n]


def _back_vjp(g, out, *args, wanted, body, step, carries, keep, floats, reads):
    fresh = inputs_like(args)
    arguments = _BackArguments(fresh, body, carries)
    douts = {k: applied(d) for k, d in enumerate(g) if d is not None}
    marks = dict(zip(douts, inputs_like([items(out)[k] for k in douts])))
    sources = [*(arguments.carry[k] for k in floats), *(arguments.consts[k] for k in reads)]
    finals = _counted(body, arguments.carry, arguments.consts, arguments.steps, keep)
    moved = pushforward([finals[k] for k in floats], {sources[k]: m for k, m in marks.items()})
    wrt = [x for x, w in zip(fresh[: len(body.inputs)], wanted) if w]
    seeds = [(d, ct) for d, ct in zip(moved, arguments.cts) if d is not None]
    grads = dict(zip(wrt, backprop(seeds, wrt))) | dict(zip(arguments.cts, moved))
    return _substituted(fresh, marks.values(), [grads.get(x) for x in fresh], [*args, *douts.values()])


def _back_jvp(tangents, out, *args, body, step, carries, keep, floats, reads):
    fresh = inputs_like(args)
    arguments = _BackArguments(fresh, body, carries)
    moving = {x: t for x, t in zip(fresh, tangents) if t is not None}
    marks = dict(zip(moving, inputs_like(list(moving))))
    finals = _counted(body, arguments.carry, arguments.consts, arguments.steps, keep)
    finals = [finals[k] for k in floats]
    read = {*arguments.carry, *arguments.consts}
    moved = pushforward(finals, {x: m for x, m in marks.items() if x in read})
    seeds = [(d, ct) for d, ct in zip(moved, arguments.cts) if d is not None]
    seeds += [(final, marks[ct]) for final, ct in zip(finals, arguments.cts) if ct in marks]
    grads = backprop(seeds, [*(arguments.carry[k] for k in floats), *(arguments.consts[k] for k in reads)])
    return tuple(_substituted(fresh, marks.values(), grads, [*args, *moving.values()]))


def _substituted(fresh: Sequence[Node], marks, results: Sequence[Node | None], args: Sequence[Node]) -> list:
    """The results, some of them None, with the arguments in place of the fresh inputs."""
    present = [r for r in results if r is not None]
    spliced = iter(splice(Graph([*fresh, *marks], present), args))
    return [None if r is None else next(spliced) for r in results]


# --- many examples at once ------------------------------------------------------------------------------


def _batch(b, *args, test: Graph, body: Graph, carries: int, keep: int, limit: int | None):
    """A carry is batched if its initial value is, or after some step. If the test is batched as well, the
    loop runs until it fails for all examples; those that are done keep their carries.
    """

    def after_a_step(flags: Sequence[bool]) -> list[bool]:
        (apart,) = b.graph(test, flags)[1]
        return [f or apart for f in b.graph(body, flags)[1]]

    flags = flags_of_all_steps(b.flags, carries, after_a_step)
    inner, _, operands = batched_body(b, body, flags, args, carries)
    more, (apart,) = b.graph(test, flags)
    if not apart:
        results = while_node(more, inner, operands[:carries], operands[carries:], keep, limit)
        final, rest = results[:carries], results[carries:]
    else:
        wide = _until_all_are_done(b, inner, more, carries)
        count = zeros_like(input_node((b.n,), np.int64))
        results = while_node(*wide, [*operands[:carries], count], operands[carries:], keep, limit)
        final, rest = results[:carries], [results[carries], results[carries + 2], *results[carries + 3 : -1]]
    steps, spacing, *kept = rest
    return [
        *(b.front(x, has) for x, has in zip(final, flags)),
        b.front(steps, apart),
        b.front(spacing, False),
        *(b.front(swap_first(x) if has else x, has) for x, has in zip(kept, flags)),
    ]


def _until_all_are_done(b, inner: Graph, more: Graph, carries: int) -> tuple[Graph, Graph]:
    """(test, body) for all examples, with the number of steps of each example as one more carry."""
    count = input_node((b.n,), np.int64, "count")
    inputs = [*inner.inputs[:carries], count, *inner.inputs[carries:]]
    (going,) = splice(more, inner.inputs)
    pairs = zip(inner.outputs, inner.inputs[:carries])
    held = [where(reshape(going, (b.n, *(1,) * (o.ndim - 1))), o, c) for o, c in pairs]
    body = Graph(inputs, [*held, count + cast(going, np.int64)], inner.name)
    (left,) = splice(more, inner.inputs)
    test = Graph(inputs, [ufunc("greater")(sum_(cast(left, np.int64), (0,)), const(0, np.int64))], more.name)
    fresh = inputs_like(inputs)
    return Graph(fresh, splice(test, fresh), more.name), body


def _back_batch(b, *args, body: Graph, step: Graph, carries: int, keep: int, floats: tuple, reads: tuple):
    """One loop for all examples if all have the same number of steps; else one after another."""
    n = len(body.inputs)
    if any(b.flags[n : n + 2]):
        raise NoRule
    inner, out_flags = b.graph(body, [True] * n)
    outputs = [b.front(o, has) for o, has in zip(inner.outputs, out_flags)]
    inner = Graph(inner.inputs, outputs, inner.name)
    arguments = _BackArguments([b.front(x, has) for x, has in zip(args, b.flags)], body, carries)
    wanted = [k in floats or k - carries in reads for k in range(n)]
    back = Backward(inner, carries, 0, [], wanted)
    kept = [swap_first(x) for x in arguments.kept]
    attrs = dict(body=inner, step=back.step, carries=carries, keep=keep, floats=floats)
    operands = [*arguments.carry, *arguments.consts, *args[n : n + 2], *kept, *arguments.cts]
    output_of = dict(zip(back.read_consts, range(len(floats), len(back.step.outputs))))
    nodes = items(apply("while_loop_back", *operands, **attrs, reads=tuple(back.read_consts)))
    gradients = [nodes[output_of[k]] if k in output_of else zeros_like(arguments.consts[k]) for k in reads]
    return [*nodes[: len(floats)], *gradients]


# --- which results depend on which arguments -----------------------------------------------------------


def _influence(flags, of_graph, test: Graph, body: Graph, carries: int, **attrs) -> list[bool]:
    """If the number of steps depends on an argument with a flag, all results do."""
    flags = flags_of_all_steps(flags, carries, lambda flags: of_graph(body, flags))
    (steps,) = of_graph(test, flags)
    results = [*flags[:carries], False, False, *flags[:carries]]
    return [steps or has for has in results]


def _back_influence(flags, of_graph, body: Graph, step: Graph, carries: int, reads: tuple, **attrs):
    arguments = _BackArguments(flags, body, carries)
    of_carry = [a or b for a, b in zip(arguments.carry, arguments.kept)]
    of_body = [*of_carry, *arguments.consts]
    of_body = flags_of_all_steps(of_body, carries, lambda flags: of_graph(body, flags))
    start = [*arguments.cts, *(False for _ in reads), *of_body]
    back = flags_of_all_steps(start, len(step.outputs), lambda flags: of_graph(step, flags))
    return [arguments.steps or arguments.spacing or has for has in back[: len(step.outputs)]]


row(
    "while_loop",
    "structural",
    infer=_infer,
    evaluate=evaluate_while,
    drop_unused=_keep_none_unused,
    jvp_rule=_jvp,
    vjp_rule=_vjp,
    leads=Leads(_batch),
    influence=_influence,
    cost=1000.0,
    scheduled_alone=True,
)
row(
    "while_loop_back",
    "structural",
    infer=lambda *args, body, step, **attrs: result_types(step),
    evaluate=evaluate_back,
    jvp_rule=_back_jvp,
    vjp_rule=_back_vjp,
    leads=Leads(_back_batch),
    influence=_back_influence,
    cost=1000.0,
    scheduled_alone=True,
)
