"""Recordings that differ only in constants share a program, which has the bits of separate programs."""

import functools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff import hidden, tree
from gpt2.autodiff.emit import program, scalar
from gpt2.autodiff.programs import derived, families
from gpt2.autodiff.reuse import same_code
from tests.support.calls import exchanged_numbers

X = np.random.default_rng(0).normal(size=(20, 4))
W = np.linspace(-1.0, 1.5, 4)
GRID = np.linspace(0.0131, 0.971, 12).tolist()  # without 0.1, as 10 * 0.1 is equal to a constant of loss


def clear_caches(monkeypatch):
    monkeypatch.setattr(derived, "shared_programs", families.SharedPrograms())
    monkeypatch.setattr(derived, "shared_recordings", same_code.SharedRecordings())


@pytest.fixture(autouse=True)
def cleared(monkeypatch):
    clear_caches(monkeypatch)


@pytest.fixture
def sources(monkeypatch):
    """A list that grows with each compiled program."""
    load, loaded = program.load_source, []

    def load_source(*args):
        loaded.append(args)
        return load(*args)

    for module in (program, scalar):
        monkeypatch.setattr(module, "load_source", load_source)
    return loaded


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
# Compiled with each constant: the body of a loop is a program of its own, and each custom rule is a new one
NOT_SHARED = {
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


def bits(result) -> list:
    return [(type(x), np.asarray(x).dtype, np.asarray(x).tobytes()) for x in tree.flatten(result)[0]]


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_compiles_twice(name, sources):
    for c in GRID:
        SWEEPS[name](c)
    assert len(sources) == (4 if name == "vjp" else 2)  # a pullback is a program of its own


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*SWEEPS, *NOT_SHARED])
def test_shared_program_has_the_bits_of_a_separate_one(name, monkeypatch):
    """Also for numbers that need another program, and for those equal to a constant of the function."""
    run = {**SWEEPS, **NOT_SHARED}[name]
    special = [0.5, 1.0, 2.0, 3.0, 4.0, 0.25, -1.5, 0.1, 1e300, 1e-320, -0.0, 0.0, np.inf, np.nan]
    for c in [0.3, 0.7, 0.77, *special[: 6 if name.startswith("a matrix") else None], 0.71]:
        shared = bits(run(c))
        with monkeypatch.context() as separate:
            clear_caches(separate)
            assert shared == bits(run(c)), c


def test_a_changing_closed_over_number_compiles_twice(sources):
    rate = 0.1
    g = ad.grad(lambda w: np.sum(w * w) * rate)
    for k in range(30):
        rate = 0.1 + k / 7
        assert g(W).tolist() == (2.0 * rate * W).tolist()
    assert len(sources) == 2 and "reused with other constants" in ad.why_recorded(g)
    assert f"{2.0 * rate!r}" in ad.source(g)


def test_a_number_that_never_changes_stays_a_constant():
    scale = 0.37
    for _ in range(3):
        g = ad.grad(lambda w: np.sum(w * w) * scale)
        g(W)
    assert "0.74" in ad.source(g, emitted=True) and "hidden" not in ad.source(g, emitted=True)


def test_user_variable_named_like_a_hidden_constant():
    def f(w, c):
        hidden_0_number = w * c
        return np.sum(np.tanh(hidden_0_number) * hidden_0_number)

    for c in GRID:
        expected = ad.grad(f)(W, np.float64(c))
        np.testing.assert_allclose(ad.grad(functools.partial(f, c=c))(W), expected, rtol=1e-13)


def test_variables_numbered_like_hidden_constants():
    """The second variable of the name `hidden` is hidden_2 in a program."""

    def made(a, b, c, d):
        def f(w):
            hidden = np.tanh(w) * a
            hidden = np.exp(hidden) + b
            hidden = np.sin(hidden) * c
            return np.cos(hidden) * d

        return f

    for c in GRID:
        f = made(c, c + 0.21, c + 0.35, c + 0.47)
        np.testing.assert_array_equal(ad.compile(f)(W), f(W))


def test_objects_in_results_are_new_at_each_call():
    results = [ad.compile(lambda w, c=c: (w * c, {1}))(W) for c in GRID]
    assert len({id(objects) for _, objects in results}) == len(GRID)
    assert all((x == W * c).all() for c, (x, _) in zip(GRID, results))


def test_concurrent_sweeps():
    run = SWEEPS["grad"]
    expected = {c: run(c).tobytes() for c in GRID}

    def wrong(k):
        return [c for c in (GRID[k:] + GRID[:k]) * 5 if run(c).tobytes() != expected[c]]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(wrong, (0, 4, 8))) == [[], [], []]


@pytest.mark.parametrize(
    ("seeds", "fewest_shared"), [(range(25), 60), pytest.param(range(25, 200), 420, marks=pytest.mark.slow)]
)
def test_random_graphs_with_exchanged_constants(seeds, fewest_shared):
    counts = Counter()
    for seed in seeds:
        exchanged_numbers.check(seed, counts)
    assert counts["same"] > fewest_shared and counts["refused"] < len(seeds) / 5


@pytest.mark.parametrize("skipped", ["decisions", "equal constants"])
def test_random_graphs_detect_a_missing_comparison(skipped, monkeypatch):
    original = hidden.Tape.values

    def values(tape, inputs):
        with monkeypatch.context() as m:
            if skipped == "decisions":
                m.setattr(tape, "steps", [s for s in tape.steps if s[2] is None])
            else:
                m.setattr(tape, "_first", {})
                m.setattr(tape, "_keyed", {})
            return original(tape, inputs)

    monkeypatch.setattr(hidden.Tape, "values", values)
    with pytest.raises(exchanged_numbers.Difference):
        for seed in range(300):
            exchanged_numbers.check(seed, Counter())


def test_operations_without_a_hidden_form_raise_type_error():
    """A Hidden is not a float. The compiler then compiles with the constants."""
    x = hidden.Tape([0.3, 0.7]).inputs[0]
    for use in (float, int, hash, str, np.asarray, np.isfinite, lambda x: f"{x}", lambda x: np.ones(2) * x):
        with pytest.raises(TypeError):
            use(x)
