"""Compiling takes time in proportion to the program, and no recursion: counted in work, not in seconds."""

import functools
import sys

import numpy as np
import pytest

from bench.growth import PROGRAMS
from gpt2 import autodiff as ad
from gpt2.autodiff.emit.arena import offsets
from gpt2.autodiff.ops.boxes import alone, disjoint

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


@pytest.mark.parametrize("name", PROGRAMS)
def test_twice_the_program_is_twice_the_work(name):
    counts = []
    for n in (320, 640):
        f, args = PROGRAMS[name](n)
        counts.append(work(functools.partial(ad.grad(f), *args)))
    assert counts[1] < MOST * counts[0]


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "large_chain"])
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
