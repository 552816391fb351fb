"""The op `scan`: a loop whose body is recorded once, and whose derivative is again a scan.

    carry = init
    for x in xs:                 over the leading axis of every array in xs
        carry, y = body(carry, x)
        keep y
    final, ys = carry, the y's stacked

A Python loop works as well; it is recorded step by step, so that its program grows with the number of steps,
and its backward keeps every step's values. A scan's program is as long as its body, and its backward keeps
every k-th carry and recomputes those between: with k = sqrt(n) the memory for n steps is that of about
2 sqrt(n) carries, at the cost of one more forward run. Griewank and Walther 2008,
Evaluating Derivatives, section 12 (with one level of checkpoints).

The op

    scan(*carry, *xs, *consts; body, n, carries, slices, every) -> (*final, *ys, *checkpoints)

has `carries` carries and `slices` xs; body is a graph from (carry, x, consts) to (carry, y), where consts are
the values from outside that it reads. Checkpoint j of a carry is its value before step j * every, so
checkpoints have the shape (ceil(n / every), *carry.shape).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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
    x_rows, y_rows = _rows(xs, n), _rows(ys, n)
    with program_of(body).borrowed() as run:
        carry = _steps(run, carry, x_rows, consts, y_rows, checkpoints, every)
    return (*carry, *ys, *checkpoints)


def _steps(run, carry, x_rows, consts, y_rows, checkpoints, every: int) -> Sequence[np.ndarray]:
    """The last carry. A step writes its carry to the checkpoint that it is to be, or to scratch memory."""
    for rows, c in zip(checkpoints, carry):
        rows[0] = c
    kept = iter(_rows(checkpoints, n_checkpoints(len(x_rows), every))[1:])
    # one is read by the step that writes to the other
    scratch, other = ([np.empty(c.shape[1:], c.dtype) for c in checkpoints] for _ in range(2))
    for t, (x, y) in enumerate(zip(x_rows, y_rows), 1):
        if t % every or t == len(x_rows):
            after = scratch
            scratch, other = other, scratch
        else:
            after = next(kept)
        run((*carry, *x, *consts), (*after, *y))
        carry = after
    return carry


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
    """evaluate_scan for a body of numbers."""
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

    marks     of the inputs of the body, as inputs
    results   of its outputs: of the carries among the marks, then of what else has one
    given     of the arguments of the loop
    """

    def __init__(self, body: Graph, tangents: Sequence[Node | None], args: Sequence[Node], carries: int):
        moving = _active_inputs(body, [t is not None for t in tangents], carries)
        fresh = inputs_like(body.inputs, "d")
        self.marks = {k: fresh[k] for k in moving}
        of_body = pushforward(body.outputs, {body.inputs[k]: m for k, m in self.marks.items()})
        self.results = {k: or_zeros(of_body[k], body.outputs[k]) for k in moving if k < carries}
        self.results |= {k: d for k, d in enumerate(of_body) if k >= carries and d is not None}
        self.given = {k: or_zeros(tangents[k], args[k]) for k in moving}


def _active_inputs(body: Graph, has_tangent: Iterable[bool], carries: int) -> list[int]:
    """The inputs of the body with a tangent. A carry has one if its initial value does, or after a step."""

    def moved(active: Sequence[bool]) -> list[bool]:
        marks = {i: m for i, m, has in zip(body.inputs, inputs_like(body.inputs), active) if has}
        return [t is not None for t in pushforward(body.outputs[:carries], marks)]

    active = [has and is_float(i) for i, has in zip(body.inputs, has_tangent)]
    return [k for k, has in enumerate(flags_of_all_steps(active, carries, moved)) if has]


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
        sums, dx = every_carry_kept(back, sums, (checkpoints, final, rows, kept), consts, n)
        return _by_argument(back, args, sums, dx)
    whole, left = divmod(n, every)
    parts = []
    for first, count, steps in ((whole, 1, left), (0, whole, every)):  # the last segment may be shorter
        if count and steps:
            cut = [[_cut(x, first, first + count) for x in arrays] for arrays in (checkpoints, kept)]
            steps_of = [_cut(x, first * every, first * every + count * steps) for x in rows]
            sums, dxs = back.segments(sums, cut[0], steps_of, cut[1], consts, count, steps)
            parts.append([reshape(flip(d), (count * steps, *x.shape)) for d, x in zip(dxs, back.dx_like)])
    dx = [concatenate(f[::-1], 0) if len(f) > 1 else f[0] for f in zip(*parts)]
    return _by_argument(back, args, sums, dx)


def _by_argument(back: Backward, args: Sequence, sums: Sequence[Node], dxs: Sequence[Node]) -> tuple:
    """A gradient for each argument of a scan, or None."""
    result: list[Node | None] = [None] * len(args)
    first = back.carries, back.carries + back.slices
    for k, d in zip((*back.float_carry, *(first[1] + i for i in back.read_consts)), sums):
        result[k] = d
    for k, d in zip(back.float_xs, dxs):
        result[first[0] + k] = d
    return tuple(result)


def _cut(x: Node | None, start: int, stop: int) -> Node | None:
    """Rows start:stop."""
    return None if x is None else take_slice(x, 0, start, stop)


def flip(x: Node) -> Node:
    """x with its leading axis reversed."""
    return take_slice(x, 0, x.shape[0] - 1, None, -1) if x.shape[0] > 1 else x


class Backward:
    """The bodies of the backward of a loop: one step back, and a segment of k steps.

    step     (dcarry, dconsts | carry, x, dy | consts) -> (dcarry, dconsts | dx), for while_loop
    segment  (dcarry, dconsts | first carry, k of x, k of dy | consts) -> (dcarry, dconsts | k of dx)

    Only differentiated values appear: floating-point carries, and the wanted among xs and consts.
    """

    def __init__(self, body: Graph, carries: int, slices: int, has_dy: Sequence, wanted: Sequence[bool]):
        carry, xs, consts = _split(body.inputs, carries, slices)
        self.body, self.carries, self.slices = body, carries, slices
        self.again = Graph(body.inputs, body.outputs[:carries], body.name)  # for the carries alone
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
        self.dx_like = [xs[i] for i in self.float_xs]
        self.cts, self.gradients = cts, gradients
        sums = inputs_like([consts[i] for i in self.read_consts], "d")
        n = len(self.float_carry)
        self.step = Graph(
            [*cts[:n], *sums, *carry, *xs, *cts[n:], *consts],
            [
                *(or_zeros(gradients[carry[i]], carry[i]) for i in self.float_carry),
                *(s + gradients[consts[i]] for s, i in zip(sums, self.read_consts)),
                *(gradients[xs[i]] for i in self.float_xs),
            ],
            body.name + "_back",
        )

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
        """(dcarry and dconsts, dx) of `whole` segments of `every` steps."""
        slices = [*checkpoints, *(reshape(x, (whole, every, *x.shape[1:])) for x in rows)]
        slices = [flip(x) for x in (*slices, *kept) if x is not None]
        segment = self.segment(every, tuple(k is not None for k in kept))
        results = scan_node(segment, sums, slices, consts, whole, default_every(whole))
        return results[: len(sums)], results[len(sums) : len(sums) + len(self.float_xs)]

    def segment(self, k: int, has_kept: Sequence[bool]) -> Graph:
        """The graph of k steps back. `has_kept`: which carries get the gradient of their checkpoint too."""
        n_sums = len(self.float_carry) + len(self.read_consts)
        step_inputs = inputs_like(self.step.inputs)
        for fresh, old in zip(step_inputs, self.step.inputs):
            fresh.name = old.name
        sums = step_inputs[:n_sums]
        carry, xs, rest = _split(step_inputs[n_sums:], self.carries, self.slices)
        dys, consts = rest[: self.n_dys], rest[self.n_dys :]
        xs, dys = [rows_of(x, k) for x in xs], [rows_of(d, k) for d in dys]
        results = scan_node(self.again, carry, xs, consts, k, every=1)
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
    step = ScanStep(back, n, arrays[3])
    stacked = step.stacked(*arrays)
    m = len(back.float_carry)
    start = [*sums[:m], *(sums[m + k] for k in step.now)]
    results = scan_node(step.graph, start, [stacked[x] for x in step.taken], consts, n, default_every(n))
    stacked.update(zip(step.rows, results[len(start) :]))
    added = iter(results[m : len(start)])
    totals = [s + x.added(stacked) if x.values else next(added) for s, x in zip(sums[m:], step.late)]
    return [*results[:m], *totals], [flip(d) for d in results[len(start) : len(start) + len(back.float_xs)]]


class ScanStep:
    """One step back, which reads the carry before and after it.

    graph   (dcarry, sums of consts' gradients in the loop | taken | consts) -> (dcarry, sums | rows), where
            rows are the gradients of xs, and values for the sums after the loop
    taken   the inputs that are one step's slice of an array
    late    the gradient of each const that is read; `now` has the indices of those that are summed in the
            loop
    """

    def __init__(self, back: Backward, n: int, kept: Sequence[Node | None]):
        self.n = n
        carry, xs, consts = _split(back.body.inputs, back.carries, back.slices)
        dcarry = [or_zeros(back.gradients[carry[i]], carry[i]) for i in back.float_carry]
        more, dcarry = _with_kept(dcarry, [k is not None for k in kept])
        dxs = [back.gradients[xs[i]] for i in back.float_xs]
        parts = [back.gradients[consts[i]] for i in back.read_consts]
        final = back.body.outputs[: back.carries]
        self.after = inputs_like(final)
        dcarry, dxs, parts = self.afterwards(final, dcarry, dxs, parts)
        self.late = [Late(x, n) for x in parts]
        self.now = [k for k, late in enumerate(self.late) if not late.values]
        self.slices = [*carry, *self.after, *xs, *back.cts[len(dcarry) :], *more]
        self.rows = self.rows_of_step(dxs)
        self.taken, self.graph = self.one_step(back, dcarry, consts)

    def afterwards(self, final: Sequence[Node], *groups: list[Node]) -> list[list[Node]]:
        """These groups of values, with a step's results read from the next carry, if those are small."""
        room = self.n * sum(o.nbytes for o in final) <= KEEP_ALL_BYTES
        read = {o: x for o, x in zip(final, self.after) if room and o.op not in ("input", "const")}
        values = iter(remade([v for group in groups for v in group], read))
        return [[next(values) for _ in group] for group in groups]

    def rows_of_step(self, dxs: list[Node]) -> list[Node]:
        """The rows of a step: gradients of xs, and values for later sums that are in no array yet."""
        known = {*self.slices, *dxs}
        return [*dxs, *(v for v in self.added_later() if v not in known)]

    def added_later(self) -> list[Node]:
        return list(dict.fromkeys(v for late in self.late for v in late.values))

    def one_step(self, back: Backward, dcarry: list[Node], consts: Sequence[Node]) -> tuple[list, Graph]:
        """(the `slices` that a step reads, its graph)."""
        running = inputs_like([self.late[k].part for k in self.now], "d")
        head = [*dcarry, *(s + self.late[k].part for s, k in zip(running, self.now))]
        read = set(Graph([], [*head, *self.rows, *self.added_later()]).nodes)
        taken = [x for x in self.slices if x in read]
        inputs = [*back.cts[: len(dcarry)], *running, *taken, *consts]
        return taken, Graph(inputs, [*head, *self.rows], back.step.name)

    def stacked(
        self, checkpoints: Sequence[Node], final: Sequence[Node], rows: Sequence[Node], kept: Sequence
    ) -> dict[Node, Node]:
        """The array of each of `slices`, from the last step to the first."""
        ends = [reshape(f, (1, *f.shape)) for f in final]
        if self.n > 1:
            ends = [concatenate([take_slice(c, 0, 1, self.n), f], 0) for c, f in zip(checkpoints, ends)]
        arrays = [*checkpoints, *ends, *rows, *(k for k in kept if k is not None)]
        return {x: flip(a) for x, a in zip(self.slices, arrays, strict=True)}


class Late:
    """A gradient that is a sum over n steps, computed after the loop.

    part     the term of one step
    values   what a step stores: two factors of a matrix product, or the part; nothing if that is too large
    """

    def __init__(self, part: Node, n: int):
        self.part, self.values = part, _factors(part)
        if not self.values or n * sum(v.nbytes for v in self.values) > KEEP_ALL_BYTES:
            self.values = [part] if n * part.nbytes <= KEEP_ALL_BYTES else []

    def added(self, stacked: dict[Node, Node]) -> Node:
        """The sum; `stacked` has the values of all steps in one array each."""
        arrays = [stacked[v] for v in self.values]
        if len(arrays) == 1:
            return sum_(arrays[0], (0,))
        a, b = (reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])) for x in arrays)
        return swap_last(a) @ b


def _factors(x: Node) -> list[Node]:
    """[a, b] of one dtype if x is a.T @ b; else []."""
    if x.op != "matmul" or x.ndim != 2 or x.args[0].op != "transpose":
        return []
    a, b = x.args[0].args[0], x.args[1]
    return [a, b] if a.ndim == b.ndim == 2 and a.dtype == b.dtype == x.dtype else []


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
    """(the body of a loop for all examples, the flags of its results, the arguments of the loop).

    Carries and arguments with a flag have the axis of the examples.
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
    leads=Leads(_batch),
    influence=_influence,
    cost=100.0,
    scheduled_alone=True,
)
