"""Recordings that differ in nothing but numbers and arrays share a program, which gives what compiling each
of them gives, to the last bit.
"""

import functools
import threading
from collections import Counter

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff import hidden, tree
from gpt2.autodiff.emit import program, scalar
from gpt2.autodiff.programs import derived, families
from gpt2.autodiff.reuse import same_code
from tests.support import exchanged_numbers

X = np.random.default_rng(0).normal(size=(20, 4))
W = np.linspace(-1.0, 1.5, 4)
GRID = [float(v) for v in np.linspace(0.0131, 0.971, 12)]  # not 0.1: 10 times that is a constant


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No program is known."""
    monkeypatch.setattr(derived, "shared_programs", families.SharedPrograms())
    monkeypatch.setattr(derived, "shared_recordings", same_code.SharedRecordings())


@pytest.fixture
def sources(monkeypatch):
    """How many programs are compiled."""
    load, found = program.load_source, []

    def noted(*args):
        found.append(args)
        return load(*args)

    for module in (program, scalar):
        monkeypatch.setattr(module, "load_source", noted)
    return found


def loss(w, lam):
    r = X @ w - 1.0
    return np.mean(r * r) / lam + 3.0 * lam * np.sum(w * w) + np.sum(np.abs(w) ** (2.5 + lam))


SWEEPS = {
    "grad": lambda c: ad.grad(lambda w: loss(w, c))(W),
    "value_and_grad": lambda c: ad.value_and_grad(lambda w: loss(w, c))(W),
    "vjp": lambda c: ad.vjp(lambda w: loss(w, c), W)[1](1.0),
    "jvp": lambda c: ad.jvp(lambda w: loss(w, c), (W,), (W + 1.0,)),
    "compile": lambda c: ad.compile(lambda w: loss(w, c))(W),
    "vmap": lambda c: ad.vmap(lambda w: np.sum(w * w) * c + np.tanh(w * c))(X),
    "jacobian": lambda c: ad.jacobian(lambda w: np.tanh(w * c) * c)(W),
    "hessian": lambda c: ad.hessian(lambda w: loss(w, c))(W),
    "python floats": lambda c: ad.grad(lambda x: c * x**3 + np.sin(c * x) / c)(2.0),
    "float32": lambda c: ad.grad(lambda w: np.sum(w * w / c))(W.astype("f")),
    "NumPy's float64": lambda c: ad.grad(lambda w: np.sum(w * w) * np.float64(c))(W),
    "an exponent": lambda c: ad.grad(lambda w: np.sum((2.0 + w) ** (c + 2.0)))(W),
    "a bound": lambda c: ad.grad(lambda w: np.sum(np.clip(w * w, 0.1, c + 1.0)))(W),
    "a branch": lambda c: ad.grad(lambda w: np.sum(w * w) * c if w[0] < c else np.sum(w))(W),
    "an array from numbers": lambda c: ad.grad(lambda w: np.sum(w * np.array([c, 1.0, 2.0, 3.0]) / c))(W),
    "a matrix from a number": lambda c: ad.grad(
        lambda w: np.sum(np.linalg.solve(X.T @ X + c * np.eye(4), w))
    )(W),
    "a constant result": lambda c: ad.value_and_grad(lambda w: np.sum(w * c))(W),
}
TWO_PROGRAMS = ("vjp",)
# The body of a loop is compiled by itself, and a rule of the user's is another one each time
WITH_CONSTANTS = {
    "scan": lambda c: ad.grad(
        lambda w: np.sum(ad.scan(lambda y, x: (y + c * np.tanh(y) * x, y), w, np.ones(3))[0])
    )(W),
    "checkpoint": lambda c: ad.grad(lambda w: np.sum(ad.checkpoint(lambda w: np.tanh(w * c) * c)(w)))(W),
    "custom_vjp": lambda c: ad.grad(lambda w: np.sum(with_rule(c)(w) * c))(W),
    "complex": lambda c: ad.compile(lambda w: w * (c * 1j))(W),
}


def with_rule(c):
    square = ad.custom_vjp(lambda x: x * x * c)
    square.defvjp(lambda x: (x * x * c, x), lambda x, g: (2.0 * c * x * g,))
    return square


def compiled_alone(run, c, monkeypatch):
    """What a process gives that never saw another number."""
    with monkeypatch.context() as m:
        m.setattr(derived, "shared_programs", families.SharedPrograms())
        m.setattr(derived, "shared_recordings", same_code.SharedRecordings())
        return run(c)


def bits(result) -> list:
    return [(type(x), np.asarray(x).dtype, np.asarray(x).tobytes()) for x in tree.flatten(result)[0]]


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_compiles_twice(name, sources):
    for c in GRID:
        SWEEPS[name](c)
    assert len(sources) == (4 if name in TWO_PROGRAMS else 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*SWEEPS, *WITH_CONSTANTS])
def test_results_keep_their_bits(name, monkeypatch):
    """Also where the number is one by which programs differ, or equal to a constant of the function's."""
    run = {**SWEEPS, **WITH_CONSTANTS}[name]
    special = [0.5, 1.0, 2.0, 3.0, 4.0, 0.25, -1.5, 0.1, 1e300, 1e-320, -0.0, 0.0, np.inf, np.nan]
    for c in [0.3, 0.7, 0.77, *special[: 6 if name.startswith("a matrix") else None], 0.71]:
        assert bits(run(c)) == bits(compiled_alone(run, c, monkeypatch)), c


def test_a_function_whose_world_changes(sources):
    rate = 0.1
    g = ad.grad(lambda w: np.sum(w * w) * rate)
    for k in range(30):
        rate = 0.1 + k / 7
        assert g(W).tolist() == (2.0 * rate * W).tolist()
    assert len(sources) == 2 and "reused with other constants" in ad.why_recorded(g)
    assert f"{2.0 * rate!r}" in ad.source(g)


def test_what_never_changes_stays_a_constant():
    scale = 0.37
    for _ in range(3):
        g = ad.grad(lambda w: np.sum(w * w) * scale)
        g(W)
    assert "0.74" in ad.source(g, emitted=True) and "hidden" not in ad.source(g, emitted=True)


def test_a_variable_that_is_called_like_a_hidden_number():
    def f(w, c):
        hidden_0 = w * c
        return np.sum(np.tanh(hidden_0) * hidden_0)

    for c in GRID:
        expected = ad.grad(f)(W, np.float64(c))
        np.testing.assert_allclose(ad.grad(functools.partial(f, c=c))(W), expected, rtol=1e-13)


def test_objects_in_results_are_new_at_each_call():
    found = [ad.compile(lambda w, c=c: (w * c, {1}))(W) for c in GRID]
    assert len({id(objects) for _, objects in found}) == len(GRID)
    assert all((x == W * c).all() for c, (x, _) in zip(GRID, found))


def test_threads_that_sweep_at_once():
    run, wrong = SWEEPS["grad"], []
    expected = {c: run(c).tobytes() for c in GRID}

    def sweep(grid):
        wrong.extend(c for c in grid * 5 if run(c).tobytes() != expected[c])

    workers = [threading.Thread(target=sweep, args=(GRID[k:] + GRID[:k],)) for k in (0, 4, 8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_random_graphs():
    counts = Counter()
    for seed in range(25):
        exchanged_numbers.check(seed, counts)
    assert counts["same"] > 60 and counts["refused"] < 5


@pytest.mark.slow
def test_more_random_graphs():
    counts = Counter()
    for seed in range(25, 400):
        exchanged_numbers.check(seed, counts)
    assert counts["same"] > 900


def values_without(asked):
    """Tape.values, which forgets to ask for something."""

    def values(tape, given):
        steps, first = tape.steps, tape._first
        if asked == "decisions":
            tape.steps = [s for s in steps if s[2] is None]
        else:
            tape._first = {}
            tape._keyed = {}
        found = original(tape, given)
        tape.steps, tape._first = steps, first
        return found

    original = hidden.Tape.values
    return values


@pytest.mark.parametrize("asked", ["decisions", "equal constants"])
def test_a_missing_question_is_noticed(asked, monkeypatch):
    monkeypatch.setattr(hidden.Tape, "values", values_without(asked))
    with pytest.raises(exchanged_numbers.Difference):
        for seed in range(300):
            exchanged_numbers.check(seed, Counter())


def test_what_is_not_noted_is_an_error():
    """A Hidden number is no float: a rule that is not written for it ends the attempt to compile with it."""
    x = hidden.Tape([0.3, 0.7]).inputs[0]
    for use in (float, int, hash, str, np.asarray, np.isfinite, lambda x: f"{x}", lambda x: np.ones(2) * x):
        with pytest.raises(TypeError):
            use(x)
