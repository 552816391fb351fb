"""Writes of every kind into arrays of every dtype, against NumPy: the same bits, or the same error.

    check(write(seed))      "right", "refused", or "undecided", where NumPy refuses it with both arguments

The function is compiled, and called with two arguments of one type: what the first call has recorded must not
hide an error that the second one has.
"""

import random

import numpy as np

from gpt2 import autodiff as ad
from tests.support.tables import sections

GRAMMAR = sections(__file__)


def write(seed: int) -> str:
    """The source of a function f of x, and two arguments for it."""
    rng = random.Random(seed)
    lines = [f"y = {rng.choice(GRAMMAR['made'])}"]
    for _ in range(rng.choice((1, 1, 2))):
        form = rng.choice(GRAMMAR["writes"])
        lines.append(form.format(i=rng.choice(GRAMMAR["places"]), v=rng.choice(GRAMMAR["numbers"])))
    first, second = rng.choice(GRAMMAR["arguments"]).split(" | ")
    body = "\n    ".join(lines)
    return f"def f(x):\n    {body}\n    return y\nfirst, second = {first}, {second}\n"


def check(source: str) -> str:
    """How it went; raises AssertionError with the source where the result differs."""
    names = {"np": np}
    exec(source, names)
    f, first, second = names["f"], names["first"], names["second"]
    compiled, seen = ad.compile(f), set()
    for x in (first, second, second, first):
        wanted, after = _outcome(f, x)
        found, also = _outcome(compiled, x)
        refused = isinstance(found, (ad.AutodiffError, ValueError, TypeError, IndexError, OverflowError))
        refused |= isinstance(found, Exception) and type(found) is type(wanted)
        seen.add("undecided" if isinstance(wanted, Exception) else "refused" if refused else "right")
        same = refused or _same(found, wanted) and _same(also, after)
        assert same, f"{found!r} for {wanted!r}, x {also!r} for {after!r} of {x!r} in\n{source}"
    return next(outcome for outcome in ("right", "refused", "undecided") if outcome in seen)


def _outcome(f, x):
    """What f gives or raises, and its argument afterwards."""
    x = np.array(x) if isinstance(x, np.ndarray) else x
    with np.errstate(all="ignore"):
        try:
            return f(x), x
        except Exception as error:
            return error, x


def _same(a, b) -> bool:
    if isinstance(a, Exception) or isinstance(b, Exception):
        return False
    if type(a) is list:  # of NumPy's integer times a list
        return a == b
    return (
        type(a) is type(b)
        and np.result_type(a) == np.result_type(b)
        and np.shape(a) == np.shape(b)
        and (np.array_equal(a, b, equal_nan=np.result_type(a).kind in "fc"))
    )
