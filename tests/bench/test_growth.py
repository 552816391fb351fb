"""Compiling takes time in proportion to the program, and no recursion: counted in work, not in seconds."""

import functools
import gc
import os
import sys
import threading

import numpy as np
import pytest

from bench.growth import PROGRAMS
from gpt2 import autodiff as ad
from gpt2.autodiff.emit import source
from gpt2.autodiff.emit.array_names import ArrayTexts
from gpt2.autodiff.emit.buffers import offsets
from gpt2.autodiff.emit.liveness import Liveness
from gpt2.autodiff.graph import next_id
from gpt2.autodiff.ops.boxes import alone, disjoint
from gpt2.autodiff.pipeline import Pipeline, uncollected
from gpt2.autodiff.programs import derived, families
from gpt2.autodiff.record.source_lines import _span
from tests.support.slow import rest_slow

# Twice the operations, twice the work; a part that grew with the square would soon be most of it, and give 4
MOST = 2.5


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


@pytest.mark.parametrize("name", rest_slow(PROGRAMS, keep=2))
def test_twice_the_program_is_twice_the_work(name):
    counts = []
    for n in (320, 640):
        f, args = PROGRAMS[name](n)
        f.__code__ = f.__code__.replace()  # another object: what was recorded of this code is not found again
        counts.append(work(functools.partial(ad.grad(f), *args)))
    assert counts[1] < MOST * counts[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_twice_the_program_makes_twice_the_nodes(name):
    """While a function is recorded no profiler runs, but nodes are numbered."""
    counts = []
    for n in (320, 640):
        f, args = PROGRAMS[name](n)
        f.__code__ = f.__code__.replace()  # another object: what was recorded of this code is not found again
        before = next_id()
        ad.grad(f)(*args)
        counts.append(next_id() - before)
    assert counts[1] < MOST * counts[0]


@pytest.mark.parametrize("transform", [ad.value_and_grad, lambda f: ad.grad(lambda x: ad.grad(f)(x).sum())])
def test_a_longer_chain_and_its_second_derivative(transform):
    counts = []
    for n in (100, 200):
        f, args = PROGRAMS["chain"](n)
        before = next_id()
        counts.append(work(functools.partial(transform(f), *args)))
        counts.append(next_id() - before)
    assert counts[2] < MOST * counts[0] and counts[3] < MOST * counts[1]


class Counting(set):
    """A set that counts how often it is asked."""

    asked = 0

    def __contains__(self, x):
        self.asked += 1
        return super().__contains__(x)


def test_a_name_that_thousands_have_is_found_at_once():
    names = object.__new__(ArrayTexts)
    names.taken, names.tried = Counting(), {}
    found = [names.unique("x") for _ in range(1000)]
    assert found[:3] == ["x", "x_2", "x_3"] and len(set(found)) == 1000
    assert names.taken.asked < 3000


def test_readers_of_one_value_are_not_looked_through_by_each_of_them(monkeypatch):
    counts = []
    readers = Liveness.readers

    def counting(self, n):
        found = readers(self, n)
        counts[-1] += len(found)
        return found

    monkeypatch.setattr(Liveness, "readers", counting)
    for n in (100, 200):
        counts.append(0)
        f, args = PROGRAMS["fan"](n)
        ad.grad(f)(*args)
    assert 0 < counts[1] < MOST * counts[0]


def test_a_statement_is_found_in_long_code_without_reading_all_of_it():
    class Code:
        read = 0

        def co_positions(self):
            for k in range(1000):
                self.read += 1
                yield (k, k, 0, 1)

    code = Code()
    assert [_span(code, 2 * k)[0] for k in range(1000)] == list(range(1000))
    assert code.read == 1000


@pytest.mark.parametrize("name", ["chain", "dots", "layers", "grid"])
def test_views_of_the_arena_by_lines_or_from_a_table(name, monkeypatch):
    f, args = PROGRAMS[name](60)
    by_lines = ad.grad(f)
    f_again, _ = PROGRAMS[name](60)
    f_again.__code__ = f.__code__.replace()
    monkeypatch.setattr(derived, "shared_programs", families.SharedPrograms())
    monkeypatch.setattr(source, "MOST_SPELLED", 10**6)
    assert "arena_views(" not in ad.source(by_lines, *args, emitted=True)
    monkeypatch.setattr(derived, "shared_programs", families.SharedPrograms())  # another program
    monkeypatch.setattr(source, "MOST_SPELLED", 0)
    from_table = ad.grad(f_again)
    for _ in range(2):
        for found, expected in zip(ad.tree.leaves(from_table(*args)), ad.tree.leaves(by_lines(*args))):
            np.testing.assert_array_equal(found, expected, strict=True)
    assert "arena_views(arena, layout)" in from_table.__derived__.last[1].source or name == "grid"


def test_garbage_is_collected_again_afterwards():
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
def test_a_forked_process_collects_garbage_though_another_thread_compiled():
    inside, done = threading.Event(), threading.Event()

    def compiles():
        uncollected.run(lambda: (inside.set(), done.wait()))

    thread = threading.Thread(target=compiles)
    thread.start()
    try:
        assert inside.wait(10)
        child = os.fork()
        if child == 0:
            waits = uncollected.run(lambda: not gc.isenabled())
            os._exit(0 if waits and gc.isenabled() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert not gc.isenabled()  # here the other thread is at it still
    finally:
        done.set()
        thread.join()
    assert gc.isenabled()


@pytest.mark.parametrize("name", rest_slow([n for n in PROGRAMS if n != "large_chain"], keep=2))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_long_programs_do_not_recurse(name):
    f, args = PROGRAMS[name](3000)
    limit = sys.getrecursionlimit()
    value, gradient = ad.value_and_grad(f)(*args)
    assert np.isfinite(value) or name == "numbers"
    assert value == pytest.approx(f(*args), rel=1e-12)
    assert sys.getrecursionlimit() == limit


def test_a_chain_of_exponentials_of_one_number():
    def f(x):
        for _ in range(2000):
            x = np.exp(-x)
        return x

    x = 0.3
    y, slope = x, 1.0
    for _ in range(2000):
        y = float(np.exp(-y))
        slope *= -y
    value, gradient = ad.value_and_grad(f)(x)
    assert value == pytest.approx(y) and gradient == pytest.approx(slope, abs=1e-300)


@pytest.mark.slow
@pytest.mark.parametrize("side", [3, 7, 13])
def test_a_grid_has_the_gradient_of_its_elements(side):
    """Few parts are put together one by one, many at the end: both give the same."""

    def f(x):
        out = np.zeros_like(x, shape=(side, side))
        for i in range(side):
            for j in range(side):
                out[i, j] = np.sin(x[0] * i) + x[1] * j
        out[0, 0] = x[2]
        out[1, :] = x[0]
        return (out * out).sum()

    ad.check_grads(f, (np.linspace(0.1, 1.0, 3),), order=2)


def test_reading_what_a_loop_wrote():
    def f(x):
        out = np.zeros_like(x, shape=(120,))
        out[0] = x[0]
        for i in range(1, 120):
            out[i] = np.sin(out[i - 1]) * x[1] + out[i // 2]
        out[10:20] += x[2]
        return out[::3].sum() + (out[5] * out[119])

    ad.check_grads(f, (np.linspace(0.1, 1.0, 3),), order=2)


def test_parts_that_overlap_in_part_stay_writes():
    def f(x):
        out = np.zeros_like(x, shape=(100,))
        for i in range(98):
            out[i : i + 3] = x * (i + 1.0)
        return (out * out).sum()

    ad.check_grads(f, (np.linspace(0.1, 1.0, 3),), order=2)


class Stretch:
    def __init__(self, nbytes, start, end):
        self.nbytes, self.start, self.end, self.offset = nbytes, start, end, -1


@pytest.mark.parametrize("n", [1, 40, 1500])
def test_stretches_of_memory_that_live_together_lie_apart(n):
    rng = np.random.default_rng(n)
    starts = rng.integers(0, n, n)
    found = [
        Stretch(int(b), int(s), int(s + k))
        for b, s, k in zip(rng.choice([8, 64, 100, 4096], n), starts, rng.integers(0, n // 3 + 1, n))
    ]
    total = offsets(found)
    assert all(0 <= s.offset and s.offset % 64 == 0 and s.offset + s.nbytes <= total for s in found)
    for step in range(0, 2 * n, max(1, n // 50)):
        living = sorted((s.offset, s.nbytes) for s in found if s.start <= step <= s.end)
        assert all(a + size <= b for (a, size), (b, _) in zip(living, living[1:]))
    assert total <= 2 * max(
        sum(-(-s.nbytes // 64) * 64 for s in found if s.start <= t <= s.end) for t in range(2 * n)
    )


@pytest.mark.parametrize("n", [5, 60])
def test_boxes_on_a_map_and_in_pairs(n):
    rng = np.random.default_rng(n)
    for _ in range(20):
        boxes = [
            tuple(range(a, a + int(rng.integers(1, 4)), 1) for a in rng.integers(0, 17, 2)) for _ in range(n)
        ]
        pairs = [all(disjoint(b, c) for j, c in enumerate(boxes) if j != k) for k, b in enumerate(boxes)]
        assert alone(boxes, (20, 20)) == pairs
