"""Benchmark programs other than networks: all contenders agree, and a wrong derivative stops the study."""

import functools
import importlib

import numpy as np
import pytest

from bench import programs
from bench.programs.inputs import flat, inputs
from bench.studies import program_times

JAX_NAMES = ("hello", "hidden-markov")  # JAX takes a second to compile each


@functools.cache
def derivatives(module, name, variant="eager"):
    contender = importlib.import_module(f"bench.programs.{module}")
    return flat(contender.program(name, variant, inputs(name, tiny=True))())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "module", "names"),
    [("autograd", "hips", programs.NAMES), ("torch", "pytorch", programs.NAMES), ("jax", "xla", JAX_NAMES)],
)
def test_contenders_have_the_same_derivatives(package, module, names):
    pytest.importorskip(package)
    torch = importlib.import_module("torch") if package == "torch" else None
    before = torch and torch.get_default_dtype()
    try:
        for name in names:
            got, expected = derivatives(module, name), derivatives("own", name)
            assert np.any(expected != 0.0), name
            atol = 1e-9 * np.abs(expected).max()
            np.testing.assert_allclose(got, expected, rtol=0, atol=atol, err_msg=name)
    finally:
        if torch:
            torch.set_default_dtype(before)


def test_derivatives_agree_with_finite_differences():
    """All contenders could agree and still be wrong."""
    from bench.programs import formulas, own

    args = inputs("kalman", tiny=True)
    step = 1e-6 * np.eye(2)[0]
    more, less = ((*args[:2], args[2] + d, *args[3:]) for d in (step, -step))
    values = [formulas.kalman(own.NUMPY, *given) for given in (more, less)]
    slope = (values[0] - values[1]) / 2e-6
    assert derivatives("own", "kalman")[-2] == pytest.approx(slope, rel=1e-7)


def test_wrong_derivative_stops_the_study(tmp_path):
    np.save(tmp_path / "own.npy", np.array([1.0, 2.0]))
    np.save(tmp_path / "jax.npy", np.array([1.0, 2.0 + 1e-6]))
    with pytest.raises(AssertionError, match="lse, jax: derivatives are off by 5.0e-07"):
        program_times.check("lse", tmp_path, {"own": {}, "jax": {}})
    np.save(tmp_path / "own.npy", np.zeros(2))
    with pytest.raises(AssertionError, match="zero"):
        program_times.check("lse", tmp_path, {"own": {}})
