"""The rewriting passes: a program before, the program after as text, and the same values from both."""

from types import SimpleNamespace

import numpy as np
import pytest

import gpt2.autodiff.custom.call  # noqa: F401  its ops enter the table
from gpt2 import autodiff as ad
from gpt2.autodiff.derive.differentiate import gradient_graph, vjp_graph
from gpt2.autodiff.graph import Graph, GraphError
from gpt2.autodiff.ops import apply, build, const, input_node
from gpt2.autodiff.ops.build import reshape, slice_, sum_, tanh, transpose, zeros
from gpt2.autodiff.ops.interpret import check, evaluate_graph
from gpt2.autodiff.passes import FAMILIES, engine, simplify
from gpt2.autodiff.passes.engine import READS, Family, Sweep, sweep_to_end
from gpt2.autodiff.switches import MATH, PASSES, Options
from tests.support.random.graphs import RING, random_arrays, random_graph
from tests.support.random.graphs import SHAPES as SIZES
from tests.support.tables import sections

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


def reshaped_too(y):
    return y, reshape(y, (2, 3, 4))


def known():
    """Zeros in which numbers were written at an index."""
    ones, places = const(np.ones(2, np.float32)), const(np.array([3, 1]))
    return apply("scatter", zeros((4,), "float32"), ones, places, spec=(("array", 0),))


# Name, which begins with its pass -> the program before, and the lines of the program after with math="fast";
# names without a pass are of programs that no pass may change
PROGRAMS = sections(__file__)
CASES = [name for name in PROGRAMS if ": " in name]


def program(name, dtype="float32") -> Graph:
    """The program before."""
    return graph_of(lambda v: eval(PROGRAMS[name][0], {**vars(build), **globals(), **vars(v)}), dtype)


def fast(graph, off=()):
    return simplify(graph, Options(off=off, math="fast"))


def assert_same_values(before, after, dtype, seed=0):
    """Up to rounding: passes reassociate products and sums. Values are of order 1 to 1000."""
    digits = {"int64": 0.0, "float32": 1e-4}.get(dtype, 1e-11)
    arrays = random_arrays(np.random.default_rng(seed), before)
    with np.errstate(all="ignore"):
        wanted = evaluate_graph(before, arrays)
        for got, want in zip(evaluate_graph(check(after), arrays), wanted, strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            scale = max(1.0, np.abs(want[np.isfinite(want)]).max(initial=0.0))
            np.testing.assert_allclose(got, want, rtol=0, atol=digits * scale)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_after(name):
    assert body(check(fast(program(name)))).split("\n") == PROGRAMS[name][1:]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_the_same(name, dtype):
    graph = program(name, dtype)
    assert_same_values(graph, fast(graph), dtype)


@pytest.mark.parametrize("name", PROGRAMS)
def test_strict_programs_keep_every_bit(name):
    graph = program(name)
    assert_same_bits(graph, check(simplify(graph)), seed=1)


def assert_same_bits(before, after, seed):
    arrays = random_arrays(np.random.default_rng(seed), before)
    with np.errstate(all="ignore"):
        for got, want in zip(evaluate_graph(after, arrays), evaluate_graph(before, arrays), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(np.signbit(got.real), np.signbit(want.real))


# What algebra finds as well when it puts sums and products together.
ALSO_ALGEBRA = {"adding nothing", "multiplying by one", "two minus signs"}
ALSO_ALGEBRA |= {"subtracting a negative", "adding a negative"}


@pytest.mark.parametrize("name", CASES)
def test_each_pass_can_be_switched_off(name):
    """Then its case comes out differently; and switched on alone, it changes the program."""
    family, _, case = name.partition(": ")
    graph = program(name)
    assert body(fast(graph, off=set(PASSES) - {family, "cse"})) != body(graph)
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
        after = fast(graph)
        assert_same_values(graph, after, dtype, seed)
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
    for name in PROGRAMS:
        simplify(program(name), options)
    for seed in range(40):
        graph = simplify(random_graph(np.random.default_rng(seed), 20), options)
        simplify(vjp_graph(graph, range(4), [0]), options)
    assert len(tried) > len(READS) // 2
