"""Comparison of trees of arrays."""

import numpy as np

from gpt2 import autodiff as ad


def assert_close(actual, expected, rtol=1e-12, atol=0.0):
    """The leaves of two trees are equal within a tolerance; containers may be of different types."""
    for a, b in zip(ad.tree.leaves(actual), ad.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
