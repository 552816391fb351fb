"""Questions about a derived function: was it run again, and is its answer current after a change?"""

import functools

import numpy as np

from gpt2 import autodiff as ad

X = np.array([1.0, 2.0, 3.0])


def recordings(f):
    """(f with a counter, function that returns how often it ran)."""
    count = [0]

    @functools.wraps(f)
    def counted(*args, **kwargs):
        count.append(1)
        return f(*args, **kwargs)

    return counted, lambda: len(count) - 1


def is_reused(f, *args):
    """Is the second call of the gradient served from the first recording?"""
    g = ad.grad(f)
    g(*args)
    return ad.why_recorded(g) is None


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
