"""Whether a function was run again, or what was recorded of it was used again."""

import functools

from gpt2 import autodiff as ad


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
