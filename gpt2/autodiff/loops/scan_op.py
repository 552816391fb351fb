"""The op `scan`: a loop whose body is recorded once, and whose derivative is again a scan.

A Python loop is recorded step by step, so that its program grows with the number of steps, and its backward
keeps every step's values. A scan's program is as long as its body, and its backward keeps every k-th carry
and recomputes those between: with k = sqrt(n) the memory for n steps is that of about 2 sqrt(n) carries, at
the cost of one more forward run. Griewank and Walther 2008, Evaluating Derivatives, section 12 (one level of
checkpoints).

The op

    scan(*carry, *xs, *consts; body, n, carries, slices, every) -> (*final, *ys, *checkpoints)

has `carries` carries and `slices` xs; body is a graph from (carry, x, consts) to (carry, y), where consts are
the values from outside that it reads. Checkpoint j of a carry is its value before step j * every, so
checkpoints have the shape (ceil(n / every), *carry.shape).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np

from ..derive.chain_rule import applied
from ..derive.differentiate import backprop, pushforward
from ..graph import Graph, Node, remade
from ..ops import apply, input_node
from ..ops.build import concatenate, reshape, sum_, swap_last, take_slice
from ..ops.subgraph import beside, inputs_like, is_float, items, or_zeros, zeros_like
from ..ops.table import Leads, row
from ..pipeline import ScalarProgram, program_of
from .map_op import swap_first


def n_checkpoints(n: int, every: int) -> int:
    return -(-n // every)


KEEP_ALL_BYTES = 1 << 20  # carries of at most so many bytes are all kept, and none is recomputed


def default_every(n: int, nbytes: int = KEEP_ALL_BYTES + 1) -> int:
    """The spacing of checkpoints that needs the least memory; 1 if all carries are small."""
    return 1 if n * nbytes <= KEEP_ALL_BYTES else max(1, math.isqrt(n))


# --- the op ---------------------------------------------------------------------------------------------


def _infer(*args, body: Graph, n: int, carries: int, slices: int, every: int):
    carry, ys = body.outputs[:carries], body.outputs[carries:]
    shapes = [c.shape for c in carry] + [(n, *y.shape) for y in ys]
    shapes += [(n_checkpoints(n, every), *c.shape) for c in carry]
    return tuple(shapes), tuple(o.dtype for o in (*body.outputs, *carry))


def evaluate_scan(*values: np.ndarray, body: Graph, n: int, carries: int, slices: int, every: int) -> tuple:
    values = [np.asarray(v, i.dtype) for v, i in zip(values, body.inputs)]
    if (run := of_numbers(body)) is not None:
        return _scan_numbers(run, values, body, n, carries, slices, every)
    carry, xs, consts = _split(values, carries, slices)
    ys = [np.empty((n, *y.shape), y.dtype) for y in body.outputs[carries:]]
    checkpoints = [np.empty((n_checkpoints(n, every), *c.shape), c.dtype) for c in body.outputs[:carries]]
    for rows, c in zip(checkpoints, carry):
        rows[0] = c
    kept = iter(_rows(checkpoints, n_checkpoints(n, every))[1:])
    # A step writes its carry to the checkpoint that it is to be, or to one of two sets of scratch memory, of
    # which it reads the other
    scratch, other = ([np.empty(c.shape[1:], c.dtype) for c in checkpoints] for _ in range(2))
    with program_of(body).borrowed() as run:
        for t, (x, y) in enumerate(zip(_rows(xs, n), _rows(ys, n)), 1):
            if t % every or t == n:
                after = scratch
                scratch, other = other, scratch
            else:
                after = next(kept)
            run((*carry, *x, *consts), (*after, *y))
            carry = after
    return (*carry, *ys, *checkpoints)


def _rows(arrays: Sequence[np.ndarray], n: int) -> list[tuple]:
    """For each of n steps its slice of each array."""
    if not arrays:
        return [()] * n
    return list(zip(*[list(a) if a.ndim > 1 else [a[t, ...] for t in range(n)] for a in arrays]))


# --- a body on numbers only, as plain Python: 30 ns an operation instead of NumPy's 100, the same results -


def of_numbers(body: Graph) -> ScalarProgram | None:
    """The program of a body on Python floats, or None if it needs arrays."""
    if any(x.shape or x.dtype != np.float64 for x in body.inputs):
        return None
    program = program_of(body, scalar=True)
    return program if isinstance(program, ScalarProgram) else None


def _scan_numbers(
    run: ScalarProgram, values: Sequence, body: Graph, n: int, carries: int, slices: int, every: int
) -> tuple[np.ndarray, ...]:
    carry = [v.item() for v in values[:carries]]
    xs = [v.tolist() for v in values[carries : carries + slices]]
    consts = [v.item() for v in values[carries + slices :]]
    carries_kept, rows = [], []
    for t, x in enumerate(zip(*xs) if xs else repeat((), n)):
        if t % every == 0:
            carries_kept.append(carry)
        results = run(*carry, *x, *consts)
        carry = results[:carries]
        rows.append(results[carries:])
    like = body.outputs
    ys = [np.array(y, o.dtype) for y, o in zip(zip(*rows), like[carries:])]
    checkpoints = [np.array(c, o.dtype) for c, o in zip(zip(*carries_kept), like)]
    return (*(np.array(c, o.dtype) for c, o in zip(carry, like)), *ys, *checkpoints)


# --- the node -------------------------------------------------------------------------------------------


def scan_node(
    body: Graph, carry: Sequence[Node], xs: Sequence[Node], consts: Sequence[Node], n: int, every: int
) -> list[Node]:
    """The results of a `scan` node: n steps of body."""
    args, sizes = (*carry, *xs, *consts), {"carries": len(carry), "slices": len(xs)}
    return items(apply("scan", *args, body=body, n=n, **sizes, every=every))


def _split(args, carries: int, slices: int) -> tuple[tuple, tuple, tuple]:
    return args[:carries], args[carries : carries + slices], args[carries + slices :]


# --- forward mode: the tangents are carries, too -------------------------------------------------------


def _jvp(tangents, out, *args, body: Graph, n: int, carries: int, slices: int, every: int):
    t = Tangents(body, tangents, args, carries)
    cuts = carries, carries + slices
    inputs, outputs = beside(body.inputs, t.marks, *cuts), beside(body.outputs, t.results, carries)
    jvp_body = Graph([*chain(*inputs)], [*chain(*outputs)], body.name + "_jvp")
    carry, xs, consts = beside(args, t.given, *cuts)
    results = scan_node(jvp_body, carry, xs, consts, n, every)
    # items: final, dfinal, ys, dys, checkpoints, dcheckpoints
    moving = [k for k in t.results if k < carries]
    dfinal, rest = results[carries : carries + len(moving)], results[len(outputs[0]) :]
    dys, dcheckpoints = rest[len(body.outputs) - carries : len(outputs[1])], rest[len(outputs[1]) + carries :]
    by_output = dict(zip(t.results, [*dfinal, *dys]))
    by_output |= {len(body.outputs) + k: d for k, d in zip(moving, dcheckpoints)}
    return tuple(map(by_output.get, range(len(out.shape))))


class Tangents:
    """The tangents of a loop's body, and of the loop's arguments; by position.

    marks     of the inputs of the body, as inputs. A carry has one if its initial value does, or after a step
    results   of its outputs: of the carries among the marks, then of what else has one
    given     of the arguments of the loop
    """

    def __init__(self, body: Graph, tangents: Sequence[Node | None], args: Sequence[Node], carries: int):
        def moved(active: Sequence[bool]) -> list[bool]:
            marks = {i: m for i, m, has in zip(body.inputs, inputs_like(body.inputs), active) if has}
            return [t is not None for t in pushforward(body.outputs[:carries], marks)]

        active = [t is not None and is_float(i) for i, t in zip(body.inputs, tangents)]
        moving = [k for k, has in enumerate(flags_of_all_steps(active, carries, moved)) if has]
        fresh = inputs_like(body.inputs, "d")
        self.marks = {k: fresh[k] for k in moving}
        of_body = pushforward(body.outputs, {body.inputs[k]: m for k, m in self.marks.items()})
        self.results = {k: or_zeros(of_body[k], body.outputs[k]) for k in moving if k < carries}
        self.results |= {k: d for k, d in enumerate(of_body) if k >= carries and d is not None}
        self.given = {k: or_zeros(tangents[k], args[k]) for k in moving}


# --- reverse mode: segments from the last to the first, each recomputed from its checkpoint ------


def _vjp(g, out, *args, wanted, body: Graph, n: int, carries: int, slices: int, every: int):
    g = [None if d is None else applied(d) for d in g]
    dys = g[carries : len(body.outputs)]
    back = Backward(body, carries, slices, [dy is not None for dy in dys], wanted)
    init, xs, consts = _split(args, carries, slices)
    rows = [*xs, *(dy for dy in dys if dy is not None)]
    checkpoints = items(out)[len(body.outputs) :]
    # Gradients of checkpoints: in second derivatives an earlier backward read them
    kept = [g[len(body.outputs) + i] for i in back.float_carry]
    sums = [or_zeros(g[i], init[i]) for i in back.float_carry]
    sums += [zeros_like(consts[i]) for i in back.read_consts]
    if every == 1:
        final = items(out)[:carries]
        sums, dxs = every_carry_kept(back, sums, (checkpoints, final, rows, kept), consts, n)
    else:
        whole, left = divmod(n, every)
        parts = []
        for first, count, steps in ((whole, 1, left), (0, whole, every)):  # the last segment may be shorter
            if count and steps:
                of_steps = [take_slice(x, 0, first * every, first * every + count * steps) for x in rows]
                arrays = [take_slice(x, 0, first, first + count) for x in checkpoints]
                arrays += [reshape(x, (count, steps, *x.shape[1:])) for x in of_steps]
                arrays += [take_slice(k, 0, first, first + count) for k in kept if k is not None]
                segment = back.segment(steps, [k is not None for k in kept])
                reverse = [flip(x) for x in arrays]
                results = scan_node(segment, sums, reverse, consts, count, default_every(count))
                sums, dxs = results[: len(sums)], results[len(sums) :][: len(back.float_xs)]
                parts.append([reshape(flip(d), (count * steps, *d.shape[2:])) for d in dxs])
        dxs = [concatenate(f[::-1], 0) if len(f) > 1 else f[0] for f in zip(*parts)]
    by_argument = dict(zip(back.places, [*sums, *dxs]))
    return tuple(map(by_argument.get, range(len(args))))


def flip(x: Node) -> Node:
    """x with its leading axis reversed."""
    return take_slice(x, 0, x.shape[0] - 1, None, -1) if x.shape[0] > 1 else x


class Backward:
    """The bodies of the backward of a loop: one step back, and a segment of k steps.

    step     (dcarry, dconsts | carry, x, dy | consts) -> (dcarry, dconsts | dx), for while_loop
    segment  (dcarry, dconsts | first carry, k of x, k of dy | consts) -> (dcarry, dconsts | k of dx)
    places   of dcarry, dconsts and dx among the arguments of the loop

    Only differentiated values appear: floating-point carries, and the wanted among xs and consts.
    """

    def __init__(self, body: Graph, carries: int, slices: int, has_dy: Sequence, wanted: Sequence[bool]):
        carry, xs, consts = _split(body.inputs, carries, slices)
        self.body, self.carries, self.slices = body, carries, slices
        self.float_carry = [i for i, c in enumerate(carry) if is_float(c)]
        ys = [y for y, has in zip(body.outputs[carries:], has_dy) if has]
        self.n_dys = len(ys)
        seeded = [*(body.outputs[i] for i in self.float_carry), *ys]
        cts = inputs_like(seeded, "d")
        # Those of carries are needed for the others
        wrt = [i for i, w in zip(body.inputs, wanted) if w or i in carry]
        gradients = dict.fromkeys(body.inputs) | dict(zip(wrt, backprop(list(zip(seeded, cts)), wrt)))
        self.float_xs = [i for i, x in enumerate(xs) if gradients[x] is not None]
        self.read_consts = [i for i, w in enumerate(consts) if gradients[w] is not None]
        self.places = [*self.float_carry, *(carries + slices + i for i in self.read_consts)]
        self.places += [carries + i for i in self.float_xs]
        self.cts = cts
        self.dcarry = [or_zeros(gradients[carry[i]], carry[i]) for i in self.float_carry]
        self.dconsts = [gradients[consts[i]] for i in self.read_consts]
        self.dxs = [gradients[xs[i]] for i in self.float_xs]
        sums = inputs_like([consts[i] for i in self.read_consts], "d")
        n = len(self.float_carry)
        self.step = Graph(
            [*cts[:n], *sums, *carry, *xs, *cts[n:], *consts],
            [*self.dcarry, *(s + d for s, d in zip(sums, self.dconsts)), *self.dxs],
            body.name + "_back",
        )

    def segment(self, k: int, has_kept: Sequence[bool]) -> Graph:
        """The graph of k steps back. `has_kept`: which carries get the gradient of their checkpoint too."""
        inputs, n_sums = inputs_like(self.step.inputs), len(self.float_carry) + len(self.read_consts)
        sums = inputs[:n_sums]
        carry, xs, rest = _split(inputs[n_sums:], self.carries, self.slices)
        dys, consts = rest[: self.n_dys], rest[self.n_dys :]
        xs, dys = ([input_node((k, *x.shape), x.dtype, x.name) for x in part] for part in (xs, dys))
        again = Graph(self.body.inputs, self.body.outputs[: self.carries], self.body.name)
        results = scan_node(again, carry, xs, consts, k, every=1)
        arrays = results[self.carries :], results[: self.carries], [*xs, *dys], [None] * len(self.float_carry)
        dsums, dxs = every_carry_kept(self, sums, arrays, consts, k)
        kept, dsums = _with_kept(dsums, has_kept)
        return Graph([*sums, *carry, *xs, *dys, *kept, *consts], [*dsums, *dxs], self.body.name + "_segment")


def _with_kept(outputs, has_kept) -> tuple[list[Node], list[Node]]:
    """(new inputs for the gradients of checkpoints, the outputs with these added)."""
    kept = {i: inputs_like([outputs[i]])[0] for i, has in enumerate(has_kept) if has}
    return list(kept.values()), [o + kept[i] if i in kept else o for i, o in enumerate(outputs)]


# --- reverse mode through steps whose carries are all there -------------------------------------------


def every_carry_kept(
    back: Backward, sums: Sequence[Node], arrays: tuple, consts: Sequence[Node], n: int
) -> tuple[list, list]:
    """(gradients of carries and consts, gradients of xs), through n steps whose carries are all kept.

    The results of a step are kept as well, as the carry of the next one, and read by its derivative.
    Gradients of consts are summed after the loop, if they are small.

    sums     the gradients of the final carry, and what those of consts are added to
    arrays   checkpoints; the final carry; xs and the gradients of ys; gradients of checkpoints, or None
    """
    checkpoints, final, rows, kept = arrays
    step, slices, stored = _step_back(back, n, [k is not None for k in kept])
    ends = [reshape(f, (1, *f.shape)) for f in final]
    if n > 1:
        ends = [concatenate([take_slice(c, 0, 1, n), f], 0) for c, f in zip(checkpoints, ends)]
    every = [*checkpoints, *ends, *rows, *(k for k in kept if k is not None)]
    stacked = {x: flip(a) for x, a in zip(slices, every, strict=True)}
    m = len(back.float_carry)
    start = [*sums[:m], *(s for s, values in zip(sums[m:], stored) if not values)]
    taken = step.inputs[len(start) : len(step.inputs) - len(consts)]
    results = scan_node(step, start, [stacked[x] for x in taken], consts, n, default_every(n))
    added, by_step = iter(results[m : len(start)]), results[len(start) :]
    stacked.update(zip(step.outputs[len(start) :], by_step))
    totals = [
        s + _sum_over_steps([stacked[v] for v in values]) if values else next(added)
        for s, values in zip(sums[m:], stored)
    ]
    return [*results[:m], *totals], [flip(d) for d in by_step[: len(back.float_xs)]]


def _step_back(back: Backward, n: int, has_kept: Sequence[bool]) -> tuple[Graph, list, list[list[Node]]]:
    """(the graph of one step back, which reads the carry before and after it; the inputs that are one step's
    slice of an array; for each const that is read the values that are stored for its gradient).

    graph   (dcarry, sums of consts' gradients in the loop | slices that it reads | consts)
            -> (dcarry, sums | gradients of xs, and what is stored and in no array yet)
    """
    carry, xs, consts = _split(back.body.inputs, back.carries, back.slices)
    more, dcarry = _with_kept(back.dcarry, has_kept)
    dxs, dconsts, final = back.dxs, back.dconsts, back.body.outputs[: back.carries]
    m, after = len(dcarry), inputs_like(final)
    if n * sum(o.nbytes for o in final) <= KEEP_ALL_BYTES:
        # A step's results are read from the next carry
        known = {o: x for o, x in zip(final, after) if o.op not in ("input", "const")}
        values = remade([*dcarry, *dxs, *dconsts], known)
        dcarry, dxs, dconsts = values[:m], values[m : m + len(dxs)], values[m + len(dxs) :]
    stored = [_stored(d, n) for d in dconsts]
    slices = [*carry, *after, *xs, *back.cts[m:], *more]
    later = dict.fromkeys(chain.from_iterable(stored))
    rows = [*dxs, *(v for v in later if v not in {*slices, *dxs})]
    terms = [d for d, values in zip(dconsts, stored) if not values]
    running = inputs_like(terms, "d")
    head = [*dcarry, *(s + d for s, d in zip(running, terms))]
    read = set(Graph([], [*head, *rows, *later]).nodes)
    inputs = [*back.cts[:m], *running, *(x for x in slices if x in read), *consts]
    return Graph(inputs, [*head, *rows], back.step.name), slices, stored


def _stored(term: Node, n: int) -> list[Node]:
    """What each of n steps stores of a sum after the loop: two factors of a matrix product, or the term;
    nothing if that is too large.
    """
    if term.op == "matmul" and term.ndim == 2 and term.args[0].op == "transpose":
        a, b = term.args[0].args[0], term.args[1]
        alike = a.ndim == b.ndim == 2 and a.dtype == b.dtype == term.dtype
        if alike and n * (a.nbytes + b.nbytes) <= KEEP_ALL_BYTES:
            return [a, b]
    return [term] if n * term.nbytes <= KEEP_ALL_BYTES else []


def _sum_over_steps(arrays: Sequence[Node]) -> Node:
    """The sum of what all steps stored."""
    if len(arrays) == 1:
        return sum_(arrays[0], (0,))
    a, b = (reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])) for x in arrays)
    return swap_last(a) @ b


def _batch(b, *args, body: Graph, n: int, carries: int, slices: int, every: int):
    """The steps stay outermost. A carry is batched if its initial value is, or after some step."""
    flags = flags_of_all_steps(b.flags, carries, lambda flags: b.graph(body, flags)[1])
    inner, out_flags, operands = batched_body(b, body, flags, args, carries)
    carry, xs, consts = _split(operands, carries, slices)
    xs = [swap_first(x) if has else x for x, has in zip(xs, flags[carries:])]
    results = scan_node(inner, carry, xs, consts, n, every)
    has_axis = [*flags[:carries], *out_flags[carries:], *flags[:carries]]
    stacked = [x if k < carries or not has_axis[k] else swap_first(x) for k, x in enumerate(results)]
    return list(map(b.front, stacked, has_axis))


def batched_body(
    b: Any, body: Graph, flags: Sequence[bool], args: Sequence[Node], carries: int
) -> tuple[Graph, list[bool], list[Node]]:
    """(the body of a loop for all examples, the flags of its results, the arguments of the loop). Carries and
    arguments with a flag have the axis of the examples.
    """
    inner, out_flags = b.graph(body, flags)
    outputs = [b.front(o, f) if has else o for o, f, has in zip(inner.outputs[:carries], out_flags, flags)]
    operands = [b.front(x, has) if wanted else x for x, has, wanted in zip(args, b.flags, flags)]
    return Graph(inner.inputs, [*outputs, *inner.outputs[carries:]], inner.name), out_flags, operands


def flags_of_all_steps(flags: Sequence[bool], carries: int, results_of: Callable) -> list[bool]:
    """The flags of a loop's arguments, where a carry has one if its initial value does, or after some step.

    results_of   results_of(flags) -> the flags of the carries after a step
    """
    flags = list(flags)
    while True:
        grown = [f or g for f, g in zip(flags[:carries], results_of(flags))]
        if grown == flags[:carries]:
            return flags
        flags[:carries] = grown


def _influence(flags, of_graph, body: Graph, n: int, carries: int, **attrs) -> list[bool]:
    flags = flags_of_all_steps(flags, carries, lambda flags: of_graph(body, flags))
    return [*flags[:carries], *of_graph(body, flags)[carries:], *flags[:carries]]


row(
    "scan",
    "structural",
    infer=_infer,
    evaluate=evaluate_scan,
    jvp_rule=_jvp,
    vjp_rule=_vjp,
    leads=Leads(_batch),
    influence=_influence,
    cost=100.0,
    scheduled_alone=True,
)
