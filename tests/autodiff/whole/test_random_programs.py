"""Random NumPy programs: derived gradients against differences of the program itself, forward mode against
reverse, optimised against not, emitted against evaluated. tests.long.seeds runs thousands."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.ops import OPS
from gpt2.autodiff.run import kernels
from tests.support.random import programs as random_programs
from tests.support.random.programs import Difference, Program, check, shrink, write
from tests.support.slow import rest_slow
from tests.support.small_sizes import SMALL_SIZES


@pytest.fixture(autouse=True)
def tiny_regions(monkeypatch):
    """Arrays of a few numbers take the paths of large ones."""
    for module, name, n in SMALL_SIZES:
        monkeypatch.setattr(module, name, n)


@pytest.mark.parametrize("start", rest_slow(range(0, 200, 20), keep=2))
def test_random_programs(start):
    undecided = sum(_checked(write(seed), api=seed % 4 == 0) for seed in range(start, start + 20))
    assert undecided <= 2  # near a kink differences say nothing; that must stay the exception


def _checked(program, api):
    try:
        return check(program, api).undecided
    except Difference as error:
        small = shrink(program, error)
        pytest.fail(f"{error}\nthe smallest program found that fails so:\n{small.reproducer()}")


def test_programs_hold_what_they_are_made_for():
    """Of 200 programs a fair share writes in place, branches, loops, multiplies, indexes by arrays."""
    programs = [str(write(seed)) for seed in range(200)]
    for text in ("+= ", "] = ", "out=", "for ", "if ", "while ", " @ ", "axis=", "[[", "np.sort", "np.where"):
        assert sum(text in p for p in programs) >= 5, text
    assert len(set(programs)) > 190


def test_a_wrong_rule_is_found_and_shrunk(monkeypatch):
    """tanh' without its square is noticed, in a program of one statement."""
    monkeypatch.setattr(OPS["tanh"], "partials", lambda out, x: (1.0 - out,))
    x = np.array([0.3, -0.4])
    body = ("t0 = np.sin(x)", "t1 = np.tanh(t0)", "t2 = t1 * x", "t2[0] = 1.0", "t3 = np.cos(x)")
    program = Program({"x": x}, body, ("t2", "t3"))
    with pytest.raises(Difference, match="central differences") as error:
        check(program)
    small = shrink(program, error.value)
    assert len(small.body) <= 3 and "np.tanh" in str(small) and small.results == ("t2",)
    assert "np.array([0.3, -0.4])" in small.reproducer()


def test_a_difference_in_emitted_code_is_found(monkeypatch):
    monkeypatch.setattr(
        random_programs,
        "EmittedProgram",
        lambda graph: lambda *a: [x + 1e-6 for x in random_programs.evaluate_graph(graph, a)],
    )
    with pytest.raises(Difference, match="emitted and evaluated"):
        check(Program({"x": np.array([0.3, 2.0])}, ("t0 = np.sin(x)",), ("t0",)))


# Bugs that random programs found


@pytest.mark.parametrize(
    "f, wanted",
    [
        (lambda x: np.sum(x[[0, 2], 1:2] ** 2), [[0, 2, 0, 0], [0] * 4, [0, 18, 0, 0]]),
        (lambda x: np.sum(x[[0, 2], ::-1] * np.arange(4.0)), [[3, 2, 1, 0], [0] * 4, [3, 2, 1, 0]]),
        (lambda x: np.sum(x[np.argmax(x[:, 0])] * np.arange(4.0)), [[0] * 4, [0] * 4, [0, 1, 2, 3]]),
        (lambda x: np.sum(x[[0, 2], None] * np.arange(4.0)), [[0, 1, 2, 3], [0] * 4, [0, 1, 2, 3]]),
    ],
)
def test_rows_and_parts_of_rows(f, wanted):
    x = np.arange(12.0).reshape(3, 4)
    assert np.array_equal(ad.grad(f)(x), wanted) and ad.compile(f)(x) == f(x)


def test_memory_is_reused_only_if_all_views_of_it_are_possible():
    """The gradient of t2 lies in that of y, transposed; read flat, it cannot be."""
    body = ("t2 = y.T", "t2[-1] -= np.cos(t2[0])", "t4 = np.ravel(t2)", "t11 = t4.mean()", "t14 = x + t11")
    rng = np.random.default_rng(0)
    check(Program({"x": rng.standard_normal((3, 3)), "y": rng.standard_normal((4, 3))}, body, ("t14",)))


def test_one_row_by_a_constant_number():
    table, out = np.arange(6.0).reshape(3, 2), np.empty(2)
    kernels.take_rows(table, 1, out)
    kernels.add_rows(table, 2, out)
    assert np.array_equal(out, [2, 3]) and np.array_equal(table[2], [6, 8])


@pytest.mark.parametrize("seed", [33537, 39865, 33288, 81474, 90324, 91497, 503696, 505440])
def test_programs_that_failed_once(seed):
    """Rules that undid each other; a maximum compared with an argument computed again, rounded otherwise; a
    reduction of one slice that was a view of it, and was written to; a view of what the program makes on the
    way, wanted before; hypot of one slice, which is its size; an array of one element that is held as a
    number, in a sum of products."""
    check(write(seed), api=seed % 4 == 0)
