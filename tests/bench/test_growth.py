"""Compile time grows linearly with the program, without recursion: counted in calls, not in seconds."""

import functools
import gc
import itertools
import os
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from bench.compile_time import STAGES, compiled, model_rows
from bench.growth import PROGRAMS
from gpt2 import autodiff as ad
from gpt2.autodiff.emit import emitter
from gpt2.autodiff.emit.buffers import offsets
from gpt2.autodiff.emit.emitter import Emitter
from gpt2.autodiff.emit.schedule import Schedule
from gpt2.autodiff.graph import next_id
from gpt2.autodiff.ops.boxes import alone, disjoint
from gpt2.autodiff.pipeline import Pipeline, uncollected
from gpt2.autodiff.programs import derived, families
from tests.support.slow import rest_slow

MOST = 2.5  # ratio of the work for twice the operations: 2 if it is linear, towards 4 if quadratic


def work(run) -> int:
    """Calls of Python functions, and of functions written in C."""
    count = 0

    def profile(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def nodes(run) -> int:
    """Graph nodes made: while a function is recorded no profiler runs, but nodes are numbered."""
    before = next_id()
    run()
    return next_id() - before


def assert_doubles(count, name, transform=ad.grad, n=320):
    """The first call for a program of twice the size takes about twice the work, or nodes."""
    counts = []
    for size in (n, 2 * n):
        f, args = PROGRAMS[name](size)
        f.__code__ = f.__code__.replace()  # a new code object: no earlier recording is reused
        counts.append(count(functools.partial(transform(f), *args)))
    assert 0 < counts[1] < MOST * counts[0]


@pytest.mark.parametrize("name", rest_slow(PROGRAMS, keep=2))
def test_twice_the_program_is_twice_the_work(name):
    assert_doubles(work, name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_twice_the_program_makes_twice_the_nodes(name):
    assert_doubles(nodes, name)


@pytest.mark.parametrize("count", [work, nodes])
@pytest.mark.parametrize("transform", [ad.value_and_grad, lambda f: ad.grad(lambda x: ad.grad(f)(x).sum())])
def test_value_and_second_derivative_of_a_chain_twice_as_long(count, transform):
    assert_doubles(count, "chain", transform, 100)


class Counting(set):
    """A set that counts its membership tests."""

    tests = 0

    def __contains__(self, x):
        self.tests += 1
        return super().__contains__(x)


def test_unique_names_take_constant_time_each():
    names = object.__new__(Emitter)
    names.taken, names.tried = Counting(), {}
    unique = [names.unique("x") for _ in range(1000)]
    assert unique[:3] == ["x", "x_2", "x_3"] and len(set(unique)) == 1000
    assert names.taken.tests < 3000


def test_readers_visited_grow_linearly_with_the_readers_of_a_value(monkeypatch):
    counts = []
    readers = Schedule.readers

    def counting(self, n):
        result = readers(self, n)
        counts[-1] += len(result)
        return result

    monkeypatch.setattr(Schedule, "readers", counting)
    for n in (100, 200):
        counts.append(0)
        f, args = PROGRAMS["fan"](n)
        ad.grad(f)(*args)
    assert 0 < counts[1] < MOST * counts[0]


@pytest.mark.parametrize("name", ["chain", "dots", "layers", "grid"])
def test_arena_views_from_statements_and_from_a_table_agree(name, monkeypatch):
    f, args = PROGRAMS[name](60)
    by_statements = ad.grad(f)
    f_again, _ = PROGRAMS[name](60)
    f_again.__code__ = f.__code__.replace()
    monkeypatch.setattr(derived, "shared_programs", families.SharedPrograms())
    monkeypatch.setattr(emitter, "MOST_SPELLED", 10**6)
    assert "arena_views(" not in ad.source(by_statements, *args, emitted=True)
    monkeypatch.setattr(derived, "shared_programs", families.SharedPrograms())  # compiled anew
    monkeypatch.setattr(emitter, "MOST_SPELLED", 0)
    from_table = ad.grad(f_again)
    for _ in range(2):
        for got, expected in zip(ad.tree.leaves(from_table(*args)), ad.tree.leaves(by_statements(*args))):
            np.testing.assert_array_equal(got, expected, strict=True)
    assert "arena_views(arena, layout)" in from_table.__derived__.last[1].source or name == "grid"


@pytest.mark.parametrize("most", [0, 10**6])
def test_all_rows_of_an_argument_or_result_come_from_one_call_or_a_line_each(most, monkeypatch):
    @ad.repeated
    def step(x, w):
        for _ in range(4):
            x = np.tanh(x @ w) * np.exp(-x * x) + x
        return x

    def f(x, w):
        for k in range(40):
            x = step(x, w[k])
        return np.sum(x)

    f.__code__ = f.__code__.replace()
    monkeypatch.setattr(derived, "shared_programs", families.SharedPrograms())
    monkeypatch.setattr(emitter, "MOST_SPELLED", most)
    x, w = np.full((4, 3), 0.3), np.random.default_rng(0).normal(size=(40, 3, 3))
    ad.check_grads(f, (x, w), order=1)
    source = ad.source(ad.grad(f, argnums=(0, 1)), x, w, emitted=True)
    assert ("= each_row(w)" in source, "= each_row(dw_out)" in source) == (most == 0, most == 0)


def test_compiling_pauses_the_cyclic_garbage_collector():
    f, args = PROGRAMS["chain"](20)
    seen = []
    pipeline = Pipeline("f")
    pipeline._stage("simplified", lambda: seen.append(gc.isenabled()))
    assert seen == [False] and gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        pipeline._stage("simplified", lambda: 1 // 0)
    assert gc.isenabled()
    gc.disable()
    try:
        ad.grad(f)(*args)
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_during_a_compilation_does_not_leave_the_collector_paused():
    inside, done = threading.Event(), threading.Event()

    def compiles():
        uncollected(lambda: (inside.set(), done.wait()))

    thread = threading.Thread(target=compiles)
    thread.start()
    try:
        assert inside.wait(10)
        child = os.fork()
        if child == 0:
            paused = uncollected(lambda: not gc.isenabled())
            os._exit(0 if paused and gc.isenabled() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert not gc.isenabled()  # in this process the other thread still compiles
    finally:
        done.set()
        thread.join()
    assert gc.isenabled()


@pytest.mark.parametrize("name", rest_slow([n for n in PROGRAMS if n != "large_chain"], keep=2))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_long_programs_stay_within_the_recursion_limit(name):
    f, args = PROGRAMS[name](3000)
    limit = sys.getrecursionlimit()
    value, gradient = ad.value_and_grad(f)(*args)
    assert np.isfinite(value) or name == "numbers"
    assert value == pytest.approx(f(*args), rel=1e-12)
    assert sys.getrecursionlimit() == limit


@pytest.mark.slow
@pytest.mark.parametrize("side", [3, 7, 13])
def test_gradient_of_an_array_filled_element_by_element(side):
    """A few parts are added one by one, many are assembled at the end."""

    def f(x):
        out = np.zeros_like(x, shape=(side, side))
        for i in range(side):
            for j in range(side):
                out[i, j] = np.sin(x[0] * i) + x[1] * j
        out[0, 0] = x[2]
        out[1, :] = x[0]
        return (out * out).sum()

    ad.check_grads(f, (np.linspace(0.1, 1.0, 3),), order=2)


@pytest.mark.parametrize("n", [1, 40, 1500])
def test_buffers_alive_at_once_do_not_overlap(n):
    rng = np.random.default_rng(n)
    starts = rng.integers(0, n, n)
    lives = [
        SimpleNamespace(nbytes=int(b), start=int(s), end=int(s + k), offset=-1)
        for b, s, k in zip(rng.choice([8, 64, 100, 4096], n), starts, rng.integers(0, n // 3 + 1, n))
        for _ in range(rng.integers(1, 4))
    ]
    total = offsets(lives)
    assert all(0 <= s.offset and s.offset % 64 == 0 and s.offset + s.nbytes <= total for s in lives)
    peak = 0
    for step in range(2 * n):
        alive = sorted((s.offset, s.nbytes) for s in lives if s.start <= step <= s.end)
        assert all(a + size <= b for (a, size), (b, _) in zip(alive, alive[1:]))
        peak = max(peak, sum(-(-size // 64) * 64 for _, size in alive))
    assert total <= 2 * peak


@pytest.mark.parametrize("n", [5, 60])
def test_alone_agrees_with_comparing_all_pairs(n):
    rng = np.random.default_rng(n)
    for _ in range(20):
        boxes = [
            tuple(range(a, a + int(rng.integers(1, 4))) for a in rng.integers(0, 17, 2)) for _ in range(n)
        ]
        pairs = [all(disjoint(b, c) for j, c in enumerate(boxes) if j != k) for k, b in enumerate(boxes)]
        assert alone(boxes, (20, 20)) == pairs


def test_programs_grow_with_the_number_of_blocks():
    """A further block adds no more ops than the one before it; every stage takes time."""
    runs = [compiled(*case) for _, case in itertools.islice(model_rows(real=False), 3)]
    one, two, four = (ops for _, ops in runs)
    assert 100 < two - one and four - two <= 2 * (two - one)
    assert all(set(times) == set(STAGES) and min(times.values()) > 0 for times, _ in runs)
