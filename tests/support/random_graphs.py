"""Random programs of the compiler's ops, for tests that compare a graph before and after a pass."""

from __future__ import annotations

import numpy as np

from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import apply, build, const, input_node
from gpt2.autodiff.passes.match import full_like

SHAPES = [(), (4,), (3, 1), (3, 4), (2, 3, 4), (2, 1, 4), (2, 3, 1), (6, 4), (1, 4), (4, 3), (2, 1, 1)]
NUMBERS = [0.0, 1.0, -1.0, 2.0, 0.5, -3.0, 1.5, 0.25]


def random_graph(rng, size: int = 30, dtype="float64", makers=None, shapes=SHAPES) -> Graph:
    """A graph of about `size` nodes. Values stay within some thousands, so that no op is ill-conditioned.

    makers   MAKERS, or RING: those that work on any numbers, and for empty arrays
    """
    inputs = [input_node(shapes[rng.integers(len(shapes))], dtype, f"x{i}") for i in range(4)]
    pool = list(inputs)
    makers = makers or MAKERS
    while len(pool) < size:
        make = makers[rng.integers(len(makers))]
        made = make(rng, pool)
        if made is not None and made.size <= 200 and made.ndim <= 4:
            pool.append(made)
    outputs = [pool[-1], pool[-2], *(pool[i] for i in rng.integers(0, len(pool), 2))]
    return with_odd_names(rng, Graph(inputs, outputs))


# Names that people may give to variables, and that emitted code has a use for itself
ODD_NAMES = """s1 s2 s3 ones_20_float64 ones_6_float64 take_rows add_rows blocks1 blocks2 scratch1 memory
setup np k class lambda rows rows_2 x0_block x1_rows result matmul Fused text number_0 sin sin_""".split()


def with_odd_names(rng: np.random.Generator, graph: Graph) -> Graph:
    """The graph itself; one value in ten is now called by a name that clashes with one of emitted code."""
    naming = rng.spawn(1)[0]  # of its own: what a seed computes stays the same
    for n in graph.nodes:
        if naming.random() < 0.1:
            n.name = naming.choice(ODD_NAMES).item()
    return graph


def random_arrays(rng: np.random.Generator, graph: Graph) -> list[np.ndarray]:
    return [random_array(rng, i.shape, i.dtype) for i in graph.inputs]


def random_array(rng, shape, dtype) -> np.ndarray:
    x = rng.uniform(-1.5, 1.5, shape)
    if dtype.kind == "c":
        x = x + 1j * rng.uniform(-1.5, 1.5, shape)
    return np.asarray(x * 2 if dtype.kind == "i" else x, dtype)


def pick(rng, pool, test=lambda n: True):
    """A value, the youngest most often, so that programs get deep."""
    found = [n for n in pool if n.dtype == pool[0].dtype and test(n)]
    if not found:
        return None
    return found[-1 - min(int(rng.exponential(4.0)), len(found) - 1)]


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
    x = pick(rng, pool, lambda n: n.ndim > 0)
    return None if x is None else build.sum_(x, int(rng.integers(x.ndim)), bool(rng.integers(2)))


def reduction(rng, pool):
    x = pick(rng, pool, lambda n: n.ndim > 0)
    if x is None:
        return None
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
    return None if x is None else apply("transpose", x, perm=tuple(rng.permutation(x.ndim).tolist()))


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
    x = pick(rng, pool, lambda n: n.ndim > 0)
    return None if x is None else apply("slice", x, index=random_index(rng, x.shape))


def assemble(rng, pool):
    """Zeros with one or two parts: what slices are transposed to."""
    x = pick(rng, pool, lambda n: n.ndim > 0)
    if x is None:
        return None
    parts, indices = [], []
    for _ in range(rng.integers(1, 3)):
        index = random_index(rng, x.shape)
        parts.append(apply("slice", x, index=index))
        indices.append(index)
    return build.assemble(parts, x.shape, indices, x.dtype)


def update(rng, pool):
    x = pick(rng, pool, lambda n: n.ndim > 0)
    if x is None:
        return None
    index = random_index(rng, x.shape)
    v = apply("slice", x, index=index)
    v = v + 1.0 if rng.integers(2) else apply("tanh", v)
    return build.update(full_like(x, 0) if rng.integers(2) else x, v, index)


def where(rng, pool):
    a = pick(rng, pool)
    b = pick(rng, pool, lambda n: compatible(a, n))
    return build.where(a < b, a, b if rng.integers(2) else const(0.0, a.dtype))


def matmul(rng, pool):
    a = pick(rng, pool, lambda n: n.ndim >= 2)
    if a is None:
        return None
    b = pick(rng, pool, lambda n: n.ndim >= 2 and n.shape[-2] == a.shape[-1])
    if b is None:
        b = build.swap_last(a)
    try:
        return tame(a @ b)
    except ValueError:
        return None


def einsum(rng, pool):
    a = pick(rng, pool, lambda n: n.ndim == 2)
    b = None if a is None else pick(rng, pool, lambda n: n.ndim == 2 and n.shape[0] == a.shape[1])
    if b is None:
        return None
    return tame(apply("einsum", a, b, subscripts=("ij,jk->ki", "ij,jk->ik", "ij,jk->i")[rng.integers(3)]))


def scatter(rng, pool):
    x = pick(rng, pool, lambda n: n.ndim == 2 and n.shape[0] >= 2)
    if x is None:
        return None
    rows = const(rng.integers(0, x.shape[0], 3))
    picked = apply("gather", x, rows, spec=(("array", 0), (0, x.shape[1], 1)))
    base = full_like(x, 0) if rng.integers(2) else x
    return apply("scatter_add", base, picked, rows, spec=(("array", 0), (0, x.shape[1], 1)))


MAKERS = [
    *[arithmetic] * 6,
    *[with_number] * 3,
    *[quotient, function, function, power, reduction, reduction, where, matmul, einsum],
    *[reshape, transpose, broadcast, slice_, assemble, update, scatter],
]
RING = [*[arithmetic] * 5, *[with_number] * 3, total, reshape, transpose, broadcast, matmul]
