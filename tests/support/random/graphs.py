"""Random programs of the compiler's ops, for tests that compare a graph before and after a pass."""

from __future__ import annotations

import numpy as np

from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import apply, build, const, input_node

SHAPES = [(), (4,), (3, 1), (3, 4), (2, 3, 4), (2, 1, 4), (2, 3, 1), (6, 4), (1, 4), (4, 3), (2, 1, 1)]
NUMBERS = [0.0, 1.0, -1.0, 2.0, 0.5, -3.0, 1.5, 0.25]


def random_graph(
    rng, size: int = 30, dtype="float64", makers=None, shapes=SHAPES, inputs: int = 4, largest: int = 200
) -> Graph:
    """A graph of about `size` nodes. Values stay within some thousands, so that no op is ill-conditioned.

    makers    MAKERS; RING, those that work on any numbers, and for empty arrays; BLOCKS and SINGLE, those
              that emitted programs run in blocks of rows, and as single numbers
    largest   elements of a value
    """
    inputs = [input_node(shapes[rng.integers(len(shapes))], dtype, f"x{i}") for i in range(inputs)]
    pool = list(inputs)
    makers = makers or MAKERS
    while len(pool) < size:
        make = makers[rng.integers(len(makers))]
        try:
            made = make(rng, pool)
        except NothingFits:
            continue
        if made is not None and made.size <= largest and made.ndim <= 4:
            pool.append(made)
    outputs = [pool[-1], pool[-2], *(pool[i] for i in rng.integers(0, len(pool), 2))]
    graph = Graph(inputs, outputs)
    naming = rng.spawn(1)[0]  # a separate generator: each seed keeps its program
    for n in graph.nodes:
        if naming.random() < 0.1:
            n.name = naming.choice(ODD_NAMES).item()
    return graph


# Names that people may give to variables, and that emitted code has a use for itself
ODD_NAMES = """s1 s2 s3 ones_20_float64 ones_6_float64 take_rows add_rows blocks1 blocks2 scratch1 memory
setup np k class lambda rows rows_2 x0_block x1_rows result matmul Fused text number_0 sin sin_""".split()


def random_arrays(rng: np.random.Generator, graph: Graph) -> list[np.ndarray]:
    arrays = []
    for i in graph.inputs:
        x = rng.uniform(-1.5, 1.5, i.shape)
        if i.dtype.kind == "c":
            x = x + 1j * rng.uniform(-1.5, 1.5, i.shape)
        arrays.append(np.asarray(x * 2 if i.dtype.kind == "i" else x, i.dtype))
    return arrays


class NothingFits(Exception):
    """No value is of the kind that an op needs."""


def pick(rng, pool, test=lambda n: True):
    """A value that fits, the youngest most often, so that programs get deep."""
    fitting = [n for n in pool if n.dtype == pool[0].dtype and test(n)]
    if not fitting:
        raise NothingFits
    return fitting[-1 - min(int(rng.exponential(4.0)), len(fitting) - 1)]


def pick_array(rng, pool):
    return pick(rng, pool, lambda n: n.ndim > 0)


def compatible(a, b) -> bool:
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return False
    return True


def arithmetic(rng, pool):
    a = pick(rng, pool)
    b = pick(rng, pool, lambda n: compatible(a, n))
    op = ("add", "subtract", "multiply")[rng.integers(3)]
    return tame(apply(op, a, b)) if op == "multiply" else apply(op, a, b)


def with_number(rng, pool):
    a = pick(rng, pool)
    c = const(a.dtype.type(NUMBERS[rng.integers(len(NUMBERS))]).item(), a.dtype)
    op = ("add", "subtract", "multiply", "multiply", "divide")[rng.integers(5)]
    if op == "divide" and (c.value == 0 or a.dtype.kind == "i"):
        return None
    return apply(op, a, c) if op == "divide" or rng.integers(2) else apply(op, c, a)


def quotient(rng, pool):
    a = pick(rng, pool)
    b = pick(rng, pool, lambda n: compatible(a, n))
    return a / (1.5 + apply("tanh", b))


def function(rng, pool):
    x = pick(rng, pool)
    op = ("tanh", "negative", "sin", "square", "absolute", "exp", "sqrt")[rng.integers(7)]
    if op in ("exp", "square"):
        x = apply("tanh", x)
    if op == "sqrt":
        x = 1.0 + apply("absolute", x)
    return apply(op, x)


def power(rng, pool):
    x = apply("tanh", pick(rng, pool)) + 1.5
    return x ** float((2, 3, 4, -1, 0.5, -0.5, 7, 1, 0)[rng.integers(9)])


def tame(x):
    """Keeps products of products from growing."""
    return x if x.dtype.kind == "i" else x * const(0.25, x.dtype)


def total(rng, pool):
    x = pick_array(rng, pool)
    return build.sum_(x, int(rng.integers(x.ndim)), bool(rng.integers(2)))


def reduction(rng, pool):
    x = pick_array(rng, pool)
    axes = tuple(i for i in range(x.ndim) if rng.integers(2))
    if not axes:
        return None
    op = ("sum", "sum", "sum", "max", "min")[rng.integers(5)]
    return apply(op, x, axes=axes, keepdims=bool(rng.integers(2)))


def reshape(rng, pool):
    x = pick(rng, pool)
    shapes = [s for s in SHAPES if np.prod(s) == x.size] + [(1, *x.shape), (*x.shape, 1)]
    return apply("reshape", x, shape=shapes[rng.integers(len(shapes))])


def transpose(rng, pool):
    x = pick(rng, pool, lambda n: n.ndim > 1)
    return apply("transpose", x, perm=tuple(rng.permutation(x.ndim).tolist()))


def broadcast(rng, pool):
    x = pick(rng, pool)
    shape = (*((2,) if rng.integers(2) else ()), *(3 if s == 1 and rng.integers(2) else s for s in x.shape))
    return apply("broadcast", x, shape=shape)


def random_index(rng, shape):
    index = []
    for n in shape:
        start = int(rng.integers(0, n))
        stop = int(rng.integers(start + 1, n + 1))
        kind = rng.integers(8)
        if kind < 3:
            index.append((0, n, 1))
        elif kind == 7:
            index.append((n - 1, None, -1))
        else:
            index.append((start, stop, int(rng.integers(1, 3))))
    return tuple(index)


def slice_(rng, pool):
    x = pick_array(rng, pool)
    return apply("slice", x, index=random_index(rng, x.shape))


def assemble(rng, pool):
    """Zeros with one or two parts: what slices are transposed to."""
    x = pick_array(rng, pool)
    parts, indices = [], []
    for _ in range(rng.integers(1, 3)):
        index = random_index(rng, x.shape)
        parts.append(apply("slice", x, index=index))
        indices.append(index)
    return build.assemble(parts, x.shape, indices, x.dtype)


def update(rng, pool):
    x = pick_array(rng, pool)
    index = random_index(rng, x.shape)
    v = apply("slice", x, index=index)
    v = v + 1.0 if rng.integers(2) else apply("tanh", v)
    return build.update(build.zeros(x.shape, x.dtype) if rng.integers(2) else x, v, index)


def where(rng, pool):
    a = pick(rng, pool)
    b = pick(rng, pool, lambda n: compatible(a, n))
    return build.where(a < b, a, b if rng.integers(2) else const(0.0, a.dtype))


def matmul(rng, pool):
    a = pick(rng, pool, lambda n: n.ndim >= 2)
    try:
        b = pick(rng, pool, lambda n: n.ndim >= 2 and n.shape[-2] == a.shape[-1])
    except NothingFits:
        b = build.swap_last(a)
    try:
        return tame(a @ b)
    except ValueError:
        return None


def einsum(rng, pool):
    a = pick(rng, pool, lambda n: n.ndim == 2)
    b = pick(rng, pool, lambda n: n.ndim == 2 and n.shape[0] == a.shape[1])
    return tame(apply("einsum", a, b, subscripts=("ij,jk->ki", "ij,jk->ik", "ij,jk->i")[rng.integers(3)]))


def scatter(rng, pool):
    x = pick(rng, pool, lambda n: n.ndim == 2 and n.shape[0] >= 2)
    rows = const(rng.integers(0, x.shape[0], 3))
    picked = apply("gather", x, rows, spec=(("array", 0), (0, x.shape[1], 1)))
    base = build.zeros(x.shape, x.dtype) if rng.integers(2) else x
    return apply("scatter_add", base, picked, rows, spec=(("array", 0), (0, x.shape[1], 1)))


# ---- What emitted programs run in blocks of rows ---------------------------------------------------------


def pair(rng, pool):
    a = pick(rng, pool)
    b = pick(rng, pool, lambda n: compatible(a, n))
    return apply(("add", "subtract", "multiply", "maximum")[rng.integers(4)], a, b)


def small_sum(rng, pool):
    """A sum or maximum over some axes, often over all but the last."""
    x = pick_array(rng, pool)
    first = tuple(range(int(rng.integers(1, x.ndim + 1))))
    some = tuple(sorted(rng.choice(x.ndim, len(first), replace=False).tolist()))
    op = ("sum", "sum", "max")[rng.integers(3)]
    return apply(op, x, axes=first if rng.integers(2) else some, keepdims=bool(rng.integers(2))) * 0.3


def dot(rng, pool):
    """The sum of a product along the last axis."""
    a = pick_array(rng, pool)
    b = pick(rng, pool, lambda n: n.shape == a.shape)
    return apply("sum", a * b, axes=(a.ndim - 1,), keepdims=bool(rng.integers(2))) * 0.3


def like_another(rng, pool):
    """A reshape to the shape of another value of the same size."""
    x = pick(rng, pool)
    shapes = sorted({n.shape for n in pool if n.size == x.size} - {x.shape})
    return apply("reshape", x, shape=shapes[rng.integers(len(shapes))]) if shapes else None


def joined(rng, pool):
    """Parts side by side along an axis, at times one over the other, or with zeros at the end."""
    x = pick_array(rng, pool)
    axis = int(rng.integers(x.ndim))

    def others(shape):
        return shape[:axis], shape[axis + 1 :]

    y = pick(rng, pool, lambda n: n.ndim == x.ndim and others(n.shape) == others(x.shape))
    parts = [x, y, x * 0.5] if rng.integers(2) else [x, y * 2.0]
    overlap, at, spans = rng.random() < 0.3, 0, []
    for part in parts:
        spans.append((at, at + part.shape[axis]))
        at += 0 if overlap else part.shape[axis]
    before, after = others(x.shape)
    shape = (*before, max(stop for _, stop in spans) + int(rng.random() < 0.3), *after)
    indices = [build.axis_index(shape, axis, *span) for span in spans]
    return build.assemble(parts, shape, indices, x.dtype)


def bits(x):
    """0 or 1 for each number: an index."""
    return apply("cast", apply("absolute", apply("sin", x)) * 1.99, dtype="int64")


def rows_taken(rng, pool):
    table = pick(rng, pool, lambda n: n.ndim == 2 and n.shape[0] > 1)
    index = pick(rng, pool, lambda n: n.ndim in (1, 2))
    return apply("gather", table, bits(index), spec=(("array", 0), (0, table.shape[1], 1)))


def rows_added(rng, pool):
    table = pick(rng, pool, lambda n: n.ndim == 2 and n.shape[0] > 1)
    rows = pick(rng, pool, lambda n: n.ndim == 2 and n.shape[1] == table.shape[1])
    index = bits(apply("sum", rows, axes=(1,), keepdims=False))
    return apply("scatter_add", table, rows, index, spec=(("array", 0),))


def single(rng, pool):
    one = pick(rng, pool, lambda n: n.size == 1)
    return function(rng, pool) * one


def everything(rng, pool):
    """The sum of all numbers of a value, or of its product with another."""
    x = pick_array(rng, pool)
    x = x * pick(rng, pool, lambda n: n.shape == x.shape) if rng.integers(2) else x
    return apply("sum", x, axes=tuple(range(x.ndim)), keepdims=False) * 0.1


MAKERS = [
    *[arithmetic] * 6,
    *[with_number] * 3,
    *[quotient, function, function, power, reduction, reduction, where, matmul, einsum],
    *[reshape, transpose, broadcast, slice_, assemble, update, scatter],
]
RING = [*[arithmetic] * 5, *[with_number] * 3, total, reshape, transpose, broadcast, matmul]
BLOCKS = [
    *[pair] * 3,
    *[function] * 2,
    *[where, small_sum, small_sum, dot, like_another, transpose, slice_, joined, update, matmul],
    *[rows_taken, rows_added],
]
SINGLE = [*BLOCKS, single, single, everything]
