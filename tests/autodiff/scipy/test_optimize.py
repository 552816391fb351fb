"""gpt2.autodiff.scipy.optimize."""

import numpy as np
import pytest

pytest.importorskip("scipy", reason="SciPy is not installed")
from gpt2.autodiff.scipy import optimize


def banana(p, k):
    return (p["x"] - 1.0) ** 2 + k * np.sum((p["y"][0] - p["x"] ** 2) ** 2)


def test_minimize_takes_trees():
    result = optimize.minimize(banana, {"x": 0.0, "y": [np.zeros(2)]}, (100.0,), tol=1e-10)
    assert result.success and result.x["x"] == pytest.approx(1.0) and result.jac.keys() == result.x.keys()
    np.testing.assert_allclose(result.x["y"][0], 1.0, rtol=1e-6)
    assert (
        optimize.minimize(banana, {"x": 0.0, "y": [np.zeros(2)]}, (1.0,), "CG", options={"maxiter": 1}).nit
        == 1
    )


def test_what_it_does_not_take():
    with pytest.raises(TypeError, match="derived here"):
        optimize.minimize(banana, {"x": 0.0}, jac=True)
    assert optimize.brentq(lambda x: x - 1, 0, 3) == pytest.approx(1.0)
