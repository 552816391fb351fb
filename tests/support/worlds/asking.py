"""Questions about a function whose world changes: is its answer current, and is its recording reused?"""

import numpy as np

from gpt2 import autodiff as ad

X = np.array([1.0, 2.0, 3.0])


def outcome(f, *args):
    """What a call gives, or the kind of error that it raises."""
    try:
        return f(*args)
    except ad.AutodiffError:
        raise
    except Exception as error:
        return type(error).__name__


def stays_current(f, change, x=X, differs=True):
    """Is the answer after the change that of a function recorded after it?"""
    g = ad.grad(f)
    for _ in range(3):
        before = outcome(g, x)
    change()
    for _ in range(3):
        found, expected = outcome(g, x), outcome(ad.grad(f), x)
        np.testing.assert_array_equal(found, expected)
    assert differs == (not np.array_equal(before, expected)), "the test should change something"


def is_reused(f, *args):
    g = ad.grad(f)
    g(*args)
    return ad.why_recorded(g) is None
