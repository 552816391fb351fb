"""Programs as they stand in textbooks, with np.zeros and loops (bench/studies/textbook.py)."""

import numpy as np
import pytest

from bench.studies.textbook import PROGRAMS
from gpt2 import autodiff as ad


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_are_those_of_jax(name):
    """To 1e-10: the same sums in another order. Later calls use the program of the first."""
    jax = pytest.importorskip("jax")
    program, rewritten, (x, *rest) = PROGRAMS[name]
    g = ad.grad(program)
    with jax.experimental.enable_x64() if hasattr(jax.experimental, "enable_x64") else jax.enable_x64(True):
        for at in (x, x * 1.01, x):
            wanted = np.asarray(jax.grad(lambda x: rewritten(jax.numpy, x, *rest))(at))
            np.testing.assert_allclose(g(at, *rest), wanted, rtol=1e-10, atol=1e-10 * np.max(np.abs(wanted)))
            assert ad.compile(program)(at, *rest) == pytest.approx(float(rewritten(np, at, *rest)), rel=1e-12)
    assert ad.why_recorded(g) is None
