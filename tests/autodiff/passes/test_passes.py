"""The rewriting passes: a program before, the program after, and the same values from both.

Programs after are compared as text. Each is named for the pass that makes it, and with that pass switched off
it does not come about. The programs after are compiled with math="fast"; in strict mode every bit is kept.
"""

import re
from types import SimpleNamespace

import numpy as np
import pytest

import gpt2.autodiff.custom.call  # noqa: F401  its ops enter the table
from gpt2 import autodiff as ad
from gpt2.autodiff.derive.differentiate import gradient_graph, vjp_graph
from gpt2.autodiff.graph import Graph, GraphError
from gpt2.autodiff.ops import apply, build, const, input_node
from gpt2.autodiff.ops.build import broadcast, reshape, slice_, sum_, tanh, transpose, where, zeros
from gpt2.autodiff.ops.interpret import check, evaluate_graph
from gpt2.autodiff.passes import FAMILIES, PASSES, engine, simplify
from gpt2.autodiff.passes.engine import READS, Family, Sweep, sweep_to_end
from gpt2.autodiff.switches import MATH, Options
from tests.support.random.graphs import RING, random_arrays, random_graph
from tests.support.random.graphs import SHAPES as SIZES

SHAPES = {
    **{"x": (2, 3, 4), "y": (2, 3, 4), "r": (2, 3, 1), "s": (2, 3, 1), "c": (4,)},
    **{"w": (5, 4), "v": (4, 5), "k": (2, 5, 4), "p": (2, 4), "flat": (6, 4)},
}
INDICES = const(np.array([2, 0, 2]))


def values(dtype="float32"):
    """Fresh inputs by name."""
    return SimpleNamespace(**{name: input_node(shape, dtype, name) for name, shape in SHAPES.items()})


def graph_of(make, dtype="float32") -> Graph:
    """The program of one or more results; its inputs are those that it reads, in the order of SHAPES."""
    v = values(dtype)
    out = make(v)
    outs = out if isinstance(out, tuple) else (out,)
    read = {n.id for o in outs for n in Graph((), [o]).nodes}
    return Graph([n for n in vars(v).values() if n.id in read], outs)


def body(graph) -> str:
    """The printed program without its first line."""
    return "\n".join(line.strip() for line in str(graph).splitlines()[1:])


def text(expected) -> str:
    """An expected program; its lines may be broken after a comma."""
    expected = re.sub(r",\s*\n\s*", ", ", expected)
    return "\n".join(line.strip() for line in expected.strip().splitlines())


def part(x, *index):
    """x[index], with (start, stop) or (start, stop, step) for each axis, None for all of it."""
    return slice_(x, tuple((0, n, 1) if i is None else (*i, 1)[:3] for i, n in zip(index, x.shape)))


def put(parts, shape):
    """Zeros with parts, each given with its (start, stop) along the first axis."""
    full = tuple((0, n, 1) for n in shape[1:])
    return build.assemble(
        [p for p, _ in parts], shape, [((a, b, 1), *full) for _, (a, b) in parts], parts[0][0].dtype
    )


def written(x, value, start, stop):
    return build.update(x, value, ((start, stop, 1), *((0, n, 1) for n in x.shape[1:])))


def rows_added(base, v):
    return apply("scatter_add", base, v, INDICES, spec=(("array", 0), (0, 4, 1)))


def picked(x, axis):
    """x at three places along an axis."""
    return apply("gather", x, INDICES, spec=(*((0, n, 1) for n in x.shape[:axis]), ("array", 0)))


def picked_too(y):
    return y, picked(y, 0)


def known(v):
    """Zeros in which numbers were written at an index."""
    ones, places = const(np.ones(2, np.float32)), const(np.array([3, 1]))
    return apply("scatter", zeros((4,), "float32"), ones, places, spec=(("array", 0),))


def block(v):
    """Two writes that fill an array, as a loop over blocks makes them."""
    out = written(zeros((2, 4), v.p.dtype), broadcast(v.c, (1, 4)), 0, 1)
    return written(out, tanh(part(v.p, (1, 2), None)), 1, 2)


# name of the case, which begins with its pass: (program before, program after)
CASES = {
    "fold: adding nothing": (lambda v: tanh(v.x + 0.0 - 0.0), "t1: f32[2,3,4] = tanh(x)\nreturn t1"),
    "fold: multiplying by one": (lambda v: tanh(1.0 * v.x / 1.0), "t1: f32[2,3,4] = tanh(x)\nreturn t1"),
    "fold: two minus signs": (lambda v: tanh(apply("negative", -v.x)), "t1: f32[2,3,4] = tanh(x)\nreturn t1"),
    "fold: subtracting a negative": (lambda v: v.x - -v.y, "t1: f32[2,3,4] = add(x, y)\nreturn t1"),
    "fold: adding a negative": (lambda v: -v.x + v.y, "t1: f32[2,3,4] = subtract(y, x)\nreturn t1"),
    "fold: constants meet": (
        lambda v: v.x + const(2.0, "float32") * 3.0,
        "t2: f32[2,3,4] = add(x, 6.0)\nreturn t2",
    ),
    "fold: a scalar that was broadcast is no array": (
        lambda v: v.x + tanh(build.full((2, 3, 4), 0.0, "float32") + 1.0),
        "t2: f32[2,3,4] = add(x, 0.7615941762924194)\nreturn t2",
    ),
    "fold: a choice already made": (
        lambda v: where(const(True), v.x, v.y) * where(v.x < v.y, v.c, v.c),
        "t1: f32[2,3,4] = multiply(x, c)\nreturn t1",
    ),
    "fold: broadcasting is left to the op": (
        lambda v: broadcast(v.r, (2, 3, 4)) * v.x + broadcast(v.r, (2, 3, 4)) * broadcast(v.s, (2, 3, 4)),
        """t1: f32[2,3,4] = multiply(r, x)
        t2: f32[2,3,1] = multiply(r, s)
        t3: f32[2,3,4] = add(t1, t2)
        return t3""",
    ),
    "views: reshape of reshape": (
        lambda v: reshape(reshape(v.x, (4, 6)), (12, 2)),
        "t1: f32[12,2] = reshape(x, shape=(12,2))\nreturn t1",
    ),
    "views: transposes that undo each other": (
        lambda v: tanh(transpose(transpose(v.x, (1, 2, 0)), (2, 0, 1))),
        "t1: f32[2,3,4] = tanh(x)\nreturn t1",
    ),
    "views: transposes in a row": (
        lambda v: tanh(transpose(transpose(v.x, (1, 2, 0)), (0, 2, 1))),
        """t1: f32[3,2,4] = transpose(x, perm=(1,0,2))
        t2: f32[3,2,4] = tanh(t1)
        return t2""",
    ),
    "views: slice of slice": (
        lambda v: part(part(v.flat, (1, 6), None), (0, 5, 2), (3, None, -1)),
        "t1: f32[3,4] = slice(flat, index=((1,6,2),(3,None,-1)))\nreturn t1",
    ),
    "views: slice of a broadcast": (
        lambda v: tanh(part(broadcast(v.c, (6, 4)), (1, 3), (0, 2))),
        """t1: f32[2] = slice(c, index=((0,2,1),))
        t2: f32[2] = tanh(t1)
        t3: f32[2,2] = broadcast(t2, shape=(2,2))
        return t3""",
    ),
    "views: what was just written": (
        lambda v: part(written(v.p, tanh(part(v.p, (0, 1), None)), 0, 1), (0, 1), (1, 3)),
        """t1: f32[1,4] = slice(p, index=((0,1,1),(0,4,1)))
        t2: f32[1,4] = tanh(t1)
        t3: f32[1,2] = slice(t2, index=((0,1,1),(1,3,1)))
        return t3""",
    ),
    "views: a reduction keeps its axes itself": (
        lambda v: v.x - reshape(sum_(v.x, 2), (2, 3, 1)),
        """t1: f32[2,3,1] = sum(x, axes=(2,), keepdims=True)
        t2: f32[2,3,4] = subtract(x, t1)
        return t2""",
    ),
    "views: picking before computing": (
        lambda v: picked(tanh(v.flat) + v.c, 0),
        """t1: i64[3] = const()
        t2: f32[3,4] = gather(flat, t1, spec=(('array',0),))
        t3: f32[3,4] = tanh(t2)
        t4: f32[3,4] = add(t3, c)
        return t4""",
    ),
    "views: picking from the rows of a product": (
        lambda v: picked(v.flat @ v.v, 0) * 2.0,
        """t1: i64[3] = const()
        t2: f32[3,4] = gather(flat, t1, spec=(('array',0),))
        t3: f32[3,5] = matmul(t2, v)
        t5: f32[3,5] = multiply(t3, 2.0)
        return t5""",
    ),
    "views: picking before sums of rows": (
        lambda v: picked(sum_(tanh(v.flat), 1), 0),
        """t1: i64[3] = const()
        t2: f32[3,4] = gather(flat, t1, spec=(('array',0),))
        t3: f32[3,4] = tanh(t2)
        t4: f32[3] = sum(t3, axes=(1,), keepdims=False)
        return t4""",
    ),
    "fold: what is scattered into zeros is known": (
        lambda v: v.c + known(v),
        "t1: f32[4] = const()\nt2: f32[4] = add(c, t1)\nreturn t2",
    ),
    "cse: in either order": (
        lambda v: tanh(v.x * v.y) - tanh(v.y * v.x) * 2.0,
        """t1: f32[2,3,4] = multiply(x, y)
        t2: f32[2,3,4] = tanh(t1)
        t3: f32[2,3,4] = negative(t2)
        return t3""",
    ),
    "algebra: squares": (lambda v: v.x**2.0, "t1: f32[2,3,4] = square(x)\nreturn t1"),
    "algebra: cubes": (
        lambda v: v.x**3.0,
        "t1: f32[2,3,4] = square(x)\nt2: f32[2,3,4] = multiply(x, t1)\nreturn t2",
    ),
    "algebra: the power -1/2": (
        lambda v: v.r**-0.5,
        "t2: f32[2,3,1] = sqrt(r)\nt3: f32[2,3,1] = divide(1.0, t2)\nreturn t3",
    ),
    "algebra: division by a number": (
        lambda v: v.x / 8.0,
        "t2: f32[2,3,4] = multiply(x, 0.125)\nreturn t2",
    ),
    "algebra: numbers meet numbers": (
        lambda v: 2.0 * (v.x * 3.0) * (v.y / 4.0),
        "t1: f32[2,3,4] = multiply(x, y)\nt3: f32[2,3,4] = multiply(t1, 1.5)\nreturn t3",
    ),
    "algebra: rows meet rows": (
        lambda v: (v.x * v.r) * v.s,
        "t1: f32[2,3,1] = multiply(r, s)\nt2: f32[2,3,4] = multiply(x, t1)\nreturn t2",
    ),
    "algebra: a shared factor": (
        lambda v: v.x * tanh(v.y) + v.y * tanh(v.y),
        """t1: f32[2,3,4] = tanh(y)
        t2: f32[2,3,4] = add(x, y)
        t3: f32[2,3,4] = multiply(t1, t2)
        return t3""",
    ),
    "algebra: like terms": (
        lambda v: 1.0 + 3.0 * (v.x * v.x) + (v.x * v.x) * 0.5 - v.y,
        """t1: f32[2,3,4] = square(x)
        t4: f32[2,3,4] = multiply(t1, 3.5)
        t5: f32[2,3,4] = subtract(t4, y)
        t6: f32[2,3,4] = add(t5, 1.0)
        return t6""",
    ),
    "algebra: a number moves into a polynomial": (
        lambda v: 4.0 * v.x * (1.0 + 0.5 * v.x * v.x),
        """t2: f32[2,3,4] = square(x)
        t4: f32[2,3,4] = multiply(t2, 2.0)
        t5: f32[2,3,4] = add(t4, 4.0)
        t6: f32[2,3,4] = multiply(x, t5)
        return t6""",
    ),
    "algebra: a reciprocal that is there": (
        lambda v: (1.0 / v.r, v.x / v.r),
        "t2: f32[2,3,1] = divide(1.0, r)\nt3: f32[2,3,4] = multiply(x, t2)\nreturn t2, t3",
    ),
    "algebra: a reciprocal that comes later": (
        lambda v: (v.x / v.r, 1.0 / v.r),
        "t2: f32[2,3,1] = divide(1.0, r)\nt3: f32[2,3,4] = multiply(x, t2)\nreturn t3, t2",
    ),
    "reduce: a sum of equal values": (
        lambda v: sum_(broadcast(v.r, (2, 3, 4)), (1, 2)),
        """t1: f32[2] = sum(r, axes=(1,2), keepdims=False)
        t3: f32[2] = multiply(t1, 4.0)
        return t3""",
    ),
    "reduce: a sum of one value": (
        lambda v: sum_(v.r, 2),
        "t1: f32[2,3] = reshape(r, shape=(2,3))\nreturn t1",
    ),
    "matrix: rows flattened": (
        lambda v: v.x @ v.v,
        """t1: f32[6,4] = reshape(x, shape=(6,4))
        t2: f32[6,5] = matmul(t1, v)
        t3: f32[2,3,5] = reshape(t2, shape=(2,3,5))
        return t3""",
    ),
    "matrix: a gradient that is summed over the batch": (
        lambda v: transpose(sum_(transpose(v.x, (0, 2, 1)) @ v.y, 0), (1, 0)),
        """t1: f32[6,4] = reshape(x, shape=(6,4))
        t2: f32[6,4] = reshape(y, shape=(6,4))
        t3: f32[4,6] = transpose(t2, perm=(1,0))
        t4: f32[4,4] = matmul(t3, t1)
        return t4""",
    ),
    "matrix: a transposed product": (
        lambda v: transpose(v.x @ transpose(v.k, (0, 2, 1)), (2, 0, 1)),
        """t1: f32[2,4,3] = transpose(x, perm=(0,2,1))
        t2: f32[2,5,3] = matmul(k, t1)
        t3: f32[5,2,3] = transpose(t2, perm=(1,0,2))
        return t3""",
    ),
    "matrix: scaled where it is smallest": (
        lambda v: (2.0 * v.flat) @ v.v,
        """t2: f32[4,5] = multiply(v, 2.0)
        t3: f32[6,5] = matmul(flat, t2)
        return t3""",
    ),
    "matrix: einsum as a product": (
        lambda v: apply("einsum", v.x, v.k, subscripts="btc,bsc->bts"),
        """t1: f32[2,4,5] = transpose(k, perm=(0,2,1))
        t2: f32[2,3,5] = matmul(x, t1)
        return t2""",
    ),
    "matrix: einsum with nothing to sum": (
        lambda v: apply("einsum", v.p, v.c, subscripts="bi,j->ijb"),
        """t1: f32[4,2] = transpose(p, perm=(1,0))
        t2: f32[4,1,2] = reshape(t1, shape=(4,1,2))
        t3: f32[1,4,1] = reshape(c, shape=(1,4,1))
        t4: f32[4,4,2] = multiply(t2, t3)
        return t4""",
    ),
    "assemble: parts in one array": (
        lambda v: put([(tanh(v.p), (0, 2))], (6, 4)) + put([(v.p, (3, 5))], (6, 4)),
        """t1: f32[2,4] = tanh(p)
        t2: f32[6,4] = assemble(t1, p, shape=(6,4),
            indices=(((0,2,1),(0,4,1)),((3,5,1),(0,4,1))), dtype='float32')
        return t2""",
    ),
    "assemble: rows are added onto what is there": (
        lambda v: tanh(v.flat) + rows_added(zeros((6, 4), v.p.dtype), part(v.flat, (0, 3), None)),
        """t1: i64[3] = const()
        t2: f32[6,4] = tanh(flat)
        t3: f32[3,4] = slice(flat, index=((0,3,1),(0,4,1)))
        t4: f32[6,4] = scatter_add(t2, t3, t1, spec=(('array',0),(0,4,1)))
        return t4""",
    ),
    "assemble: writes that fill an array": (
        block,
        """t1: f32[1,4] = broadcast(c, shape=(1,4))
        t2: f32[1,4] = slice(p, index=((1,2,1),(0,4,1)))
        t3: f32[1,4] = tanh(t2)
        t4: f32[2,4] = assemble(t1, t3, shape=(2,4),
            indices=(((0,1,1),(0,4,1)),((1,2,1),(0,4,1))), dtype='float32')
        return t4""",
    ),
    "assemble: a write of everything": (
        lambda v: written(v.p, tanh(v.c), 0, 2),
        "t1: f32[4] = tanh(c)\nt2: f32[2,4] = broadcast(t1, shape=(2,4))\nreturn t2",
    ),
    "assemble: a write over a part": (
        lambda v: written(written(zeros((6, 4), v.p.dtype), tanh(v.p), 0, 2), v.p, 0, 2),
        "t1: f32[6,4] = assemble(p, shape=(6,4), indices=(((0,2,1),(0,4,1)),), dtype='float32')\nreturn t1",
    ),
    "assemble: a part that is read back": (
        lambda v: part(put([(tanh(v.p), (0, 2)), (v.p, (2, 4))], (6, 4)), (2, 4), (1, 3)),
        "t1: f32[2,2] = slice(p, index=((0,2,1),(1,3,1)))\nreturn t1",
    ),
    "assemble: elements that are not written": (
        lambda v: v.p + part(put([(tanh(v.p), (0, 2))], (6, 4)), (4, 6), None),
        "return p",
    ),
    "assemble: a part moved out and back": (
        lambda v: written(v.flat, 0.0, 0, 2) + put([(part(v.flat, (0, 2), None), (0, 2))], (6, 4)),
        "return flat",
    ),
    "assemble: a part added where zeros were written": (
        lambda v: put([(v.p, (1, 3))], (6, 4)) + written(v.flat, 0.0, 1, 3),
        "t1: f32[6,4] = update(flat, p, index=((1,3,1),(0,4,1)))\nreturn t1",
    ),
    "rows: reshapes move to the product": (
        lambda v: tanh(reshape(tanh(v.flat @ v.v) + 1.0, (2, 3, 5))),
        """t1: f32[6,5] = matmul(flat, v)
        t3: f32[2,3,5] = reshape(t1, shape=(2,3,5))
        t4: f32[2,3,5] = tanh(t3)
        t5: f32[2,3,5] = add(t4, 1.0)
        t6: f32[2,3,5] = tanh(t5)
        return t6""",
    ),
    "rows: sums of flattened rows": (
        lambda v: sum_(reshape(v.x, (6, 4)) * v.flat, 0),
        """t1: f32[2,3,4] = reshape(flat, shape=(2,3,4))
        t2: f32[2,3,4] = multiply(x, t1)
        t3: f32[4] = sum(t2, axes=(0,1), keepdims=False)
        return t3""",
    ),
}


# programs that no pass may change: (program before, program after)
KEPT = {
    "a value that is picked from and read": (
        lambda v: picked_too(tanh(v.flat)),
        """t1: i64[3] = const()
        t2: f32[6,4] = tanh(flat)
        t3: f32[3,4] = gather(t2, t1, spec=(('array',0),))
        return t2, t3""",
    ),
    "picking more than half": (
        lambda v: picked(tanh(v.w), 0),
        """t1: i64[3] = const()
        t2: f32[5,4] = tanh(w)
        t3: f32[3,4] = gather(t2, t1, spec=(('array',0),))
        return t3""",
    ),
    "rounding by a large number": (
        lambda v: (v.x * v.y + 8388608.0) - 8388608.0,
        """t1: f32[2,3,4] = multiply(x, y)
        t3: f32[2,3,4] = add(t1, 8388608.0)
        t4: f32[2,3,4] = subtract(t3, 8388608.0)
        return t4""",
    ),
    "a difference of equals among other terms": (
        lambda v: (v.x * 2.0 + v.y) - v.x * 2.0,
        """t2: f32[2,3,4] = multiply(x, 2.0)
        t3: f32[2,3,4] = add(t2, y)
        t4: f32[2,3,4] = subtract(t3, t2)
        return t4""",
    ),
    "a number times a square": (
        lambda v: apply("square", v.r - v.c) * 0.25,
        """t1: f32[2,3,4] = subtract(r, c)
        t2: f32[2,3,4] = square(t1)
        t4: f32[2,3,4] = multiply(t2, 0.25)
        return t4""",
    ),
    "a reshape to more axes that joins two": (
        lambda v: reshape(v.x * slice_(v.x, ((0, 1, 1), (0, 3, 1), (0, 4, 1))), (1, 1, 6, 4)),
        """t1: f32[1,3,4] = slice(x, index=((0,1,1),(0,3,1),(0,4,1)))
        t2: f32[2,3,4] = multiply(x, t1)
        t3: f32[1,1,6,4] = reshape(t2, shape=(1,1,6,4))
        return t3""",
    ),
    "a number too small to be inverted": (
        lambda v: v.x / 1e-40,
        "t2: f32[2,3,4] = divide(x, 1e-40)\nreturn t2",
    ),
    "an odd power": (lambda v: v.x**1.3, "t2: f32[2,3,4] = power(x, 1.3)\nreturn t2"),
    "a value wanted in two shapes": (
        lambda v: reshaped_too(tanh(v.flat)),
        "t1: f32[6,4] = tanh(flat)\nt2: f32[2,3,4] = reshape(t1, shape=(2,3,4))\nreturn t1, t2",
    ),
    "a slice across axes that were one": (
        lambda v: tanh(part(reshape(v.flat, (2, 3, 4)), (1, 2), (1, 2), None)),
        """t1: f32[2,3,4] = reshape(flat, shape=(2,3,4))
        t2: f32[1,1,4] = slice(t1, index=((1,2,1),(1,2,1),(0,4,1)))
        t3: f32[1,1,4] = tanh(t2)
        return t3""",
    ),
    "a broadcast to fewer axes": (
        lambda v: broadcast(reshape(tanh(part(v.x, (0, 1), (0, 1), None)), (4,)), (2, 4)),
        """t1: f32[1,1,4] = slice(x, index=((0,1,1),(0,1,1),(0,4,1)))
        t2: f32[1,1,4] = tanh(t1)
        t3: f32[4] = reshape(t2, shape=(4,))
        t4: f32[2,4] = broadcast(t3, shape=(2,4))
        return t4""",
    ),
    "a write over a part of a part": (
        lambda v: written(written(zeros((6, 4), v.p.dtype), tanh(v.p), 0, 2), v.p, 1, 3),
        """t1: f32[2,4] = tanh(p)
        t2: f32[6,4] = assemble(t1, shape=(6,4), indices=(((0,2,1),(0,4,1)),), dtype='float32')
        t3: f32[6,4] = update(t2, p, index=((1,3,1),(0,4,1)))
        return t3""",
    ),
    "times zero, which is nan for what is infinite": (
        lambda v: v.x * 0.0,
        "t2: f32[2,3,4] = multiply(x, 0.0)\nreturn t2",
    ),
    "rows and columns meet only in an array": (
        lambda v: (v.x * v.r) * v.c,
        "t1: f32[2,3,4] = multiply(x, r)\nt2: f32[2,3,4] = multiply(t1, c)\nreturn t2",
    ),
    "the order of differences": (
        lambda v: v.x - v.r - v.s,
        "t1: f32[2,3,4] = subtract(x, r)\nt2: f32[2,3,4] = subtract(t1, s)\nreturn t2",
    ),
    "a difference of equals, which may be nan": (
        lambda v: v.x * v.y - v.y * v.x,
        "t1: f32[2,3,4] = multiply(x, y)\nt2: f32[2,3,4] = subtract(t1, t1)\nreturn t2",
    ),
    "a sum of small differences of large numbers": (
        lambda v: sum_(v.x - v.r, 2),
        "t1: f32[2,3,4] = subtract(x, r)\nt2: f32[2,3] = sum(t1, axes=(2,), keepdims=False)\nreturn t2",
    ),
}


def reshaped_too(y):
    return y, reshape(y, (2, 3, 4))


def same(got, want, dtype):
    """Up to rounding: passes reassociate products and sums. Values are of order 1 to 1000."""
    digits = {"float64": 1e-11, "float32": 1e-4}[dtype]
    for g, w in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        scale = max(1.0, np.abs(w[np.isfinite(w)]).max(initial=0.0))
        np.testing.assert_allclose(g, w, rtol=0, atol=digits * scale)


def fast(graph, off=()):
    return simplify(graph, Options(off=off, math="fast"))


def assert_same_values(before, after, dtype, seed=0):
    arrays = random_arrays(np.random.default_rng(seed), before)
    with np.errstate(all="ignore"):
        same(evaluate_graph(check(after), arrays), evaluate_graph(before, arrays), dtype)


@pytest.mark.parametrize("name", [*CASES, *KEPT])
def test_program_after(name):
    make, expected = {**CASES, **KEPT}[name]
    assert body(check(fast(graph_of(make)))) == text(expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*CASES, *KEPT])
def test_values_are_the_same(name, dtype):
    graph = graph_of({**CASES, **KEPT}[name][0], dtype)
    assert_same_values(graph, fast(graph), dtype)


@pytest.mark.parametrize("name", [*CASES, *KEPT])
def test_strict_programs_keep_every_bit(name):
    graph = graph_of({**CASES, **KEPT}[name][0])
    assert_same_bits(graph, check(simplify(graph)), seed=1)


def assert_same_bits(before, after, seed):
    arrays = random_arrays(np.random.default_rng(seed), before)
    with np.errstate(all="ignore"):
        for got, want in zip(evaluate_graph(after, arrays), evaluate_graph(before, arrays), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(np.signbit(got.real), np.signbit(want.real))


# What algebra finds as well when it puts sums and products together.
ALSO_ALGEBRA = {
    "adding nothing",
    "multiplying by one",
    "two minus signs",
    "subtracting a negative",
    "adding a negative",
}


@pytest.mark.parametrize("name", CASES)
def test_each_pass_can_be_switched_off(name):
    """Then its case comes out differently; and switched on alone, it changes the program."""
    family, _, case = name.partition(": ")
    graph = graph_of(CASES[name][0])
    assert body(PASSES[family](graph, "fast")) != body(graph)
    if case not in ALSO_ALGEBRA:
        assert body(fast(graph, off={family})) != body(fast(graph))


@pytest.mark.parametrize("dtype,seeds", [("float64", 60), ("float32", 30)])
def test_random_programs(dtype, seeds):
    """All passes at once; and once more, which has nothing left to do."""
    for seed in range(seeds):
        graph = random_graph(np.random.default_rng(seed), dtype=dtype)
        after = fast(graph)
        assert_same_values(graph, after, dtype, seed)
        assert str(fast(after)) == str(after), seed
        assert_same_bits(graph, simplify(graph), seed)


@pytest.mark.parametrize("math", MATH)
@pytest.mark.parametrize("name", PASSES)
def test_random_programs_through_one_pass(name, math):
    off = set(PASSES) - {name}
    for seed in range(100, 125):
        graph = random_graph(np.random.default_rng(seed))
        assert_same_values(graph, simplify(graph, Options(off=off, math=math)), "float64", seed)


EMPTY = [(0,), (3, 0), (2, 0, 4), (2, 1, 0), (3, 1), (0, 4), (4,), (1, 0), ()]


@pytest.mark.parametrize("dtype,shapes", [("int64", SIZES), ("complex128", SIZES), ("float64", EMPTY)])
def test_random_programs_of_other_numbers(dtype, shapes):
    """Integers to the last digit, even where they overflow; complex numbers; arrays without elements."""
    for seed in range(40):
        graph = random_graph(np.random.default_rng(seed), dtype=dtype, makers=RING, shapes=shapes)
        arrays = random_arrays(np.random.default_rng(seed), graph)
        after = check(fast(graph))
        with np.errstate(all="ignore"):
            for got, want in zip(evaluate_graph(after, arrays), evaluate_graph(graph, arrays), strict=True):
                assert (got.shape, got.dtype) == (want.shape, want.dtype)
                scale = 0 if dtype == "int64" else 1e-11 * max(1.0, np.abs(want).max(initial=0.0))
                np.testing.assert_allclose(got, want, rtol=0, atol=scale)
        assert str(fast(after)) == str(after), seed


@pytest.mark.parametrize("simplify", [simplify, fast], ids=["strict", "fast"])
def test_random_gradients(simplify):
    """The gradient of a simplified program, simplified, is the gradient of the program."""
    for seed in range(200, 230):
        graph = random_graph(np.random.default_rng(seed), 20)
        joint = vjp_graph(graph, range(4), [0])
        after = simplify(vjp_graph(simplify(graph), range(4), [0]))
        assert_same_values(joint, after, "float64", seed)


def test_the_argument_is_not_edited():
    graph = graph_of(lambda v: (v.x * 2.0 + 0.0) * 3.0 + v.y / 4.0)
    before = str(graph)
    assert str(fast(graph)) != before
    assert str(graph) == before


def test_nothing_to_do_gives_the_same_graph():
    graph = graph_of(lambda v: tanh(v.x) * v.y)
    assert simplify(graph) is graph


def test_names_and_source_lines_survive():
    v = values()
    out = v.x * 2.0 * 3.0
    out.name, out.loc = "out", ("f.py", 7, "f")
    (after,) = fast(Graph([v.x], [out])).outputs
    assert (after.name, after.loc) == ("out", ("f.py", 7, "f"))


def test_what_rules_make_stands_where_the_old_value_stood():
    """New nodes take the place of the old ones in the program: in order of age, values live no longer."""
    v = values()
    early, late = (v.x + 0.0) * 2.0 * 3.0, tanh(v.y)
    ops = [n.op for n in fast(Graph([v.x, v.y], [early, late])).nodes if n.op not in ("input", "const")]
    assert ops == ["multiply", "tanh"]


def test_a_minus_moves_to_the_smaller_factor():
    """But not where every bit counts: BLAS may add up in another order where -a is not made."""
    graph = graph_of(lambda v: (-v.flat) @ v.v)
    after = fast(graph)
    expected = "t1: f32[4,5] = negative(v)\nt2: f32[6,5] = matmul(flat, t1)\nreturn t2"
    assert body(after) == expected
    assert_same_values(graph, after, "float32")
    assert body(simplify(graph)) == body(graph)
    kept = graph_of(lambda v: transpose(-v.v, (1, 0)) @ transpose(v.flat, (1, 0)))
    assert "negative(v)" in body(fast(kept))


@pytest.mark.parametrize("math", MATH)
def test_a_minus_beside_a_number_of_a_larger_shape(math):
    """The gradient of a sum of x * -b is a number in the shape of x times -b, which has that shape too."""
    x, b = np.ones((4, 3)), np.arange(3.0)
    with ad.options(math=math):
        dx, db = ad.grad(lambda x, b: np.sum(x * -b) * 0.5, argnums=(0, 1))(x, b)
        kept = ad.compile(lambda b: np.full((4, 3), 0.5) * -b)(b)
    np.testing.assert_array_equal(dx, kept)
    np.testing.assert_array_equal(dx, np.full((4, 3), -0.5) * b)
    np.testing.assert_array_equal(db, np.full(3, -2.0))


def test_what_is_picked_in_strict_mode():
    """Elementwise ops and extremes keep their bits; sums and products of matrices may not."""
    for make, moves in (
        (lambda v: picked(apply("max", v.flat * v.c, axes=(1,), keepdims=False), 0), True),
        (lambda v: picked(sum_(v.flat * v.c, 1), 0), False),
        (lambda v: picked(sum_(reshape(v.x * v.y, (2, 6, 2)), 0), 0), False),
        (lambda v: picked(v.flat @ v.v, 0), False),
    ):
        graph = graph_of(make)
        after = simplify(graph)
        assert (after.outputs[0].op != "gather") == moves
        assert_same_bits(graph, after, seed=5)


@pytest.mark.parametrize("math", MATH)
def test_an_index_out_of_range_is_an_error_also_where_all_rows_are_one(math):
    f = ad.compile(lambda x, i: np.broadcast_to(x[:, None], (3, 10))[:, i])
    x = np.arange(3.0)
    with ad.options(math=math):
        np.testing.assert_array_equal(f(x, np.array([9, -10])), x[:, None] * np.ones(2))
        for k in (10, -11):
            with pytest.raises(IndexError):
                f(x, np.array([k, 0]))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("math", MATH)
def test_sums_of_products_of_integers(dtype, math):
    """A sum of short ones is wider than they are, an einsum is not."""
    a, b = np.full((2, 3, 4), 77).astype(dtype), np.full((2, 4, 5), 55).astype(dtype)
    for f in (
        lambda a, b: np.sum(a @ b, axis=0),
        lambda a, b: np.sum(a @ b, axis=(0, 1)),
        lambda a, b: np.einsum("kij,kjl->il", a, b),
        lambda a, b: np.einsum("ij,jk->k", a[0], b[0]),
    ):
        with ad.options(math=math):
            got = ad.compile(f)(a, b)
        assert got.dtype == f(a, b).dtype
        np.testing.assert_array_equal(got, f(a, b))


def test_float32_stays_float32():
    graph = graph_of(lambda v: (v.x / 3.0) ** 3.0 * 0.1 + sum_(v.x * v.r, 2, True) / 7.0)
    assert {n.dtype for n in simplify(gradient_graph(of_sum(graph), [0])).nodes} == {np.dtype("float32")}


def of_sum(graph):
    return Graph(graph.inputs, [sum_(graph.outputs[0], tuple(range(graph.outputs[0].ndim)))])


def test_integers_are_not_reassociated():
    """x / 4 is exact algebra for floats only; x * 6 // 2 overflows where x * 3 does not."""
    x = input_node((3,), "int64", "x")
    graph = Graph([x], [apply("floor_divide", x * 6, const(2)), x - x])
    after = simplify(graph)
    big = np.array([2**62, 5, -7])
    with np.errstate(over="ignore"):
        for got, want in zip(evaluate_graph(after, [big]), evaluate_graph(graph, [big])):
            np.testing.assert_array_equal(got, want)


def test_large_arrays_are_not_made_while_compiling():
    big = build.full((1000, 1000), 2.0, "float64")
    graph = Graph([], [tanh(big * 3.0)])
    assert all(n.nbytes <= 8 for n in simplify(graph).nodes if n.op == "const")
    row = const(np.arange(5000.0))
    grown = row + reshape(row, (5000, 1))
    assert all(n.nbytes <= row.nbytes for n in simplify(Graph([], [grown])).nodes if n.op == "const")


def test_calls_of_the_users_code_are_not_shared():
    """It may draw random numbers."""
    x = input_node((3,), "float64", "x")
    calls = [apply("host", x, function=np.sin, shapes=((3,),), dtypes=(x.dtype,)) for _ in range(2)]
    graph = Graph([x], [build.item(calls[0], 0) - build.item(calls[1], 0)])
    assert [n.op for n in simplify(graph).nodes].count("host") == 2


def test_time_grows_with_the_program_and_no_faster():
    """The number of sweeps does not depend on the length of the program: each sweep is linear."""
    counts = {blocks: sweeps_over(stack(blocks)) for blocks in (2, 16)}
    assert counts[16] <= counts[2] + 1


def stack(blocks):
    """A gradient through many layers of reshapes, products, powers and rows."""
    v = values()
    x = v.x
    for _ in range(blocks):
        rows = reshape(reshape(x, (6, 4)) @ v.v @ v.w / 2.0, (2, 3, 4)) + v.c
        x = x + (rows - sum_(rows, 2, True) / 4.0) * v.r * 0.5 * v.s + rows**3.0
    return gradient_graph(of_sum(Graph([v.x, v.r, v.s, v.c, v.w, v.v], [x])), range(6))


def sweeps_over(graph):
    count = 0
    while True:
        sweep = Sweep(graph, tuple(FAMILIES.values()), math="fast")
        graph = sweep.run()
        count += 1
        if not sweep.changed:
            return count


@pytest.mark.parametrize("power", [1.5, 2.5, 2, 3, 1, 31])
def test_powers_keep_their_slope_at_zero(power):
    slope = ad.grad(lambda x: np.sum(np.abs(x) ** power))(np.zeros(3))
    np.testing.assert_array_equal(slope, np.zeros(3))


def test_rules_that_undo_each_other_are_named():
    family = Family("restless")

    @family.rule("tanh", "sin")
    def swap(n, sweep):
        return apply({"tanh": "sin", "sin": "tanh"}[n.op], apply("negative", n.args[0]))

    graph = graph_of(lambda v: tanh(v.x))
    with pytest.warns(UserWarning, match="undo each other: swap"):
        sweep_to_end(graph, (family,), math="fast")
    assert sweep_to_end(graph, (family,)) is graph  # it does not say what it keeps: off in strict mode


def test_a_rule_that_changes_a_type_is_found_out():
    family = Family("careless")

    @family.rule("tanh")
    def shrink(n, sweep):
        return sum_(n.args[0], 0)

    with pytest.raises(GraphError, match="shrink turned"):
        sweep_to_end(graph_of(lambda v: tanh(v.x)), (family,), math="fast")


def test_unknown_pass():
    with pytest.raises(ValueError, match="no pass 'fuse'.*fold, views"):
        Options(off={"fuse"})


@pytest.mark.parametrize("math", MATH)
def test_rules_apply_to_nothing_that_they_are_not_tried_on(math, monkeypatch):
    """A rule says of which ops an argument has to be (`reads`): on all other nodes it gives None."""
    tried = set()

    def unfiltered(sweep, n, ops):
        monkeypatch.setattr(engine, "READS", {})
        everything = choose(sweep, n, ops)
        monkeypatch.setattr(engine, "READS", READS)
        wanted = choose(sweep, n, ops)
        return tuple(r if r in wanted else held_to_nothing(r) for r in everything)

    def held_to_nothing(rule):
        def tried_in_vain(n, sweep):
            tried.add(rule)
            assert rule(n, sweep) is None, f"{rule.__name__} applies to {n!r} = {n.op}"

        return tried_in_vain

    choose = Sweep._choose
    monkeypatch.setattr(Sweep, "_choose", unfiltered)
    monkeypatch.setattr(engine, "_chosen", {})
    options = Options(math=math)
    for make, _ in (*CASES.values(), *KEPT.values()):
        simplify(graph_of(make), options)
    for seed in range(40):
        graph = simplify(random_graph(np.random.default_rng(seed), 20), options)
        simplify(vjp_graph(graph, range(4), [0]), options)
    assert len(tried) > len(READS) // 2
