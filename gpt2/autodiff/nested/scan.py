"""Loops of many steps: `scan(body, init, xs)` records the body once, and its derivative is again a scan.

    carry = init
    for x in xs:                 over the leading axis of every array in xs
        carry, y = body(carry, x)
        keep y
    final, ys = carry, the y's stacked

A Python loop works as well; it is recorded step by step, so that its program grows with the number of steps,
and its backward keeps every step's values. A scan's program is as long as its body, and its backward keeps
every k-th carry and computes the carries between again when it comes to them: with k = sqrt(n) the memory for
n steps is that of about 2 sqrt(n) carries, at the price of one more forward run. Griewank and Walther 2008,
Evaluating Derivatives, section 12 (with one level of checkpoints).

The op

    scan(*carry, *xs, *consts; body, n, carries, slices, every) -> (*final, *ys, *checkpoints)

has `carries` carries and `slices` xs; body is a graph from (carry, x, consts) to (carry, y), where consts are
the values from outside that it reads. Checkpoint j of a carry is its value before step j * every, so
checkpoints have the shape (ceil(n / every), *carry.shape).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from ..derive.chain_rule import applied
from ..derive.differentiate import backprop, pushforward
from ..graph import Graph, Node
from ..ops import apply, input_node
from ..ops.build import concatenate, reshape, take_slice
from ..ops.subgraph import beside, inputs_like, is_float, items, splice, zeros_like
from ..ops.table import row
from ..pipeline import program_of
from . import numbers
from .map import swap_first


def n_checkpoints(n: int, every: int) -> int:
    return -(-n // every)


def default_every(n: int) -> int:
    """The spacing of checkpoints that keeps the fewest carries alive."""
    return max(1, math.isqrt(n))


# --- the op ---------------------------------------------------------------------------------------------


def _infer(*args, body: Graph, n: int, carries: int, slices: int, every: int):
    carry, ys = body.outputs[:carries], body.outputs[carries:]
    shapes = [c.shape for c in carry] + [(n, *y.shape) for y in ys]
    shapes += [(n_checkpoints(n, every), *c.shape) for c in carry]
    return tuple(shapes), tuple(o.dtype for o in (*body.outputs, *carry))


def evaluate_scan(
    *values: np.ndarray, body: Graph, n: int, carries: int, slices: int, every: int
) -> tuple[np.ndarray, ...]:
    values = [np.asarray(v, i.dtype) for v, i in zip(values, body.inputs)]
    if (run := numbers.of_numbers(body)) is not None:
        return numbers.scan(run, values, body, n, carries, slices, every)
    carry, xs, consts = _split(values, carries, slices)
    ys = [np.empty((n, *y.shape), y.dtype) for y in body.outputs[carries:]]
    checkpoints = [np.empty((n_checkpoints(n, every), *c.shape), c.dtype) for c in body.outputs[:carries]]
    # Two sets of buffers: a step reads the one and writes the other.
    now, then = ([np.empty(c.shape, c.dtype) for c in body.outputs[:carries]] for _ in range(2))
    with program_of(body).borrowed() as run:
        for t in range(n):
            if t % every == 0:
                for kept, c in zip(checkpoints, carry):
                    kept[t // every] = c
            run((*carry, *[x[t, ...] for x in xs], *consts), (*now, *[y[t, ...] for y in ys]))
            carry, now, then = now, then, now
    return (*carry, *ys, *checkpoints)


def scan_node(
    body: Graph, carry: Sequence[Node], xs: Sequence[Node], consts: Sequence[Node], n: int, every: int
) -> list[Node]:
    """The results of a `scan` node: n steps of body."""
    args, sizes = (*carry, *xs, *consts), {"carries": len(carry), "slices": len(xs)}
    return items(apply("scan", *args, body=body, n=n, **sizes, every=every))


def _split(args, carries: int, slices: int) -> tuple[tuple, tuple, tuple]:
    return args[:carries], args[carries : carries + slices], args[carries + slices :]


# --- forward mode: the tangents are carried along -------------------------------------------------------


def _jvp(tangents, out, *args, body: Graph, n: int, carries: int, slices: int, every: int):
    active = active_inputs(body, [t is not None for t in tangents], carries)
    marks = {i: t for i, t in zip(body.inputs, inputs_like(body.inputs, "d")) if active[i]}
    found = pushforward(body.outputs, marks)
    moving = [k for k, i in enumerate(body.inputs) if active[i]]
    moving_carry = [k for k in moving if k < carries]
    moving_ys = [j for j in range(carries, len(found)) if found[j] is not None]
    cuts = carries, carries + slices
    inputs = beside(body.inputs, {k: marks[body.inputs[k]] for k in moving}, *cuts)
    tangents_out = {k: or_zeros(found[k], body.outputs[k]) for k in moving_carry} | {
        j: found[j] for j in moving_ys
    }
    outputs = beside(body.outputs, tangents_out, carries)
    jvp_body = Graph([*chain(*inputs)], [*chain(*outputs)], body.name + "_jvp")
    carry, xs, consts = beside(args, {k: or_zeros(tangents[k], args[k]) for k in moving}, *cuts)
    made = scan_node(jvp_body, carry, xs, consts, n, every)
    # items: final, dfinal, ys, dys, checkpoints, dcheckpoints
    n_ys, n_moving = len(body.outputs) - carries, len(moving_carry)
    dfinal, rest = made[carries : carries + n_moving], made[carries + n_moving + n_ys :]
    dys, dcheckpoints = rest[: len(moving_ys)], rest[len(moving_ys) + carries :]
    result: list[Node | None] = [None] * len(out.shape)
    for i, final, kept in zip(moving_carry, dfinal, dcheckpoints):
        result[i], result[len(body.outputs) + i] = final, kept
    for j, dy in zip(moving_ys, dys):
        result[j] = dy
    return tuple(result)


def active_inputs(body: Graph, given: Iterable, carries: int) -> dict[Node, bool]:
    """Which inputs of the body have a tangent.

    A carry has one if it starts with one, or if a step gives it one.
    """
    active = {i: bool(g) and is_float(i) for i, g in zip(body.inputs, given)}
    while True:
        marks = {i: t for i, t in zip(body.inputs, inputs_like(body.inputs)) if active[i]}
        found = pushforward(body.outputs[:carries], marks)
        news = [i for i, t in zip(body.inputs, found) if t is not None and not active[i]]
        if not news:
            return active
        active.update(dict.fromkeys(news, True))


def or_zeros(x: Node | None, like: Node) -> Node:
    return zeros_like(like) if x is None else x


# --- reverse mode: segments from the last to the first, each run forward again from its checkpoint ------


def _vjp(g, out, *args, wanted, body: Graph, n: int, carries: int, slices: int, every: int):
    g = [None if d is None else applied(d) for d in g]
    dys = g[carries : len(body.outputs)]
    back = Backward(body, carries, slices, [dy is not None for dy in dys], wanted)
    init, xs, consts = _split(args, carries, slices)
    rows = [*xs, *(dy for dy in dys if dy is not None)]
    checkpoints = items(out)[len(body.outputs) :]
    # There are some in second derivatives: an earlier backward read the checkpoints
    kept = [g[len(body.outputs) + i] for i in back.float_carry]
    sums = [or_zeros(g[i], init[i]) for i in back.float_carry]
    sums += [zeros_like(consts[i]) for i in back.read_consts]
    whole, left = divmod(n, every)
    parts = []
    if left:  # the last segment is shorter
        given = [*_cut(checkpoints, whole, whole + 1), *_cut(rows, n - left, n)]
        sums, dxs = back.split(splice(back.segment(left), [*sums, *given, *consts]))
        for i, k in enumerate(kept):
            if k is not None:
                sums[i] += reshape(take_slice(k, 0, whole, whole + 1), sums[i].shape)
        parts.append([reshape(d, (left, *x.shape)) for d, x in zip(dxs, back.dx_like)])
    if whole:
        sums, dxs = back.segments(sums, checkpoints, rows, kept, consts, whole, every)
        parts.append([reshape(flip(d), (whole * every, *x.shape)) for d, x in zip(dxs, back.dx_like)])
    result: list[Node | None] = [None] * len(args)
    for k, d in zip((*back.float_carry, *(carries + slices + i for i in back.read_consts)), sums):
        result[k] = d
    for k, found in zip(back.float_xs, zip(*parts)):
        result[carries + k] = concatenate(found[::-1], 0) if len(found) > 1 else found[0]
    return tuple(result)


def _cut(nodes, start: int, stop: int) -> list[Node]:
    """Rows start:stop; without the axis if there is one, as a segment of one step wants it."""
    parts = [take_slice(x, 0, start, stop) for x in nodes]
    return [reshape(x, x.shape[1:]) for x in parts] if stop - start == 1 else parts


def _segments(x: Node, whole: int, every: int) -> Node:
    """(n, ...) -> (whole, every, ...), the last segment first; (n, ...) for segments of one step."""
    x = take_slice(x, 0, 0, whole * every)
    return flip(reshape(x, (whole, every, *x.shape[1:]) if every > 1 else x.shape))


def flip(x: Node) -> Node:
    """x with its leading axis from the last to the first."""
    return take_slice(x, 0, x.shape[0] - 1, None, -1) if x.shape[0] > 1 else x


class Backward:
    """The bodies of the backward scans: one step back, and a segment of k steps.

    step     (dcarry, dconsts | carry, x, dy | consts) -> (dcarry, dconsts | dx)
    segment  (dcarry, dconsts | first carry, k of x, k of dy | consts) -> (dcarry, dconsts | k of dx)

    Only what a derivative leads through appears: floating-point carries, and the wanted among xs and consts.
    """

    def __init__(
        self, body: Graph, carries: int, slices: int, has_dy: Sequence[bool], wanted: Sequence[bool]
    ):
        carry, xs, consts = _split(body.inputs, carries, slices)
        self.body, self.carries, self.slices = body, carries, slices
        self.again = Graph(body.inputs, body.outputs[:carries], body.name)  # for the carries alone
        self.float_carry = [i for i, c in enumerate(carry) if is_float(c)]
        ys = [y for y, has in zip(body.outputs[carries:], has_dy) if has]
        self.n_dys = len(ys)
        seeded = [*(body.outputs[i] for i in self.float_carry), *ys]
        cts = inputs_like(seeded, "d")
        asked = [i for i, w in zip(body.inputs, wanted) if w or i in carry]  # a carry's leads to all others
        found = dict.fromkeys(body.inputs) | dict(zip(asked, backprop(list(zip(seeded, cts)), asked)))
        self.float_xs = [i for i, x in enumerate(xs) if found[x] is not None]
        self.read_consts = [i for i, w in enumerate(consts) if found[w] is not None]
        self.dx_like = [xs[i] for i in self.float_xs]
        sums = inputs_like([consts[i] for i in self.read_consts], "d")
        n = len(self.float_carry)
        self.step = Graph(
            [*cts[:n], *sums, *carry, *xs, *cts[n:], *consts],
            [
                *(or_zeros(found[carry[i]], carry[i]) for i in self.float_carry),
                *(s + found[consts[i]] for s, i in zip(sums, self.read_consts)),
                *(found[xs[i]] for i in self.float_xs),
            ],
            body.name + "_back",
        )

    def split(self, nodes: Sequence[Node]) -> tuple[list, list]:
        """The results of a backward scan or segment: dcarry and dconsts, dx."""
        n = len(self.float_carry) + len(self.read_consts)
        return list(nodes[:n]), list(nodes[n : n + len(self.float_xs)])

    def segments(
        self,
        sums: Sequence[Node],
        checkpoints: Sequence[Node],
        rows: Sequence[Node],
        kept: Sequence[Node | None],
        consts: Sequence[Node],
        whole: int,
        every: int,
    ) -> tuple[list, list]:
        """The results of all segments of full length, as split gives them."""
        given = [flip(take_slice(c, 0, 0, whole)) for c in checkpoints]
        given += [_segments(x, whole, every) for x in rows]
        given += [flip(take_slice(k, 0, 0, whole)) for k in kept if k is not None]
        segment = self.segment(every, tuple(k is not None for k in kept))
        return self.split(scan_node(segment, sums, given, consts, whole, default_every(whole)))

    def segment(self, k: int, has_kept: Sequence[bool] = ()) -> Graph:
        """The graph of k steps back. `has_kept` says which carries also get the gradient of their checkpoint,
        the last of the sliced arguments.
        """
        if k == 1:
            return self.single(has_kept)
        n_sums = len(self.float_carry) + len(self.read_consts)
        step_inputs = inputs_like(self.step.inputs)
        for fresh, old in zip(step_inputs, self.step.inputs):
            fresh.name = old.name
        sums = step_inputs[:n_sums]
        carry, xs, rest = _split(step_inputs[n_sums:], self.carries, self.slices)
        dys, consts = rest[: self.n_dys], rest[self.n_dys :]
        xs, dys = [rows_of(x, k) for x in xs], [rows_of(d, k) for d in dys]
        carried = scan_node(self.again, carry, xs, consts, k, every=1)[self.carries :]  # before every step
        backwards = list(map(flip, (*carried, *xs, *dys)))
        dsums, dxs = self.split(scan_node(self.step, sums, backwards, consts, k, default_every(k)))
        kept, dsums = _with_kept(dsums, has_kept)
        inputs = [*sums, *carry, *xs, *dys, *kept, *consts]
        return Graph(inputs, [*dsums, *map(flip, dxs)], self.body.name + "_segment")

    def single(self, has_kept: Sequence[bool]) -> Graph:
        """A segment of one step, whose checkpoint is its carry; without the axis of length 1."""
        n_consts = len(self.body.inputs) - self.carries - self.slices
        step = self.step
        first = list(step.inputs[: len(step.inputs) - n_consts])
        consts = step.inputs[len(first) :]
        kept, outputs = _with_kept(step.outputs, has_kept)
        return Graph([*first, *kept, *consts], outputs, step.name)


def _with_kept(outputs, has_kept) -> tuple[list[Node], list[Node]]:
    """New inputs, for the gradients of the checkpoints that have one; and the outputs with those added."""
    kept = {i: inputs_like([outputs[i]])[0] for i, has in enumerate(has_kept) if has}
    return list(kept.values()), [o + kept[i] if i in kept else o for i, o in enumerate(outputs)]


def _batch(b, *args, body: Graph, n: int, carries: int, slices: int, every: int):
    """The steps stay outermost. A carry differs from example to example if it starts so or becomes so."""
    flags = list(b.flags)
    while True:
        inner, found = b.graph(body, flags)
        grown = [f or g for f, g in zip(flags[:carries], found)]
        if grown == flags[:carries]:
            break
        flags[:carries] = grown
    outputs = [
        b.front(o, f) if flags[k] else o for k, (o, f) in enumerate(zip(inner.outputs[:carries], found))
    ]
    inner = Graph(inner.inputs, [*outputs, *inner.outputs[carries:]], inner.name)
    given = []
    for k, (x, has, wanted) in enumerate(zip(args, b.flags, flags)):
        x = b.front(x, has) if wanted else x
        given.append(swap_first(x) if wanted and carries <= k < carries + slices else x)
    sizes = dict(n=n, carries=carries, slices=slices, every=every)
    made = items(apply("scan", *given, body=inner, **sizes))
    final, ys, kept = _split(made, carries, len(body.outputs) - carries)
    has_y = found[carries:]
    return [
        *(b.front(x, has) for x, has in zip(final, flags)),
        *(b.front(swap_first(y) if has else y, has) for y, has in zip(ys, has_y)),
        *(b.front(swap_first(c) if has else c, has) for c, has in zip(kept, flags)),
    ]


def rows_of(x: Node, k: int) -> Node:
    """An input that holds k of x."""
    return input_node((k, *x.shape), x.dtype, x.name)


row(
    "scan",
    "structural",
    infer=_infer,
    evaluate=evaluate_scan,
    jvp_rule=_jvp,
    vjp_rule=_vjp,
    batch=_batch,
    cost=100.0,
    anchor=True,
)
