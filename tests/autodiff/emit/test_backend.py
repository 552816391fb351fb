"""The back end against the plain meaning of the ops, on random graphs."""

import math
import signal
import threading
import time
import tracemalloc
import warnings

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.emit import buffers, layout, regions, windows
from gpt2.autodiff.emit.program import Program
from gpt2.autodiff.graph import Graph, GraphError
from gpt2.autodiff.ops import OPS, apply, build, input_node, leads, row
from gpt2.autodiff.ops.interpret import check, evaluate_graph
from gpt2.autodiff.ops.table import VIEWS
from gpt2.autodiff.run import kernels, recycled, threads
from tests.support.random.graphs import BLOCKS, SINGLE, random_graph
from tests.support.slow import rest_slow

pytestmark = pytest.mark.numeric

F8 = np.dtype(np.float64)
BLOCK_BYTES = regions.BLOCK_BYTES
SHAPES = [(2, 3, 4, 5), (6, 4, 5), (2, 3, 20), (6, 20), (20,), (2, 3, 1, 5), (5,), (4, 5), (2, 3, 4, 1)]
SHAPES += [(6, 1), (2, 1, 4, 5)]
ONES = [(), (1,), (1, 1), (1, 1, 1), (5,), (4, 5), (1, 5), (20,)]  # mostly single numbers


@pytest.fixture(autouse=True)
def tiny_regions(monkeypatch):
    """Sizes from which regions pay off are lower, so that small arrays take every path: blocks with a shorter
    last one, rows reached by nested loops, values hosted in others, buffers shared.
    """
    monkeypatch.setattr(regions, "SMALL", 2)
    monkeypatch.setattr(regions, "BLOCK_BYTES", 400)
    monkeypatch.setattr(buffers, "LEND_FROM", 8)
    monkeypatch.setattr(buffers, "LONG", 0.1)
    monkeypatch.setattr(kernels, "PIECE", 8)


@pytest.mark.parametrize(
    ("shapes", "makers", "lend"),
    [(SHAPES, BLOCKS, False), (SHAPES, BLOCKS, True), (ONES, SINGLE, False)],
    ids=["arrays", "memory reused from results", "numbers"],
)
@pytest.mark.parametrize("start", rest_slow(range(0, 400, 20)))
def test_random_graphs(start, shapes, makers, lend):
    for seed in range(start, start + 20):
        rng = np.random.default_rng(seed)
        # Values stay near 1: they neither vanish nor overflow
        compare(seed, rng, random_graph(rng, 35, makers=makers, shapes=shapes, inputs=5, largest=2000), lend)


def compare(seed, rng, graph, lend):
    program = Program(check(graph), lend=lend)
    arrays = [rng.standard_normal(i.shape) for i in graph.inputs]
    before = [a.copy() for a in arrays]
    want = evaluate_graph(graph, arrays)
    threads.set_threads(1 + seed % 2)

    def check_results(got, where):
        for k, (x, y) in enumerate(zip(got, want, strict=True)):
            note = f"seed {seed}, output {k} {where}"
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9, err_msg=note)
            assert x.dtype == y.dtype

    for _ in range(2):  # the second call works in used memory
        check_results(program(*arrays), "")
    out = tuple(np.full(y.shape, np.nan) for y in want)
    for x, y in zip(program(*arrays, out=out), out):
        assert x is y
    check_results(out, "with out=")
    for a, b in zip(arrays, before):
        np.testing.assert_array_equal(a, b)
    over = tuple(next((a for a in arrays if a.shape == y.shape and a.dtype == y.dtype), None) for y in want)
    if len({id(o) for o in over}) == len(over):  # results over arguments, safe or not
        check_results(program(*arrays, out=over), "over an input")


def agreeing(graph):
    """The program of a graph; its results are those of the ops."""
    program, rng = Program(check(graph)), np.random.default_rng(0)
    arrays = [rng.standard_normal(i.shape) for i in graph.inputs]
    for got, want in zip(program(*arrays), evaluate_graph(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-15)
    return program


def test_numbers_are_handled_by_operators(monkeypatch):
    """float32 to the last number, NumPy's rules for them, and no arrays of one element."""
    monkeypatch.setattr(regions, "SMALL", 8192)
    x = input_node((100,), np.dtype(np.float32), "x")
    total = apply("sum", x, axes=(0,), keepdims=False)
    total.name = "total"
    scale = (total * 0.1) / total  # 0 / 0 is nan, with a warning, as in NumPy
    program = Program(Graph((x,), (x * scale, scale)))
    assert "total * 0.1" in program.source and "setup" not in program.source
    scaled, found = program(np.full(100, 0.5, np.float32))
    assert scaled.dtype == found.dtype == np.float32 and found == np.float32(np.float32(5) / np.float32(50))
    with pytest.warns(RuntimeWarning, match="invalid value"):
        assert np.isnan(program(np.zeros(100, np.float32))[1])


@pytest.fixture
def doubled():
    """A program of (100, 50) numbers, which it doubles."""
    x = input_node((100, 50), F8, "x")
    return Program(Graph((x,), (x * 2.0,)))


def test_a_held_result_is_never_overwritten(doubled):
    (first,) = doubled(np.ones((100, 50)))
    (second,) = doubled(np.zeros((100, 50)))
    assert first is not second and (first == 2).all()
    view, where = first[3:], first.ctypes.data
    del first
    (third,) = doubled(np.full((100, 50), 7.0))
    assert (view == 2).all() and third.ctypes.data != where
    del view
    (fourth,) = doubled(np.full((100, 50), 5.0))
    assert fourth.ctypes.data == where  # no longer held by anyone


TAMPER = {
    "shape": lambda a: setattr(a, "shape", (1, *a.shape)),
    "type": lambda a: setattr(a, "dtype", np.int64),
    "read-only": lambda a: a.setflags(write=False),
    "shorter": lambda a: a.resize(10, refcheck=False),
}


@pytest.mark.filterwarnings("ignore:Setting the:DeprecationWarning")
@pytest.mark.parametrize("change", TAMPER)
def test_a_result_that_was_tampered_with_is_not_used_again(change, doubled):
    for _ in range(3):
        (a,) = doubled(np.ones((100, 50)))
        assert a.shape == (100, 50) and a.dtype == F8 and a.flags.writeable and (a == 2).all()
        TAMPER[change](a)
        del a


def test_unneeded_results_are_freed(doubled):
    ones = np.ones((100, 50))
    tracemalloc.start()
    try:
        held = [doubled(ones) for _ in range(60)]
        assert tracemalloc.get_traced_memory()[0] > 60 * ones.nbytes
        del held
        assert tracemalloc.get_traced_memory()[0] < 6 * ones.nbytes
        for _ in range(3):  # later rounds reuse the same ones
            held = [doubled(ones) for _ in range(60)]
            places = {a.ctypes.data for (a,) in held}
            del held
        held = [doubled(ones) for _ in range(60)]
        assert {a.ctypes.data for (a,) in held} == places
        del held
        for _ in range(2 * (recycled.ROUND + 4 * 60)):
            doubled(ones)
        assert tracemalloc.get_traced_memory()[0] < 6 * ones.nbytes
    finally:
        tracemalloc.stop()


def test_threads_do_not_change_a_bit(monkeypatch):
    monkeypatch.setattr(regions, "BLOCK_BYTES", BLOCK_BYTES)  # work on tiny blocks is not shared out
    rng = np.random.default_rng(0)
    x = input_node((300, 4000), F8, "x")
    w = input_node((4000,), F8, "w")
    y = apply("tanh", x * w)
    graph = Graph(
        (x, w), (y, apply("sum", y, axes=(0,), keepdims=False), apply("sum", y, axes=(0, 1), keepdims=False))
    )
    program = Program(graph)
    arrays = [rng.standard_normal(i.shape) for i in graph.inputs]
    want = [a.copy() for a in program(*arrays)]
    shared, original = [], threads.run_on_threads
    monkeypatch.setattr(threads, "run_on_threads", lambda job: (shared.append(job), original(job)))
    threads.set_threads(3)
    for got, alone in zip(program(*arrays), want):
        np.testing.assert_array_equal(got, alone)
    assert shared  # else one thread was compared with one


def test_threads_follow_the_callers_errstate(monkeypatch):
    monkeypatch.setattr(regions, "BLOCK_BYTES", 1 << 17)
    x = input_node((200_000,), F8, "x")
    program = Program(Graph((x,), (apply("log", x) * 2.0,)))
    assert "run_blocks" in program.source and "alone" not in program.source
    seen = []
    threads.set_threads(3)
    for wanted in ("ignore", "raise", "warn"):
        seen.clear()
        with np.errstate(divide=wanted):
            threads.run_on_threads(lambda thread: seen.append(np.geterr()["divide"]))
        assert seen == [wanted] * 3
    with warnings.catch_warnings(), np.errstate(divide="ignore"):
        warnings.simplefilter("error")
        program(np.zeros(200_000))
    with pytest.raises(FloatingPointError), np.errstate(divide="raise"):
        program(np.zeros(200_000))


def test_a_small_value_of_inputs_alone_does_not_cut_a_region(monkeypatch):
    """1 / scale lies between two uses of the same rows; the sum over them is asked for first."""
    monkeypatch.setattr(regions, "SMALL", 8192)
    monkeypatch.setattr(regions, "BLOCK_BYTES", 1 << 20)

    def f(x, scale):
        scaled = x / scale
        return np.sum(scaled * x, axis=0), scaled * (1.0 / scale)

    x = np.random.default_rng(0).standard_normal((2048, 256)).astype(np.float32)
    scale = 1.0 + np.abs(x[:, :1])
    made = ad.Fixed(f)
    for ours, theirs in zip(made(x, scale), f(x, scale)):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-4)
    source = made.entry((x, scale), {})[0].program.program.source
    assert source.count("run_blocks(") == 1


def test_an_error_in_a_thread_reaches_the_caller():
    def body(k, i, j):
        if k == 3:
            raise ZeroDivisionError("block 3")

    threads.set_threads(2)
    with pytest.raises(ZeroDivisionError, match="block 3"):
        kernels.run_blocks(body, tuple((i, i + 1) for i in range(8)), ((1, (), ()), (1, (), ())))
    # and the pool lives on
    kernels.run_blocks(lambda k, i, j: None, ((0, 1), (1, 2)), ((1, (), ()), (1, (), ())))


def test_an_error_on_all_threads_is_raised_once():
    threads.set_threads(2)
    both = threading.Barrier(2, timeout=20)

    def fails(thread):
        both.wait()
        raise ZeroDivisionError(f"on thread {thread}")

    with pytest.raises(ZeroDivisionError, match="on thread 0"):
        threads.run_on_threads(fails)
    threads.run_on_threads(lambda thread: None)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads here")
def test_an_interrupt_is_raised_when_all_threads_have_ended():
    """They write to memory that the next call is given."""
    threads.set_threads(2)
    ended = []

    def interrupts(thread):
        if thread:
            time.sleep(0.1)  # meanwhile the caller has begun to wait
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.1)
            ended.append(thread)

    with pytest.raises(KeyboardInterrupt):
        threads.run_on_threads(interrupts)
    assert ended == [1]
    threads.run_on_threads(ended.append)
    assert sorted(ended) == [0, 1, 1]


def test_blocks_with_memory_for_fewer_threads_than_there_are():
    """In a call that began before set_threads, or while another thread was in run_apart."""
    threads.set_threads(2)
    done = []
    kernels.run_blocks(lambda k, i, j: done.append(k), ((0, 1), (1, 2), (2, 3)), ((1, (), ()),))
    assert done == [0, 1, 2]


def test_parts_that_fill_the_result_are_computed_in_it():
    """Two parts that fill it lie in its memory; only the third, which overlaps both, is added."""
    x, y, z = (input_node(s, F8, name) for s, name in zip(((4, 20), (2, 20), (3, 20)), "xyz"))
    parts = [y * 3.0, apply("tanh", x), z * 2.0]
    rows = [((0, 2, 1), (0, 20, 1)), ((2, 6, 1), (0, 20, 1)), ((1, 4, 1), (0, 20, 1))]
    total = apply("assemble", *parts, shape=(6, 20), indices=tuple(rows), dtype="float64")
    source = agreeing(Graph((x, y, z), (total,))).source
    assert "fill" not in source and "copyto" not in source and "copied" not in source


def test_heads_are_computed_where_they_belong_beside_axes_of_one():
    """(heads, T, HS) into (1, T, parts, heads, HS): an axis of length 1 has any stride."""
    x, y = (input_node((2, 6, 5), F8, name) for name in "xy")

    def placed(h):
        return build.reshape(build.transpose(h, (1, 0, 2)), (1, 6, 1, 2, 5))

    full = tuple((0, n, 1) for n in (1, 6, 2, 2, 5))
    places = tuple((*full[:2], (k, k + 1, 1), *full[3:]) for k in range(2))
    parts = [placed(apply("tanh", x)), placed(y * 2.0)]
    total = apply("assemble", *parts, shape=(1, 6, 2, 2, 5), indices=places, dtype="float64")
    source = agreeing(Graph((x, y), (total,))).source
    assert "copyto" not in source and "copied" not in source


def test_which_parts_fill_the_result():
    def of(*spans, n=10):
        parts = [input_node((stop - start,), F8) for start, stop in spans]
        indices = tuple(((start, stop, 1),) for start, stop in spans)
        return windows.fills(apply("assemble", *parts, shape=(n,), indices=indices, dtype="float64"))

    assert of((0, 4), (4, 10)) == {0, 1}
    assert of((0, 4), (2, 7), (4, 10)) == {0, 2}
    assert of((0, 4), (0, 10), (3, 5)) == {1}
    assert of((0, 4), (5, 10)) == of((0, 4), (3, 10)) == set()
    stretched = apply(  # one number for all of it does not lie in its memory
        "assemble", input_node((1,), F8), shape=(10,), indices=(((0, 10, 1),),), dtype="float64"
    )
    assert windows.fills(stretched) == set()


def test_rows_that_are_numbered_in_two_ways_are_taken_as_fewer(monkeypatch):
    """Heads, read as groups of heads later on: no index reaches both, but one of the batch does."""
    monkeypatch.setattr(regions, "BLOCK_BYTES", 1 << 13)
    monkeypatch.setattr(regions, "SHORTEST", 64)

    def f(x, cos):
        heads = x.reshape(4, 8, 6, 16).transpose(0, 2, 1, 3)
        turned = np.concatenate([heads[..., :8] * cos, heads[..., 8:] - cos], axis=-1)
        return turned.reshape(4, 3, 2, 8, 16) * 0.5

    rng = np.random.default_rng(0)
    x, cos = rng.standard_normal((4, 8, 96)), rng.standard_normal((8, 8))
    made = ad.Fixed(f)
    np.testing.assert_allclose(made(x, cos), f(x, cos), rtol=1e-12)
    source = made.entry((x, cos), {})[0].program.program.source
    assert "4 rows in" in source and source.count("run_blocks(") == 1


@pytest.mark.parametrize("shape", [(4, 6), (24,), (1, 3, 8), (2, 12)])
def test_work_that_is_spread_is_the_work_as_a_whole(shape, monkeypatch):
    rng = np.random.default_rng(0)
    x, y, row = rng.standard_normal(shape), rng.standard_normal(shape), rng.standard_normal(shape[-1:])
    monkeypatch.setattr(kernels, "PIECE", 5)
    calls = []

    def divided(a, b, out):
        calls.append(out.size)
        np.divide(a, b, out=out)

    for count in (1, 2):
        threads.set_threads(count)
        for a, b in ((x, y), (x, row), (2.0, x), (x.T.copy().T, 3.0), (x, np.array(2.0))):
            out, whole = np.empty(shape[::-1]).T, np.divide(a, b)
            calls.clear()
            kernels.spread(divided, out, a, b)
            np.testing.assert_array_equal(out, whole)
            assert len(calls) > 1 and sum(calls) == x.size


def test_columns_are_negated_as_a_whole(monkeypatch):
    """NumPy 2.4.6 negates one column of eight wrong."""
    monkeypatch.setattr(kernels, "PIECE", 6)
    a = np.arange(128.0).reshape(16, 8)
    for x in (a, a.T, a.reshape(16, 8, 1), a[:6].reshape(2, 3, 8)):
        out = np.empty(x.shape[::-1]).T if x is a.T else np.empty(x.shape)
        kernels.spread(np.negative, out, x)
        np.testing.assert_array_equal(out, -1.0 * x)


def test_work_over_its_own_memory_is_spread_where_no_piece_reads_another(monkeypatch):
    monkeypatch.setattr(kernels, "PIECE", 2)
    x = np.arange(16.0).reshape(4, 4)
    want = x + x.T
    kernels.spread(np.add, x, x, x.T)
    np.testing.assert_array_equal(x, want)
    kernels.spread(np.add, x, x, want)
    np.testing.assert_array_equal(x, 2 * want)


@pytest.mark.parametrize("name", ["update", "from itself", "scatter", "scatter_add", "read later"])
def test_a_write_into_the_argument_that_is_the_result(name):
    """out= is the argument that the program begins by copying: in place where that is right, else by way of
    a copy."""
    rng = np.random.default_rng(0)
    i = np.array([1, 1, 5, 0])

    def f(x, v):
        y = x.copy()
        if name == "update":
            y[2:6] = v
        elif name == "from itself":
            y[2:6] = v * x[1:5]
        elif name == "scatter":
            y[i] = v[0]
        else:
            np.add.at(y, i, v)
        return y, (x.sum() if name == "read later" else v.sum())

    x, v = rng.standard_normal((8, 3)), rng.standard_normal((4, 3))
    want, total = f(x, v)
    got, rest = ad.compile(f)(x, v, out=(x, None))
    assert got is x
    np.testing.assert_allclose(got, want, rtol=1e-15)
    np.testing.assert_allclose(rest, total, rtol=1e-14)


VIEWED = {
    "transpose": lambda rng, shape: {"perm": tuple(int(k) for k in rng.permutation(len(shape)))},
    "slice": lambda rng, shape: {"index": tuple(_slice(rng, n) for n in shape)},
    "broadcast": lambda rng, shape: {
        "shape": (*rng.choice([1, 2], 1).tolist(), *(n if n != 1 else 3 for n in shape))
    },
    "reshape": lambda rng, shape: {"shape": _regrouped(rng, shape)},
}


def _slice(rng, n):
    step = int(rng.choice([1, 1, 2, -1, -2]))
    ends = sorted(rng.integers(0, n + 1, 2).tolist()) if rng.random() < 0.5 else [None, None]
    return (*(ends if step > 0 else [None, None]), step)


def _regrouped(rng, shape):
    """Another shape of as many elements."""
    factors = [p for n in shape for p in ([2] * (n // 2) if n in (2, 4) else [n]) if n != 1]
    if 0 in shape or math.prod(factors) != math.prod(shape):
        return (math.prod(shape),)
    found = [1]
    for p in factors:
        if rng.random() < 0.5:
            found.append(p)
        else:
            found[-1] *= p
    return tuple(found)


OVER_ARGUMENTS = {
    "where the condition is true": lambda x, y: np.where(y > 0.0, x, y),
    "where the condition is false": lambda x, y: np.where(y > 0.0, y, x),
    "read by columns and transposed": lambda x, y: x + x[:3, :1].T,
    "one element for all": lambda x, y: x * x[1, 1],
    "read in another order": lambda x, y: x - x[::-1],
    "read before": lambda x, y: np.exp(y) + np.sum(x),
}


@pytest.mark.parametrize("small", [2, 1 << 30], ids=["in blocks", "plain"])
@pytest.mark.parametrize("name", OVER_ARGUMENTS)
def test_a_result_may_lie_in_any_argument(name, small, monkeypatch):
    """What is read of x after its elements were written would be read wrong: so it is computed elsewhere. The
    same where x is a value of the program.
    """
    monkeypatch.setattr(regions, "SMALL", small)
    f, rng = OVER_ARGUMENTS[name], np.random.default_rng(3)
    x, y = rng.normal(size=(2, 5000, 3))
    want = f(x, y)
    inside = ad.compile(lambda x, y: f(np.negative(x), y))
    np.testing.assert_array_equal(inside(-x, y), want)
    given = x.copy()
    assert ad.compile(f)(given, y, out=given) is given
    np.testing.assert_array_equal(given, want)


def test_layouts_are_those_that_numpy_gives():
    """Of views of views: shape, strides, first byte, span, and whether a reshape would copy."""
    rng = np.random.default_rng(0)
    copies = 0
    for _ in range(1000):
        shape = tuple(
            rng.choice([1, 2, 3, 4, 6, 0], rng.integers(0, 4), p=[0.2, 0.2, 0.2, 0.2, 0.15, 0.05]).tolist()
        )
        array = np.empty(shape)
        memory, place = np.lib.array_utils.byte_bounds(array)[0], layout.whole(shape, array.dtype)
        for op in rng.choice(list(VIEWED), 4):
            n = apply(op, input_node(array.shape, array.dtype, "x"), **VIEWED[op](rng, array.shape))
            new = _numpy_view(array, n)
            seen = layout.view(place, n)
            assert (seen is None) == (new is None), (array.shape, array.strides, n)
            if new is None:
                copies += 1
                continue
            array, place = new, seen
            assert place.shape == array.shape and place.contiguous == array.flags.c_contiguous
            if array.size:
                assert all(a == b for a, b, n in zip(place.strides, array.strides, place.shape) if n != 1)
                assert place.start == array.__array_interface__["data"][0] - memory
                assert place.span == tuple(b - memory for b in np.lib.array_utils.byte_bounds(array))
    assert copies > 100


def _numpy_view(x, n):
    """NumPy's view of it, or None for a copy."""
    if n.op == "transpose":
        return x.transpose(n.attrs["perm"])
    if n.op == "slice":
        return x[(*(slice(*s) for s in n.attrs["index"]), ...)]
    if n.op == "broadcast":
        return np.broadcast_to(x, n.shape)
    try:
        return np.reshape(x, n.shape, copy=False)
    except ValueError:
        return None


def test_layouts_of_two_values_are_told_apart():
    """By where they begin, with views of both: by chance, a program had lost a copy."""
    a, b = (layout.whole((3, 4), np.dtype(float)) for _ in range(2))
    assert layout.same_memory(a, a) and not layout.same_memory(a, b)
    rows = layout.slice_view(a, ((0, 1, 1), (None, None, 1)))
    assert layout.same_memory(rows, layout.slice_view(a, ((None, 1, 1), (0, 4, 1))))
    assert not layout.same_memory(rows, layout.slice_view(a, ((1, 2, 1), (0, 4, 1))))


def test_slice_of_no_axes_is_a_view():
    """NumPy returns a scalar for `x[()]` of a 0-d array."""
    x = input_node((), np.float64, "x")
    assert Program(Graph([x], [apply("slice", x, index=())]))(2.0)[0] == 2.0


@pytest.fixture
def own_row():
    """Adds rows to the table, for one test."""
    names = []

    def add(name, *args, **columns):
        names.append(name)
        return row(name, *args, **columns)

    yield add
    for name in names:
        del OPS[name]
        VIEWS.discard(name)


def test_text_of_an_op_may_hold_any_sign(own_row):
    """Its result is copied to where it belongs: an "@" in the row's text stood for that place once."""
    own_row(
        "gram_test",
        "nondiff",
        infer=lambda x: ((x.shape[0],) * 2, x.dtype),
        evaluate=lambda x: x @ x.T,
        code=lambda x: f"{x} @ {x}.T",
    )
    x = input_node((3, 4), np.float64, "x")
    program = Program(Graph([x], [apply("gram_test", x)]))
    array = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(program(array)[0], array @ array.T)


def test_a_setting_of_an_op_may_be_infinite(own_row):
    types = lambda x, least: (x.shape, x.dtype)  # noqa: E731
    own_row("above_test", "nondiff", infer=types, evaluate=lambda x, least: np.maximum(x, least))
    x = input_node((3,), np.float64, "x")
    program = Program(Graph([x], [apply("above_test", x, least=-np.inf)]))
    np.testing.assert_array_equal(program(np.arange(3.0))[0], np.arange(3.0))
    nothing = ad.compile(lambda a: np.linalg.pinv(a, rcond=np.inf))(np.eye(3))
    np.testing.assert_array_equal(nothing, np.zeros((3, 3)))


@pytest.mark.parametrize("says", [{}, {"leads": leads.ELEMENTWISE}, {"has_out": True}])
def test_own_op_runs_as_its_row_says(own_row, says):
    """Between ufunc ops on many rows: in blocks of rows if its row says so, else on whole arrays."""
    own_row(
        "softplus_test",
        "elementwise",
        infer=lambda x: (x.shape, x.dtype),
        evaluate=lambda x: np.logaddexp(x, 0.0),
        code=lambda x: f"np.logaddexp({x}, 0.0)",
        **says,
    )
    x = input_node((3000, 400), np.float64, "x")
    graph = Graph([x], [apply("softplus_test", x * 2.0) + apply("softplus_test", x) * x])
    program = Program(graph)
    in_rows = program.source.partition("def rows(")[2].partition("run_blocks")[0]
    assert in_rows.count("logaddexp") == (2 if "leads" in says else 0)
    array = np.random.default_rng(0).standard_normal(x.shape)
    want = np.logaddexp(array * 2.0, 0.0) + np.logaddexp(array, 0.0) * array
    np.testing.assert_allclose(program(array)[0], want, rtol=1e-15)


def test_unknown_view_is_refused(own_row):
    types = lambda x: (x.shape, x.dtype)  # noqa: E731
    own_row("flip_test", "nondiff", infer=types, evaluate=lambda x: x[::-1], view=True)
    x = input_node((4,), np.float64, "x")
    with pytest.raises(GraphError, match="flip_test is in VIEWS"):
        Program(Graph([x], [apply("flip_test", x)]))
